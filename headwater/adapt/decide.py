"""Decide whether to change a running deployment, and how; judge a change afterwards. Pure.

A decision is due when a measured figure violates a limit, an expected one will, or another placement would cost
enough less to pay for the change. So may another rewriting. The choice is within all limits with a margin and costs
least, the price of changes included; if there is none, it comes markedly nearer to the limits. A placement or a
rewriting that was left, because it broke a limit or did not save enough, is not chosen again while conditions stay
the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from headwater.adapt.calibrate import Learned, facts_of
from headwater.adapt.compliance import Figures, breaks, measured, sink_units, strain
from headwater.adapt.evaluate import BatchModel, disagreement
from headwater.adapt.measuredwork import (
    MeasuredWork,
    is_settled,
    measured_work,
    selectivities_differ,
    share_saved,
    stateless_selectivities,
)
from headwater.adapt.model import Facts, HostKey, predict
from headwater.adapt.options import Alternative, Option, Options, name_of
from headwater.adapt.slo import SLO
from headwater.adapt.window import Window
from headwater.core.errors import HeadwaterError
from headwater.core.jsonform import dump
from headwater.core.quantity import format_size
from headwater.placement.exact import Exactness
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.plan.setting import Beside

Rates = Mapping[str, Mapping[str, float]]
"""Rows/s by source and location; ``*`` stands for all."""

SPARE = 0.9
"""The share of a limit that a new placement may use."""
_NEARLY_FULL = 0.85
"""The share of a host's cores above which latency is expected to keep rising."""
_SOON = 30.0
"""Seconds for which a rise of latency is extrapolated."""
_SAME_STRAIN = 1.1
"""Factor up to which strains count as equal."""
NEARER = 0.8
"""Remaining strain, as a share of the current one, that justifies a change that violates a limit."""
_STEADY = 1.15
"""Factor by which rates may change in a window for learning."""
LEAST_GAIN = 0.005
"""In RU, where 1 is the use of all resources: no change is made for less."""
_ALIKE = 1.25
"""Factor up to which rates, links and hosts count as unchanged."""
_UNSETTLED = "selectivities still change"


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """Measurements of a deployment: seconds, bytes/s into the top layer, shares of hosts, rows/s.

    ``others``: other load of each host. ``capacity``: bytes/s of links, if known. ``work``: of a rewritten dataflow.
    """

    latency_s: float | None
    latency_p50_s: float | None
    oldest_s: float
    bandwidth_bytes_per_s: float
    load: Mapping[str, float]
    others: Mapping[str, float]
    rates: Rates
    capacity: Mapping[str, float | None]
    work: MeasuredWork | None


@dataclass(frozen=True)
class Left:
    """A placement or rewriting that was left, because of a limit or without a gain, and the conditions then."""

    decided: str | None
    """The name of the deployment; None if an older version recorded only layers."""
    layers: Mapping[str, str]
    at: Mapping[str, Mapping[str, str]]
    rate: float
    capacity: Mapping[str, float | None]
    load_of_others: Mapping[str, float]
    why: str
    selectivity: Mapping[str, float] = field(default_factory=dict)

    def is_of(self, plan: DeploymentPlan) -> bool:
        """Return whether a plan has the same placement, cuts and rewriting."""
        if self.decided is not None:
            return name_of(plan) == self.decided
        at = {x: dict(own) for x, own in plan.layers_at.items()}
        return dict(plan.layers) == dict(self.layers) and at == {x: dict(y) for x, y in self.at.items()}


@dataclass(frozen=True)
class Case:
    """Input of a decision.

    ``seen``: the last seconds; ``newest``: the most recent part, for rates. ``expected``: predicted rates, if any.
    ``left``: placements to avoid under current conditions. ``rising``: recent growth of latency, in seconds per
    second.
    """

    plan: DeploymentPlan
    slo: SLO
    learned: Learned
    seen: Window
    newest: Window
    expected: Rates | None = None
    beside: tuple[Beside, ...] = ()
    left: tuple[Left, ...] = field(default=())
    rising: float = 0.0

    @property
    def sinks(self) -> tuple[str, ...]:
        """Return the units that feed sinks."""
        return sink_units(self.plan)

    def facts(self) -> Facts:
        """Current facts: measured hosts and links, current or expected rates."""
        found = facts_of(self.learned, self.plan, self.seen)
        rates = dict(found.profile.rates)
        for source, own in self.newest.rates(self.plan).items():
            expected = (self.expected or {}).get(source, {})
            rates[source] = {place: max(rate, expected.get(place, 0.0)) for place, rate in own.items()}
        return replace(found, profile=found.profile.model_copy(update={"rates": rates}))

    def options(self, facts: Facts) -> Options:
        """Return the alternatives under ``facts``; unexplained loads stay on their hosts."""
        return Options(self.plan, self.slo, facts, beside=self.beside, unexplained=self._unexplained, within=SPARE)

    @cached_property
    def _unexplained(self) -> Mapping[HostKey, float]:
        """Return measured minus predicted loads of hosts; none while rates change, because both include the change."""
        if not self.steady:
            return {}
        predicted = predict(self.plan, facts_of(self.learned, self.plan, self.seen)).load
        more = {key: host.load - predicted.get(key, 0.0) for key, host in self.seen.hosts.items()}
        return {key: share for key, share in more.items() if share > 0}

    def measured(self) -> Figures:
        """Return the measured figures of the SLO."""
        return measured(self.plan, self.seen, self.newest)

    def extrapolated(self) -> Figures:
        """Return the measured figures, with the latency extrapolated if it rises while a host is full."""
        found = self.measured()
        full = max(found.load.values(), default=0.0) >= _NEARLY_FULL
        rises = full and not self.falls
        return replace(found, latency=found.latency + _SOON * self.rising) if rises else found

    @property
    def steady(self) -> bool:
        """Return whether current rates equal those of the last seconds."""
        now, before = self._totals
        return before / _STEADY <= now <= before * _STEADY

    @property
    def falls(self) -> bool:
        """Return whether current rates are below those of the last seconds."""
        now, before = self._totals
        return now * _STEADY < before

    @property
    def _totals(self) -> tuple[float, float]:
        return total(self.newest.rates(self.plan)), total(self.seen.rates(self.plan))

    def shown(self) -> MeasuredCase:
        """Return the measurements as recorded with decisions."""
        found = self.measured()
        p50, p95 = self.seen.latency(self.sinks)
        return MeasuredCase(
            latency_s=p95,
            latency_p50_s=p50,
            oldest_s=self.newest.oldest(),
            bandwidth_bytes_per_s=found.bandwidth,
            load=found.load,
            others={f"{host} ({zone})": h.others for (zone, host), h in self.seen.hosts.items()},
            rates=self.newest.rates(self.plan),
            capacity={name: x.now.capacity for name, x in self.seen.links.items()},
            work=measured_work(self.plan, self.learned, self.seen),
        )


GAIN = "gain"
REWRITE = "rewriting"
"""Another rewriting of the dataflow costs less."""
UNDO = "undo"
_EXPECTED = "expected "


def limit_of(trigger: str) -> str:
    """Return the limit of a trigger, broken or expected; other triggers unchanged."""
    return trigger.removeprefix(_EXPECTED)


@dataclass(frozen=True)
class Alarm:
    """A reason to decide: a limit's name, with ``expected`` before it if it will be broken, or ``GAIN``."""

    trigger: str
    text: str

    @property
    def broken(self) -> bool:
        """Return whether a limit is broken now."""
        return not self.expected and self.trigger != GAIN

    @property
    def expected(self) -> bool:
        """Return whether a limit will be broken."""
        return self.trigger.startswith(_EXPECTED)

    @property
    def limit(self) -> str:
        """Name of the limit, broken or expected."""
        return limit_of(self.trigger)


def alarms(case: Case) -> tuple[Alarm, ...]:
    """Return the limits that are broken, and those that will be; cost is not considered.

    While rates do not exceed the measured ones, measured load and latency take precedence over the model, except
    for a unit that cannot keep up: that takes time to become visible.
    """
    measured = case.measured()
    if case.falls:
        measured = replace(measured, load={})  # it was measured at a higher rate
    found = [Alarm(b.limit, b.text) for b in breaks(case.slo, measured)]
    known = {a.trigger for a in found}
    for b in breaks(case.slo, replace(case.extrapolated(), load={})):
        if b.limit not in known:
            text = f"{b.text} is expected: it rises by {case.rising:.2g} s each second"
            found.append(Alarm(_EXPECTED + b.limit, text))
            known.add(b.limit)
    facts = case.facts()
    grows = total(facts.profile.rates) > _STEADY * total(case.seen.rates(case.plan))
    current = case.options(facts).current
    for one in current.breaks:
        is_new = grows or one.limit not in ("headroom", "max_latency") or math.isinf(one.share)
        if one.limit not in known and is_new:
            found.append(Alarm(_EXPECTED + one.limit, f"{one.text} is expected"))
    return tuple(found)


@dataclass(frozen=True)
class Choice:
    """Result of a decision; ``chosen`` is None if no option is better."""

    alarm: Alarm
    why: str
    current: Option
    others: tuple[Option, ...]
    chosen: Option | None

    def recorded(self, case: Case) -> Recorded:
        """Return the result as recorded with decisions."""
        return Recorded(
            slo=case.slo,
            measured=case.shown(),
            forecast=None if case.expected is None else {"rates": case.expected},
            current=self.current.shown(),
            alternatives=tuple(o.shown() for o in self.others),
            chosen=None if self.chosen is None else self.others.index(self.chosen),
        )


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Basis of a decision: ``chosen`` is the index of the alternative, None if none is better."""

    slo: SLO
    measured: MeasuredCase
    forecast: Mapping[str, Rates] | None
    current: Alternative
    alternatives: tuple[Alternative, ...]
    chosen: int | None


def decide(case: Case, alarm: Alarm, facts: Facts | None = None) -> Choice:
    """Search a better option for a reason; ``facts`` replace the current facts."""
    options = case.options(facts or case.facts())
    current = options.current
    strained = strain(case.slo, current.figures)
    if facts is None:
        strained = max(strained, strain(case.slo, case.extrapolated()))
    others = [_judged(case, o, facts) for o in options.others()]
    chosen: Option | None = None
    if alarm.trigger == GAIN and not is_settled(case.plan, case.learned, case.seen):
        others = [replace(o, why_not=o.why_not or _UNSETTLED) if o.rules else o for o in others]
    able = [o for o in others if not o.why_not]
    for wanted in _best_first(case.slo, alarm, current, able, strained=strained):
        refused = _refused(case.plan, wanted.plan)
        if not refused:
            chosen = wanted
            break
        others[others.index(wanted)] = replace(wanted, why_not=refused)
    if alarm.trigger == GAIN and chosen is not None and chosen.rules:
        alarm = Alarm(REWRITE, _saving(current, chosen))
    told = tuple(_told(case, alarm, o, chosen) for o in others)
    why = _why(alarm, chosen)
    if chosen is not None and (said := disagreement(chosen.estimates, BatchModel(facts or case.facts()))):
        why = f"{why} ({said})"
    return Choice(alarm, why, current, told, chosen)


def _best_first(slo: SLO, alarm: Alarm, current: Option, able: Sequence[Option], *, strained: float) -> list[Option]:
    """Return the options worth a change, best first; ``strained``: strain of the running deployment."""
    keeping = sorted((o for o in able if o.keeps), key=lambda o: (_price(o), o.figures.latency))
    if alarm.trigger == GAIN:
        least = max(LEAST_GAIN, slo.gain * current.figures.cost)
        cheaper = [o for o in keeping if _price(o) <= current.figures.cost - least]
        return [*cheaper, *sorted((o for o in keeping if o.saves and o not in cheaper), key=_work)]
    if keeping:
        most = _price(keeping[0]) + LEAST_GAIN
        return sorted(keeping, key=lambda o: (max(_price(o), most), strain(slo, o.figures)))
    nearer = [(s, o) for o in able if (s := strain(slo, o.figures)) < NEARER * strained]
    same = min((s for s, _ in nearer), default=0.0) * _SAME_STRAIN
    # Under load, batches get longer and cost less: the work of rows is a better measure.
    nearer.sort(key=lambda x: (max(x[0], same), max(x[1].work.values(), default=0.0)))
    return [o for _, o in nearer]


def _refused(running: DeploymentPlan, wanted: DeploymentPlan) -> str:
    """Return why the running plan cannot change to another, '' if it can."""
    try:
        diff(running, wanted)
    except HeadwaterError as error:
        return f"refused: {str(error).splitlines()[0]}"
    return ""


def _work(option: Option) -> tuple[float, float]:
    """Return the bytes per second over all links, in steps of a hundredth, and the cores of rows."""
    bytes_ = sum(option.predicted.links.values())
    return round(math.log(max(bytes_, 1.0)) * 100), option.predicted.cores


def _price(option: Option) -> float:
    return option.figures.cost * (1 + Exactness.price * option.moved)


def _judged(case: Case, option: Option, supposed: Facts | None) -> Option:
    """Exclude options that were left while conditions are, or are supposed to be, the same."""
    for one in case.left:
        if one.is_of(option.plan) and not _better_now(case, one, supposed):
            return replace(option, why_not=one.why)
    return option


def _better_now(case: Case, left: Left, supposed: Facts | None) -> bool:
    """Return whether load is markedly lower, or capacity higher, than when a placement was left.

    For a rewriting, other selectivities count too.
    """
    if selectivities_differ(left.selectivity, stateless_selectivities(case.plan, case.learned)):
        return True
    rates = case.newest.rates(case.plan) if supposed is None else supposed.profile.rates
    if total(rates) * _ALIKE < left.rate:
        return True
    measured = {name: link.now.capacity for name, link in case.seen.links.items()}
    for name, now in (measured if supposed is None else {**measured, **supposed.capacity}).items():
        before = left.capacity.get(name)
        if before is not None and now is not None and now > before * _ALIKE:
            return True
    for (zone, host), seen in case.seen.hosts.items():
        before = left.load_of_others.get(f"{host} ({zone})")
        if before is not None and seen.others < before - 0.2 * seen.cores:
            return True
    return False


def total(rates: Rates) -> float:
    """Return the sum of all rates."""
    return sum(rate for own in rates.values() for rate in own.values())


def _told(case: Case, alarm: Alarm, option: Option, chosen: Option | None) -> Option:
    """Add to an option the reason why it was not chosen."""
    if option is chosen or option.why_not:
        return option
    if option.breaks:
        return replace(option, why_not="; ".join(b.text for b in option.breaks))
    if option.rules and not option.saves and alarm.trigger in (GAIN, REWRITE):
        return replace(option, why_not=f"it does not save {case.slo.gain:.0%} and the price of the change")
    if chosen is None:
        return replace(option, why_not=f"it does not cost {case.slo.gain:.0%} less, or too little less to pay")
    if alarm.trigger not in (GAIN, REWRITE) and _price(option) <= _price(chosen) + LEAST_GAIN:
        return replace(option, why_not=f"'{chosen.name}' costs as much and leaves more room")
    return replace(option, why_not=f"'{chosen.name}' costs less, including its moves")


def _saving(current: Option, chosen: Option) -> str:
    """Describe what another rewriting saves, as predicted."""
    before, after = (sum(o.predicted.links.values()) for o in (current, chosen))
    if chosen.saves == "bytes":
        return f"it saves {1 - after / before:.0%} of {format_size(before)}/s over links"
    now, then = current.predicted.cores, chosen.predicted.cores
    if chosen.saves == "load":
        return f"it saves {1 - then / now:.0%} of the {now:.2g} cores that rows take"
    return f"it costs {chosen.figures.cost:.3g} instead of {current.figures.cost:.3g}"


def _why(alarm: Alarm, chosen: Option | None) -> str:
    if chosen is None:
        return f"{alarm.text}; nothing better was found"
    if alarm.trigger in (GAIN, REWRITE):
        return f"{chosen.name}: {alarm.text}"
    how = "keeps to all limits" if chosen.keeps else "comes nearer to them"
    return f"{alarm.text}; {chosen.name} {how}"


# ---------------------------------------------------------------- after a change


Verdict = Literal["better", "as good", "worse"]


def _figures(known: Mapping[str, Any]) -> Figures:
    """Read figures, measured or predicted, from their recorded form; costs are not compared."""
    return Figures(
        max(known.get("latency_s") or 0.0, known.get("oldest_s") or 0.0),
        known.get("bandwidth_bytes_per_s") or 0.0,
        0.0,
        known.get("load") or {},
    )


def saving_is_measured(case: Case, decided: Mapping[str, Any]) -> bool:
    """Return whether it can be told what a rewriting has saved: rows have come since the change."""
    return _measured_saving(case, decided) is not None


def _measured_saving(case: Case, decided: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the measured share of the bytes or the load that a chosen rewriting saved; None if not measured."""
    chosen, others = decided.get("chosen"), decided.get("alternatives") or []
    after = measured_work(case.plan, case.learned, case.seen)
    before = (decided.get("measured") or {}).get("work")
    if chosen is None or chosen >= len(others) or not before or after is None:
        return None
    of = others[chosen].get("saves")
    share = share_saved(before, after, of) if of else None
    return None if share is None else (share, "bytes over links" if of == "bytes" else "load of rows")


@dataclass(frozen=True)
class Judgement:
    """Result of a judgement of a change."""

    verdict: Verdict
    text: str
    data: Mapping[str, Any]


def judge(case: Case, trigger: str, decided: Mapping[str, Any]) -> Judgement:
    """Compare measurements after a change with the decision's (its data) from before.

    A change is worse if it breaks a limit that was met, or breaks one by more than before, while rates are not
    higher than then. The prediction for the unchanged deployment counts like its measurement: rates had risen, and
    their effect was not yet visible. A rewriting that was chosen for a gain is worse, too, if it saves less than half
    of the least gain: selectivities of filters may depend on their order.
    """
    found = case.measured()
    now = strain(case.slo, found)
    before, stayed = decided.get("measured") or {}, decided.get("current") or {}
    was = max(strain(case.slo, _figures(known)) for known in (before, stayed))
    if stayed and stayed.get("latency_s") is None:
        was = math.inf
    more_to_do = total(case.newest.rates(case.plan)) > _ALIKE * max(1e-9, total(before.get("rates") or {}))
    broken = breaks(case.slo, found)
    verdict: Verdict = "as good"
    if now > 1.0 and now > 1.1 * was and not more_to_do:
        verdict = "worse"
    elif now < was / 1.1 or (trigger in (GAIN, REWRITE) and not broken):
        verdict = "better"
    text = "; ".join(b.text for b in broken) or "all limits are kept"
    if trigger == REWRITE and (saved := _measured_saving(case, decided)) is not None:
        share, of = saved
        text = f"{text}; it saves {share:.0%} of the {of}"
        if share <= case.slo.gain / 2:
            verdict = "worse"
    data = {
        **{k: v for k, v in dump(case.shown()).items() if k != "capacity"},
        "verdict": verdict,
        "text": text,
        "strain_before": was if math.isfinite(was) else None,
        "strain": now,
    }
    return Judgement(verdict, text, data)
