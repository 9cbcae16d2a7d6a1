"""Write seeded taxi trips with the 17 columns of the DEBS 2015 challenge, sorted by drop-off time.

``python -m examples.taxi.generate --rows 100000 --seed 1 --per-file 5000 --out DIR``; without ``--out`` the
lines go to standard output. CSV without a header; the columns are ``COLUMNS``.

No real trip, identifier or place is in it: values are drawn from aggregate figures (``facts.json``) of 10,004
trips of the challenge's file: quantiles of time, distance, fare, tip and toll, and the rank shares of start
and end cells on the challenge's grid (500 m cells, 300 x 300). Start and end of most trips are drawn apart,
as the figures say; ``HOT_SHARE`` of them take one of 53 hot routes, so that the ten most frequent routes are
as frequent as in the file: 16, 13, 12, ... 10 in 10,000 trips. Not matched: 10,000 trips have some 7,550
distinct routes here, 6,800 in the file.

* ``bad``: share of trips without a position (0.0 for all four coordinates), 0.0156 in the file;
* ``late``: share of lines that come 5 to 200 lines after their place in the order.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate, islice, pairwise
from math import exp, log
from pathlib import Path
from typing import Any

COLUMNS = (
    "medallion",
    "hack_license",
    "pickup_datetime",
    "dropoff_datetime",
    "trip_time_in_secs",
    "trip_distance",
    "pickup_longitude",
    "pickup_latitude",
    "dropoff_longitude",
    "dropoff_latitude",
    "payment_type",
    "fare_amount",
    "surcharge",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "total_amount",
)
#: The grid of the challenge's first query: a cell's height and width in degrees, the corner of cell 1.1.
CELL_LATITUDE, CELL_LONGITUDE = 0.004491556, 0.005986
NORTH, WEST = 41.474937 + CELL_LATITUDE / 2, -74.913585 - CELL_LONGITUDE / 2
GRID = 300
HOT_SHARE = 0.03
BAD_SHARE = 0.0156

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_START = datetime(2013, 1, 1)

Cell = tuple[int, int]


def trips(
    rows: int, *, seed: int = 1, late: float = 0.0, bad: float = BAD_SHARE, taxis: int = 4630
) -> Iterator[list[str]]:
    """Yield this number of trips, each as its 17 texts, in the order of drop-off except the late ones."""
    for name, share in (("late", late), ("bad", bad)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is {share}: give a share between 0 and 1")
    return _delayed(_in_order(rows, seed=seed, bad=bad, taxis=taxis), share=late, seed=seed)


def lines(rows: int, *, seed: int = 1, late: float = 0.0, bad: float = BAD_SHARE) -> Iterator[str]:
    """Yield this number of trips as CSV lines without a line end; no value needs quotes."""
    return (",".join(trip) for trip in trips(rows, seed=seed, late=late, bad=bad))


def write_files(
    out: Path, rows: int, *, seed: int = 1, late: float = 0.0, bad: float = BAD_SHARE, per_file: int = 10_000
) -> Iterator[Path]:
    """Write trips-0001.csv and so on, ``per_file`` lines each, and yield each as soon as it is complete."""
    if per_file < 1:
        raise ValueError(f"per_file is {per_file}: give at least 1")
    out.mkdir(parents=True, exist_ok=True)
    source = lines(rows, seed=seed, late=late, bad=bad)
    number = 0
    while part := list(islice(source, per_file)):
        number += 1
        path = out / f"trips-{number:04d}.csv"
        hidden = path.with_name(f".{path.name}.part")
        hidden.write_text("".join(f"{line}\n" for line in part))
        hidden.replace(path)
        yield path


@dataclass(frozen=True)
class _Weighted:
    """Cells, or routes, to draw from by weight."""

    choices: tuple[Any, ...]
    sums: tuple[float, ...]

    def draw(self, source: random.Random) -> Any:
        return self.choices[bisect(self.sums, source.random() * self.sums[-1], hi=len(self.choices) - 1)]


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("facts.json").read_text())
    return facts


def _in_order(rows: int, *, seed: int, bad: float, taxis: int) -> Iterator[list[str]]:
    facts = _facts()
    source = random.Random(seed)
    starts, ends = _cells(source, end="start"), _cells(source, end="end")
    routes = _hot_routes(source, starts=starts, ends=ends)
    now = _START
    for _ in range(rows):
        now += timedelta(seconds=source.expovariate(facts["trips_per_s"]))
        drop_off = now.replace(second=0, microsecond=0)
        duration = int(_drawn(facts["trip_time_s"], source.random()) / 60) * 60
        size = source.random()  # distance and fare go together
        distance = _drawn(facts["trip_distance_mi"], size)
        fare = round(_drawn(facts["fare"], size) * 2) / 2
        if source.random() < HOT_SHARE:
            start, end = routes.draw(source)
        else:
            start, end = starts.draw(source), ends.draw(source)
        places = [*_place(source, start), *_place(source, end)]
        if source.random() < bad:
            places = [0.0] * 4
        by_card = source.random() < facts["card_share"]
        tip = round(_drawn(facts["tip"], 0.5 + source.random() / 2), 2) if by_card else 0.0
        toll = round(_drawn(facts["tolls"], source.random()), 2)
        yield [
            f"taxi-{source.randrange(taxis):05d}",
            f"lic-{source.randrange(taxis):05d}",
            str(drop_off - timedelta(seconds=duration)),
            str(drop_off),
            str(duration),
            f"{distance:.2f}",
            *(f"{degrees:.6f}" for degrees in places),
            "CRD" if by_card else "CSH",
            f"{fare:.2f}",
            "0.50",
            "0.50",
            f"{tip:.2f}",
            f"{toll:.2f}",
            f"{fare + 1 + tip + toll:.2f}",
        ]


def _delayed(ordered: Iterator[list[str]], *, share: float, seed: int) -> Iterator[list[str]]:
    """Hold back a share of the trips for 5 to 200 others; keep the order of the rest."""
    source = random.Random(f"late/{seed}")
    held: list[tuple[int, list[str]]] = []
    for number, trip in enumerate(ordered):
        if share and source.random() < share:
            held.append((number + source.randint(5, 200), trip))
        else:
            yield trip
        if held:
            yield from (trip for due, trip in held if due <= number)
            held = [(due, trip) for due, trip in held if due > number]
    yield from (trip for _, trip in held)


def _drawn(quantiles: Sequence[float], u: float) -> float:
    """Return the value below which a share u lies, interpolated between the known quantiles."""
    for (low, high), (from_value, to_value) in zip(pairwise(_QUANTILES), pairwise(quantiles), strict=True):
        if u <= high:
            return from_value + (to_value - from_value) * (u - low) / (high - low)
    return quantiles[-1]


def _cells(source: random.Random, *, end: str) -> _Weighted:
    """Scatter the start (or end) cells around the town's centre; near ones are more frequent."""
    facts = _facts()
    (row, column), (row_sd, column_sd) = facts["centre_cell"], facts[f"{end}_cell_sd"]
    shares = {int(rank): share for rank, share in facts[f"{end}_rank_share"].items()}
    cells: set[Cell] = set()
    while len(cells) < facts[f"{end}_cells"]:
        cell = (int(source.gauss(row, row_sd)), int(source.gauss(column, column_sd)))
        if all(1 <= part <= GRID for part in cell):
            cells.add(cell)
    noise = {cell: source.random() * 60 for cell in sorted(cells)}
    ranked = sorted(noise, key=lambda cell: (cell[0] - row) ** 2 + (cell[1] - column) ** 2 + noise[cell])
    return _Weighted(tuple(ranked), tuple(accumulate(_share(shares, rank) for rank in range(1, len(ranked) + 1))))


def _share(shares: dict[int, float], rank: int) -> float:
    """Return a rank's share, interpolated on logarithmic scales between the known ranks."""
    low = max(known for known in shares if known <= rank)
    if low == rank:
        return shares[rank]
    above = [known for known in shares if known > rank]
    if not above:
        return shares[low] * (low / rank) ** 2
    high = min(above)
    part = (log(rank) - log(low)) / (log(high) - log(low))
    return exp(log(shares[low]) * (1 - part) + log(shares[high]) * part)


def _hot_routes(source: random.Random, *, starts: _Weighted, ends: _Weighted) -> _Weighted:
    """Choose the hot routes among the frequent cells; the weights are trips in 10,000."""
    weights = [float(weight) for weight in _facts()["hot_route_trips"]]
    routes: list[tuple[Cell, Cell]] = []
    while len(routes) < len(weights):
        route = (source.choice(starts.choices[:60]), source.choice(ends.choices[:60]))
        if route[0] != route[1] and route not in routes:
            routes.append(route)
    return _Weighted(tuple(routes), tuple(accumulate(weights)))


def _place(source: random.Random, cell: Cell) -> tuple[float, float]:
    """Return longitude and latitude of a point in the cell, off its border by more than the rounding."""
    down, right = 0.001 + 0.998 * source.random(), 0.001 + 0.998 * source.random()
    return WEST + (cell[1] - 1 + right) * CELL_LONGITUDE, NORTH - (cell[0] - 1 + down) * CELL_LATITUDE


def main(arguments: Sequence[str] | None = None) -> int:
    """Write trips from the command line."""
    parser = argparse.ArgumentParser(
        prog="examples.taxi.generate", description="Write seeded taxi trips (DEBS 2015 columns) as CSV."
    )
    parser.add_argument("--rows", type=int, default=10_000, help="number of trips (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", type=float, default=0.0, help="share of lines that come late")
    parser.add_argument("--bad", type=float, default=BAD_SHARE, help="share of trips without a position")
    parser.add_argument("--out", type=Path, help="folder for trips-0001.csv ...; default: standard output")
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--per-file", type=int, help="lines of one file (default 10,000)")
    cut.add_argument("--files", type=int, help="number of files, instead of --per-file")
    given = parser.parse_args(arguments)
    for name in ("rows", "per_file", "files"):
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("late", "bad"):
        if not 0 <= getattr(given, name) <= 1:
            parser.error(f"--{name} must be a share between 0 and 1")
    if given.out is None:
        for line in lines(given.rows, seed=given.seed, late=given.late, bad=given.bad):
            sys.stdout.write(f"{line}\n")
        return 0
    per_file = -(-given.rows // given.files) if given.files else given.per_file or 10_000
    for path in write_files(given.out, given.rows, seed=given.seed, late=given.late, bad=given.bad, per_file=per_file):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
