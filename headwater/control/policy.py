"""The closed loop: read measurements, decide, store desired states, and judge the results.

It only reads and writes the store, as a person would; the controller executes its desired states like any other. Its
measurements and decisions are in the store, so the next controller continues there.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headwater.adapt.ahead import likely
from headwater.adapt.calibrate import Learned, learn
from headwater.adapt.compliance import sink_units, strain
from headwater.adapt.decide import (
    GAIN,
    REWRITE,
    UNDO,
    Alarm,
    Case,
    Choice,
    Left,
    Rates,
    alarms,
    decide,
    judge,
    limit_of,
    saving_is_measured,
    total,
)
from headwater.adapt.options import Work, work_of
from headwater.adapt.slo import SLO
from headwater.adapt.timing import GROWN, Timing
from headwater.adapt.window import window
from headwater.control.records import OPEN, Change, Decision, DeploymentRecord, Sample
from headwater.control.store import Store, StoreReader
from headwater.core.errors import HeadwaterError
from headwater.core.jsonform import dump
from headwater.placement.forecast import trend
from headwater.plan.model import DeploymentPlan
from headwater.plan.setting import Beside

SEEN = 12.0
"""Seconds of samples from which loads and latency are computed."""
NEWEST = 2.5
"""Seconds of samples from which rates are computed."""
STEP = 10.0
"""Seconds per value of a forecast's input."""
PAST = 30
"""Maximum number of these values."""
WARM = 3.0
"""Seconds after a change whose samples are ignored: units start up."""
LEARN = 5.0
"""Seconds between two windows that the policy learns from."""
SAVE = 15.0
"""Seconds between two writes of the learned values."""
AHEAD = 20.0
"""Seconds between two trials of likely plans."""
ROOM = 0.4
"""Cores that must be idle on every host for a trial: on a small host a trial would slow down running units."""
CALM = 0.6
"""Share of a limit, loads excepted, up to which a trial may start."""
TryOut = Callable[[str, DeploymentPlan], bool]
"""Starts to warm up a plan of a named deployment beside the running units; False where it cannot start now."""
REMEMBERED = 3600.0
"""Seconds for which a placement or rewriting is not chosen again that broke a limit or did not save enough."""
UNMEASURED = 120.0
"""Seconds after the settling for which the verdict on a rewriting waits for rows."""
_STALE = 60.0
"""Seconds after which a proposal expires that has lost its reason."""


@dataclass
class _Watched:
    """Memory of a deployment between two looks."""

    timing: Timing = field(default_factory=Timing)
    learned: Learned | None = None
    knows: bool = False
    """Whether anything was learned from measurements."""
    learned_at: float = 0.0
    saved_at: float = 0.0
    tried: set[Work] = field(default_factory=set)
    """Plans that were warmed up ahead."""
    ahead_at: float = 0.0
    samples: deque[Sample] = field(default_factory=deque)
    """Samples of the last ``SEEN`` seconds."""
    rates: deque[tuple[float, Rates]] = field(default_factory=lambda: deque(maxlen=PAST))
    """One value per ``STEP`` of the last minutes, and the time of the last one."""


class Policy:
    """Learns from all deployments, and decides for those that have an SLO.

    ``clock``: seconds since 1970. ``try_out``: see ``TryOut``.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        clock: Callable[[], float] = time.time,
        try_out: TryOut = lambda name, plan: False,
    ) -> None:
        self._store, self._holder = store, holder
        self._clock, self._try_out = clock, try_out
        self._watched: dict[str, _Watched] = {}

    def look(self, news: Collection[str] | None = None) -> None:
        """Look once at every deployment with an SLO, an open decision, or ``news``."""
        slos = self._store.slos()
        opened = {decision.deployment for decision in self._store.decisions(states=OPEN, limit=10_000)}
        bound = {name for name, slo in slos.items() if slo.mode != "off"}
        for record in self._store.deployments():
            if news is None or record.name in bound or record.name in opened or record.name in news:
                self._look(record, slos.get(record.name) or SLO(mode="off"))

    def _look(self, record: DeploymentRecord, slo: SLO) -> None:
        watched = self._watched.setdefault(record.name, _Watched())
        open_ones = self._store.decisions(record.name, states=OPEN)
        changes = self._store.changes(record.name)
        if record.phase != "running" or record.version != record.observed_version or record.active_plan is None:
            watched.timing.disturbed()
            self._follow(open_ones, changes)
            return
        # A change that seems to end later than now ended before the clock was set back.
        ended = max((c.ended for c in changes if c.ended is not None and c.ended <= self._clock()), default=0.0)
        case = self._case(record, slo, watched, ended)
        open_ones = self._follow(open_ones, changes)
        if case is None:
            return
        now = self._clock()
        self._learn(record.name, watched, case, now)
        case = replace(case, learned=watched.learned or case.learned)
        if slo.mode == "off" or not watched.knows:
            return  # without measurements there is no ground for a decision
        found = alarms(case)
        if any(d.state == "watched" for d in open_ones):
            self._judge(open_ones, case, ended, now, found)
            return
        self._keep_or_drop(open_ones, record, found, now)
        if any(d.state in ("proposed", "wanted") for d in open_ones):
            return
        self._decide(record, watched, case, found, ended, now)
        if slo.mode == "auto" and not found and now - ended > slo.settle + SEEN:
            self._look_ahead(record.name, watched, case, now)

    # ------------------------------------------------------------ measurements

    def _case(self, record: DeploymentRecord, slo: SLO, watched: _Watched, ended: float) -> Case | None:
        """Collect the input of a decision; None while too little was measured since the last change."""
        assert record.active_plan is not None
        now = self._clock()
        samples = self._samples(record.name, watched, now)
        plan = self._store.plan(record.active_plan)
        fresh = [s for s in samples if s.at >= max(ended + WARM, now - SEEN)]
        seen, newest = window(fresh), window(fresh, NEWEST)
        if seen is None or newest is None or seen.seconds < NEWEST:
            return None
        if watched.learned is None:
            watched.learned = self._store.known(record.name)
            watched.knows = self._store.learned(record.name) is not None
        return Case(
            plan=plan,
            slo=slo,
            learned=watched.learned,
            seen=seen,
            newest=newest,
            expected=self._expected(plan, watched, samples, now),
            beside=self._beside(record.name),
            left=given_up(self._store, record.name, now),
            rising=watched.timing.rising(now, seen.latency(sink_units(plan))[1]),
        )

    def _samples(self, name: str, watched: _Watched, now: float) -> Sequence[Sample]:
        """Return the samples of the last minutes; read only new ones."""
        kept = watched.samples
        while kept and kept[-1].at > now:
            kept.pop()  # the clock was set back
        last = kept[-1].at if kept else now - SEEN
        kept.extend(s for s in self._store.samples(name, since=last) if s.at > last)
        while kept and kept[0].at < now - SEEN - 1.0:
            kept.popleft()
        return tuple(kept)

    def _expected(self, plan: DeploymentPlan, watched: _Watched, samples: Sequence[Sample], now: float) -> Rates | None:
        """Predict the rates of the next seconds from those of the last minutes."""
        last = watched.rates[-1][0] if watched.rates else -math.inf
        if now - last >= STEP:
            part = window(samples, STEP)
            if part is not None and part.seconds >= STEP * 0.7:
                watched.rates.append((now, part.rates(plan)))
        series: dict[tuple[str, str], list[float]] = {}
        for _, rates in watched.rates:
            for source, own in rates.items():
                for place, rate in own.items():
                    series.setdefault((source, place), []).append(rate)
        found: dict[str, dict[str, float]] = {}
        for (source, place), values in series.items():
            found.setdefault(source, {})[place] = trend(values)
        return found or None

    def _beside(self, name: str) -> tuple[Beside, ...]:
        found: list[Beside] = []
        for other in self._store.deployments():
            if other.name != name and other.phase != "stopped" and other.active_plan is not None:
                known, plan = self._watched.get(other.name), self._store.plan(other.active_plan)
                profile = self._store.profile(other.name)
                if known and known.learned:
                    profile = known.learned.of(plan).profile
                found.append((plan, profile))
        return tuple(found)

    def _learn(self, name: str, watched: _Watched, case: Case, now: float) -> None:
        """Learn from new measurements at intervals; the first time even if rates are not steady."""
        fits = case.steady or not watched.knows
        if now - watched.learned_at < LEARN or case.seen.seconds < SEEN * 0.7 or not fits:
            return
        watched.learned = learn(case.learned, case.plan, case.seen)
        watched.learned_at, watched.knows = now, True
        if now - watched.saved_at >= SAVE:
            self._store.keep_learned(self._holder, name, watched.learned)
            watched.saved_at = now

    # ------------------------------------------------------------ outcomes

    def _follow(self, decisions: Sequence[Decision], changes: Sequence[Change]) -> tuple[Decision, ...]:
        """Update decisions by the outcome of their desired states; return the open ones."""
        by_version = {c.version: c for c in changes}
        still: list[Decision] = []
        for one in decisions:
            change = by_version.get(one.version) if one.version is not None else None
            if one.state != "wanted" or change is None or change.outcome is None:
                still.append(one)
            elif change.outcome == "done":
                self._store.settle_decision(self._holder, one.id, "watched")
                still.append(replace(one, state="watched"))
            elif change.outcome == "superseded":
                self._expire(one, "another plan was wanted")
            else:
                why = f"{change.outcome}: {change.message.partition(chr(10))[0]}"
                self._store.settle_decision(self._holder, one.id, "failed", {"text": why})
        return tuple(still)

    def _expire(self, one: Decision, why: str) -> None:
        self._store.settle_decision(self._holder, one.id, "expired", {"text": why})

    def _judge(
        self,
        decisions: Sequence[Decision],
        case: Case,
        ended: float,
        now: float,
        found: Sequence[Alarm],
    ) -> None:
        """Judge changes that have settled, and undo those that made it worse."""
        for one in decisions:
            if one.state != "watched":
                continue
            rates = (one.data.get("measured") or {}).get("rates") or {}
            grown = total(case.newest.rates(case.plan)) > GROWN * max(1e-9, total(rates))
            hurry = grown and any(a.broken or a.expected for a in found)
            if now - ended < case.slo.settle and not hurry:
                continue
            unmeasured = one.trigger == REWRITE and not saving_is_measured(case, one.data)
            if unmeasured and now - ended < case.slo.settle + UNMEASURED and not hurry:
                continue
            outcome = judge(case, one.trigger, one.data)
            if outcome.verdict != "worse" or one.before is None or one.trigger == UNDO:
                self._store.settle_decision(self._holder, one.id, "kept", outcome.data)
                continue
            self._store.settle_decision(self._holder, one.id, "undone", outcome.data)
            self._undo(one, case, outcome.text)

    def _undo(self, one: Decision, case: Case, text: str) -> None:
        """Store the former plan as the desired state."""
        assert one.before is not None
        data = {"slo": dump(case.slo), "measured": dump(case.shown()), "undoes": one.id}
        record = self._store.deployment(one.deployment)
        number = self._store.record_decision(
            self._holder,
            one.deployment,
            mode=case.slo.mode,
            trigger=UNDO,
            why=f"decision {one.id} made it worse ({text}); the former plan is restored",
            state="proposed",
            plan=self._store.plan(one.before),
            before=record.active_plan,
            data=data,
        )
        if case.slo.mode == "auto":
            self._want(number)

    def _keep_or_drop(
        self, decisions: Sequence[Decision], record: DeploymentRecord, found: Sequence[Alarm], now: float
    ) -> None:
        """Expire proposals that have lost their reason."""
        reasons = {GAIN, REWRITE, UNDO, *(a.limit for a in found)}
        for one in decisions:
            if one.state != "proposed":
                continue
            gone = limit_of(one.trigger) not in reasons
            if one.before != record.active_plan:
                self._expire(one, "another plan is active now")
            elif gone and now - one.at > _STALE:
                self._expire(one, "its reason is gone")

    # ------------------------------------------------------------ decide

    def _decide(
        self,
        record: DeploymentRecord,
        watched: _Watched,
        case: Case,
        found: Sequence[Alarm],
        ended: float,
        now: float,
    ) -> None:
        rate = total(case.newest.rates(case.plan))
        alarm = watched.timing.ripe(case.slo, found, now=now, ended=ended, rate=rate, latency=case.measured().latency)
        if alarm is None:
            return
        choice = decide(case, alarm)
        if choice.chosen is None:
            if watched.timing.nothing(alarm, now):
                self._record(record, case, choice)
            return
        number = self._record(record, case, choice)
        watched.timing.disturbed()
        if case.slo.mode == "auto":
            self._want(number)

    def _look_ahead(self, name: str, watched: _Watched, case: Case, now: float) -> None:
        """Warm up, while load is low, plans that are likely to be needed in a hurry, each once."""
        idle = min((h.cores * (1 - h.load) for h in case.seen.hosts.values()), default=0.0)
        used = strain(case.slo, replace(case.measured(), load={}))
        if now - watched.ahead_at < AHEAD or idle < ROOM or used > CALM:
            return
        watched.ahead_at = now
        for plan in likely(case):
            if (work := work_of(plan)) not in watched.tried and self._try_out(name, plan):
                watched.tried.add(work)
                return

    def _record(self, record: DeploymentRecord, case: Case, choice: Choice) -> int:
        return self._store.record_decision(
            self._holder,
            record.name,
            mode=case.slo.mode,
            trigger=choice.alarm.trigger,
            why=choice.why,
            state="nothing" if choice.chosen is None else "proposed",
            plan=None if choice.chosen is None else choice.chosen.plan,
            before=record.active_plan,
            data=dump(choice.recorded(case)),
        )

    def _want(self, number: int) -> None:
        try:
            self._store.want_decided(self._holder, number)
        except HeadwaterError as error:
            self._expire(self._store.decision(number), error.what)


def given_up(store: StoreReader, name: str, now: float) -> tuple[Left, ...]:
    """Return placements and rewritings that earlier decisions gave up, so that they are not chosen again.

    A rewriting that was left for one that saves more is not among them: it may be chosen again when that saves more.
    """
    found = []
    for one in store.decisions(name):
        if now - one.at > REMEMBERED or one.trigger == GAIN:
            continue
        ago = f"{now - one.at:.0f} s ago"
        if one.state in ("kept", "watched") and one.trigger != REWRITE:
            found.append(_left(one, one.data.get("current"), f"it was left {ago}: {one.why}"))
        chosen, others = one.data.get("chosen"), one.data.get("alternatives") or []
        if one.state in ("undone", "failed") and chosen is not None and chosen < len(others):
            found.append(_left(one, others[chosen], f"it was tried {ago}, and {one.state}"))
    return tuple(x for x in found if x is not None)


def _left(one: Decision, option: Mapping[str, object] | None, why: str) -> Left | None:
    """Return the placement that a decision gave up; None where its data names none."""
    if not option:
        return None
    measured = one.data.get("measured") or {}
    layers, at = option.get("layers"), option.get("at")
    if not isinstance(layers, Mapping) or not isinstance(at, Mapping):
        return None
    decided = option.get("decided")
    return Left(
        decided=decided if isinstance(decided, str) else None,
        layers=dict(layers),
        at={x: dict(own) for x, own in at.items()},
        rate=total(measured.get("rates") or {}),
        capacity=dict(measured.get("capacity") or {}),
        load_of_others=dict(measured.get("others") or {}),
        why=why,
        selectivity=dict((measured.get("work") or {}).get("selectivity") or {}),
    )
