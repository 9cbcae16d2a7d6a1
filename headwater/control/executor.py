"""Execute one step: a call to one node, repeated while it may still succeed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from headwater.control import health
from headwater.control.calls import Calls
from headwater.control.ports import Ports
from headwater.core.errors import Fenced, HeadwaterError
from headwater.core.metrics import Progress, node_of
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodePort
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.steps import (
    CatchUp,
    Check,
    Drain,
    Finish,
    Forget,
    FormerOutput,
    Load,
    Preflight,
    Prepare,
    Save,
    Start,
    Step,
    Stop,
    Switch,
    UpdateInputs,
    WarmUp,
    Watch,
)

_SOON = 0.1  # seconds
_CATCH_UP, _NEAR = 0.05, 3.0  # seconds between two looks at a unit that catches up, and that it may stay a batch behind
_ANSWER = 0.5  # seconds to wait for an answer before the caller continues
_SILENT = 5.0  # seconds after which a silent node is worth a message


class GateFailed(HeadwaterError):
    """The changed units do worse than before the change."""

    exit_code = 5


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Result of one attempt at a step: done, or to be repeated in ``wait`` seconds because of ``note``."""

    done: bool
    note: str = ""
    wait: float = 0.0


@dataclass
class _Trying:
    """Memory of a step between two attempts."""

    since: float
    failures: int = 0
    first: Progress | None = None
    call: Future[Attempt] | None = None
    """The call that is still open."""
    asked: float = 0.0
    follows: bool = False
    """Whether a unit that catches up has begun with the newest state of the running one."""
    near: float | None = None
    """Since when a unit that catches up is at most one batch behind."""
    source: DeploymentPlan | None = None
    """The plan of a running unit that the step involves, too."""


class Executor:
    """Attempts steps. An attempt may be repeated at any time: every step is idempotent.

    Transient errors are retried after ``shortest`` to ``longest`` seconds; all others are raised. With ``calls`` a
    silent node does not block: the call stays open, and a later attempt asks for its result.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        calls: Calls | None = None,
        shortest: float = 0.5,
        longest: float = 30.0,
        look: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = ports
        self._calls = calls
        self._shortest = shortest
        self._longest = longest
        self._look = look
        self._clock = clock
        self._trying: dict[Step, _Trying] = {}

    def attempt(
        self,
        step: Step,
        plan: DeploymentPlan,
        *,
        baseline: Progress | None = None,
        source: DeploymentPlan | None = None,
    ) -> Attempt:
        """Try a step of ``plan`` once; ``baseline`` is the progress that a gate compares with, and ``source`` the plan
        of a running unit with which another one catches up."""
        trying = self._trying.setdefault(step, _Trying(since=self._clock(), source=source))
        try:
            attempt = self._tried(step, plan, trying, baseline)
        except HeadwaterError as error:
            if not error.retryable:
                self._trying.pop(step, None)
                raise
            trying.failures += 1
            wait = min(self._longest, self._shortest * 2 ** min(20, trying.failures - 1))
            return Attempt(done=False, wait=wait, note=f"{step.node}: {error.what}; trying again")
        if attempt is None:
            return self._unanswered(step, trying)
        trying.failures = 0
        if attempt.done:
            self._trying.pop(step, None)
        return attempt

    def _tried(self, step: Step, plan: DeploymentPlan, trying: _Trying, baseline: Progress | None) -> Attempt | None:
        """Return the result of an open call; None while the node has not answered."""
        if isinstance(step, Switch):
            return Attempt(done=True)  # an error of the store, not of the node
        if self._calls is None:
            return self._attempt(step, plan, trying, baseline)
        if trying.call is None:
            trying.call = self._calls.begin(lambda: self._attempt(step, plan, trying, baseline))
            trying.asked = self._clock()
        try:
            attempt = trying.call.result(_ANSWER)
        except FutureTimeout:
            return None
        except BaseException:
            trying.call = None
            raise
        trying.call = None
        return attempt

    def _unanswered(self, step: Step, trying: _Trying) -> Attempt:
        silent = self._clock() - trying.asked > _SILENT
        return Attempt(done=False, wait=_SOON, note=f"{step.node} does not answer" if silent else "")

    def tried_for(self, step: Step) -> float:
        """Return the seconds since the first attempt at a step that is not done."""
        trying = self._trying.get(step)
        return self._clock() - trying.since if trying else 0.0

    def excuse(self, seconds: float) -> None:
        """Leave out seconds in which no step could be attempted."""
        for trying in list(self._trying.values()):
            trying.since += seconds
            trying.asked += seconds

    def give_up(self) -> None:
        """Forget all open attempts: other steps follow, and late orders are fenced."""
        self._trying.clear()

    def _attempt(self, step: Step, plan: DeploymentPlan, trying: _Trying, baseline: Progress | None) -> Attempt:
        if isinstance(step, Watch):
            return self._watch(step, plan, trying, baseline)
        port, spec = self._ports.of(plan, step.node), spec_of(plan, step.unit)
        match step:
            case FormerOutput():
                port.former_output(spec, step.choice, step.sinks)
            case Check():
                port.check(spec)
            case Prepare():
                port.prepare(spec, joining=step.joining)
            case Start():
                port.start(spec)
            case UpdateInputs():
                port.update_inputs(spec)
            case Stop():
                port.stop(spec, clean=step.clean)
            case Drain():
                return self._drain(step, spec, port)
            case Preflight():
                port.preflight(spec)
            case WarmUp():
                port.warm_up(spec, step.transfer, step.saved)
            case CatchUp():
                return self._catch_up(step, spec, port, trying)
            case Save():
                kept, sent = port.save(spec, sinks=step.sinks)
                return Attempt(done=True, note=f"{kept} bytes of state, {sent} of them sent now")
            case Load():
                if port.load(spec, step.transfer, step.saved):
                    return Attempt(done=True, note=f"{step.unit} has caught up")
            case Finish():
                if not port.finish(spec):
                    return self._later(f"{step.unit} has input left", at_least=_SOON)
            case Forget():
                if not port.forget(spec):
                    return self._later(f"the output of {step.unit} is still being read")
        return Attempt(done=True)

    def _later(self, note: str, *, at_least: float = 0.0) -> Attempt:
        return Attempt(done=False, wait=max(self._look, at_least), note=note)

    def _catch_up(self, step: CatchUp, spec: UnitSpec, port: NodePort, trying: _Trying) -> Attempt:
        """Give the unit the newest batches of the running one; after a while the change goes on without."""
        late = self._clock() - trying.since > step.seconds
        assert trying.source is not None
        (source,) = step.transfer.source_units
        running = spec_of(trying.source, source)
        try:
            self._ports.of(trying.source, node_of(source)).preflight(running, batches_only=trying.follows)
            left = port.catch_up(spec, step.transfer, step.saved)
            trying.follows = True
        except HeadwaterError as error:
            if isinstance(error, Fenced) or (error.retryable and not late):
                raise
            return Attempt(done=True, note=f"{step.unit} does not catch up: {error.what}")
        if left is None:
            return Attempt(done=True, note=f"{step.unit} does not catch up: its state is loaded")
        trying.near = (trying.near or self._clock()) if left <= 1 else None
        near = trying.near is not None and self._clock() - trying.near > _NEAR
        note = f"{step.unit} is {left} {'batch' if left == 1 else 'batches'} behind"
        return Attempt(done=not left or near or late, wait=_CATCH_UP, note=note)

    def _drain(self, step: Drain, spec: UnitSpec, port: NodePort) -> Attempt:
        try:
            if port.drained(spec):
                return Attempt(done=True)
        except HeadwaterError as error:
            if error.retryable or step.must:
                raise
            return Attempt(done=True, note=f"{step.unit} is removed with unread rows: {error.what}")
        note = f"{step.unit} has still to read its inputs"
        return Attempt(done=False, wait=min(self._look, _SOON), note=note)  # other units stand still meanwhile

    def _watch(
        self,
        step: Watch,
        plan: DeploymentPlan,
        trying: _Trying,
        baseline: Progress | None,
    ) -> Attempt:
        name = plan.dataflow.name
        reports = [self._ports.of(plan, node).report().progress.get(name) for node in step.nodes]
        now = Progress(seconds=0.0, units=tuple(u for p in reports if p is not None for u in p.units))
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
