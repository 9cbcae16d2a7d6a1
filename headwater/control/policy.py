"""The closed loop: looks at what is measured, decides, writes what is wanted, and judges what became of it.

It only reads and writes the store, as a person would: what it wants the controller carries out like any other
desired state. What it has learned and decided is in the store, so the next one goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headwater.adapt.ahead import likely
from headwater.adapt.calibrate import Learned, learn, narrowed
from headwater.adapt.compliance import sink_units, strain
from headwater.adapt.decide import (
    GAIN,
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
from headwater.placement.forecast import Forecast, trend
from headwater.plan.model import DeploymentPlan
from headwater.plan.place import Beside

SEEN = 12.0
"""Seconds of samples that loads and latency are taken from."""
NEWEST = 2.5
"""Seconds of samples that rates are taken from."""
STEP = 10.0
"""Seconds of each value that forecasts are made from."""
PAST = 30
"""How many of these there are at most."""
WARM = 3.0
"""Seconds after a change that are not looked at: all begins anew."""
LEARN = 5.0
"""Seconds between two windows that are learned from."""
SAVE = 15.0
"""Seconds between two notes of what was learned."""
AHEAD = 20.0
"""Seconds between two looks at what is likely to come."""
ROOM = 0.4
"""Cores that every host must have idle for that: on a small one, what is tried makes wait what runs."""
CALM = 0.6
"""The share of a limit that may be used then, loads apart."""
TryOut = Callable[[str, DeploymentPlan], bool]
"""Lets zones rehearse a plan of a deployment, by name, beside what runs; False where it cannot begin now."""
REMEMBERED = 3600.0
"""Seconds for which a placement is not gone back to that was left for a limit."""
_STALE = 60.0
"""Seconds after which a proposal expires whose reason is gone."""


@dataclass
class _Watched:
    """What is remembered of a deployment between two looks."""

    timing: Timing = field(default_factory=Timing)
    learned: Learned | None = None
    knows: bool = False
    """Whether anything of it was learned from what was measured."""
    learned_at: float = 0.0
    saved_at: float = 0.0
    tried: set[Work] = field(default_factory=set)
    """What zones have rehearsed ahead."""
    ahead_at: float = 0.0
    samples: deque[Sample] = field(default_factory=deque)
    """Those of the last ``SEEN`` seconds."""
    rates: deque[tuple[float, Rates]] = field(default_factory=lambda: deque(maxlen=PAST))
    """Those of the last minutes, a value for each ``STEP``, and when that was."""


class Policy:
    """Learns from all deployments, and decides on those that have an SLO.

    ``expect``: foretells rates from those before. ``clock``: seconds since 1970. ``try_out``: see ``TryOut``.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        expect: Forecast = trend,
        clock: Callable[[], float] = time.time,
        try_out: TryOut = lambda name, plan: False,
    ) -> None:
        self._store, self._holder = store, holder
        self._expect, self._clock, self._try_out = expect, clock, try_out
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
        ended = max((c.ended or 0.0 for c in changes), default=0.0)
        case = self._case(record, slo, watched, ended)
        open_ones = self._follow(open_ones, changes)
        if case is None:
            return
        now = self._clock()
        self._learn(record.name, watched, case, now)
        case = replace(case, learned=watched.learned or case.learned)
        if slo.mode == "off" or not watched.knows:
            return  # what nobody has measured is no ground for a decision
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

    # ------------------------------------------------------------ what is known

    def _case(self, record: DeploymentRecord, slo: SLO, watched: _Watched, ended: float) -> Case | None:
        """Put together what a decision is made on; None while too little was seen since the last change."""
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
        """Give the samples of the last minutes; only new ones are read."""
        kept = watched.samples
        last = kept[-1].at if kept else now - SEEN
        kept.extend(s for s in self._store.samples(name, since=last) if s.at > last)
        while kept and kept[0].at < now - SEEN - 1.0:
            kept.popleft()
        return tuple(kept)

    def _expected(self, plan: DeploymentPlan, watched: _Watched, samples: Sequence[Sample], now: float) -> Rates | None:
        """Foretell the rates of the next seconds from those of the last minutes."""
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
            found.setdefault(source, {})[place] = self._expect(values)
        return found or None

    def _beside(self, name: str) -> tuple[Beside, ...]:
        found: list[Beside] = []
        for other in self._store.deployments():
            if other.name != name and other.phase != "stopped" and other.active_plan is not None:
                known, plan = self._watched.get(other.name), self._store.plan(other.active_plan)
                profile = self._store.profile(other.name)
                if known and known.learned:
                    profile = narrowed(known.learned.profile, plan.dataflow)
                found.append((plan, profile))
        return tuple(found)

    def _learn(self, name: str, watched: _Watched, case: Case, now: float) -> None:
        """Take in what was measured, now and then; the first time even if rates are not steady."""
        fits = case.steady or not watched.knows
        if now - watched.learned_at < LEARN or case.seen.seconds < SEEN * 0.7 or not fits:
            return
        watched.learned = learn(case.learned, case.plan, case.seen)
        watched.learned_at, watched.knows = now, True
        if now - watched.saved_at >= SAVE:
            self._store.keep_learned(self._holder, name, watched.learned)
            watched.saved_at = now

    # ------------------------------------------------------------ what was decided

    def _follow(self, decisions: Sequence[Decision], changes: Sequence[Change]) -> tuple[Decision, ...]:
        """See what became of the desired states that decisions led to; give those of which more is to be heard."""
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
        """Say of a change that has settled whether it was good, and undo it where it was not."""
        for one in decisions:
            if one.state != "watched":
                continue
            rates = (one.data.get("measured") or {}).get("rates") or {}
            grown = total(case.newest.rates(case.plan)) > GROWN * max(1e-9, total(rates))
            hurry = grown and any(a.broken or a.expected for a in found)
            if now - ended < case.slo.settle and not hurry:
                continue
            outcome = judge(case, one.trigger, one.data)
            if outcome.verdict != "worse" or one.before is None or one.trigger == UNDO:
                self._store.settle_decision(self._holder, one.id, "kept", outcome.data)
                continue
            self._store.settle_decision(self._holder, one.id, "undone", outcome.data)
            self._undo(one, case, outcome.text)

    def _undo(self, one: Decision, case: Case, text: str) -> None:
        """Want what ran before."""
        assert one.before is not None
        data = {"slo": dump(case.slo), "measured": dump(case.shown()), "undoes": one.id}
        record = self._store.deployment(one.deployment)
        number = self._store.record_decision(
            self._holder,
            one.deployment,
            mode=case.slo.mode,
            trigger=UNDO,
            why=f"decision {one.id} made it worse ({text}); what ran before comes back",
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
        """Let proposals expire whose ground is gone."""
        reasons = {GAIN, UNDO, *(a.limit for a in found)}
        for one in decisions:
            if one.state != "proposed":
                continue
            gone = limit_of(one.trigger) not in reasons
            if one.before != record.active_plan:
                self._expire(one, "something else runs now")
            elif gone and now - one.at > _STALE:
                self._expire(one, "its reason is gone")

    # ------------------------------------------------------------ what is to be decided

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
        """Let zones try, in calm, what is likely to be wanted in a hurry: each once."""
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
    """Read from a deployment's former decisions what is not to be gone back to."""
    found = []
    for one in store.decisions(name):
        if now - one.at > REMEMBERED or one.trigger == GAIN:
            continue
        ago = f"{now - one.at:.0f} s ago"
        if one.state in ("kept", "watched"):
            found.append(_left(one, one.data.get("current"), f"it was left {ago}: {one.why}"))
        chosen, others = one.data.get("chosen"), one.data.get("alternatives") or []
        if one.state in ("undone", "failed") and chosen is not None and chosen < len(others):
            found.append(_left(one, others[chosen], f"it was tried {ago}, and {one.state}"))
    return tuple(x for x in found if x is not None)


def _left(one: Decision, option: Mapping[str, object] | None, why: str) -> Left | None:
    """Read from a decision a placement that was given up."""
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
    )
