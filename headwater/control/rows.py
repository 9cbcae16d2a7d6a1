"""Rows of the store: read into values, or written within the caller's transaction."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, func, insert, select, update

from headwater.control import tables as t
from headwater.control.lifecycle import Goal, Phase, move
from headwater.control.records import Change, Decision, DesiredState, JournalEntry, StepState
from headwater.core.errors import DeploymentError
from headwater.core.jsonform import dump_json, load_json
from headwater.core.metrics import Progress
from headwater.plan.document import continuum_id, plan_id, stored_form
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import AnyStep, CanarySettings, Incarnation, Step, UnitStatus

DAMAGED = "it was damaged, or written by another version of Headwater"

# Statements of every step are built once: building one takes longer than its execution.
_OF: BindParameter[Any] = bindparam("of")
_RECORD = select(t.deployments).where(t.deployments.c.name == _OF)
_UPDATE_RECORD = update(t.deployments).where(t.deployments.c.name == _OF)
_UPDATE_STEP = update(t.journal).where(t.journal.c.change == _OF, t.journal.c.number == bindparam("at"))
_DELETE_UNITS = delete(t.units).where(t.units.c.deployment == _OF)
_INSERT_UNITS = insert(t.units)


def desired_state_of(row: Any) -> DesiredState:
    """Read a desired state."""
    options = json.loads(row.options)
    canary = options.get("canary")
    return DesiredState(
        deployment=row.deployment,
        version=row.version,
        goal=row.goal,
        plan=row.plan,
        reset_state=frozenset(options.get("reset_state", ())),
        canary=CanarySettings(**canary) if canary else None,
        former_output=options.get("former_output", "refuse"),
        at=row.at,
    )


def change_of(row: Any) -> Change:
    """Read a change."""
    values = dict(row._mapping)
    baseline = values.pop("baseline")
    measured = load_json(Progress, baseline, what="measurements") if baseline else None
    return Change(**values, baseline=measured)


def entry_of(row: Any) -> JournalEntry:
    """Read a step of the journal."""
    step: Step = load_json(AnyStep, row.step, what="a step of the journal", hint=DAMAGED)
    return JournalEntry(number=row.number, step=step, state=row.state, note=row.note, begun=row.begun, ended=row.ended)


def decision_of(row: Any) -> Decision:
    """Read a decision."""
    values = dict(row._mapping)
    data, after = json.loads(values.pop("data")), values.pop("after")
    return Decision(**values, data=data, after=json.loads(after) if after else None)


def record_of(connection: Connection, name: str) -> Any:
    """Return a deployment's row."""
    return connection.execute(_RECORD, {"of": name}).one()


def keep_plan(connection: Connection, plan: DeploymentPlan) -> str:
    """Store a plan if it is missing and return its id."""
    id_, continuum = plan_id(plan), continuum_id(plan.continuum)
    if connection.execute(select(t.plans.c.id).where(t.plans.c.id == id_)).first() is None:
        connection.execute(insert(t.plans).values(id=id_, document=json.dumps(stored_form(plan))))
        there = select(t.continua.c.id).where(t.continua.c.id == continuum)
        if connection.execute(there).first() is None:
            text = json.dumps(plan.continuum.to_data())
            connection.execute(insert(t.continua).values(id=continuum, document=text))
    return id_


def add_desired_state(
    connection: Connection,
    name: str,
    goal: Goal,
    plan_id: str | None,
    options: Mapping[str, Any],
    *,
    after: int | None = None,
) -> int:
    """Store a desired state and return its version; raise DeploymentError where the newest one is not ``after``."""
    now = time.time()
    record = connection.execute(select(t.deployments).where(t.deployments.c.name == name)).first()
    version = record.version + 1 if record else 1
    if after is not None and version != after + 1:
        raise DeploymentError(
            f"version {version - 1} was stored meanwhile",
            where=f"deployment '{name}'",
            hint="look at its changes, and apply again",
        )
    if record is None:
        values = {"name": name, "version": 1, "observed_version": 0, "phase": "wanted", "message": ""}
        connection.execute(insert(t.deployments).values(**values, updated=now))
    else:
        # A change under way keeps its phase: the controller leaves it at a safe point.
        phase = record.phase if record.version > record.observed_version else "wanted"
        connection.execute(
            update(t.deployments).where(t.deployments.c.name == name).values(version=version, phase=phase, updated=now)
        )
    connection.execute(
        insert(t.desired_states).values(
            deployment=name, version=version, goal=goal, plan=plan_id, options=json.dumps(options), at=now
        )
    )
    what = "a new plan is wanted" if goal == "run" else f"wanted: {goal}"
    tell(connection, name, f"version {version}: {what}")
    return version


def baseline_of(connection: Connection, name: str) -> str | None:
    """Join the nodes' last reports into the baseline of a canary."""
    query = select(t.reports.c.progress).where(t.reports.c.deployment == name)
    found = [load_json(Progress, p, what="measurements") for (p,) in connection.execute(query) if p]
    whole = Progress(seconds=0.0, units=tuple(u for p in found for u in p.units))
    return dump_json(whole).decode() if found else None


def add_steps(connection: Connection, change: int, steps: Sequence[Step], *, first: int) -> None:
    """Append steps to the journal, numbered from ``first``."""
    rows = [
        {"change": change, "number": n, "step": dump_json(s).decode(), "state": "todo", "note": ""}
        for n, s in enumerate(steps, start=first)
    ]
    if rows:
        connection.execute(insert(t.journal), rows)


def set_step(connection: Connection, change: int, number: int, state: StepState, note: str = "") -> None:
    """Set the state of a step, and its time."""
    since = {"begun": "begun", "done": "ended"}.get(state)
    moment = {since: time.time()} if since else {}
    connection.execute(_UPDATE_STEP, {"of": change, "at": number, "state": state, "note": note, **moment})


def set_phase(connection: Connection, name: str, phase: Phase, message: str | None, **values: Any) -> None:
    """Move a deployment to a phase; raise DeploymentError where no transition leads there."""
    now = record_of(connection, name).phase
    move(now, phase, where=f"deployment '{name}'")
    if message is not None:
        values["message"] = message
    connection.execute(_UPDATE_RECORD, {"of": name, "phase": phase, "updated": time.time(), **values})


def set_unit_statuses(connection: Connection, name: str, unit_statuses: Mapping[Incarnation, UnitStatus]) -> None:
    """Replace all unit statuses of a deployment."""
    connection.execute(_DELETE_UNITS, {"of": name})
    rows = [
        {
            "deployment": name, "unit": unit, "tag": tag, "epoch": epoch,
            "plan": s.plan, "runs": s.runs, "sure": s.sure, "ahead": s.ahead,
        }
        for (unit, tag, epoch), s in unit_statuses.items()
    ]  # fmt: skip
    if rows:
        connection.execute(_INSERT_UNITS, rows)


MOST_ALIKE = 10
"""Events about one subject within an hour, from which on further ones are only counted."""
KEPT_ALIKE = 100
"""Events about one subject that are kept."""
_MORE = re.compile(r" \(and (\d+) more\)$")


def tell_again(connection: Connection, name: str, subject: str, text: str) -> None:
    """Add an event that may recur, and begins with its subject: many within an hour become a count, old ones go."""
    column = t.events.c
    alike = and_(column.deployment == name, func.substr(column.text, 1, len(subject)) == subject)
    known = connection.execute(select(t.events).where(alike).order_by(column.id.desc()).limit(KEPT_ALIKE)).all()
    if sum(row.at > time.time() - 3600 for row in known) < MOST_ALIKE:
        tell(connection, name, text)
        if len(known) == KEPT_ALIKE:
            connection.execute(delete(t.events).where(alike, column.id <= known[-1].id))
        return
    newest = known[0]
    more = _MORE.search(newest.text)
    counted = f"{_MORE.sub('', newest.text)} (and {1 + (int(more[1]) if more else 0)} more)"
    connection.execute(update(t.events).where(column.id == newest.id).values(text=counted))


def tell(connection: Connection, name: str, text: str) -> None:
    """Add an event."""
    connection.execute(insert(t.events).values(deployment=name, at=time.time(), text=text))
