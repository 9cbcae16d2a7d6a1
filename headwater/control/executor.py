"""Carry out one step: a call to one zone, made again where it may succeed later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headwater.control import health
from headwater.control.zone import OpenZone, ZonePort
from headwater.errors import HeadwaterError
from headwater.metrics import Progress
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import (
    Check,
    Drain,
    Feed,
    Finish,
    Forget,
    Load,
    Prepare,
    Rehearse,
    Save,
    Start,
    Step,
    Stop,
    Survey,
    Switch,
    Watch,
)

_SOON = 0.1  # seconds


class GateFailed(HeadwaterError):
    """Changed units do worse than before the change."""

    exit_code = 5


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How one attempt at a step went: done, or to be made again in ``wait`` seconds because of ``note``."""

    done: bool
    note: str = ""
    wait: float = 0.0


@dataclass
class _Trying:
    """What is remembered of a step between two attempts."""

    since: float
    failures: int = 0
    first: Progress | None = None


class Executor:
    """Makes attempts at steps. An attempt may be repeated at any time: a step done twice is done once.

    Errors that may go away are waited for, ``shortest`` to ``longest`` seconds between two attempts;
    all others are raised.
    """

    def __init__(
        self,
        open_zone: OpenZone,
        *,
        shortest: float = 0.5,
        longest: float = 30.0,
        look: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = Ports(open_zone)
        self._shortest = shortest
        self._longest = longest
        self._look = look
        self._clock = clock
        self._trying: dict[Step, _Trying] = {}

    def attempt(self, step: Step, plan: DeploymentPlan, *, baseline: Progress | None = None) -> Attempt:
        """Try a step of ``plan`` once; ``baseline`` is what a gate compares with."""
        trying = self._trying.setdefault(step, _Trying(since=self._clock()))
        try:
            if isinstance(step, Switch):
                attempt = Attempt(done=True)  # the store's affair
            elif isinstance(step, Watch):
                attempt = self._watch(step, plan, trying, baseline)
            else:
                attempt = self._attempt(step, plan, self._ports.of(plan, step.zone))
        except HeadwaterError as error:
            if not error.retryable:
                self._trying.pop(step)
                raise
            trying.failures += 1
            wait = min(self._longest, self._shortest * 2 ** min(20, trying.failures - 1))
            return Attempt(done=False, wait=wait, note=f"zone {step.zone}: {error.what}; trying again")
        trying.failures = 0
        if attempt.done:
            self._trying.pop(step)
        return attempt

    def tried_for(self, step: Step) -> float:
        """Give the seconds since the first attempt at a step that is not done."""
        trying = self._trying.get(step)
        return self._clock() - trying.since if trying else 0.0

    def give_up(self) -> None:
        """Forget the steps that were being tried: others take their place."""
        self._trying.clear()

    def _attempt(self, step: Step, plan: DeploymentPlan, port: ZonePort) -> Attempt:
        match step:
            case Check():
                port.check(plan, step.unit)
            case Prepare():
                port.prepare(plan, step.unit, joining=step.joining)
            case Start():
                port.start(plan, step.unit)
            case Feed():
                port.feed(plan, step.unit)
            case Stop():
                port.stop(plan, step.unit, clean=step.clean)
            case Drain():
                return self._drain(step, plan, port)
            case Survey():
                port.survey(plan, step.unit)
            case Rehearse():
                port.rehearse(plan, step.unit, step.carry, step.saved)
            case Save():
                kept, sent = port.save(plan, step.unit)
                return Attempt(done=True, note=f"{kept} bytes of state, {sent} of them sent now")
            case Load():
                port.load(plan, step.unit, step.carry, step.saved)
            case Finish():
                if not port.finish(plan, step.unit):
                    return self._later(f"{step.unit} has input left")
            case Forget():
                if not port.forget(plan, step.unit):
                    return self._later(f"what {step.unit} has written is still being read")
        return Attempt(done=True)

    def _later(self, note: str) -> Attempt:
        return Attempt(done=False, wait=self._look, note=note)

    def _drain(self, step: Drain, plan: DeploymentPlan, port: ZonePort) -> Attempt:
        try:
            if port.drained(plan, step.unit):
                return Attempt(done=True)
        except HeadwaterError as error:
            if error.retryable or step.must:
                raise
            return Attempt(done=True, note=f"{step.unit} goes with rows it had not read: {error.what}")
        note = f"{step.unit} has still to read what was written for it"
        return Attempt(done=False, wait=min(self._look, _SOON), note=note)  # others stand still meanwhile

    def _watch(
        self,
        step: Watch,
        plan: DeploymentPlan,
        trying: _Trying,
        baseline: Progress | None,
    ) -> Attempt:
        seen = [self._ports.of(plan, zone).progress(plan.dataflow.name) for zone in step.zones]
        now = Progress(seconds=0.0, units=tuple(u for p in seen for u in p.units))
        why = health.broken(step, now)
        if trying.first is None:
            trying.first, trying.since = now, self._clock()
        left = step.seconds - (self._clock() - trying.since)
        if why is None and left <= 0:
            why = health.worse(step, baseline, trying.first, now)
        if why is not None:
            raise GateFailed(why, hint="correct the dataflow and apply it again")
        if left <= 0:
            return Attempt(done=True)
        return Attempt(done=False, wait=min(left, self._look), note=f"watching {', '.join(step.units)}")


class Ports:
    """The open ports of zones."""

    def __init__(self, open_zone: OpenZone) -> None:
        self._open = open_zone
        self._ports: dict[tuple[str, str], tuple[object, ZonePort]] = {}

    def of(self, plan: DeploymentPlan, zone: str) -> ZonePort:
        """Give the port of a plan's zone; open it anew when the zone is described in another way."""
        described = plan.continuum.zone(zone)
        key = (plan.continuum.name, zone)
        found = self._ports.get(key)
        if found is None or found[0] != described:
            found = self._ports[key] = (described, self._open(described))
        return found[1]
