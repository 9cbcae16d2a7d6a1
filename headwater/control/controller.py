"""The controller: looks at the store, carries out what is wanted step by step, journals each.

Whatever it knows is in the store. After a kill at any moment the next one goes on at the first step
that is not marked done; checks, rehearsals and starts of several zones are carried out at once. A newer
wish is taken up between two steps, wherever units stand then; so no change that is stuck keeps a later
one waiting.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from headwater.control.executor import Attempt, Executor, Ports
from headwater.control.lifecycle import Phase
from headwater.control.policy import Policy
from headwater.control.records import Change, DeploymentRecord, JournalEntry, Wish, ZoneReport, whole
from headwater.control.store import LeaseLost, Store
from headwater.control.zone import OpenZone
from headwater.errors import HeadwaterError, RuntimeFailure, Unavailable
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan
from headwater.plan.order import finishing, steps_to, stopping
from headwater.plan.steps import (
    Check,
    Plans,
    Rehearse,
    Step,
    Survey,
    Switch,
    begun,
    done,
    settled,
    side_by_side,
)
from headwater.plan.wayback import stranded, way_back

TRY_SECONDS = 120.0
"""After which a rehearsal ahead is given up."""
IDLE = 1.0  # seconds between two looks at a store where nothing is to do
WATCHED = 1.0  # seconds between two looks at the progress of what decisions are made on


def holder_name() -> str:
    """Name this controller, so that a person can find it."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Controller:
    """Makes zones match what a store says is wanted.

    ``lease``: seconds after which another controller may take over from one that is not heard of.
    ``poll``: seconds between two looks at the zones' progress. ``patience``: for how long a zone
    that cannot be reached is waited for before a change, while nothing has been touched yet.
    """

    def __init__(
        self,
        store: Store,
        open_zone: OpenZone,
        *,
        holder: str | None = None,
        lease: float = 10.0,
        poll: float = 5.0,
        patience: float = 300.0,
        executor: Executor | None = None,
    ) -> None:
        self._store = store
        self._holder = holder or holder_name()
        self._lease = lease
        self._poll = poll
        self._patience = patience
        self._executors: dict[str, Executor] = {}
        self._given = executor
        self._open_zone = open_zone
        self._ports = Ports(open_zone)
        self._due: dict[str, float] = {}
        self._lost = threading.Event()
        self._errors: dict[tuple[str, str], str] = {}
        self._policy = Policy(store, self._holder, try_out=self._try_out)
        self._trying: threading.Thread | None = None

    # ------------------------------------------------------------ living

    def run(self, stop: threading.Event, *, say: Callable[[str], None] = lambda text: None) -> None:
        """Act until ``stop`` is set; raise LeaseLost when another controller has taken over."""
        if not self._take_lease(stop, say):
            return
        say(f"acting on {self._store.where}")
        threads = [
            threading.Thread(target=self._keep_lease, args=(stop,), name="lease", daemon=True),
            threading.Thread(target=self._keep_polling, args=(stop,), name="progress", daemon=True),
            threading.Thread(target=self._keep_deciding, args=(stop,), name="policy", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while not stop.is_set() and not self._lost.is_set():
                stop.wait(self._guarded(self.look, say))
        finally:
            ours = not self._lost.is_set()
            self._lost.set()
            for thread in threads:
                thread.join(self._lease)
            if ours:
                self._store.release(self._holder)
        if not stop.is_set():
            raise LeaseLost(
                "another controller has taken over",
                where=self._store.where,
                hint="run one controller per store",
            )

    def _take_lease(self, stop: threading.Event, say: Callable[[str], None]) -> bool:
        told = ""
        while not stop.is_set():
            if self._store.hold(self._holder, self._lease):
                return True
            lease = self._store.lease()
            if lease is not None and lease.holder != told:
                told = lease.holder
                say(f"waiting: {told} acts on {self._store.where}")
            stop.wait(min(1.0, self._lease / 3))
        return False

    def _keep_lease(self, stop: threading.Event) -> None:
        heard = time.monotonic()
        while not stop.is_set() and not self._lost.wait(self._lease / 3):
            try:
                if not self._store.hold(self._holder, self._lease):
                    self._lost.set()
                heard = time.monotonic()
            except HeadwaterError:
                if time.monotonic() - heard > self._lease:
                    self._lost.set()

    def _keep_polling(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self._lost.is_set():
            self._lost.wait(self._guarded(self.poll, lambda text: None))

    def _keep_deciding(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self._lost.wait(IDLE):
            self._guarded(self._decide_all, lambda text: None)

    def _decide_all(self) -> float:
        self._policy.look()
        return IDLE

    def _try_out(self, name: str, plan: DeploymentPlan) -> bool:
        """Begin to rehearse a plan beside what runs, one at a time."""
        if self._trying is not None and self._trying.is_alive():
            return False
        self._trying = threading.Thread(target=self.try_out, args=(name, plan), name="ahead", daemon=True)
        self._trying.start()
        return True

    def try_out(self, name: str, plan: DeploymentPlan) -> bool:
        """Let zones check and rehearse what a plan would start; nothing that runs is changed.

        False where that was given up: something is wanted by now, or a zone cannot do it.
        """
        try:
            record = self._store.deployment(name)
            base = self._store.plan(record.base) if record.base else None
            decided = diff(base, plan)
            standings = self._store.standings(name)
            plans = {**self._store.plans_of(standings), plan_id(decided.wanted): decided.wanted}
            steps = steps_to(decided, standings, plans)
            executor, deadline = self._given or Executor(self._open_zone), time.monotonic() + TRY_SECONDS
            for step in (s for s in steps if isinstance(s, Check | Survey | Rehearse)):
                while not (attempt := executor.attempt(step, plans[step.plan])).done:
                    if time.monotonic() > deadline or self._lost.wait(attempt.wait):
                        return False
                if self._store.deployment(name).version != record.version:
                    return False
        except HeadwaterError as error:
            self._store.tell(name, f"rehearsed ahead in vain: {str(error).splitlines()[0]}")
            return False
        return True

    def _guarded(self, act: Callable[[], float], say: Callable[[str], None]) -> float:
        """Outlive a database that is away for a while."""
        try:
            return act()
        except Unavailable as error:
            say(str(error))
            return IDLE
        except LeaseLost:
            self._lost.set()
            return 0.0

    # ------------------------------------------------------------ acting

    def look(self) -> float:
        """Take every deployment one step on; give the seconds until there is more to do."""
        now, waits = time.monotonic(), [IDLE]
        for record in self._store.deployments():
            due = self._due.get(record.name, now)
            newer = record.version > record.dealt and self._is_newer(record)
            if due <= now or newer:
                wait = self.advance(record.name)
                self._due[record.name] = due = time.monotonic() + wait
            waits.append(max(0.0, due - time.monotonic()))  # a step may have taken long
        return min(waits)

    def _is_newer(self, record: DeploymentRecord) -> bool:
        change = self._store.change(record.name)
        return change is None or change.version < record.version

    def advance(self, name: str) -> float:
        """Take one deployment one step on; give the seconds until it wants to be seen again."""
        record, change = self._store.deployment(name), self._store.change(name)
        if change is None:
            if record.dealt < record.version:
                self._take_up(record)
                return 0.0
            return IDLE
        if record.version > change.version:
            self._executor(name).give_up()
            self._store.end_change(self._holder, change, "superseded", phase="wanted")
            return 0.0
        return self._go_on(change)

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = self._given or Executor(self._open_zone)
        return self._executors[name]

    def _take_up(self, record: DeploymentRecord) -> None:
        """Decide what a wish means from where units stand, and journal it."""
        wish = self._store.wish(record.name)
        plan = self._store.plan(wish.plan) if wish.plan else None
        try:
            plan, steps, phase = self._decide(record, wish, plan)
        except HeadwaterError as error:
            self._store.refuse(self._holder, wish, plan, f"refused, nothing was changed: {error}")
            return
        self._store.begin_change(self._holder, wish, plan, steps, phase=phase)

    def _decide(
        self, record: DeploymentRecord, wish: Wish, plan: DeploymentPlan | None
    ) -> tuple[DeploymentPlan | None, tuple[Step, ...], Phase]:
        standings = self._store.standings(record.name)
        plans = self._store.plans_of(standings)
        if wish.goal == "run":
            assert plan is not None
            base = self._store.plan(record.base) if record.base else None
            decided = diff(base, plan, reset_state=wish.reset_state, generation=wish.generation)
            return decided.wanted, steps_to(decided, standings, plans, canary=wish.canary), "checking"
        if wish.goal == "finish":
            return None, finishing(standings, plans), "stopping"
        return None, stopping(standings, plans, forget=wish.goal == "forget"), "stopping"

    def _go_on(self, change: Change) -> float:
        entries = self._store.next_steps(change.id)
        if not entries:
            self._end(change)
            return 0.0
        entries = tuple(entries[n] for n in side_by_side([e.step for e in entries]))
        plans = {id_: self._store.plan(id_) for id_ in {e.step.plan for e in entries}}
        change = replace(change, phase=self._phase(change, entries[0].step))
        standings = self._store.standings(change.deployment)
        for entry in entries:
            if entry.state == "todo":
                standings = begun(entry.step, standings, plans[entry.step.plan])
                self._store.step_begun(self._holder, change, entry.number, standings, phase=change.phase)
        waits: list[float] = []
        failed: tuple[Step, HeadwaterError] | None = None
        for entry, outcome in self._attempts(change, entries, plans):
            if isinstance(outcome, HeadwaterError):
                failed = (entry.step, outcome)
            elif not outcome.done:
                self._store.step_waits(self._holder, change, entry.number, outcome.note)
                waits.append(outcome.wait)
            else:
                standings = done(entry.step, standings, plans[entry.step.plan])
                self._store.step_done(self._holder, change, entry.number, standings, note=outcome.note)
        if failed is not None:
            self._fail(change, *failed)
            return 0.0
        return min(waits, default=0.0)

    def _attempts(
        self, change: Change, entries: Sequence[JournalEntry], plans: Plans
    ) -> Iterator[tuple[JournalEntry, Attempt | HeadwaterError]]:
        """Try steps at once; give how each went, as it ends."""

        def attempt(entry: JournalEntry) -> Attempt | HeadwaterError:
            try:
                return self._attempt(change, entry.step, plans[entry.step.plan])
            except HeadwaterError as error:
                return error

        if len(entries) == 1:
            yield entries[0], attempt(entries[0])
            return
        with ThreadPoolExecutor(len(entries), thread_name_prefix="step") as pool:
            tried = {pool.submit(attempt, entry): entry for entry in entries}
            for one in as_completed(tried):
                yield tried[one], one.result()

    def _attempt(self, change: Change, step: Step, plan: DeploymentPlan) -> Attempt:
        executor = self._executor(change.deployment)
        try:
            attempt = executor.attempt(step, plan, baseline=change.baseline)
        except HeadwaterError:
            raise
        except Exception as error:
            # A port that breaks its contract ends the change, not the controller.
            raise RuntimeFailure(
                f"{type(error).__name__}: {error}", where=f"zone {step.zone}", hint="report this as a defect"
            ) from error
        waited = executor.tried_for(step)
        if not attempt.done and change.phase == "checking" and waited > self._patience:
            raise Unavailable(
                f"{attempt.note}, for {waited:.0f} s now",
                where=f"zone {step.zone}",
                hint="apply again when the zone can be reached",
            )
        return attempt

    def _phase(self, change: Change, step: Step) -> Phase:
        """Give the phase of a change while one of its steps is carried out.

        Until the switch of a hand-over the plan of before counts: a newer wish starts from it.
        """
        if change.goal != "run":
            return "stopping"
        if change.phase in ("rolling_back", "changing"):
            return change.phase
        if isinstance(step, Switch):
            return "changing"
        if isinstance(step, Check | Survey | Rehearse) and change.phase == "checking":
            return "checking"
        hands_over = any(isinstance(e.step, Switch) for e in self._store.journal(change.id))
        return "handing_over" if hands_over else "changing"

    # ------------------------------------------------------------ ends

    def _end(self, change: Change) -> None:
        """All steps are done."""
        name, end = change.deployment, self._store.end_change
        standings = self._store.standings(name)
        base = self._store.deployment(name).base
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
                    standings=settled(standings, plan),
                    base=change.plan,
                )
                self._store.clear_reports(self._holder, name, frozenset(u.zone for u in plan.units))
            case "forget":
                end(self._holder, change, "done", phase="stopped", message="deleted", standings={}, base=None)
                self._store.clear_reports(self._holder, name, frozenset())
            case "finish":
                end(self._holder, change, "done", phase="stopped", message="all input is used up", base=base)
            case "stop":
                end(self._holder, change, "done", phase="stopped", base=base)

    def _fail(self, change: Change, step: Step, error: HeadwaterError) -> None:
        """A step cannot be done: leave all running, go back, or say where things stand."""
        self._executor(change.deployment).give_up()
        if change.phase == "checking":
            self._end_failed(change, f"nothing was stopped or started: {error}")
        elif change.phase == "handing_over":
            self._turn_back(change, str(error))
        elif change.phase != "changing" or self._store.wish(change.deployment, change.version).canary is None:
            self._end_failed(change, str(error))
        else:
            self._turn_back(change, str(error))

    def _end_failed(self, change: Change, message: str) -> None:
        self._store.end_change(self._holder, change, "failed", phase="failed", message=message)

    def _turn_back(self, change: Change, why: str) -> None:
        """Journal the steps back to what ran, where there is a way back that loses nothing."""
        ran = {c.plan for c in self._store.changes(change.deployment) if c.outcome in ("done", "rolled back")}
        if change.before is None or change.before not in ran:
            self._end_failed(change, f"{why}\nthere is no plan to go back to that ran in full")
            return
        assert change.plan is not None
        before, failed = self._store.plan(change.before), self._store.plan(change.plan)
        standings = self._store.standings(change.deployment)
        started = change.phase != "handing_over"
        if started and (lost := stranded(before, failed, standings)):
            self._end_failed(
                change,
                f"{why}\nnot rolled back: the rows in {', '.join(lost)} can only be read by units of the new "
                "plan; correct it and apply it again",
            )
            return
        back = way_back(before, failed, standings)
        plans = {**self._store.plans_of(standings), plan_id(failed): failed}
        steps = [s for s in steps_to(back, standings, plans) if not isinstance(s, Check | Rehearse)]
        self._store.turn_back(self._holder, change, back.wanted, steps, why)

    # ------------------------------------------------------------ looking

    def poll(self) -> float:
        """Ask the zones how far they are, and keep it; give the seconds until they are to be asked again."""
        watched = False
        for record in self._store.deployments():
            standings = self._store.standings(record.name)
            plans = self._store.plans_of(standings)
            zones = {u.zone: plan for plan in plans.values() for u in plan.units}
            reports = [self._report(record.name, zone, plan) for zone, plan in zones.items()]
            if reports:
                self._store.report(self._holder, record.name, reports)
            if any(r.progress for r in reports):
                self._store.keep_sample(self._holder, record.name, time.time(), whole(reports))
            promise = self._store.promise(record.name)
            decided = promise is not None and promise.mode != "off"
            watched |= decided and any(s.runs for s in standings.values())
        return min(WATCHED, self._poll) if watched else self._poll

    def _report(self, name: str, zone: str, plan: DeploymentPlan) -> ZoneReport:
        try:
            progress = self._ports.of(plan, zone).progress(name)
        except Exception as error:
            what = error.what if isinstance(error, HeadwaterError) else f"{type(error).__name__}: {error}"
            return ZoneReport(zone=zone, at=time.time(), progress=None, error=what)
        for unit in progress.units:
            wrong = unit.error or ""
            if wrong and wrong != self._errors.get((name, unit.unit)):
                self._store.tell(name, f"{unit.unit} failed: {wrong.splitlines()[0]}")
            self._errors[name, unit.unit] = wrong
        return ZoneReport(zone=zone, at=time.time(), progress=progress)
