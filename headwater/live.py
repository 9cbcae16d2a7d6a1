"""The use cases over a store: apply, stop, status, history, explain; and running the controller.

Like ``headwater.service`` they take values and places, give values and raise HeadwaterErrors. All but
``up`` only read the store or write a wish into it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwater.adapt.keeping import Figures, breaks
from headwater.adapt.keeping import measured as measured_of
from headwater.adapt.promise import Promise
from headwater.adapt.window import window
from headwater.continuum import Zone
from headwater.control.lifecycle import BUSY
from headwater.control.records import (
    OPEN,
    Change,
    Decision,
    DeploymentRecord,
    Event,
    JournalEntry,
    Wish,
    ZoneReport,
    whole,
)
from headwater.control.store import NoStore, Store, StoreReader
from headwater.control.zone import OpenZone
from headwater.errors import DeploymentError, HeadwaterError, RuntimeFailure

# Dead letters are among the use cases, and what all of them share: faces find these here.
from headwater.letters import dead_letters as dead_letters
from headwater.letters import replay as replay
from headwater.metrics import Progress, UnitProgress
from headwater.places import HOME as HOME
from headwater.places import STORE as STORE
from headwater.places import existing as existing
from headwater.places import store_place as store_place
from headwater.plan.build import build
from headwater.plan.cutcost import CutCost, cut_cost
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.document import plan_id
from headwater.plan.explain import explain as in_words
from headwater.plan.model import Deployment, DeploymentPlan
from headwater.plan.order import steps_to
from headwater.plan.steps import CanarySettings, Start, Step, Stop
from headwater.profile import Profile

RECENT = 12.0
"""Seconds for which what is measured counts as measured now."""


# ---------------------------------------------------------------- wishes


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What applying a plan would do, as of ``version`` of its deployment (0: there is none yet)."""

    diff: PlanDiff
    steps: tuple[Step, ...]
    version: int
    busy: bool
    """Whether a change is under way, which this one would take the place of."""
    same: bool
    """Whether the plan is in force already and nothing is to do."""
    cost: CutCost | None = None
    """What its cuts cost or save beside those that run."""

    @property
    def words(self) -> list[str]:
        lines = list(in_words(self.steps)) + [f"note: {note}" for note in self.diff.notes]
        lines += self.cost.words() if self.cost else []
        if self.busy:
            lines.append("a change is under way: this one takes its place between two of its steps")
        return lines

    def to_data(self) -> dict[str, Any]:
        """Give the preview as JSON-able data."""
        cost = self.cost.to_data() if self.cost else None
        return {"version": self.version, **self.diff.to_data(), "steps": self.words, "cost": cost}


def preview(
    plan: DeploymentPlan,
    place: str | None = None,
    *,
    reset_state: frozenset[str] = frozenset(),
    canary: CanarySettings | None = None,
) -> Preview:
    """Say what applying a plan would do; raise what is refused."""
    name = plan.dataflow.name
    if not holds(name, place):
        decided = diff(None, plan, reset_state=reset_state)
        steps = steps_to(decided, {}, {}, canary=canary)
        return Preview(diff=decided, steps=steps, version=0, busy=False, same=False)
    with existing(place) as store:
        record = store.deployment(name)
        base, standings = store.base(name), store.standings(name)
        plans = store.plans_of(standings)
        seen = whole(store.reports(name))
    next_one = Wish(deployment=name, version=record.version + 1, goal="run", plan=None)
    decided = diff(base, plan, reset_state=reset_state, generation=next_one.generation)
    steps = steps_to(decided, standings, plans, canary=canary)
    same = not steps and record.phase == "running" and plan_id(decided.wanted) == record.base
    return Preview(
        diff=decided,
        steps=steps,
        version=record.version,
        busy=record.phase in BUSY - {"wanted"},
        same=same,
        cost=cut_cost(base, decided.wanted, seen) if base else None,
    )


def apply(
    plan: DeploymentPlan,
    place: str | None = None,
    *,
    reset_state: frozenset[str] = frozenset(),
    canary: CanarySettings | None = None,
    after: int | None = None,
    profile: Profile | None = None,
) -> int:
    """Store a plan as the wanted one and give its version; ``after`` is the version it was shown for.

    ``profile``: by which it was placed; it is kept.
    """
    name = plan.dataflow.name
    with closing(Store(store_place(place))) as store:
        version = store.want(name, "run", plan, reset_state=reset_state, canary=canary, after=after)
        if profile is not None:
            store.keep_profile(name, profile)
    return version


def keep_profile(name: str, profile: Profile, place: str | None = None) -> None:
    """Keep a profile of a deployment that is there."""
    with closing(Store(store_place(place))) as store:
        store.keep_profile(name, profile)


def edited(
    edit: Callable[[DeploymentPlan], Deployment], name: str | None = None, place: str | None = None
) -> DeploymentPlan:
    """Plan a deployment's dataflow with other layers or cuts; without a name, the only one there is."""
    with existing(place) as store:
        records = store.deployments()
        if name is None and len(records) != 1:
            there = ", ".join(r.name for r in records) or "none"
            raise DeploymentError(
                f"which deployment? There is {there}", where=store.where, hint="name it with --of NAME"
            )
        record = store.deployment(name or records[0].name)
        wish = store.wish(record.name)
        plan = store.plan(wish.plan) if wish.plan else store.base(record.name)
    if plan is None:
        raise DeploymentError("has no plan", where=f"deployment '{record.name}'", hint="apply one first")
    return build(plan.dataflow, plan.continuum, edit(plan))


def stop(name: str, place: str | None = None, *, how: Literal["stop", "forget", "finish"] = "stop") -> int:
    """Store that a deployment is to stop, keeping its state, without it, or when its input is used up."""
    with existing(place) as reader:
        reader.deployment(name)
    with closing(Store(store_place(place))) as store:
        return store.want(name, how)


# ---------------------------------------------------------------- looking


@dataclass(frozen=True, kw_only=True)
class Status:
    """All there is to say of a deployment at one moment."""

    deployment: DeploymentRecord
    change: Change | None
    """The change under way, or the last one."""
    done: int
    steps: int
    zones: tuple[ZoneReport, ...]
    controller: str | None
    """Who acts on the store; None when nobody does."""
    promise: Promise | None
    measured: Figures | None
    """What was measured lately of what may be promised; None where nothing was."""
    decisions: tuple[Decision, ...]
    """Those of which more is to be heard."""

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept, as far as it is measured; None where there is none, or nothing was."""
        return None if self.promise is None or self.measured is None else not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """Which limits are broken now."""
        found = breaks(self.promise, self.measured) if self.promise and self.measured else ()
        return tuple(b.text for b in found)

    @property
    def units(self) -> tuple[UnitProgress, ...]:
        return tuple(u for z in self.zones if z.progress for u in z.progress.units)

    @property
    def progress(self) -> Progress:
        """What the zones said, as one."""
        return whole(self.zones)

    def to_data(self) -> dict[str, Any]:
        """Give the status as JSON-able data."""
        record = self.deployment
        return {
            "name": record.name,
            "phase": record.phase,
            "version": record.version,
            "message": record.message,
            "controller": self.controller,
            "change": self.change and {**self.change.to_data(), "done": self.done, "steps": self.steps},
            "promise": self.promise and self.promise.to_data(),
            "kept": self.kept,
            "broken": list(self.broken),
            "measured": self.measured and self.measured.to_data(),
            "decisions": [d.to_data() for d in self.decisions],
            "zones": [{"zone": z.zone, "at": z.at, "error": z.error} for z in self.zones],
            **{k: v for k, v in self.progress.to_data().items() if k != "seconds"},
        }


def status(name: str | None = None, place: str | None = None) -> tuple[Status, ...]:
    """Give the state of one deployment, or of all."""
    with existing(place) as store:
        return status_of(store, name)


def status_of(store: StoreReader, name: str | None = None) -> tuple[Status, ...]:
    """Give the state of one deployment of an open store, or of all."""
    records = (store.deployment(name),) if name else store.deployments()
    lease = store.lease()
    return tuple(_status(store, record, lease.holder if lease else None) for record in records)


def _status(store: StoreReader, record: DeploymentRecord, controller: str | None) -> Status:
    change = next(reversed(store.changes(record.name)), None)
    journal = [e for e in store.journal(change.id) if e.state != "dropped"] if change else []
    base = store.base(record.name)
    return Status(
        deployment=record,
        change=change,
        done=sum(e.state == "done" for e in journal),
        steps=len(journal),
        zones=store.reports(record.name),
        controller=controller,
        promise=store.promise(record.name),
        measured=_measured(store, record.name, base) if base else None,
        decisions=store.decisions(record.name, states=OPEN),
    )


def _measured(store: StoreReader, name: str, plan: DeploymentPlan) -> Figures | None:
    samples = store.samples(name, since=time.time() - RECENT)
    seen, newest = window(samples), window(samples, RECENT / 3)
    return measured_of(plan, seen, newest) if seen and newest else None


@dataclass(frozen=True, kw_only=True)
class History:
    """What was wanted of a deployment, what became of it, and what happened, the oldest first."""

    wishes: tuple[Wish, ...]
    changes: tuple[Change, ...]
    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]

    def to_data(self) -> dict[str, Any]:
        """Give the history as JSON-able data."""
        return {
            "wishes": [
                {"version": w.version, "goal": w.goal, "plan": w.plan, "at": w.at} for w in self.wishes
            ],
            "changes": [c.to_data() for c in self.changes],
            "decisions": [d.to_data() for d in self.decisions],
            "events": [{"at": e.at, "text": e.text} for e in self.events],
        }


def history(name: str, place: str | None = None) -> History:
    """Give what has happened to a deployment."""
    with existing(place) as store:
        store.deployment(name)
        return History(
            wishes=store.wishes(name),
            changes=store.changes(name),
            events=store.events(name),
            decisions=store.decisions(name),
        )


def explain(name: str, place: str | None = None) -> tuple[Change | None, list[str], tuple[JournalEntry, ...]]:
    """Give the change under way, or the last one: its steps in words, and the journal."""
    with existing(place) as store:
        store.deployment(name)
        change = next(reversed(store.changes(name)), None)
        journal = store.journal(change.id) if change else ()
    return change, in_words([e.step for e in journal if e.state != "dropped"]), journal


def measured(journal: Sequence[JournalEntry]) -> list[str]:
    """Say what the steps of a change have found, and how long units stood still for it."""
    lines = [f"{e.step.kind} {getattr(e.step, 'unit', '')}: {e.note}" for e in journal if e.note]
    stops = [e.begun for e in journal if isinstance(e.step, Stop) and e.begun]
    starts = [e.ended for e in journal if isinstance(e.step, Start) and e.ended]
    if stops and starts and max(starts) > min(stops):
        lines.append(f"{max(starts) - min(stops):.1f} s from the first stop to the last start")
    return lines


def change_data(change: Change, words: Sequence[str], journal: Sequence[JournalEntry]) -> dict[str, Any]:
    """Give a change and its steps as JSON-able data; times are seconds since 1970."""
    steps = [
        {
            "kind": e.step.kind,
            "unit": getattr(e.step, "unit", None),
            "state": e.state,
            "note": e.note,
            "begun": e.begun,
            "ended": e.ended,
        }
        for e in journal
    ]
    return {**change.to_data(), "words": list(words), "steps": steps}


def holds(name: str, place: str | None = None) -> bool:
    """Tell whether there is a store that holds a deployment of this name."""
    try:
        with existing(place) as store:
            return store.find(name) is not None
    except NoStore:
        return False


def in_force(place: str | None = None) -> dict[str, DeploymentPlan]:
    """Give the plans that are carried out now, by name; nothing where there is no store."""
    try:
        with existing(place) as store:
            plans = {r.name: store.base(r.name) for r in store.deployments() if r.phase != "stopped"}
    except NoStore:
        return {}
    return {name: plan for name, plan in plans.items() if plan is not None}


def follow(
    name: str,
    version: int,
    place: str | None = None,
    *,
    stop: threading.Event | None = None,
    observe: Callable[[Status], None] = lambda status: None,
    say: Callable[[str], None] = lambda text: None,
    every: float = 0.5,
) -> Status | None:
    """Follow a version to its end; give the last status, None when ``stop`` was set before.

    Raises DeploymentError where it failed or was refused, RuntimeFailure where it was rolled back.
    """
    stop = stop or threading.Event()
    warned = False
    with existing(place) as store:
        told = max((e.id for e in store.events(name, limit=1)), default=0)
        while True:
            lease = store.lease()
            now = _status(store, store.deployment(name), lease.holder if lease else None)
            for event in store.events(name, after=told):
                told = event.id
                say(event.text)
            observe(now)
            if now.controller is None and not warned:
                warned = True
                say("nobody acts on this store now: `headwater up` does")
            if now.deployment.dealt >= version:
                return _ended(now, version)
            if stop.wait(every):
                return None


def _ended(now: Status, version: int) -> Status:
    change = now.change
    if change is None or change.version != version or change.outcome in ("done", None):
        return now
    kind = RuntimeFailure if change.outcome == "rolled back" else DeploymentError
    what, _, hint = change.message.partition("\n  -> ")
    raise kind(
        f"{change.outcome}: {what}",
        where=f"deployment '{now.deployment.name}', version {version}",
        hint=hint or "correct the cause and apply again",
    )


# ---------------------------------------------------------------- acting


def up(
    place: str | None = None,
    *,
    home: Path = HOME,
    options: tuple[str, ...] = (),
    open_zone: OpenZone | None = None,
    zones: Iterable[Zone] = (),
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the controller until ``stop`` is set; ``zones`` are opened at once, others when they are needed.

    Agents of zones without an address run on this machine, below ``home``, with ``options``.
    """
    from headwater.control.controller import Controller
    from headwater.runtime.agents import Agents

    open_zone = open_zone or Agents(home, options=options).open
    store = Store(store_place(place))
    for zone in zones:
        try:
            open_zone(zone)
        except HeadwaterError as error:
            if not error.retryable:
                raise
            say(f"zone {zone.name}: {error.what}")
    try:
        Controller(store, open_zone).run(stop or threading.Event(), say=say)
    finally:
        store.close()


def down(home: Path = HOME) -> list[str]:
    """End the agents of this machine with their units and Sparks; give the zones they were of."""
    from headwater.runtime.agents import Agents

    return Agents(home).end()


def clock(at: float) -> str:
    """Write a moment as date and time, here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
