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
from headwater.continuum import Node
from headwater.control.records import (
    OPEN,
    Change,
    Decision,
    DeploymentRecord,
    Event,
    JournalEntry,
    ReportRecord,
    Wish,
    whole,
)
from headwater.control.store import NoStore, Store, StoreReader
from headwater.errors import DeploymentError, HeadwaterError, RuntimeFailure

# Dead letters are among the use cases, and what all of them share: faces find these here.
from headwater.letters import dead_letters as dead_letters
from headwater.letters import replay as replay
from headwater.metrics import Progress, UnitProgress
from headwater.places import HOME as HOME
from headwater.places import STORE as STORE
from headwater.places import existing as existing
from headwater.places import store_place as store_place
from headwater.plan.explain import explain as in_words
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import OpenNode
from headwater.plan.steps import Start, Stop
from headwater.profile import Profile

RECENT = 12.0
"""Seconds for which what is measured counts as measured now."""


# ---------------------------------------------------------------- wishes


def keep_profile(name: str, profile: Profile, place: str | None = None) -> None:
    """Keep a profile of a deployment that is there."""
    with closing(Store(store_place(place))) as store:
        store.keep_profile(name, profile)


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
    zones: tuple[ReportRecord, ...]
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
            "zones": [{"zone": z.node, "at": z.at, "error": z.error} for z in self.zones],
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
    return tuple(_status(store, record, lease.label if lease else None) for record in records)


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
            now = _status(store, store.deployment(name), lease.label if lease else None)
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
    open_node: OpenNode | None = None,
    nodes: Iterable[Node] = (),
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the controller until ``stop`` is set; ``nodes`` are reached at once, others when they are needed.

    Agents of nodes without an address run on this machine, below ``home``, with ``options``.
    """
    from headwater.control.controller import Controller
    from headwater.runtime.agents import Agents

    store = Store(store_place(place))
    if open_node is None:
        agents = Agents(home, options=options)
        open_node = agents.open
        for node in nodes:
            try:
                agents.open(node)
            except HeadwaterError as error:
                if not error.retryable:
                    raise
                say(f"{node.name}: {error.what}")
    try:
        Controller(store, open_node).run(stop or threading.Event(), say=say)
    finally:
        store.close()


def down(home: Path = HOME) -> list[str]:
    """End the agents of this machine with their units and Sparks; give the nodes they were of."""
    from headwater.runtime.agents import Agents

    return Agents(home).end()


def clock(at: float) -> str:
    """Write a moment as date and time, here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
