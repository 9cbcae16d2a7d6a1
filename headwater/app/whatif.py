"""The what-if use case: predict a deployment under other rates and links, and the change the loop would make.

Nothing is changed: predictions come from learned costs and the newest measurements, by the same model and the same
decision as for SLOs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headwater.adapt.decide import GAIN, Alarm, Case, Choice, decide
from headwater.adapt.model import Facts
from headwater.adapt.options import Alternative, Option
from headwater.adapt.rewritten import narrowed
from headwater.adapt.slo import SLO
from headwater.adapt.window import Window, window
from headwater.app import stores
from headwater.app.client import ChangeOutline, Client, Preview
from headwater.control.policy import NEWEST, SEEN, WARM, given_up
from headwater.control.store import StoreReader
from headwater.core.errors import DeploymentError, suggestion
from headwater.core.jsonform import UnboundedOrNone
from headwater.core.quantity import (
    QuantityError,
    format_bandwidth,
    format_duration,
    parse_bandwidth,
    parse_duration,
)
from headwater.core.rules import Number
from headwater.dataflow.sources import Source
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Known
from headwater.plan.setting import Beside

Basis = Literal["measured", "learned", "profile", "assumed"]
"""Basis of the costs: samples of running units; earlier samples; a profile; assumptions."""
Rates = Mapping[str, Mapping[str, float]]
"""Rows/s by source and location; ``*`` stands for all locations."""

_SAMPLES = 60
"""Number of newest samples that are used."""
_NOTHING = Window(0.0, 0.0, {}, {}, {}, {})
_RATE_FORMS = "write 2x (all sources), read=500 (rows/s), read=2x or read@L1=500 (at one location)"
_LINK_FORMS = "write E1=1Mbit/s, E1=40ms or E1=1Mbit/s,40ms: the link from that zone to its parent"


@dataclass(frozen=True, kw_only=True)
class RateChange:
    """Another rate: ``value`` rows/s, or ``times`` the current rate. None: all sources, or all locations."""

    value: float
    times: bool
    source: str | None = None
    location: str | None = None

    @property
    def words(self) -> str:
        """Describe it, as in ``read at L1: 500 rows/s``."""
        of = self.source or "all sources"
        at = f" at {self.location}" if self.location else ""
        return f"{of}{at}: {self.value:g} {'times the rows' if self.times else 'rows/s'}"


@dataclass(frozen=True, kw_only=True)
class LinkChange:
    """Another link from a zone to its parent: bits/s and seconds; None: unchanged."""

    zone: str
    bandwidth: float | None = None
    delay: float | None = None

    @property
    def words(self) -> str:
        """Describe it, as in ``the link of E1: 1Mbit/s, 40ms``."""
        parts = [] if self.bandwidth is None else [format_bandwidth(self.bandwidth)]
        parts += [] if self.delay is None else [format_duration(self.delay)]
        return f"the link of {self.zone}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class Supposed:
    """Suppositions; rates are changed in order."""

    rates: tuple[RateChange, ...] = ()
    links: tuple[LinkChange, ...] = ()

    @classmethod
    def read(cls, rates: Sequence[str] = (), links: Sequence[str] = ()) -> Supposed:
        """Parse ``2x``, ``read=500`` or ``read@L1=2x``, and ``E1=1Mbit/s,40ms``; raise QuantityError.

        >>> [one.words for one in Supposed.read(["2x", "read@L1=500"], ["E1=1Mbit,40ms"]).rates]
        ['all sources: 2 times the rows', 'read at L1: 500 rows/s']
        """
        return cls(rates=tuple(map(_read_rate, rates)), links=tuple(map(_read_link, links)))

    @property
    def words(self) -> list[str]:
        """Describe each supposition."""
        return [rate.words for rate in self.rates] + [link.words for link in self.links]


_AMOUNT = Number(0, 1e9)
"""Rows per second of a source, as in a dataflow, or a factor."""


def _read_rate(text: str) -> RateChange:
    of, _, value = text.strip().rpartition("=")
    source, at, location = of.partition("@")
    number = value.strip().removesuffix("x")
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    if not _AMOUNT.takes(amount) or (at and not location) or (not source and "=" in text):
        raise QuantityError(f"{text!r} is not a rate", hint=_RATE_FORMS)
    times = number != value.strip()
    if not times and not source:
        raise QuantityError(f"{text!r} has no source", hint=_RATE_FORMS)
    return RateChange(value=amount, times=times, source=source or None, location=location or None)


def _read_link(text: str) -> LinkChange:
    zone, _, values = text.strip().partition("=")
    found: dict[str, float] = {}
    for part in values.split(","):
        for name, read in (("delay", parse_duration), ("bandwidth", parse_bandwidth)):
            try:
                value = read(part)
            except QuantityError:
                continue
            if name in found:
                raise QuantityError(f"{text!r} has two values for its {name}", hint=_LINK_FORMS)
            found[name] = value
            break
        else:
            raise QuantityError(f"{part!r} is neither a bandwidth nor a delay", where=text, hint=_LINK_FORMS)
    if not zone:
        raise QuantityError(f"{text!r} names no zone", hint=_LINK_FORMS)
    if found.get("bandwidth") == 0:
        raise QuantityError(f"{text!r}: a link without bandwidth is none", hint="give more than 0")
    return LinkChange(zone=zone, **found)


# ---------------------------------------------------------------- known costs


@dataclass(frozen=True, kw_only=True)
class LinkPredicted:
    """A link's traffic, and its capacity; None: unknown."""

    bytes_per_s: float
    capacity_bytes_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class UnitPredicted:
    """A unit's input, batch time (s), cores and output latency; None: latency grows without bound."""

    unit: str
    rows_in_per_s: float
    batch_s: UnboundedOrNone
    cpu: UnboundedOrNone
    latency_p50_s: UnboundedOrNone
    latency_p95_s: UnboundedOrNone


@dataclass(frozen=True, kw_only=True)
class OptionPredicted(Alternative):
    """An alternative with the load of each link and unit."""

    latency_p50_s: UnboundedOrNone
    links: Mapping[str, LinkPredicted]
    units: tuple[UnitPredicted, ...]


@dataclass(frozen=True, kw_only=True)
class RatesSupposed:
    """Rows/s by source and location, current and supposed."""

    before: Rates
    then: Rates


@dataclass(frozen=True, kw_only=True)
class WhatIfOutline:
    """Predictions for a deployment now and as supposed, and the alternative that would be chosen.

    ``chosen``: its index in ``alternatives``. ``change``: the effect of applying it.
    """

    name: str
    supposed: tuple[str, ...]
    basis: Basis
    measured_at: float | None
    assumed: tuple[str, ...]
    slo: SLO | None
    rates: RatesSupposed
    now: OptionPredicted
    current: OptionPredicted
    wanted: OptionPredicted | None
    alternatives: tuple[Alternative, ...]
    chosen: int | None
    why: str
    change: ChangeOutline | None


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A prediction. ``now``: the active plan under current rates; ``choice.current``: the same as supposed.

    ``measured_at``: time of the newest measurement (seconds since 1970), None without one. ``assumed``: values that
    were not measured. ``before`` and ``then``: the current and the supposed rates and links. ``preview``: the effect of
    applying the chosen alternative.
    """

    name: str
    supposed: Supposed
    basis: Basis
    measured_at: float | None
    assumed: tuple[str, ...]
    slo: SLO | None
    plan: DeploymentPlan
    before: Facts
    then: Facts
    now: Option
    choice: Choice
    preview: Preview | None

    @property
    def why(self) -> str:
        """Return in a sentence why it would change, or not."""
        if self.choice.alarm.trigger != GAIN:
            return self.choice.why
        if self.choice.chosen is not None:
            return f"no limit would be broken; {self.choice.why}"
        return "no limit would be broken, and nothing else costs enough less to pay for a change"

    def shown(self) -> WhatIfOutline:
        """Return the JSON form."""
        chosen = self.choice.chosen
        return WhatIfOutline(
            name=self.name,
            supposed=tuple(self.supposed.words),
            basis=self.basis,
            measured_at=self.measured_at,
            assumed=self.assumed,
            slo=self.slo,
            rates=RatesSupposed(before=self.before.profile.rates, then=self.then.profile.rates),
            now=self._predicted(self.now, self.before),
            current=self._predicted(self.choice.current, self.then),
            wanted=None if chosen is None else self._predicted(chosen, self.then),
            alternatives=tuple(o.shown() for o in self.choice.others),
            chosen=None if chosen is None else self.choice.others.index(chosen),
            why=self.why,
            change=None if self.preview is None else self.preview.shown(),
        )

    def _predicted(self, option: Option, facts: Facts) -> OptionPredicted:
        """Return an option with the load of each link and unit."""
        found = option.predicted
        return OptionPredicted(
            **vars(option.shown()),
            latency_p50_s=found.p50,
            links={
                link.name: LinkPredicted(
                    bytes_per_s=found.links.get(link.name, 0.0),
                    capacity_bytes_per_s=facts.capacity.get(
                        link.name, None if link.bandwidth is None else link.bandwidth / 8
                    ),
                )
                for link in self.plan.continuum.links
            },
            units=tuple(
                UnitPredicted(
                    unit=id_,
                    rows_in_per_s=unit.rows_in,
                    batch_s=unit.batch_s,
                    cpu=unit.cpu,
                    latency_p50_s=found.reaches[id_][0],
                    latency_p95_s=found.reaches[id_][1],
                )
                for id_, unit in found.units.items()
            ),
        )


def what_if(name: str, supposed: Supposed, store_url: str | None = None) -> WhatIf:
    """Predict a deployment under supposed rates and links, and the alternative that would be chosen.

    Raises DeploymentError where it is not running yet, where a supposition names unknown sources, locations or zones,
    or where a rate is neither known nor given.
    """
    with stores.existing(store_url) as store:
        store.deployment(name)
        plan = store.active_plan(name)
        if plan is None:
            raise DeploymentError(
                "it is not running yet, so nothing was measured",
                where=f"deployment '{name}'",
                hint="wait until it runs, or predict its plan: headwater plan FLOW -c ZONES --strategy",
            )
        slo = store.slo(name)
        case, basis = _case(store, name, plan, slo or SLO(mode="off"))
    before = case.facts()
    facts = at_links(plan, before, supposed)
    rates = _rates(plan, before.profile.rates, supposed)
    facts = _at_rates(facts, rates)
    # Where the current rate is unknown, the supposed one stands for it: only the rest can be compared.
    before = _at_rates(before, {**rates, **before.profile.rates})
    current = case.options(facts).current
    alarm = Alarm(GAIN, f"another placement costs at least {case.slo.gain:.0%} less")
    if current.breaks:
        first = current.breaks[0]
        alarm = Alarm(f"expected {first.limit}", "; ".join(b.text for b in current.breaks))
    choice = decide(case, alarm, facts)
    return WhatIf(
        name=name,
        supposed=supposed,
        basis=basis,
        measured_at=case.seen.until if basis == "measured" else None,
        assumed=_assumed(plan, facts),
        slo=slo,
        plan=plan,
        before=before,
        then=facts,
        now=case.options(before).current,
        choice=choice,
        preview=None if choice.chosen is None else Client(store_url).preview(choice.chosen.plan),
    )


def _case(store: StoreReader, name: str, plan: DeploymentPlan, slo: SLO) -> tuple[Case, Basis]:
    """Collect the known data as the policy does, but of any age: a stopped deployment counts too."""
    began = (c.ended for c in store.changes(name) if c.goal == "run")
    begun = max((at for at in began if at is not None), default=0.0)
    samples = [s for s in store.samples(name, most=_SAMPLES) if s.at >= begun + WARM]
    seen, newest = window(samples, SEEN), window(samples, NEWEST)
    kept, profile = store.learned(name), store.profile(name)
    basis: Basis = "measured" if seen else "learned" if kept else "profile" if profile else "assumed"
    case = Case(
        plan=plan,
        slo=slo,
        learned=store.known(name),
        seen=seen or _NOTHING,
        newest=newest or seen or _NOTHING,
        beside=tuple(_beside(store, name)),
        left=given_up(store, name, time.time()),
    )
    return case, basis


def _beside(store: StoreReader, name: str) -> Iterator[Beside]:
    """Return the other deployments, with their known costs."""
    for other in store.deployments():
        if other.name != name and other.phase != "stopped" and other.active_plan is not None:
            plan, kept = store.plan(other.active_plan), store.learned(other.name)
            profile = store.profile(other.name)
            if kept is not None:
                yield plan, kept.of(plan).profile
            else:
                yield plan, None if profile is None else narrowed(profile, plan.dataflow)


def _assumed(plan: DeploymentPlan, facts: Facts) -> tuple[str, ...]:
    """Name costs of operators and rates of locations that are neither measured nor in the profile."""
    missing = [
        f"rate of '{source}' at {place}"
        for source, places in _places(plan).items()
        for place in places
        if not {place, "*"} & facts.profile.rates.get(source, {}).keys()
    ]
    return (*Known(plan.dataflow, facts.profile).assumed, *missing)


# ---------------------------------------------------------------- suppositions


def _places(plan: DeploymentPlan) -> dict[str, list[str]]:
    """Name the locations that each source is read at; ``*`` where it is read once for all."""
    found: dict[str, list[str]] = {}
    for unit in plan.units:
        for id_ in unit.operators:
            source = plan.dataflow[id_]
            if isinstance(source, Source):
                own = found.setdefault(id_, [])
                own += unit.locations if source.per_location else ["*"] if not own else []
    return found


def _rates(plan: DeploymentPlan, known: Rates, supposed: Supposed) -> dict[str, dict[str, float]]:
    """Change rates; all rates have to be known afterwards."""
    places = _places(plan)
    found = {s: dict(own) for s, own in known.items()}
    for one in supposed.rates:
        if one.source is not None and one.source not in places:
            raise DeploymentError(
                f"'{plan.dataflow.name}' has no source '{one.source}'",
                hint=suggestion(one.source, places, "its sources are"),
            )
        of = list(places) if one.source is None else [one.source]
        for source in of:
            if one.location is not None and one.location not in places[source]:
                raise DeploymentError(
                    f"'{source}' is not read at '{one.location}' for itself",
                    hint=suggestion(one.location, [p for p in places[source] if p != "*"], "it is read at"),
                )
            found[source] = _changed(source, found.get(source, {}), places[source], one)
    missing = [source for source in places if not found.get(source)]
    if missing:
        raise DeploymentError(
            f"the rate of '{missing[0]}' was not measured yet, and no profile has it",
            where=f"deployment '{plan.dataflow.name}'",
            hint=f"wait until `headwater up` has measured it, or give it in rows/s: {missing[0]}=500",
        )
    return found


def _changed(source: str, now: Mapping[str, float], places: Sequence[str], change: RateChange) -> dict[str, float]:
    """Return a source's rates by location; a total is divided as now, evenly where the shares are unknown."""
    own = {p: rate for p in places if (rate := now.get(p, now.get("*"))) is not None}
    here = [change.location] if change.location is not None else list(places)
    if change.times:
        unknown = [p for p in here if p not in own]
        if unknown:
            at = "" if unknown[0] == "*" else f" at {unknown[0]}"
            raise DeploymentError(
                f"{change.value:g} times an unknown rate: that of '{source}'{at} was not measured yet",
                hint=f"give it in rows/s: {source}=500",
            )
        return own | {p: own[p] * change.value for p in here}
    whole = sum(own.get(p, 0.0) for p in here)
    return own | {p: change.value * (own.get(p, 0.0) / whole if whole else 1 / len(here)) for p in here}


def _at_rates(facts: Facts, rates: Rates) -> Facts:
    return replace(facts, profile=facts.profile.model_copy(update={"rates": rates}))


def at_links(plan: DeploymentPlan, facts: Facts, supposed: Supposed) -> Facts:
    """Change links."""
    capacity, delay = dict(facts.capacity), dict(facts.delay)
    links = {zone.name: zone.link.name for zone in plan.continuum.zones if zone.link is not None}
    links |= {link.name: link.name for link in plan.continuum.cross_links}
    for one in supposed.links:
        name = links.get(one.zone)
        if name is None:
            root = one.zone in [zone.name for zone in plan.continuum.tops]
            raise DeploymentError(
                f"zone '{one.zone}' has no link to a parent" if root else f"there is no zone '{one.zone}'",
                where=f"deployment '{plan.dataflow.name}'",
                hint=suggestion(one.zone, links, "the zones with links are"),
            )
        if one.bandwidth is not None:
            capacity[name] = one.bandwidth / 8
        if one.delay is not None:
            delay[name] = one.delay
    return replace(facts, capacity=capacity, delay=delay)
