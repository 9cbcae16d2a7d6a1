"""Replay a trace of rates through a scheduler, on a dataflow's own setting. Pure.

A trace is CSV with a header: ``time,source,location,rate``. ``time``: any increasing number; rows of equal time
are one step; sources not named keep their rate. ``location`` empty or ``*``: every location.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from headwater.core.errors import PlacementError
from headwater.core.metrics import Observe
from headwater.dataflow.sources import Source
from headwater.placement.forecast import forecast as find_forecast
from headwater.placement.replay import Score, Shared, Step, replay
from headwater.placement.schedule import SCHEDULERS, tables
from headwater.placement.situation import ScheduleDecision, Situation
from headwater.plan.place import ANNOTATED, PlacementRequest
from headwater.plan.setting import Setting, running_placement

_COLUMNS = ("time", "source", "location", "rate")
_HINT = "write CSV: time,source,location,rate"
MOST_ROWS = 1_000_000
_MANY = 50_000
"""Choices × steps from which compilation pays off."""


def read_trace(text: str, setting: Setting, *, where: str = "trace") -> tuple[Mapping[int, float], ...]:
    """Read the steps of a trace: rates (rows/s) by source, numbered as in the setting's problem.

    Raises PlacementError, with the line, if the trace is invalid.
    """
    rows = _rows(text, where)
    _, first = next(rows, (1, []))
    header = [cell.strip() for cell in first]
    if tuple(header) != _COLUMNS:
        raise PlacementError(f"the trace begins with {','.join(header) or 'nothing'}", where=where, hint=_HINT)
    rates = _usual(setting)
    steps: list[dict[int, float]] = []
    before = -math.inf
    for line, row in rows:
        if not row:
            continue
        if line > MOST_ROWS:
            raise PlacementError(f"the trace has more than {MOST_ROWS:,} rows", where=where)
        try:
            time, rate = float(row[0]), float(row[3])
        except (ValueError, IndexError):
            time = rate = math.nan
        if len(row) != len(_COLUMNS) or not (math.isfinite(time) and 0 <= rate < math.inf) or time < before:
            raise PlacementError(
                f"line {line} is wrong: {','.join(row)[:80]}",
                where=where,
                hint="times increase, rates are numbers of at least 0",
            )
        if time > before and steps:
            steps[-1] = dict(rates)
        if time > before:
            steps.append({})
        before = time
        for number in _named(setting, row[1].strip(), row[2].strip(), f"{where}, line {line}"):
            rates[number] = rate
    if not steps:
        raise PlacementError("the trace has no rows", where=where, hint=_HINT)
    steps[-1] = dict(rates)
    return tuple(steps)


def _rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, each with the line on which it ends."""
    rows = csv.reader(io.StringIO(text, newline=None))
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise PlacementError(f"line {rows.line_num} is not CSV: {error}", where=where, hint=_HINT) from None


def _usual(setting: Setting) -> dict[int, float]:
    """Return the rates of the profile, or the assumed ones."""
    application = replace(setting, apart=True, on_tree=True).problem.application
    return {source: application.operators[source].rate for source in application.sources}


def _named(setting: Setting, source: str, location: str, where: str) -> list[int]:
    """Return the numbers of the sources that a row names."""
    found = [
        number
        for number, (name, place) in enumerate(setting.instances)
        if name == source and isinstance(setting.dataflow[name], Source)
        if location in ("", "*") or place in (location, None)
    ]
    if not found:
        sources = ", ".join(s.id for s in setting.dataflow.sources)
        raise PlacementError(
            f"unknown source '{source}'" + (f" at '{location}'" if location else ""),
            where=where,
            hint=f"the sources are {sources}; the locations are {', '.join(setting.locations)}",
        )
    return found


def replayed(
    setting: Setting,
    steps: Sequence[Mapping[int, float]],
    request: PlacementRequest,
    *,
    forecast: str | None = None,
    observe: Callable[[int], None] = lambda step: None,
) -> tuple[Score, ...]:
    """Let a scheduler, or ``annotated`` (the dataflow's marks, never changed), decide at each step of a trace.

    ``forecast``: decide on the rates predicted from earlier steps, not on the current ones. ``observe`` gets
    each step's number before the step.
    """

    def given() -> Iterator[Step]:
        for number, rates in enumerate(steps):
            observe(number)
            yield Step({name: rates})

    if request.strategy not in (ANNOTATED, *SCHEDULERS):
        raise PlacementError(
            f"'{request.strategy}' does not adapt to rates",
            hint=f"simulate {', '.join((*SCHEDULERS, ANNOTATED))}",
        )
    setting = replace(setting, apart=True, on_tree=True)
    marked = running_placement(setting, setting.marked)
    name, among = setting.dataflow.name, tables(setting.problem, request.weights)
    if request.strategy == ANNOTATED:
        among = tuple(t for t in among if marked is not None and t.selection(marked) is not None)
        if not among:
            raise PlacementError("the marked placement cannot run here", hint="simulate schedulers alone")
    shared = Shared(name, among, request.limits)
    schedule = _stay if request.strategy == ANNOTATED else SCHEDULERS[request.strategy]
    expect = None if forecast is None else find_forecast(forecast)
    running = {} if marked is None else {name: marked}
    choices = sum(len(branch.choices) for branch in among[0].branches)
    compiled = choices * len(steps) >= _MANY
    return tuple(replay([shared], given(), schedule, expect=expect, running=running, compiled=compiled))


def replayed_by_each(
    setting: Setting,
    steps: Sequence[Mapping[int, float]],
    desired_states: Sequence[PlacementRequest],
    *,
    forecast: str | None = None,
    observe: Observe = lambda what, done, of: None,
) -> dict[str, tuple[Score, ...]]:
    """Return the result of ``replayed`` for each of several placement requests, by strategy."""
    found: dict[str, tuple[Score, ...]] = {}
    for number, request in enumerate(desired_states):

        def look(step: int, name: str = request.strategy, before: int = number * len(steps)) -> None:
            observe(name, before + step, len(desired_states) * len(steps))

        found[request.strategy] = replayed(setting, steps, request, forecast=forecast, observe=look)
    return found


def _stay(situation: Situation) -> ScheduleDecision:
    return situation.decided(situation.all_up if situation.current is None else situation.current)
