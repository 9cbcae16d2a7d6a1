"""Linear Road's published definitions in plain Python: ``python -m examples.linearroad.definition``.

It reads the files that ``flow.py`` reads, computes tolls and alerts report by report, and compares them with the rows
in ``results``. It shares no code with the dataflow.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

Segment = tuple[int, int, int]
"""Expressway, direction, segment."""
Notice = tuple[Any, ...]
"""A row: second, vehicle, segment, and the figures."""


@dataclass(frozen=True)
class Report:
    """A position report; ``second`` counts from 1970."""

    second: int
    vehicle: int
    speed: int
    expressway: int
    lane: int
    direction: int
    segment: int
    position: int

    @property
    def at(self) -> Segment:
        """Return the report's segment."""
        return self.expressway, self.direction, self.segment

    @property
    def place(self) -> tuple[int, ...]:
        """Return the place that two vehicles of an accident share."""
        return self.expressway, self.direction, self.lane, self.position

    @property
    def minute(self) -> int:
        """Return the report's minute."""
        return self.second // 60


def reports_in(files: Iterable[Path]) -> list[Report]:
    """Read reports, and sort them by time."""
    found = []
    for file in files:
        for ts, *rest in csv.reader(file.read_text().splitlines()):
            found.append(Report(int(datetime.fromisoformat(ts).timestamp()), *map(int, rest)))
    return sorted(found, key=lambda report: (report.second, report.vehicle))


@dataclass
class Road:
    """The state of all segments, minute by minute."""

    cars: dict[tuple[int, Segment], int]
    speed: dict[tuple[int, Segment], Decimal]
    accidents: dict[int, set[Segment]]

    def lav(self, minute: int, at: Segment) -> Decimal | None:
        """Return the mean of the speeds of the five minutes before; None where there were no cars."""
        known = [self.speed[m, at] for m in range(minute - 5, minute) if (m, at) in self.speed]
        return _mean(known, 12) if known else None

    def distance(self, minute: int, at: Segment) -> int | None:
        """Return how many segments downstream an accident was in the minute before: 0 to 4, or None."""
        expressway, direction, segment = at
        ahead = 1 if direction == 0 else -1
        those = self.accidents.get(minute - 1, set())
        return next((n for n in range(5) if (expressway, direction, segment + ahead * n) in those), None)

    def toll(self, minute: int, at: Segment) -> int:
        """Return a segment's toll for the vehicles that enter it within the minute."""
        lav, cars = self.lav(minute, at), self.cars.get((minute - 1, at), 0)
        if lav is None or lav >= 40 or cars <= 50 or self.distance(minute, at) is not None:
            return 0
        return int(2 * (cars - 50) ** 2)


def road(reports: Sequence[Report]) -> Road:
    """Compute speeds, cars and accidents of each minute and segment."""
    speeds: dict[tuple[int, Segment], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        speeds[report.minute, report.at][report.vehicle].append(report.speed)
    by_vehicle = {key: [_mean(s, 4) for s in those.values()] for key, those in speeds.items()}
    standing: dict[tuple[int, Segment, tuple[int, ...]], set[int]] = defaultdict(set)
    for report in _standing(reports):
        standing[report.minute, report.at, report.place].add(report.vehicle)
    accidents: dict[int, set[Segment]] = defaultdict(set)
    for (minute, at, _), vehicles in standing.items():
        if len(vehicles) > 1:
            accidents[minute].add(at)
    cars = {key: len(those) for key, those in speeds.items()}
    return Road(cars, {key: _mean(means, 8) for key, means in by_vehicle.items()}, dict(accidents))


def crossings(reports: Sequence[Report]) -> Iterator[Report]:
    """Yield the reports with which vehicles enter a segment, but not to leave it at once."""
    last: dict[int, Report] = {}
    for report in reports:
        before = last.get(report.vehicle)
        new = before is None or report.second - before.second > 30 or before.at != report.at
        if new and report.lane != 4:
            yield report
        last[report.vehicle] = report


def _standing(reports: Sequence[Report]) -> Iterator[Report]:
    """Yield the reports of vehicles that have sent four equal ones in a row."""
    rows: dict[int, list[Report]] = defaultdict(list)
    for report in reports:
        four = rows[report.vehicle] = [*rows[report.vehicle][-3:], report]
        in_time = all(b.second - a.second <= 30 for a, b in pairwise(four))
        if len(four) == 4 and in_time and len({r.place for r in four}) == 1:
            yield report


def tolls(reports: Sequence[Report]) -> Counter[Notice]:
    """Return the toll notifications: (second, vehicle, expressway, direction, segment, LAV, toll)."""
    state = road(reports)
    found: Counter[Notice] = Counter()
    for report in crossings(reports):
        lav = state.lav(report.minute, report.at)
        toll = state.toll(report.minute, report.at)
        found[(report.second, report.vehicle, *report.at, None if lav is None else float(lav), toll)] += 1
    return found


def alerts(reports: Sequence[Report]) -> Counter[Notice]:
    """Return the accident alerts: (second, vehicle, expressway, direction, segment, segments to the accident)."""
    state = road(reports)
    found = ((r, state.distance(r.minute, r.at)) for r in crossings(reports))
    return Counter((r.second, r.vehicle, *r.at, distance) for r, distance in found if distance is not None)


def _mean(values: Sequence[int] | Sequence[Decimal], digits: int) -> Decimal:
    mean = sum(map(Decimal, values), Decimal(0)) / len(values)
    return mean.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


def noticed(rows: Iterable[dict[str, Any]]) -> Counter[Notice]:
    """Return the dataflow's rows in the same form; JSON leaves out a LAV that is NULL."""
    found: Counter[Notice] = Counter()
    for row in rows:
        ts = row["ts"] if isinstance(row["ts"], datetime) else datetime.fromisoformat(row["ts"])
        ts = ts if ts.tzinfo else ts.replace(tzinfo=UTC)
        at = (row["expressway"], row["direction"], row["segment"])
        figures = (row.get("lav"), row["toll"]) if "toll" in row else (row["distance"],)
        found[(int(ts.timestamp()), row["vehicle"], *at, *figures)] += 1
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the example's results with the definition; return 1 where they differ."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(prog="examples.linearroad.definition", description=__doc__)
    parser.add_argument("--data", type=Path, default=here / "data", help="the reports' directory")
    parser.add_argument("--results", type=Path, default=here / "results", help="the dataflow's output")
    given = parser.parse_args(arguments)
    reports = reports_in(sorted(given.data.glob("*/*.csv")))
    status = 0
    for name, wanted in {"tolls": tolls(reports), "alerts": alerts(reports)}.items():
        lines = [
            line for file in sorted((given.results / name).glob("*.json")) for line in file.read_text().splitlines()
        ]
        got = noticed(map(json.loads, lines))
        same = wanted == got
        print(f"{name}: {got.total()} of {len(reports)} reports, {'equal to' if same else 'NOT as in'} the definition")
        status = status if same else 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
