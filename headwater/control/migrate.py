"""Migrate a store of an older version: tables, columns and plan documents.

A plan document of an older format is upgraded and gets another id; all references to it are changed with it. A document
that cannot be upgraded stays as it is where nothing needs it; otherwise the store is refused, unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, inspect, select, update

from headwater.control import tables as t
from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.plan.document import FORMAT, digest, stored_parts
from headwater.plan.upgrade import upgraded

_REFERENCES: tuple[tuple[Table, str], ...] = (
    (t.deployments, "active_plan"),
    (t.desired_states, "plan"),
    (t.changes, "plan"),
    (t.changes, "before"),
    (t.units, "plan"),
    (t.decisions, "plan"),
    (t.decisions, "before"),
)


def bring_up_to_date(connection: Connection, *, where: str) -> None:
    """Create missing tables, and migrate a store of an older version."""
    older = inspect(connection).has_table(t.meta.name) and t.is_older(connection, where=where)
    t.create_tables(connection, where=where)
    if older:
        what = t.memory.c.what
        connection.execute(update(t.memory).where(what == "promise").values(what="slo"))
        _upgrade_plans(connection)


def _upgrade_plans(connection: Connection) -> None:
    needed = _needed(connection)
    for id_, text in connection.execute(select(t.plans.c.id, t.plans.c.document)).all():
        document: dict[str, Any] = json.loads(text)
        if document.get("plan") == FORMAT:
            continue
        try:
            now = keep_document(connection, upgraded(document))
        except HeadwaterError as error:
            if id_ not in needed:
                continue
            raise DeploymentError(
                f"it holds an active plan that this version cannot read: {error.what}",
                where=f"the store, {error.where or needed[id_]}",
                hint=error.hint,
            ) from error
        if now != id_:
            _rename(connection, id_, now)


def _needed(connection: Connection) -> dict[str, str]:
    """Return the plans that are active or wanted, each with its deployment."""
    found: dict[str, str] = {}
    for query in (
        select(t.deployments.c.active_plan, t.deployments.c.name),
        select(t.units.c.plan, t.units.c.deployment),
        select(t.changes.c.plan, t.changes.c.deployment).where(t.changes.c.ended.is_(None)),
        select(t.desired_states.c.plan, t.desired_states.c.deployment)
        .join(t.deployments, t.deployments.c.name == t.desired_states.c.deployment)
        .where(t.desired_states.c.version == t.deployments.c.version),
    ):
        found |= {plan: f"deployment '{name}'" for plan, name in connection.execute(query) if plan}
    return found


def _rename(connection: Connection, old: str, new: str) -> None:
    for table, column in _REFERENCES:
        own = table.c[column]
        connection.execute(update(table).where(own == old).values({column: new}))
    step = t.journal.c.step
    connection.execute(update(t.journal).where(step.contains(old)).values(step=func.replace(step, old, new)))
    connection.execute(delete(t.plans).where(t.plans.c.id == old))


def keep_document(connection: Connection, document: dict[str, Any] | Any) -> str:
    """Store a plan's document if it is missing and return its id; each continuum is stored once."""
    continuum, rest = stored_parts(document)
    _keep(connection, t.continua, rest["continuum"], continuum)
    id_ = digest(rest)
    _keep(connection, t.plans, id_, rest)
    return id_


def _keep(connection: Connection, table: Table, id_: str, document: Any) -> None:
    if connection.execute(select(table.c.id).where(table.c.id == id_)).first() is None:
        connection.execute(insert(table).values(id=id_, document=json.dumps(document)))
