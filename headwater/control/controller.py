"""The controller: reads the desired state, computes steps, runs them one by one and journals each.

All its knowledge is in the store: after a kill at any moment the next controller continues at the first step that is
not done. Checks, warm-ups and starts on several nodes run concurrently. A newer desired state is adopted between two
steps, so a change that is stuck does not block the next one. Deployments progress independently: a node that does not
answer delays only the changes that need it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial

from headwater.control.calls import SLOW, Calls
from headwater.control.changespans import change_spans, plan_span, step_context
from headwater.control.database import LeaseLost
from headwater.control.drift import Drift, DriftRepair
from headwater.control.executor import Attempt, Executor
from headwater.control.heldlease import HeldLease
from headwater.control.lifecycle import Phase
from headwater.control.policy import Policy
from headwater.control.poller import Poller
from headwater.control.ports import Ports
from headwater.control.records import Change, DeploymentRecord, DesiredState, JournalEntry, whole
from headwater.control.store import Store
from headwater.core.errors import Fenced, HeadwaterError, RuntimeFailure, Unavailable
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.ending import finishing, stopping
from headwater.plan.model import DeploymentPlan
from headwater.plan.order import steps_to
from headwater.plan.port import OpenNode
from headwater.plan.rollback import stranded, way_back
from headwater.plan.steps import (
    CatchUp,
    Check,
    FormerOutput,
    Plans,
    Preflight,
    Step,
    Switch,
    WarmUp,
    begun,
    done,
    settled,
    side_by_side,
)
from headwater.tracing.spans import inside, is_tracing, send

_LOG = logging.getLogger(__name__)
TRY_SECONDS = 120.0
"""Seconds after which a warm-up ahead of a decision is abandoned."""
IDLE = 1.0  # seconds between two reads of a store without work
LOOK = 0.1  # seconds between two looks for new desired states
WATCHED = 1.0  # seconds between two polls of deployments that have an SLO or an open decision
PROVING, PROVING_SECONDS = 0.3, 30.0
"""Seconds between two polls of a deployment that has just changed, and for how long it is polled so often."""
PROVING_SHARE = 0.2
"""Share of a core that these polls may use."""
WIDTH = 32  # deployments that are advanced at once, besides those whose step has lasted longer than SLOW
_BRIEF = 0.2  # seconds: a shorter wait does not hand the deployment's thread back
POLLING = 0.02
"""Share of a core that polling may use."""


@dataclass
class _Acting:
    """Deployments that a thread works on now, and when the others are due."""

    began: dict[str, float] = field(default_factory=dict)
    """Start of the current step of each deployment that a thread works on, in monotonic seconds."""
    due: dict[str, float] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """The newest version that was read, by deployment."""
    woken: threading.Condition = field(default_factory=threading.Condition)


class Controller:
    """Reconcile nodes with the desired state in a store.

    ``lease``: seconds without a heartbeat after which another controller may take over; see ``HeldLease``. Without a
    proof of its lease the controller gives no orders; it ends where another one has the lease. ``poll``: seconds
    between two polls of the nodes' progress. ``patience``: seconds to wait for an unreachable node before the first
    step that changes anything.
    """

    def __init__(
        self,
        store: Store,
        open_node: OpenNode,
        *,
        holder: str | None = None,
        lease: float = 10.0,
        poll: float = 5.0,
        patience: float = 300.0,
        executor: Callable[[Ports], Executor] | None = None,
    ) -> None:
        self._store = store
        self.lease = HeldLease(store, holder=holder, seconds=lease)
        self._holder = self.lease.holder
        self._poll = poll
        self._patience = patience
        self._calls = Calls("call")
        self._ports = Ports(open_node, self.lease.stamp)
        self._executors: dict[str, Executor] = {}
        self._make = executor or (lambda ports: Executor(ports, calls=self._calls))
        self._acting = _Acting()
        self._poller = Poller(store, self._holder, self._ports, self._calls, drifted=self._drifted)
        self._policy = Policy(store, self._holder, try_out=self._try_out)
        self._trying: threading.Thread | None = None
        self._drift = DriftRepair(store, self._ports)
        self._all_due = 0.0
        """When all nodes are polled next."""
        self._proving: dict[str, float] = {}
        """Deployments of which a change has ended, until each of their units has done a batch; until when at most."""
        self._changed = threading.Event()

    # ------------------------------------------------------------ living

    def run(self, stop: threading.Event, *, say: Callable[[str], None] = lambda text: None) -> None:
        """Act until ``stop`` is set; raise LeaseLost when another controller has taken over."""
        if not self.lease.take(stop, say):
            return
        say(f"acting on {self._store.where}")
        threads = [
            threading.Thread(target=self._keep_lease, args=(stop, say), name="lease", daemon=True),
            threading.Thread(target=self._keep_polling, args=(stop,), name="progress", daemon=True),
            threading.Thread(target=self._keep_deciding, args=(stop,), name="policy", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while not stop.is_set() and not self.lease.lost.is_set():
                self._rest(self._guarded(self._hand_out), stop)
        finally:
            ours = not self.lease.lost.is_set()
            self._lose()
            for thread in threads:
                thread.join(self.lease.seconds)
            self._come_to_rest()
            if ours:
                with contextlib.suppress(Unavailable):  # then it expires
                    self.lease.release()
        if not stop.is_set():
            raise LeaseLost(
                "another controller has taken over",
                where=self._store.where,
                hint="run one controller per store",
            )

    def _keep_lease(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        if not self.lease.keep(stop, say, self._excuse):
            self._lose()

    def _excuse(self, seconds: float) -> None:
        for executor in list(self._executors.values()):
            executor.excuse(seconds)

    def _lose(self) -> None:
        self.lease.lost.set()
        self._changed.set()
        with self._acting.woken:
            self._acting.woken.notify_all()

    def _keep_polling(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self.lease.lost.is_set():
            if self.lease.is_proven():
                self._changed.wait(self._guarded(self.poll))
            else:
                self.lease.lost.wait(IDLE)

    def _keep_deciding(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self.lease.lost.wait(IDLE):
            self._guarded(self._decide_all)

    def _decide_all(self) -> float:
        self._policy.look(self._poller.fresh(2 * IDLE))
        return IDLE

    def _try_out(self, name: str, plan: DeploymentPlan) -> bool:
        """Start to warm up a plan beside the running units, one plan at a time; False while another one is tried."""
        if self._trying is not None and self._trying.is_alive():
            return False
        self._trying = threading.Thread(target=self.try_out, args=(name, plan), name="ahead", daemon=True)
        self._trying.start()
        return True

    def try_out(self, name: str, plan: DeploymentPlan) -> bool:
        """Check and warm up the units that a plan would start; running units are not changed.

        Return False where the trial was abandoned: the desired state changed, or a node cannot run the plan.
        """
        try:
            record = self._store.deployment(name)
            base = self._store.plan(record.active_plan) if record.active_plan else None
            decided = diff(base, plan)
            unit_statuses = self._store.unit_statuses(name)
            plans = {**self._store.plans_of(unit_statuses), plan_id(decided.wanted): decided.wanted}
            steps = steps_to(decided, unit_statuses, plans)
            executor, deadline = self._make(self._ports), time.monotonic() + TRY_SECONDS
            for step in (s for s in steps if isinstance(s, Check | Preflight | WarmUp)):
                while not (attempt := executor.attempt(step, plans[step.plan])).done:
                    if time.monotonic() > deadline or self.lease.lost.wait(attempt.wait):
                        return False
                if self._store.deployment(name).version != record.version:
                    return False
        except HeadwaterError as error:
            self._store.tell(name, f"warm-up ahead failed: {str(error).splitlines()[0]}")
            return False
        return True

    def _guarded(self, act: Callable[[], float]) -> float:
        """Run an action while the lease holds; tolerate a database that is temporarily unavailable."""
        if not self.lease.is_proven():
            return IDLE
        try:
            return act()
        except Unavailable:
            return IDLE  # the renewal of the lease tells why
        except (LeaseLost, Fenced):
            self._lose()
            return 0.0

    # ------------------------------------------------------------ acting

    def _hand_out(self) -> float:
        """Hand every due deployment to a thread; return the seconds until the next one is due."""
        acting, now = self._acting, time.monotonic()
        pending, waits = self._store.pending(), [LOOK]
        # Those not handed out yet come first: a new change does not wait for the steps of others.
        for name, version in sorted(pending.items(), key=lambda item: acting.due.get(item[0], 0.0)):
            with acting.woken:
                if acting.versions.get(name) != version:
                    acting.due.pop(name, None)
                if name in acting.began:
                    continue
                due = acting.due.get(name, now)
                if due > now:
                    waits.append(due - now)
                    continue
                if sum(now - since < SLOW for since in acting.began.values()) >= WIDTH:
                    return _BRIEF
                acting.began[name] = now
                acting.versions[name] = version
            self._calls.begin(partial(self._act, name))
        return min(waits)

    def _act(self, name: str) -> None:
        """Advance a deployment until it has to wait."""
        wait = 0.0
        try:
            while not wait and not self.lease.lost.is_set():
                self._acting.began[name] = time.monotonic()
                wait = self._guarded(lambda: self.advance(name))
                if wait < _BRIEF and wait > 0:
                    self.lease.lost.wait(wait)
                    wait = 0.0
        except Exception:  # a defect: the other deployments go on, and this one is not tried without a pause
            _LOG.exception("deployment %s", name, extra={"deployment": name})
            wait = IDLE
        finally:
            with self._acting.woken:
                self._acting.began.pop(name, None)
                self._acting.due[name] = time.monotonic() + wait
                self._acting.woken.notify_all()

    def _rest(self, seconds: float, stop: threading.Event) -> None:
        """Wait until a deployment is due or a thread ends."""
        deadline = time.monotonic() + seconds
        with self._acting.woken:
            while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
                if self._acting.woken.wait(min(left, _BRIEF)):
                    return

    def _come_to_rest(self) -> None:
        """Wait for running steps to end, at most as long as the lease lasts."""
        deadline = time.monotonic() + self.lease.seconds
        with self._acting.woken:
            while self._acting.began and (left := deadline - time.monotonic()) > 0:
                self._acting.woken.wait(left)

    def look(self) -> float:
        """Advance every pending deployment by one step; return the seconds until the next step."""
        return min([IDLE, *(self.advance(name) for name in self._store.pending())])

    def advance(self, name: str) -> float:
        """Advance a deployment by one step; return the seconds until its next step."""
        try:
            return self._advance(name)
        finally:
            self._poller.moved(name)

    def _advance(self, name: str) -> float:
        record, change = self._store.deployment(name), self._store.change(name)
        if change is None:
            if record.observed_version < record.version:
                self._take_up(record)
                return 0.0
            return IDLE
        if record.version > change.version:
            self._executor(name).give_up()
            self._store.end_change(self._holder, change, "superseded", phase="wanted")
            self._send_trace(change)
            return 0.0
        return self._go_on(change)

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = self._make(self._ports)
        return self._executors[name]

    def _take_up(self, record: DeploymentRecord) -> None:
        """Compute the steps from the unit statuses to a desired state, and journal them."""
        asked, desired = time.time(), self._store.desired(record.name)
        plan = self._store.plan(desired.plan) if desired.plan else None
        try:
            plan, steps, phase = self._decide(record, desired, plan)
        except Unavailable:  # the store
            raise
        except HeadwaterError as error:
            self._store.refuse(self._holder, desired, plan, f"refused, nothing was changed: {error}")
            return
        number = self._store.begin_change(self._holder, desired, plan, steps, phase=phase)
        if is_tracing():
            send(plan_span(self._store.id, number, asked, time.time(), steps))

    def _decide(
        self, record: DeploymentRecord, desired: DesiredState, plan: DeploymentPlan | None
    ) -> tuple[DeploymentPlan | None, tuple[Step, ...], Phase]:
        unit_statuses = self._store.unit_statuses(record.name)
        plans = self._store.plans_of(unit_statuses)
        if desired.goal == "run":
            assert plan is not None
            base = self._store.plan(record.active_plan) if record.active_plan else None
            decided = diff(base, plan, reset_state=desired.reset_state, generation=desired.generation)
            steps = steps_to(
                decided,
                unit_statuses,
                plans,
                canary=desired.canary,
                former_output=desired.former_output,
                seen=whole(self._store.reports(record.name)),
            )
            return decided.wanted, steps, "checking"
        if desired.goal == "finish":
            return None, finishing(unit_statuses, plans), "stopping"
        return None, stopping(unit_statuses, plans, forget=desired.goal == "forget"), "stopping"

    def _go_on(self, change: Change) -> float:
        entries = self._store.next_steps(change.id)
        if not entries:
            self._end(change)
            return 0.0
        entries = tuple(entries[n] for n in side_by_side([e.step for e in entries]))
        named = {e.step.plan for e in entries} | {e.step.source_plan for e in entries if isinstance(e.step, CatchUp)}
        plans = {id_: self._store.plan(id_) for id_ in named}
        change = replace(change, phase=self._phase(change, entries[0].step))
        unit_statuses = self._store.unit_statuses(change.deployment)
        for entry in entries:
            if entry.state == "todo":
                unit_statuses = begun(entry.step, unit_statuses, plans[entry.step.plan])
                self._store.step_begun(self._holder, change, entry.number, unit_statuses, phase=change.phase)
        waits: list[float] = []
        failed: dict[int, tuple[Step, HeadwaterError]] = {}
        for entry, outcome in self._attempts(change, entries, plans):
            if isinstance(outcome, HeadwaterError):
                failed[entry.number] = (entry.step, outcome)
            elif not outcome.done:
                if outcome.note:
                    self._store.step_waits(self._holder, change, entry.number, outcome.note)
                waits.append(outcome.wait)
            else:
                unit_statuses = done(entry.step, unit_statuses, plans[entry.step.plan])
                self._store.step_done(self._holder, change, entry.number, unit_statuses, note=outcome.note)
        if failed:
            self._fail(change, *failed[min(failed)])
            return 0.0
        return min(waits, default=0.0)

    def _attempts(
        self, change: Change, entries: Sequence[JournalEntry], plans: Plans
    ) -> Iterator[tuple[JournalEntry, Attempt | HeadwaterError]]:
        """Run steps concurrently; yield each attempt as it ends."""

        def attempt(entry: JournalEntry) -> Attempt | HeadwaterError:
            try:
                with inside(step_context(self._store.id, change.id, entry.number) if is_tracing() else None):
                    return self._attempt(change, entry.step, plans)
            except Fenced:
                raise
            except HeadwaterError as error:
                return error

        if len(entries) == 1:
            yield entries[0], attempt(entries[0])
            return
        with ThreadPoolExecutor(len(entries), thread_name_prefix="step") as pool:
            tried = {pool.submit(attempt, entry): entry for entry in entries}
            for one in as_completed(tried):
                yield tried[one], one.result()

    def _attempt(self, change: Change, step: Step, plans: Plans) -> Attempt:
        executor = self._executor(change.deployment)
        source = plans[step.source_plan] if isinstance(step, CatchUp) else None
        try:
            attempt = executor.attempt(step, plans[step.plan], baseline=change.baseline, source=source)
        except HeadwaterError:
            raise
        except Exception as error:
            # A port that breaks its contract ends the change, not the controller.
            raise RuntimeFailure(
                f"{type(error).__name__}: {str(error).partition(chr(10))[0][:500]}",
                where=step.node,
                hint="report this as a defect",
            ) from error
        waited = executor.tried_for(step)
        if not attempt.done and change.phase == "checking" and waited > self._patience:
            raise Unavailable(
                f"{attempt.note or f'{step.node} has not finished'}, for {waited:.0f} s now",
                where=step.node,
                hint="apply again when the node can be reached",
            )
        return attempt

    def _phase(self, change: Change, step: Step) -> Phase:
        """Return the phase of a change while one of its steps runs.

        Until the switch of a state transfer the former plan is the active plan: a newer desired state starts from it.
        """
        if change.goal != "run":
            return "stopping"
        if change.phase in ("rolling_back", "changing"):
            return change.phase
        if isinstance(step, Switch):
            return "changing"
        if isinstance(step, FormerOutput | Check | Preflight | WarmUp) and change.phase == "checking":
            return "checking"
        hands_over = any(isinstance(e.step, Switch) for e in self._store.journal(change.id))
        return "handing_over" if hands_over else "changing"

    # ------------------------------------------------------------ ends

    def _end(self, change: Change) -> None:
        """All steps are done."""
        name, end = change.deployment, self._store.end_change
        unit_statuses = self._store.unit_statuses(name)
        base = self._store.deployment(name).active_plan
        self._poller.moved(name)
        self._proving[name] = time.monotonic() + (PROVING_SECONDS if change.goal == "run" else 0.0)
        match change.goal:
            case "run":
                assert change.plan is not None
                plan = self._store.plan(change.plan)
                back = change.phase == "rolling_back"
                end(
                    self._holder,
                    change,
                    "rolled back" if back else "done",
                    phase="running",
                    message=change.message if back else "",
                    unit_statuses=settled(unit_statuses, plan),
                    active_plan=change.plan,
                )
                self._store.clear_reports(self._holder, name, frozenset(u.node for u in plan.units))
            case "forget":
                end(
                    self._holder,
                    change,
                    "done",
                    phase="stopped",
                    message="deleted",
                    unit_statuses={},
                    active_plan=None,
                )
                self._store.clear_reports(self._holder, name, frozenset())
            case "finish":
                end(self._holder, change, "done", phase="stopped", message="all input is used up", active_plan=base)
            case "stop":
                end(self._holder, change, "done", phase="stopped", active_plan=base)
        self._send_trace(change)
        self._changed.set()

    def _send_trace(self, change: Change) -> None:
        """Send the spans of a change that has ended, where spans are sent."""
        if is_tracing():
            (ended,) = (c for c in self._store.changes(change.deployment) if c.id == change.id)
            for span in change_spans(self._store.id, ended, self._store.journal(change.id)):
                send(span)

    def _fail(self, change: Change, step: Step, error: HeadwaterError) -> None:
        """Handle a failed step: leave all running, roll back, or record the unit statuses."""
        self._executor(change.deployment).give_up()
        if change.phase == "checking":
            self._end_failed(change, f"nothing was stopped or started: {error}")
        elif change.phase == "handing_over":
            self._roll_back(change, str(error))
        elif change.phase != "changing" or self._store.desired(change.deployment, change.version).canary is None:
            self._end_failed(change, str(error))
        else:
            self._roll_back(change, str(error))

    def _end_failed(self, change: Change, message: str) -> None:
        self._store.end_change(self._holder, change, "failed", phase="failed", message=message)
        self._send_trace(change)

    def _roll_back(self, change: Change, why: str) -> None:
        """Journal the steps of a rollback, where one exists that loses no rows."""
        ran = {c.plan for c in self._store.changes(change.deployment) if c.outcome in ("done", "rolled back")}
        if change.before is None or change.before not in ran:
            self._end_failed(change, f"{why}\nthere is no complete former plan to roll back to")
            return
        assert change.plan is not None
        before, failed = self._store.plan(change.before), self._store.plan(change.plan)
        unit_statuses = self._store.unit_statuses(change.deployment)
        started = change.phase != "handing_over"
        if started and (lost := stranded(before, failed, unit_statuses)):
            self._end_failed(
                change,
                f"{why}\nnot rolled back: the rows in {', '.join(lost)} can only be read by units of the new "
                "plan; correct it and apply it again",
            )
            return
        back = way_back(before, failed, unit_statuses)
        plans = {**self._store.plans_of(unit_statuses), plan_id(failed): failed}
        # The earlier plan has passed its checks, and the output in its sinks is its own.
        done = FormerOutput | Check | WarmUp
        steps = [s for s in steps_to(back, unit_statuses, plans) if not isinstance(s, done)]
        self._store.roll_back(self._holder, change, back.wanted, steps, why)

    # ------------------------------------------------------------ looking

    def poll(self) -> float:
        """Poll the nodes and store their reports; return the seconds until the next poll.

        Deployments with an SLO or an open decision are polled more often, and so are those that have just changed,
        until each of their units has done a batch: users wait for it. The more nodes there are, the less often all of
        them are polled.
        """
        self._changed.clear()
        now, ended = time.monotonic(), dict(self._proving)
        watched = self._watched()
        if now >= self._all_due or not watched | ended.keys():
            self._poller.poll()
            self._all_due = now + max(self._poll, self._poller.seconds / POLLING)
        else:
            self._poller.poll(watched | ended.keys())
        for name, until in ended.items():
            if (now >= until or self._poller.is_proven(name)) and self._proving.get(name) == until:
                del self._proving[name]
        left, wait = max(0.0, self._all_due - time.monotonic()), math.inf
        if self._proving:
            wait = max(PROVING, self._poller.seconds / PROVING_SHARE)
        return min(wait, WATCHED if watched else left, self._poll, left)

    def _watched(self) -> set[str]:
        """Name the deployments that have an SLO or an open decision."""
        has_slo = {name for name, slo in self._store.slos().items() if slo.mode != "off"}
        return has_slo & self._store.with_units(running=True)

    def _drifted(self, drift: Drift) -> None:
        """Start to repair drift, unless a thread works on the deployment."""
        name = drift.deployment
        with self._acting.woken:
            if name in self._acting.began:
                return
            self._acting.began[name] = time.monotonic()

        def act() -> None:
            try:
                if drift.holds():
                    self._guarded(lambda: self._repair(drift))
            finally:
                with self._acting.woken:
                    self._acting.began.pop(name, None)

        self._calls.begin(act)

    def _repair(self, drift: Drift) -> float:
        self._drift.repair(drift)
        return 0.0
