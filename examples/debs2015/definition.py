"""The published queries in plain Python, minute by minute: ``python -m examples.debs2015.definition``.

It reads the files that ``flow.py`` reads, computes each minute's lists from the trips of the last 30 (15) minutes, and
compares them with the rows in ``results``. It shares no code with the dataflow.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import floor
from pathlib import Path
from statistics import median
from typing import Any

NORTH_WEST = (41.474937, -74.913585)
"""Latitude and longitude of the centre of cell 1.1, as published."""
CELL = (0.004491556, 0.005986)
"""Degrees of 500 m to the south and to the east."""
GRID, TOP = 300, 10
MINUTE = timedelta(minutes=1)
Listed = dict[datetime, list[tuple[Any, ...]]]
"""For each minute with a new list: its entries, best first."""


@dataclass(frozen=True)
class Trip:
    """One trip; its places count squares of 250 m (areas) east and south of the grid's corner, from 0."""

    taxi: str
    pickup: datetime
    end: datetime
    start: tuple[int, int]
    stop: tuple[int, int]
    cents: int

    @property
    def route(self) -> tuple[str, str]:
        """Return the numbers of the cells of 500 m of both ends."""
        return _number(self.start, 2), _number(self.stop, 2)


def trips_in(files: Iterable[Path]) -> Iterator[Trip]:
    """Read trips; leave out those that begin or end outside of the grid."""
    for file in files:
        for row in csv.reader(file.read_text().splitlines()):
            places = [_place(float(row[at + 1]), float(row[at])) for at in (6, 8)]
            if all(0 <= part < 2 * GRID for place in places for part in place):
                pickup, end = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in row[2:4])
                cents = round(100 * (Fraction(row[11]) + Fraction(row[14])))
                yield Trip(row[0], pickup, end, places[0], places[1], cents)


def routes(trips: Sequence[Trip]) -> Listed:
    """Answer query 1 at the end of each minute: (start, end, trips)."""

    def best(until: datetime) -> list[tuple[Any, ...]]:
        counts: Counter[tuple[str, str]] = Counter()
        newest: dict[tuple[str, str], datetime] = {}
        for trip in _last(trips, until, 30):
            counts[trip.route] += 1
            newest[trip.route] = max(trip.end, newest.get(trip.route, trip.end))
        ranked = sorted(counts, key=lambda route: (counts[route], newest[route], route), reverse=True)
        return [(*route, counts[route]) for route in ranked[:TOP]]

    return _changes(trips, best, 2)


def areas(trips: Sequence[Trip]) -> Listed:
    """Answer query 2 at the end of each minute: (area, empty taxis, median profit in cents, profitability)."""

    def best(until: datetime) -> list[tuple[Any, ...]]:
        stops: dict[str, Trip] = {}
        for trip in _last(trips, until, 30):
            before = stops.get(trip.taxi)
            if before is None or _order(trip) > _order(before):
                stops[trip.taxi] = trip
        empty = Counter(_number(trip.stop, 1) for trip in stops.values())
        profits: dict[str, list[int]] = {}
        newest: dict[str, datetime] = {}
        for trip in _last(trips, until, 15):
            name = _number(trip.start, 1)
            profits.setdefault(name, []).append(trip.cents)
            newest[name] = max(trip.end, newest.get(name, trip.end))
        found = {name: float(median(values)) for name, values in profits.items() if name in empty}
        ranked = sorted(found, key=lambda name: (found[name] / empty[name], newest[name], name), reverse=True)
        return [(name, empty[name], found[name], found[name] / empty[name]) for name in ranked[:TOP]]

    return _changes(trips, best, 1)


def _place(latitude: float, longitude: float) -> tuple[int, int]:
    south = (NORTH_WEST[0] + CELL[0] / 2 - latitude) / (CELL[0] / 2)
    east = (longitude - (NORTH_WEST[1] - CELL[1] / 2)) / (CELL[1] / 2)
    return floor(east), floor(south)


def _number(place: tuple[int, int], side: int) -> str:
    return ".".join(str(part // side + 1) for part in place)


def _order(trip: Trip) -> tuple[datetime, datetime, str]:
    return trip.end, trip.pickup, _number(trip.stop, 1)


def _last(trips: Sequence[Trip], until: datetime, minutes: int) -> list[Trip]:
    return [trip for trip in trips if until - minutes * MINUTE <= trip.end < until]


def _changes(trips: Sequence[Trip], best: Callable[[datetime], list[tuple[Any, ...]]], names: int) -> Listed:
    """Return the lists that differ from the list before in the first ``names`` values of an entry."""
    found: Listed = {}
    if not trips:
        return found
    until = min(trip.end for trip in trips).replace(second=0, microsecond=0) + MINUTE
    last = max(trip.end for trip in trips) + 30 * MINUTE
    before: list[tuple[Any, ...]] = []
    while until <= last:
        now = best(until)
        if now and [entry[:names] for entry in now] != [entry[:names] for entry in before]:
            found[until] = now
        before = now or before
        until += MINUTE
    return found


def listed(rows: Iterable[dict[str, Any]]) -> Listed:
    """Return the dataflow's rows in the same form; their time is a microsecond before the minute's end."""
    found: Listed = {}
    for row in rows:
        ts = row["ts"] if isinstance(row["ts"], datetime) else datetime.fromisoformat(row["ts"])
        ts = ts if ts.tzinfo else ts.replace(tzinfo=UTC)
        found[ts + timedelta(microseconds=1)] = [tuple(item.values()) for item in row["top"]]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the example's results with the definition; return 1 where they differ."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(prog="examples.debs2015.definition", description=__doc__)
    parser.add_argument("--data", type=Path, default=here / "data", help="the trips' directory")
    parser.add_argument("--results", type=Path, default=here / "results", help="the dataflow's output")
    given = parser.parse_args(arguments)
    trips = list(trips_in(sorted(given.data.glob("*/*.csv"))))
    status = 0
    for name, query in {"routes": routes, "areas": areas}.items():
        lines = [
            line for file in sorted((given.results / name).glob("*.json")) for line in file.read_text().splitlines()
        ]
        wanted, got = query(trips), listed(map(json.loads, lines))
        same = wanted == got
        print(f"{name}: {len(got)} lists of {len(trips)} trips, {'equal to' if same else 'NOT as in'} the definition")
        status = status if same else 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
