"""Rows of the store: read into values, and written within a transaction that the caller holds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, select, update

from headwater.control import tables as t
from headwater.control.lifecycle import Phase, move
from headwater.control.records import Change, JournalEntry, StepState, Wish
from headwater.metrics import Progress
from headwater.plan.document import digest, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import CanarySettings, Incarnation, Standing, Step, step_from_data, step_to_data


def wish_of(row: Any) -> Wish:
    """Read a wish."""
    options = json.loads(row.options)
    canary = options.get("canary")
    return Wish(
        deployment=row.deployment,
        version=row.version,
        goal=row.goal,
        plan=row.plan,
        reset_state=frozenset(options.get("reset_state", ())),
        canary=CanarySettings(**canary) if canary else None,
        at=row.at,
    )


def change_of(row: Any) -> Change:
    """Read a change."""
    values = dict(row._mapping)
    baseline = values.pop("baseline")
    return Change(**values, baseline=Progress.from_data(json.loads(baseline)) if baseline else None)


def entry_of(row: Any) -> JournalEntry:
    """Read a step of the journal."""
    step = step_from_data(json.loads(row.step))
    return JournalEntry(
        number=row.number, step=step, state=row.state, note=row.note, begun=row.begun, ended=row.ended
    )


def record_of(connection: Connection, name: str) -> Any:
    """Give a deployment's row."""
    return connection.execute(select(t.deployments).where(t.deployments.c.name == name)).one()


def keep_plan(connection: Connection, plan: DeploymentPlan) -> str:
    """Store a plan, if it is not there, and give its id."""
    document = to_document(plan)
    id_ = digest(document)
    if connection.execute(select(t.plans.c.id).where(t.plans.c.id == id_)).first() is None:
        connection.execute(insert(t.plans).values(id=id_, document=json.dumps(document)))
    return id_


def baseline_of(connection: Connection, name: str) -> str | None:
    """Join what the zones last said into what a canary is held against."""
    query = select(t.reports.c.progress).where(t.reports.c.deployment == name)
    found = [Progress.from_data(json.loads(p)) for (p,) in connection.execute(query) if p]
    whole = Progress(seconds=0.0, units=tuple(u for p in found for u in p.units))
    return json.dumps(whole.to_data()) if found else None


def add_steps(connection: Connection, change: int, steps: Sequence[Step], *, first: int) -> None:
    """Journal steps from a number on."""
    rows = [
        {"change": change, "number": n, "step": json.dumps(step_to_data(s)), "state": "todo", "note": ""}
        for n, s in enumerate(steps, start=first)
    ]
    if rows:
        connection.execute(insert(t.journal), rows)


def set_step(connection: Connection, change: int, number: int, state: StepState, note: str = "") -> None:
    """Say how far a step is, and since when."""
    where = and_(t.journal.c.change == change, t.journal.c.number == number)
    since = {"begun": "begun", "done": "ended"}.get(state)
    moment = {since: time.time()} if since else {}
    connection.execute(update(t.journal).where(where).values(state=state, note=note, **moment))


def set_phase(connection: Connection, name: str, phase: Phase, message: str | None, **values: Any) -> None:
    """Move a deployment to a phase, along a declared way."""
    now = record_of(connection, name).phase
    move(now, phase, where=f"deployment '{name}'")
    if message is not None:
        values["message"] = message
    connection.execute(
        update(t.deployments)
        .where(t.deployments.c.name == name)
        .values(phase=phase, updated=time.time(), **values)
    )


def set_standings(connection: Connection, name: str, standings: Mapping[Incarnation, Standing]) -> None:
    """Say where all units of a deployment stand."""
    connection.execute(delete(t.units).where(t.units.c.deployment == name))
    rows = [
        {
            "deployment": name, "unit": unit, "tag": tag, "epoch": epoch,
            "plan": s.plan, "runs": s.runs, "sure": s.sure,
        }
        for (unit, tag, epoch), s in standings.items()
    ]  # fmt: skip
    if rows:
        connection.execute(insert(t.units), rows)


def tell(connection: Connection, name: str, text: str) -> None:
    """Add an event."""
    connection.execute(insert(t.events).values(deployment=name, at=time.time(), text=text))
