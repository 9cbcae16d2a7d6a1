"""Replay changing rates and free capacity through a scheduler, and score its decisions. Pure.

Several applications share hosts and links: they are decided one after the other, each on the capacity that the
earlier ones do not use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from headwater.core.jsonform import Unbounded
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.cuttable import CutTable
from headwater.placement.forecast import Forecast
from headwater.placement.problem import Placement, Problem, moved
from headwater.placement.schedule import Schedule, Scheduled, decide
from headwater.placement.situation import Limits
from headwater.placement.uncertainty import MOST_SCENARIOS, ForecastRecord

Rates = Mapping[int, float]
"""By source."""


@dataclass(frozen=True, eq=False)
class Shared:
    """An application to schedule, with the tables for each placement of its trunk."""

    name: str
    tables: tuple[CutTable, ...]
    limits: Limits


@dataclass(frozen=True)
class Step:
    """Rates of each application by source, and usage by others, from this step on."""

    rates: Mapping[str, Rates]
    others: CutLoad | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of one decision at the actual rates.

    ``kept``: within all limits; ``late``, ``wide``, ``crowded``: T, B, or hosts and links exceed theirs.
    ``changed``: number of moved operators. ``seconds``: duration of the decision.
    """

    step: int
    application: str
    placement: Placement
    kept: bool
    late: bool
    wide: bool
    crowded: bool
    cost: float
    latency: float
    bandwidth: float
    changed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Summary of a scheduler's decisions: shares of steps, mean RU, moved operators, duration of a decision."""

    success: float
    ru: Unbounded
    late: float
    wide: float
    crowded: float
    changed: int
    decision_ms: float
    decision_ms_most: float


@dataclass(frozen=True, kw_only=True)
class StepOutline:
    """Score of one step; ``latency_s`` is None if a queue grows without limit."""

    step: int
    kept: bool
    ru: Unbounded
    latency_s: Unbounded
    bandwidth_bytes_per_s: float
    changed: int
    decision_ms: float


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Scores of each strategy, in total and step by step."""

    strategies: Mapping[str, Totals]
    steps: Mapping[str, tuple[StepOutline, ...]]


def totals(scores: Sequence[Score]) -> Totals:
    """Sum up at least one score."""
    return Totals(
        success=fmean(score.kept for score in scores),
        ru=fmean(score.cost for score in scores),
        late=fmean(score.late for score in scores),
        wide=fmean(score.wide for score in scores),
        crowded=fmean(score.crowded for score in scores),
        changed=sum(score.changed for score in scores),
        decision_ms=median(score.seconds for score in scores) * 1e3,
        decision_ms_most=max(score.seconds for score in scores) * 1e3,
    )


def simulated(found: Mapping[str, Sequence[Score]]) -> ReplayResult:
    """Return the totals and the steps of each strategy."""
    return ReplayResult(
        strategies={name: totals(scores) for name, scores in found.items()},
        steps={name: tuple(map(_step, scores)) for name, scores in found.items()},
    )


def _step(score: Score) -> StepOutline:
    return StepOutline(
        step=score.step,
        kept=score.kept,
        ru=score.cost,
        latency_s=score.latency,
        bandwidth_bytes_per_s=score.bandwidth / 8,
        changed=score.changed,
        decision_ms=score.seconds * 1e3,
    )


@dataclass(eq=False)
class _Running:
    """Memory of one application."""

    placement: Placement | None = None
    seen: dict[int, list[float]] = field(default_factory=dict)
    forecasts: ForecastRecord = field(default_factory=ForecastRecord)


def replay(
    applications: Sequence[Shared],
    steps: Iterable[Step],
    scheduler: str | Schedule,
    *,
    expect: Forecast | None = None,
    running: Mapping[str, Placement] | None = None,
    compiled: bool | None = None,
) -> Iterator[Score]:
    """Decide at every step for each application.

    ``expect``: decide on rates predicted from earlier steps; None: on the rates of the step itself, as in TSOO's
    evaluation and always at the first step. Then the errors of the forecasts so far give the loads that may
    come. ``running``: the applications' initial placements. ``compiled``: as in ``Situation``.
    """
    memory = {a.name: _Running((running or {}).get(a.name)) for a in applications}
    for number, step in enumerate(steps):
        beside = step.others
        expected = step.others
        possible = [step.others] * MOST_SCENARIOS
        for application in applications:
            rates, known = step.rates[application.name], memory[application.name]
            problem = application.tables[0].problem
            load = actual = _load(problem, rates, beside)
            loads: tuple[CutLoad, ...] = ()
            if expect is not None and known.seen:
                predicted = _expected(known.seen, expect)
                load = _load(problem, predicted, expected)
                among = known.forecasts.scenarios(predicted)
                loads = tuple(_load(problem, r, o) for r, o in zip(among, possible, strict=False))
                known.forecasts.add(predicted, rates)
            found, seconds = _timed(application, known, scheduler, load, loads, compiled)
            chosen, score = found.situation.table, _score(application, known, found, actual, seconds, number)
            known.placement = score.placement
            for source, rate in rates.items():
                known.seen.setdefault(source, []).append(rate)
            if len(applications) > 1:
                beside = chosen.taken(actual, score.placement)
                expected = beside if load is actual else chosen.taken(load, score.placement)
                possible = [chosen.taken(one, score.placement) for one in loads]
            yield score


def _load(problem: Problem, rates: Rates, others: CutLoad | None) -> CutLoad:
    """Return rates with the usage by others; None: the problem's own."""
    return CutLoad.idle(problem, rates) if others is None else replace(others, rates=rates)


def _expected(seen: Mapping[int, Sequence[float]], expect: Forecast) -> dict[int, float]:
    return {source: expect(values) for source, values in seen.items()}


def _timed(
    application: Shared,
    known: _Running,
    scheduler: str | Schedule,
    load: CutLoad,
    possible: tuple[CutLoad, ...],
    compiled: bool | None,
) -> tuple[Scheduled, float]:
    """Decide, and return the duration in seconds as well."""
    begun = time.perf_counter()
    found = decide(
        application.tables[0].problem,
        scheduler,
        application.limits,
        current=known.placement,
        load=load,
        among=application.tables,
        compiled=compiled,
        possible=possible,
    )
    return found, time.perf_counter() - begun


def _score(
    application: Shared, known: _Running, found: Scheduled, actual: CutLoad, seconds: float, number: int
) -> Score:
    """Measure a decision at the actual rates."""
    situation = replace(found.situation, load=actual)
    measured = situation.measure(found.decision.selection)
    return Score(
        step=number,
        application=application.name,
        placement=found.placement,
        kept=situation.keeps(measured),
        late=not situation.is_quick(measured),
        wide=not situation.is_narrow(measured),
        crowded=not measured.fits,
        cost=measured.cost,
        latency=measured.worst,
        bandwidth=measured.bandwidth,
        changed=moved(known.placement, found.placement),
        seconds=seconds,
    )
