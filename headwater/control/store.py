"""The store: desired states, the journal, and reports. Readers come first, writers below.

Faces only read, and write desired states. The controller writes under its lease, checked in the same transaction: at
most one controller acts on a store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headwater.continuum.model import Continuum
from headwater.control import rows
from headwater.control import tables as t
from headwater.control.lifecycle import Goal, Phase
from headwater.control.memory import Memory, MemoryReader, drop_memory, keep_samples, sample_text
from headwater.control.records import (
    Change,
    DeploymentRecord,
    DesiredState,
    Event,
    JournalEntry,
    Outcome,
    ReportRecord,
)
from headwater.control.sharing import Sharing, SharingReader
from headwater.core.errors import Missing
from headwater.core.jsonform import dump_json, load_json
from headwater.core.metrics import Progress
from headwater.plan.document import from_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import (
    CanarySettings,
    FormerOutputChoice,
    Incarnation,
    Step,
    UnitStatus,
    UnitStatuses,
    unit_statuses_of,
)

PLANS = 5000
"""Number of plans in the cache."""
_STEPS = 16
"""Number of steps read at once."""

# Statements that a controller executes all the time are built once: building one takes longer than its execution.
_OF: BindParameter[Any] = bindparam("of")
_DEPLOYMENT = select(t.deployments).where(t.deployments.c.name == _OF)
_UNITS = select(t.units).where(t.units.c.deployment == _OF)
_CHANGE = select(t.changes).where(t.changes.c.deployment == _OF, t.changes.c.ended.is_(None))
_UPDATE_CHANGE = update(t.changes).where(t.changes.c.id == _OF)
_NEXT_STEPS = (
    select(t.journal)
    .where(t.journal.c.change == _OF, t.journal.c.state.in_(("todo", "begun")))
    .order_by(t.journal.c.number)
    .limit(_STEPS)
)
_PENDING = select(t.deployments.c.name, t.deployments.c.version).where(
    t.deployments.c.version > t.deployments.c.observed_version
)


class StoreReader(MemoryReader, SharingReader):
    """A store opened to read. ``open`` refuses a URL without a store."""

    def __init__(self, store_url: str | Path) -> None:
        super().__init__(store_url)
        self._plans: dict[str, DeploymentPlan] = {}
        self._continua: dict[str, Continuum] = {}

    # ------------------------------------------------------------ deployments

    def deployments(self) -> tuple[DeploymentRecord, ...]:
        """Return all deployments, by name."""
        found = self._all(select(t.deployments).order_by(t.deployments.c.name))
        return tuple(DeploymentRecord(**row._mapping) for row in found)

    def deployment(self, name: str) -> DeploymentRecord:
        """Return a deployment; raise Missing with the known names where there is none."""
        found = self.find(name)
        if found is None:
            names = ", ".join(d.name for d in self.deployments()) or "none"
            raise Missing(f"no deployment '{name}'", where=self.where, hint=f"the deployments are: {names}")
        return found

    def find(self, name: str) -> DeploymentRecord | None:
        """Return a deployment; None where there is none."""
        row = self._one(_DEPLOYMENT, of=name)
        return None if row is None else DeploymentRecord(**row._mapping)

    def plan(self, id_: str) -> DeploymentPlan:
        """Return a stored plan."""
        found = self._plans.get(id_)
        if found is None:
            row = self._one(select(t.plans.c.document).where(t.plans.c.id == id_))
            if row is None:
                raise Missing(f"no plan {id_[:12]}", where=self.where, hint="the store was damaged")
            document = json.loads(row.document)
            if isinstance(document.get("continuum"), str):
                document["continuum"] = self._continuum(document["continuum"])
            found = self._plans[id_] = from_document(document)
            while len(self._plans) > PLANS:
                self._plans.pop(next(iter(self._plans)), None)
        return found

    def _continuum(self, id_: str) -> Continuum:
        found = self._continua.get(id_)
        if found is None:
            row = self._one(select(t.continua.c.document).where(t.continua.c.id == id_))
            if row is None:
                raise Missing(f"no continuum {id_[:12]}", where=self.where, hint="the store was damaged")
            found = self._continua[id_] = Continuum.from_data(json.loads(row.document))
        return found

    def active_plan(self, name: str) -> DeploymentPlan | None:
        """Return the active plan; None before the first change and after all is forgotten."""
        record = self.find(name)
        return self.plan(record.active_plan) if record and record.active_plan else None

    def desired(self, name: str, version: int | None = None) -> DesiredState:
        """Return the newest desired state of a deployment, or that of an older version."""
        version = self.deployment(name).version if version is None else version
        row = self._one(
            select(t.desired_states).where(
                and_(t.desired_states.c.deployment == name, t.desired_states.c.version == version)
            )
        )
        if row is None:
            raise Missing(f"no version {version} of '{name}'", where=self.where, hint="see history")
        return rows.desired_state_of(row)

    def desired_states(self, name: str) -> tuple[DesiredState, ...]:
        """Return all desired states for a deployment, the oldest first."""
        query = (
            select(t.desired_states).where(t.desired_states.c.deployment == name).order_by(t.desired_states.c.version)
        )
        return tuple(rows.desired_state_of(row) for row in self._all(query))

    def unit_statuses(self, name: str) -> dict[Incarnation, UnitStatus]:
        """Return the unit statuses of a deployment."""
        found = self._all(_UNITS, of=name)
        return {
            (r.unit, r.tag, r.epoch): UnitStatus(plan=r.plan, runs=r.runs, sure=r.sure, ahead=r.ahead) for r in found
        }

    def plans_of(self, unit_statuses: UnitStatuses) -> dict[str, DeploymentPlan]:
        """Return the plans that unit statuses refer to, by id."""
        return {s.plan: self.plan(s.plan) for s in unit_statuses.values()}

    # ------------------------------------------------------------ changes

    def change(self, name: str) -> Change | None:
        """Return the change under way; None where there is none."""
        row = self._one(_CHANGE, of=name)
        return None if row is None else rows.change_of(row)

    def changes(self, name: str) -> tuple[Change, ...]:
        """Return all changes, the oldest first."""
        query = select(t.changes).where(t.changes.c.deployment == name).order_by(t.changes.c.id)
        return tuple(rows.change_of(row) for row in self._all(query))

    def journal(self, change: int) -> tuple[JournalEntry, ...]:
        """Return the steps of a change, in order."""
        found = self._all(select(t.journal).where(t.journal.c.change == change).order_by(t.journal.c.number))
        return tuple(rows.entry_of(row) for row in found)

    def next_steps(self, change: int) -> tuple[JournalEntry, ...]:
        """Return the first steps of a change that are not done."""
        found = self._all(_NEXT_STEPS, of=change)
        return tuple(rows.entry_of(row) for row in found)

    def events(self, name: str, *, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return the newest events after a number, the oldest first."""
        query = (
            select(t.events)
            .where(and_(t.events.c.deployment == name, t.events.c.id > after))
            .order_by(t.events.c.id.desc())
            .limit(limit)
        )
        return tuple(Event(**row._mapping) for row in reversed(self._all(query)))

    def told(self, *, after: int, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """Return the first events after a number, of one deployment or of all, in order."""
        own = t.events.c.id > after if name is None else and_(t.events.c.id > after, t.events.c.deployment == name)
        found = self._all(select(t.events).where(own).order_by(t.events.c.id).limit(limit))
        return tuple(Event(**row._mapping) for row in found)

    def last_told(self) -> int:
        """Return the number of the newest event; 0 before the first."""
        row = self._one(select(func.max(t.events.c.id).label("last")))
        return int(row.last or 0)

    def with_units(self, *, running: bool = False) -> set[str]:
        """Name the deployments that have units on nodes; ``running``: only those with running units."""
        query = select(t.units.c.deployment).distinct()
        return {name for (name,) in self._all(query.where(t.units.c.runs) if running else query)}

    def pending(self) -> dict[str, int]:
        """Return the newest version of each deployment whose newest desired state has no outcome yet."""
        return {name: version for name, version in self._all(_PENDING)}

    def reports(self, name: str) -> tuple[ReportRecord, ...]:
        """Return the nodes' last reports."""
        found = self._all(select(t.reports).where(t.reports.c.deployment == name).order_by(t.reports.c.zone))
        return tuple(
            ReportRecord(
                node=r.zone,
                at=r.at,
                progress=load_json(Progress, r.progress, what="a report") if r.progress else None,
                error=r.error,
            )
            for r in found
        )


class Store(StoreReader, Memory, Sharing):
    """A store opened to write; created where there is none."""

    # ------------------------------------------------------------ entrances

    def want(
        self,
        name: str,
        goal: Goal,
        plan: DeploymentPlan | None = None,
        *,
        reset_state: frozenset[str] = frozenset(),
        canary: CanarySettings | None = None,
        former_output: FormerOutputChoice = "refuse",
        after: int | None = None,
    ) -> int:
        """Store a desired state and return its version; the controller does the rest.

        Raises DeploymentError where the newest version is not ``after``: another change came first.
        """
        options = {
            "reset_state": sorted(reset_state),
            "canary": vars(canary) if canary else None,
            "former_output": former_output,
        }
        with self._writing() as connection:
            plan_id = rows.keep_plan(connection, plan) if plan is not None else None
            return rows.add_desired_state(connection, name, goal, plan_id, options, after=after)

    def adopt(self, plan: DeploymentPlan, *, finished: bool) -> None:
        """Import a deployment that an older version of Headwater ran: as stopped, with the names of its plan."""
        name = plan.dataflow.name
        version = self.want(name, "finish" if finished else "stop")
        with self._writing() as connection:
            id_ = rows.keep_plan(connection, plan)
            unit_statuses = {which: replace(s, runs=False) for which, s in unit_statuses_of(plan).items()}
            rows.set_unit_statuses(connection, name, unit_statuses)
            values = {"active_plan": id_, "observed_version": version, "phase": "stopped"}
            own = t.deployments.c.name == name
            connection.execute(update(t.deployments).where(own).values(**values))

    # ------------------------------------------------------------ the controller

    def begin_change(
        self,
        holder: str,
        desired: DesiredState,
        plan: DeploymentPlan | None,
        steps: Sequence[Step],
        *,
        phase: Phase,
    ) -> int:
        """Journal a change and its steps, and return its number."""
        now = time.time()
        with self._acting(holder) as connection:
            plan_id = rows.keep_plan(connection, plan) if plan is not None else None
            record = rows.record_of(connection, desired.deployment)
            baseline = rows.baseline_of(connection, desired.deployment)
            made = connection.execute(
                insert(t.changes).values(
                    deployment=desired.deployment, version=desired.version, goal=desired.goal, plan=plan_id,
                    before=record.active_plan, phase=phase, message="", baseline=baseline, begun=now,
                )
            )  # fmt: skip
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
            rows.add_steps(connection, number, steps, first=0)
            rows.set_phase(connection, desired.deployment, phase, "")
        return number

    def refuse(self, holder: str, desired: DesiredState, plan: DeploymentPlan | None, message: str) -> None:
        """End a desired state that cannot be executed; nothing was changed."""
        number = self.begin_change(holder, desired, plan, (), phase="checking")
        change = next(c for c in self.changes(desired.deployment) if c.id == number)
        self.end_change(holder, change, "refused", phase="failed", message=message)

    def step_begun(
        self, holder: str, change: Change, number: int, unit_statuses: UnitStatuses, *, phase: Phase
    ) -> None:
        """Record, before a step is executed, that it may have been."""
        with self._acting(holder) as connection:
            rows.set_step(connection, change.id, number, "begun")
            rows.set_unit_statuses(connection, change.deployment, unit_statuses)
            connection.execute(_UPDATE_CHANGE, {"of": change.id, "phase": phase})
            values = {"active_plan": change.plan} if change.plan and phase in ("changing", "rolling_back") else {}
            rows.set_phase(connection, change.deployment, phase, None, **values)

    def step_done(
        self, holder: str, change: Change, number: int, unit_statuses: UnitStatuses, *, note: str = ""
    ) -> None:
        """Record that a step is done."""
        with self._acting(holder) as connection:
            rows.set_step(connection, change.id, number, "done", note)
            rows.set_unit_statuses(connection, change.deployment, unit_statuses)
            rows.set_phase(connection, change.deployment, change.phase, "")

    def step_waits(self, holder: str, change: Change, number: int, note: str) -> None:
        """Record why a step is not done yet, and add an event once."""
        with self._acting(holder) as connection:
            where = and_(t.journal.c.change == change.id, t.journal.c.number == number)
            if connection.execute(select(t.journal.c.note).where(where)).scalar() != note:
                connection.execute(update(t.journal).where(where).values(note=note))
                rows.set_phase(connection, change.deployment, change.phase, note)
                rows.tell(connection, change.deployment, note)

    def roll_back(self, holder: str, change: Change, plan: DeploymentPlan, steps: Sequence[Step], why: str) -> None:
        """Drop the remaining steps of a change and journal those of its rollback."""
        with self._acting(holder) as connection:
            left = and_(t.journal.c.change == change.id, t.journal.c.state.in_(("todo", "begun")))
            connection.execute(update(t.journal).where(left).values(state="dropped"))
            last = connection.execute(
                select(func.max(t.journal.c.number)).where(t.journal.c.change == change.id)
            ).scalar()
            rows.add_steps(connection, change.id, steps, first=int(last or 0) + 1)
            plan_id = rows.keep_plan(connection, plan)
            connection.execute(
                update(t.changes)
                .where(t.changes.c.id == change.id)
                .values(plan=plan_id, phase="rolling_back", message=why)
            )
            rows.set_phase(connection, change.deployment, "rolling_back", why, active_plan=plan_id)
            rows.tell(connection, change.deployment, f"rolling back: {why}")

    def end_change(
        self,
        holder: str,
        change: Change,
        outcome: Outcome,
        *,
        phase: Phase,
        message: str = "",
        unit_statuses: UnitStatuses | None = None,
        active_plan: str | None = None,
    ) -> None:
        """End a change. ``active_plan`` is the plan that is active from now on.

        The deployment goes on to ``phase``, unless a newer desired state has been stored meanwhile.
        """
        with self._acting(holder) as connection:
            superseded = rows.record_of(connection, change.deployment).version > change.version
            left = and_(t.journal.c.change == change.id, t.journal.c.state.in_(("todo", "begun")))
            connection.execute(update(t.journal).where(left).values(state="dropped"))
            connection.execute(
                update(t.changes)
                .where(t.changes.c.id == change.id)
                .values(outcome=outcome, message=message, ended=time.time(), phase=phase)
            )
            if change.goal == "forget" and outcome == "done":
                drop_memory(connection, change.deployment)
            if unit_statuses is not None:
                rows.set_unit_statuses(connection, change.deployment, unit_statuses)
            values: dict[str, Any] = {} if outcome == "superseded" else {"observed_version": change.version}
            if outcome in ("done", "rolled back"):
                values["active_plan"] = active_plan
            rows.set_phase(connection, change.deployment, "wanted" if superseded else phase, message, **values)
            what = f"version {change.version}: {outcome}" + (f": {message}" if message else "")
            rows.tell(connection, change.deployment, what)

    def tell(self, deployment: str, text: str) -> None:
        """Add an event."""
        with self._writing() as connection:
            rows.tell(connection, deployment, text)

    def tell_again(self, deployments: Iterable[str], subject: str, text: str) -> None:
        """Add an event that may recur to deployments; ``text`` begins with ``subject``."""
        with self._writing() as connection:
            for name in deployments:
                rows.tell_again(connection, name, subject, text)

    def report(
        self,
        holder: str,
        at: float,
        reports: Mapping[str, Sequence[ReportRecord]] = MappingProxyType({}),
        samples: Mapping[str, Progress] = MappingProxyType({}),
    ) -> None:
        """Store reports of nodes and a sample per deployment; an unreachable node keeps its last progress."""
        # Serialise before the transaction: other writers wait for its end.
        said = [_report_values(deployment, one) for deployment, found in reports.items() for one in found]
        texts = {deployment: sample_text(progress) for deployment, progress in samples.items()}
        with self._acting(holder) as connection:
            _keep_reports(connection, [v for v in said if v["progress"] is not None], _TOLD)
            _keep_reports(connection, [v for v in said if v["progress"] is None], _FAILED)
            keep_samples(connection, at, texts)

    def clear_reports(self, holder: str, deployment: str, keep: frozenset[str]) -> None:
        """Delete reports of nodes that no longer take part in the deployment."""
        with self._acting(holder) as connection:
            gone = and_(t.reports.c.deployment == deployment, t.reports.c.zone.not_in(keep))
            connection.execute(delete(t.reports).where(gone))


_TOLD, _FAILED = ("at", "progress", "error"), ("error",)
"""Columns that a report replaces: all, or only the error if the node did not answer."""
_INSERT: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _report_values(deployment: str, report: ReportRecord) -> dict[str, Any]:
    progress = None if report.progress is None else dump_json(report.progress).decode()
    named = {"deployment": deployment, "zone": report.node}
    return {**named, "at": report.at, "progress": progress, "error": report.error}


def _keep_reports(connection: Connection, values: Sequence[Mapping[str, Any]], changed: Sequence[str]) -> None:
    """Insert reports; replace the ``changed`` columns of those that exist."""
    if values:
        made = _INSERT[connection.dialect.name](t.reports)
        over = {name: made.excluded[name] for name in changed}
        made = made.on_conflict_do_update(index_elements=["deployment", "zone"], set_=over)
        connection.execute(made, list(values))
