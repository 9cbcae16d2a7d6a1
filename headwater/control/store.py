"""The store: what is wanted, what was done, what was seen. Reading below, writing above.

Entrances only read, and write wishes. What the controller writes it writes under its lease, checked
in the same transaction: of two controllers, one at most acts on a store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headwater.continuum import Continuum
from headwater.control import rows
from headwater.control import tables as t
from headwater.control.database import LeaseLost
from headwater.control.lifecycle import Goal, Phase
from headwater.control.memory import Memory, MemoryReader, drop_memory, keep_samples, sample_text
from headwater.control.records import (
    Change,
    DeploymentRecord,
    Event,
    JournalEntry,
    Outcome,
    ReportRecord,
    Wish,
)
from headwater.control.sharing import Sharing, SharingReader
from headwater.errors import Missing
from headwater.metrics import Progress
from headwater.plan.document import from_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import (
    CanarySettings,
    Incarnation,
    Standing,
    Standings,
    Step,
    standing_of,
)

NoStore = t.NoStore
PLANS = 5000
"""Plans that are remembered."""
__all__ = ["LeaseLost", "NoStore", "Store", "StoreReader"]


class StoreReader(MemoryReader, SharingReader):
    """A store to look at. Made by ``open``, which refuses a place where there is none."""

    def __init__(self, place: str | Path) -> None:
        super().__init__(place)
        self._plans: dict[str, DeploymentPlan] = {}
        self._continua: dict[str, Continuum] = {}

    # ------------------------------------------------------------ deployments

    def deployments(self) -> tuple[DeploymentRecord, ...]:
        """Give all deployments, by name."""
        found = self._all(select(t.deployments).order_by(t.deployments.c.name))
        return tuple(DeploymentRecord(**row._mapping) for row in found)

    def deployment(self, name: str) -> DeploymentRecord:
        """Give one deployment, or raise Missing with the names there are."""
        found = self.find(name)
        if found is None:
            names = ", ".join(d.name for d in self.deployments()) or "none"
            raise Missing(f"no deployment '{name}'", where=self.where, hint=f"the deployments are: {names}")
        return found

    def find(self, name: str) -> DeploymentRecord | None:
        """Give one deployment if it is there."""
        row = self._one(select(t.deployments).where(t.deployments.c.name == name))
        return None if row is None else DeploymentRecord(**row._mapping)

    def plan(self, id_: str) -> DeploymentPlan:
        """Give a stored plan."""
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

    def base(self, name: str) -> DeploymentPlan | None:
        """Give the plan whose names and epochs hold; None before the first and after all is forgotten."""
        record = self.find(name)
        return self.plan(record.base) if record and record.base else None

    def wish(self, name: str, version: int | None = None) -> Wish:
        """Give what is wanted of a deployment, now or in an older version."""
        version = self.deployment(name).version if version is None else version
        row = self._one(
            select(t.wishes).where(and_(t.wishes.c.deployment == name, t.wishes.c.version == version))
        )
        if row is None:
            raise Missing(f"no version {version} of '{name}'", where=self.where, hint="see history")
        return rows.wish_of(row)

    def wishes(self, name: str) -> tuple[Wish, ...]:
        """Give all wishes for a deployment, the oldest first."""
        query = select(t.wishes).where(t.wishes.c.deployment == name).order_by(t.wishes.c.version)
        return tuple(rows.wish_of(row) for row in self._all(query))

    def standings(self, name: str) -> dict[Incarnation, Standing]:
        """Give where the units stand."""
        found = self._all(select(t.units).where(t.units.c.deployment == name))
        return {(r.unit, r.tag, r.epoch): Standing(plan=r.plan, runs=r.runs, sure=r.sure) for r in found}

    def plans_of(self, standings: Standings) -> dict[str, DeploymentPlan]:
        """Give the plans that units stand by."""
        return {s.plan: self.plan(s.plan) for s in standings.values()}

    # ------------------------------------------------------------ changes

    def change(self, name: str) -> Change | None:
        """Give the change under way."""
        query = select(t.changes).where(and_(t.changes.c.deployment == name, t.changes.c.ended.is_(None)))
        row = self._one(query)
        return None if row is None else rows.change_of(row)

    def changes(self, name: str) -> tuple[Change, ...]:
        """Give all changes, the oldest first."""
        query = select(t.changes).where(t.changes.c.deployment == name).order_by(t.changes.c.id)
        return tuple(rows.change_of(row) for row in self._all(query))

    def journal(self, change: int) -> tuple[JournalEntry, ...]:
        """Give the steps of a change, in order."""
        found = self._all(select(t.journal).where(t.journal.c.change == change).order_by(t.journal.c.number))
        return tuple(rows.entry_of(row) for row in found)

    def next_steps(self, change: int, most: int = 16) -> tuple[JournalEntry, ...]:
        """Give the first steps of a change that are not done."""
        left = and_(t.journal.c.change == change, t.journal.c.state.in_(("todo", "begun")))
        found = self._all(select(t.journal).where(left).order_by(t.journal.c.number).limit(most))
        return tuple(rows.entry_of(row) for row in found)

    def events(self, name: str, *, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Give the newest events after a number, the oldest first."""
        query = (
            select(t.events)
            .where(and_(t.events.c.deployment == name, t.events.c.id > after))
            .order_by(t.events.c.id.desc())
            .limit(limit)
        )
        return tuple(Event(**row._mapping) for row in reversed(self._all(query)))

    def told(self, *, after: int, name: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        """Give the first events after a number, of one deployment or of all, in their order."""
        own = (
            t.events.c.id > after
            if name is None
            else and_(t.events.c.id > after, t.events.c.deployment == name)
        )
        found = self._all(select(t.events).where(own).order_by(t.events.c.id).limit(limit))
        return tuple(Event(**row._mapping) for row in found)

    def last_told(self) -> int:
        """Give the number of the newest event; 0 before the first."""
        row = self._one(select(func.max(t.events.c.id).label("last")))
        return int(row.last or 0)

    def standing(self, *, running: bool = False) -> set[str]:
        """Name the deployments that have units on nodes, or those of them with units that run."""
        query = select(t.units.c.deployment).distinct()
        return {name for (name,) in self._all(query.where(t.units.c.runs) if running else query)}

    def pending(self) -> dict[str, int]:
        """Give the deployments of which something is wanted that was not brought to an end, by version."""
        column = t.deployments.c
        query = select(column.name, column.version).where(column.version > column.dealt)
        return {name: version for name, version in self._all(query)}

    def reports(self, name: str) -> tuple[ReportRecord, ...]:
        """Give what each node last said."""
        found = self._all(select(t.reports).where(t.reports.c.deployment == name).order_by(t.reports.c.zone))
        return tuple(
            ReportRecord(
                node=r.zone,
                at=r.at,
                progress=Progress.from_data(json.loads(r.progress)) if r.progress else None,
                error=r.error,
            )
            for r in found
        )


class Store(StoreReader, Memory, Sharing):
    """A store to write to; made where there is none."""

    # ------------------------------------------------------------ entrances

    def want(
        self,
        name: str,
        goal: Goal,
        plan: DeploymentPlan | None = None,
        *,
        reset_state: frozenset[str] = frozenset(),
        canary: CanarySettings | None = None,
        after: int | None = None,
    ) -> int:
        """Store a wish and give its version. The controller does the rest.

        Raises DeploymentError where the newest version is not ``after``: somebody was quicker.
        """
        options = {"reset_state": sorted(reset_state), "canary": vars(canary) if canary else None}
        with self._writing() as connection:
            plan_id = rows.keep_plan(connection, plan) if plan is not None else None
            return rows.add_wish(connection, name, goal, plan_id, options, after=after)

    def adopt(self, plan: DeploymentPlan, *, finished: bool) -> None:
        """Take in a deployment that another version ran: as stopped, under the names of its plan."""
        name = plan.dataflow.name
        version = self.want(name, "finish" if finished else "stop")
        with self._writing() as connection:
            id_ = rows.keep_plan(connection, plan)
            standings = {which: replace(s, runs=False) for which, s in standing_of(plan).items()}
            rows.set_standings(connection, name, standings)
            values = {"base": id_, "dealt": version, "phase": "stopped"}
            own = t.deployments.c.name == name
            connection.execute(update(t.deployments).where(own).values(**values))

    # ------------------------------------------------------------ the controller

    def begin_change(
        self, holder: str, wish: Wish, plan: DeploymentPlan | None, steps: Sequence[Step], *, phase: Phase
    ) -> int:
        """Journal a change and its steps, and give its number."""
        now = time.time()
        with self._acting(holder) as connection:
            plan_id = rows.keep_plan(connection, plan) if plan is not None else None
            record = rows.record_of(connection, wish.deployment)
            baseline = rows.baseline_of(connection, wish.deployment)
            made = connection.execute(
                insert(t.changes).values(
                    deployment=wish.deployment, version=wish.version, goal=wish.goal, plan=plan_id,
                    before=record.base, phase=phase, message="", baseline=baseline, begun=now,
                )
            )  # fmt: skip
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
            rows.add_steps(connection, number, steps, first=0)
            rows.set_phase(connection, wish.deployment, phase, "")
        return number

    def refuse(self, holder: str, wish: Wish, plan: DeploymentPlan | None, message: str) -> None:
        """Bring a wish to its end that cannot be carried out; nothing was touched."""
        number = self.begin_change(holder, wish, plan, (), phase="checking")
        change = next(c for c in self.changes(wish.deployment) if c.id == number)
        self.end_change(holder, change, "refused", phase="failed", message=message)

    def step_begun(
        self, holder: str, change: Change, number: int, standings: Standings, *, phase: Phase
    ) -> None:
        """Note, before a step is carried out, that it may have been."""
        with self._acting(holder) as connection:
            rows.set_step(connection, change.id, number, "begun")
            rows.set_standings(connection, change.deployment, standings)
            connection.execute(update(t.changes).where(t.changes.c.id == change.id).values(phase=phase))
            values = {"base": change.plan} if change.plan and phase in ("changing", "rolling_back") else {}
            rows.set_phase(connection, change.deployment, phase, None, **values)

    def step_done(
        self, holder: str, change: Change, number: int, standings: Standings, *, note: str = ""
    ) -> None:
        """Note that a step is carried out."""
        with self._acting(holder) as connection:
            rows.set_step(connection, change.id, number, "done", note)
            rows.set_standings(connection, change.deployment, standings)
            rows.set_phase(connection, change.deployment, change.phase, "")

    def step_waits(self, holder: str, change: Change, number: int, note: str) -> None:
        """Note why a step is not carried out yet; tell it once."""
        with self._acting(holder) as connection:
            where = and_(t.journal.c.change == change.id, t.journal.c.number == number)
            if connection.execute(select(t.journal.c.note).where(where)).scalar() != note:
                connection.execute(update(t.journal).where(where).values(note=note))
                rows.set_phase(connection, change.deployment, change.phase, note)
                rows.tell(connection, change.deployment, note)

    def turn_back(
        self, holder: str, change: Change, plan: DeploymentPlan, steps: Sequence[Step], why: str
    ) -> None:
        """Drop the steps left of a change and journal those of its roll-back."""
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
            rows.set_phase(connection, change.deployment, "rolling_back", why, base=plan_id)
            rows.tell(connection, change.deployment, f"going back to what ran: {why}")

    def end_change(
        self,
        holder: str,
        change: Change,
        outcome: Outcome,
        *,
        phase: Phase,
        message: str = "",
        standings: Standings | None = None,
        base: str | None = None,
    ) -> None:
        """Bring a change to its end. ``base`` is the plan that holds from now on."""
        with self._acting(holder) as connection:
            left = and_(t.journal.c.change == change.id, t.journal.c.state.in_(("todo", "begun")))
            connection.execute(update(t.journal).where(left).values(state="dropped"))
            connection.execute(
                update(t.changes)
                .where(t.changes.c.id == change.id)
                .values(outcome=outcome, message=message, ended=time.time(), phase=phase)
            )
            if change.goal == "forget" and outcome == "done":
                drop_memory(connection, change.deployment)
            if standings is not None:
                rows.set_standings(connection, change.deployment, standings)
            values: dict[str, Any] = {} if outcome == "superseded" else {"dealt": change.version}
            if outcome in ("done", "rolled back"):
                values["base"] = base
            rows.set_phase(connection, change.deployment, phase, message, **values)
            what = f"version {change.version}: {outcome}" + (f": {message}" if message else "")
            rows.tell(connection, change.deployment, what)

    def tell(self, deployment: str, text: str) -> None:
        """Add an event."""
        with self._writing() as connection:
            rows.tell(connection, deployment, text)

    def report(
        self,
        holder: str,
        at: float,
        reports: Mapping[str, Sequence[ReportRecord]] = MappingProxyType({}),
        samples: Mapping[str, Progress] = MappingProxyType({}),
    ) -> None:
        """Keep reports of nodes, and a sample of each deployment; a node that cannot be asked keeps its last
        progress."""
        # All is put in words before: others wait as long as the transaction lasts.
        said = [_report_values(deployment, one) for deployment, found in reports.items() for one in found]
        texts = {deployment: sample_text(progress) for deployment, progress in samples.items()}
        with self._acting(holder) as connection:
            _keep_reports(connection, [v for v in said if v["progress"] is not None], _TOLD)
            _keep_reports(connection, [v for v in said if v["progress"] is None], _FAILED)
            if texts:
                keep_samples(connection, at, texts)

    def clear_reports(self, holder: str, deployment: str, keep: frozenset[str]) -> None:
        """Drop what nodes said that have no part in the deployment any more."""
        with self._acting(holder) as connection:
            gone = and_(t.reports.c.deployment == deployment, t.reports.c.zone.not_in(keep))
            connection.execute(delete(t.reports).where(gone))


_TOLD, _FAILED = ("at", "progress", "error"), ("error",)
"""What a report writes over: all, or, where a node cannot be asked, nothing that it said before."""
_INSERT: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _report_values(deployment: str, report: ReportRecord) -> dict[str, Any]:
    progress = None if report.progress is None else json.dumps(report.progress.to_data())
    named = {"deployment": deployment, "zone": report.node}
    return {**named, "at": report.at, "progress": progress, "error": report.error}


def _keep_reports(
    connection: Connection, values: Sequence[Mapping[str, Any]], changed: Sequence[str]
) -> None:
    """Put reports beside those that are there, or ``changed`` columns in the place of theirs."""
    if values:
        made = _INSERT[connection.dialect.name](t.reports)
        over = {name: made.excluded[name] for name in changed}
        made = made.on_conflict_do_update(index_elements=["deployment", "zone"], set_=over)
        connection.execute(made, list(values))
