"""The use cases over a store: apply, stop, status, history, explain; and running the controller.

They take values and store URLs, return values and raise HeadwaterErrors, like ``headwater.app.running``. All but ``up``
only read the store or write a desired state.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headwater.app.observe import status
from headwater.app.stores import existing
from headwater.app.view import Status
from headwater.continuum.model import Node
from headwater.control.records import Change, Decision, DesiredState, Event, StepState
from headwater.control.store import Store
from headwater.control.tables import HOME, NoStore, resolved_url
from headwater.core.errors import DeploymentError, HeadwaterError, RuntimeFailure
from headwater.plan.explain import explain as in_words
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import OpenNode
from headwater.plan.profile import Profile

PROVE_SECONDS = 60.0
"""Seconds for which a finished change is followed until each of its units has reported that it can run."""
_TOLD = 5  # failed units that are named

# ---------------------------------------------------------------- desired states


def keep_profile(name: str, profile: Profile, store_url: str | None = None) -> None:
    """Store the profile of an existing deployment."""
    with closing(Store(resolved_url(store_url))) as store:
        store.keep_profile(name, profile)


def stop(name: str, store_url: str | None = None, *, how: Literal["stop", "forget", "finish"] = "stop") -> int:
    """Store a desired state that stops a deployment: keep its state, delete it, or use up all input first."""
    with existing(store_url) as reader:
        reader.deployment(name)
    with closing(Store(resolved_url(store_url))) as store:
        return store.want(name, how)


# ---------------------------------------------------------------- looking


@dataclass(frozen=True, kw_only=True)
class History:
    """A deployment's desired states, changes, events and decisions, the oldest first."""

    desired_states: tuple[DesiredState, ...]
    changes: tuple[Change, ...]
    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]


def history(name: str, store_url: str | None = None) -> History:
    """Return the history of a deployment."""
    with existing(store_url) as store:
        store.deployment(name)
        return History(
            desired_states=store.desired_states(name),
            changes=store.changes(name),
            events=store.events(name),
            decisions=store.decisions(name),
        )


@dataclass(frozen=True, kw_only=True)
class StepSeen:
    """A step of a change in words, its state, and its times (seconds since 1970)."""

    kind: str
    unit: str | None
    state: StepState
    note: str
    begun: float | None
    ended: float | None


@dataclass(frozen=True, kw_only=True)
class Explained(Change):
    """A change, under way or the newest: its steps in words, and their states."""

    words: tuple[str, ...]
    steps: tuple[StepSeen, ...]

    @property
    def done(self) -> int:
        """Count the steps that are done."""
        return sum(step.state == "done" for step in self.steps)

    @property
    def measured(self) -> list[str]:
        """Return the notes of the steps, and how long units stood still for the change."""
        lines = [f"{step.kind} {step.unit or ''}: {step.note}" for step in self.steps if step.note]
        stops = [step.begun for step in self.steps if step.kind == "stop" and step.begun]
        starts = [step.ended for step in self.steps if step.kind == "start" and step.ended]
        if stops and starts and max(starts) > min(stops):
            lines.append(f"{max(starts) - min(stops):.1f} s from the first stop to the last start")
        return lines


def explain(name: str, store_url: str | None = None) -> Explained | None:
    """Explain the change under way, or the last one; None before the first."""
    with existing(store_url) as store:
        store.deployment(name)
        change = next(reversed(store.changes(name)), None)
        journal = store.journal(change.id) if change else ()
    if change is None:
        return None
    return Explained(
        **vars(change),
        words=tuple(in_words([e.step for e in journal if e.state != "dropped"])),
        steps=tuple(
            StepSeen(
                kind=e.step.kind,
                unit=getattr(e.step, "unit", None),
                state=e.state,
                note=e.note,
                begun=e.begun,
                ended=e.ended,
            )
            for e in journal
        ),
    )


def in_force(store_url: str | None = None) -> dict[str, DeploymentPlan]:
    """Return the active plans, by deployment; empty where there is no store."""
    try:
        with existing(store_url) as store:
            plans = {r.name: store.active_plan(r.name) for r in store.deployments() if r.phase != "stopped"}
    except NoStore:
        return {}
    return {name: plan for name, plan in plans.items() if plan is not None}


def follow(
    name: str,
    version: int,
    store_url: str | None = None,
    *,
    stop: threading.Event | None = None,
    observe: Callable[[Status], None] = lambda status: None,
    say: Callable[[str], None] = lambda text: None,
    every: float = 0.25,
) -> Status | None:
    """Follow a version until all its units run; return the last status, None when ``stop`` was set before.

    Raises DeploymentError where it failed or was refused, RuntimeFailure where it was rolled back or a unit fails.
    """
    stop = stop or threading.Event()
    warned, ended = False, math.inf
    with existing(store_url) as store:
        told = max((e.id for e in store.events(name, limit=1)), default=0)
        while True:
            (now,) = status(name, store_url)
            for event in store.events(name, after=told):
                told = event.id
                say(event.text)
            observe(now)
            if now.controller is None and not warned:
                warned = True
                say("no controller acts on this store: start one with `headwater up`")
            if now.observed_version >= version:
                ended = min(ended, time.monotonic())
                plan = store.active_plan(name)
                if plan is None or _proven(now, version, plan) or time.monotonic() - ended > PROVE_SECONDS:
                    return _ended(now, version)
            if stop.wait(every):
                return None


def _proven(now: Status, version: int, plan: DeploymentPlan) -> bool:
    """Return whether each node has reported since a version's change ended, and no unit is still to prove itself."""
    change = now.change
    if change is None or change.version != version or change.goal != "run" or change.outcome != "done":
        return True
    heard = {node.zone for node in now.zones if node.at >= (change.ended or 0.0)}
    return all(unit.node in heard for unit in plan.units) and not any(unit.unproven for unit in now.units)


def _ended(now: Status, version: int) -> Status:
    change = now.change
    if change is None or change.version != version or change.outcome is None:
        return now
    if change.outcome == "done":
        if change.goal == "run" and (failed := now.progress.failed):
            causes = [(u.error or "no reason is known").partition("\n  -> ") for u in failed]
            told = [
                f"{u.unit} of zone {u.zone}: {what.removeprefix(f'unit {u.unit}: ')}"
                for u, (what, _, _) in zip(failed, causes, strict=True)
            ]
            raise RuntimeFailure(
                f"{len(failed)} of {len(now.units)} units failed: " + "; ".join(told[:_TOLD]),
                where=f"deployment '{now.name}', version {version}",
                hint=causes[0][2] or "correct the cause and apply again, or wait: its agent starts it again",
            )
        return now
    kind = RuntimeFailure if change.outcome == "rolled back" else DeploymentError
    what, _, hint = change.message.partition("\n  -> ")
    raise kind(
        f"{change.outcome}: {what}",
        where=f"deployment '{now.name}', version {version}",
        hint=hint or "correct the cause and apply again",
    )


# ---------------------------------------------------------------- acting


def up(
    store_url: str | None = None,
    *,
    home: Path = HOME,
    options: tuple[str, ...] = (),
    shares_spark: bool = True,
    open_node: OpenNode | None = None,
    nodes: Iterable[Node] = (),
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the controller until ``stop`` is set; ``nodes`` are opened at once, others at their first use.

    Agents of nodes without an address run on this machine, below ``home``, with ``options``. ``shares_spark``: they
    use one Spark, but for those of zones with Spark settings.
    """
    from headwater.agent.agents import Agents
    from headwater.agent.starters import starting
    from headwater.control.controller import Controller

    with closing(Store(resolved_url(store_url))) as store, ExitStack() as stack:
        if open_node is None:
            stack.enter_context(starting(home))
            agents = Agents(home, options=options, shares_spark=shares_spark)
            open_node = agents.open
            for node in nodes:
                try:
                    agents.open(node)
                except HeadwaterError as error:
                    if not error.retryable:
                        raise
                    say(f"{node.name}: {error.what}")
        Controller(store, open_node).run(stop or threading.Event(), say=say)


def down(home: Path = HOME) -> list[str]:
    """End the controllers below ``home``, then the agents with their units and Sparks; return the names of their nodes.

    Raises RuntimeFailure where a process does not end.
    """
    from headwater.agent.agents import Agents

    return Agents(home).end()


def clock(at: float) -> str:
    """Format a moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
