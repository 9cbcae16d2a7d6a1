"""Names known to a store, read from its tables alone: fast enough for shell completion.

Plans are not loaded: their documents are searched. Nothing here raises; unreadable data has no names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Select, create_engine, select

from headwater.control import tables as t

Kind = Literal[
    "deployments",
    "pools",
    "submissions",
    "owners",
    "decisions",
    "zones",
    "layers",
    "locations",
    "operators",
    "units",
]
_IN_PLANS: Mapping[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {
    "locations": lambda plan: plan["dataflow"]["locations"],
    "operators": lambda plan: plan["tags"],
    "units": lambda plan: map(_unit, plan["units"]),
}
_IN_CONTINUA = ("zones", "layers")
_IN_TABLES: Mapping[str, Select[Any]] = {
    "deployments": select(t.deployments.c.name),
    "pools": select(t.submissions.c.pool),
    "submissions": select(t.submissions.c.name).where(t.submissions.c.removed.is_(None)),
    "owners": select(t.owners.c.name),
    "decisions": select(t.decisions.c.id).where(t.decisions.c.state == "proposed"),
}
_WAIT_MS = 300
_MOST = 50
"""Maximum number of plans that are searched."""


def names(kind: Kind, store_url: str | Path, *, of: str | None = None) -> list[str]:
    """Return the names of a kind, sorted; ``of``: only those in plans of this deployment."""
    with contextlib.suppress(Exception):
        url = t.url_of(store_url)
        if url.get_backend_name() != "sqlite":
            url = url.update_query_dict({"connect_timeout": "2"})
        elif not Path(url.database or "").is_file():
            return []
        engine = create_engine(url, hide_parameters=True)
        try:
            with engine.connect() as connection:
                if url.get_backend_name() == "sqlite":
                    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_WAIT_MS}")
                    connection.exec_driver_sql("PRAGMA query_only = ON")
                return sorted(set(_found(connection, kind, of)))
        finally:
            engine.dispose()
    return []


def _found(connection: Connection, kind: Kind, of: str | None) -> Iterable[str]:
    if kind in _IN_TABLES:
        return [str(row[0]) for row in connection.execute(_IN_TABLES[kind])]
    in_force = select(t.plans.c.document).join(t.deployments, t.deployments.c.active_plan == t.plans.c.id)
    if of is not None:
        in_force = in_force.where(t.deployments.c.name == of)
    plans = [json.loads(row[0]) for row in connection.execute(in_force.limit(_MOST))]
    if kind not in _IN_CONTINUA:
        return [name for plan in plans for name in _IN_PLANS[kind](plan)]
    theirs = t.continua.c.id.in_({plan["continuum"] for plan in plans})
    continua = connection.execute(select(t.continua.c.document).where(theirs))
    return [name for row in continua for name in json.loads(row[0])[kind]]


def _unit(document: Mapping[str, Any]) -> str:
    """Return a unit's id as its plan has it, without the cost of importing plans."""
    part = document["part"]
    share = "" if part is None else f".{part['index'] + 1}of{part['count']}"
    return f"{document['name']}{share}@{document['node']}"
