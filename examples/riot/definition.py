"""ETL and STATS in plain Python, reading by reading: ``python -m examples.riot.definition``.

It reads the packs that the dataflows read and compares its rows with those in ``results``. It shares no code with them.
A count of distinct sensors is compared with the exact one: it may be 10 % off, three times its standard error.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RANGES = {
    "temperature": (-12.5, 43.1),
    "humidity": (10.7, 95.2),
    "light": (1345.0, 26282.0),
    "dust": (186.61, 5188.21),
    "airquality_raw": (17.0, 363.0),
}
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Pack:
    """A message: milliseconds since 1970, the sensor, its position as text, and its readings; None: no number."""

    city: str
    at: int
    sensor: str
    position: tuple[str, str]
    readings: Mapping[str, float | None]


def packs_in(files: Iterable[Path]) -> list[Pack]:
    """Read packs; a file's directory is its city. They are in the order of their times."""
    found = []
    for file in files:
        for line in file.read_text().splitlines():
            message = json.loads(line)
            entries = {e["n"]: e.get("sv") or e.get("v", "") for e in message["e"]}
            known = {name: _number(entries[name]) for name in RANGES if name in entries}
            where = (entries["longitude"], entries["latitude"])
            found.append(Pack(file.parent.name, message["bt"], entries["source"], where, known))
    return sorted(found, key=lambda p: (p.at, p.city, p.sensor))


def etl(packs: Iterable[Pack], sensors: Iterable[str]) -> list[Row]:
    """Return a row for each pack with a reading: milliseconds, city, sensor, position, five readings.

    A reading out of range, or of a sensor that is not among ``sensors``, is the mean of the five good ones before.
    """
    known, last, found = set(sensors), dict[tuple[str, str], list[float]](), []
    for pack in packs:
        clean: dict[str, float | None] = {}
        for name, value in pack.readings.items():
            low, high = RANGES[name]
            before = last.setdefault((pack.sensor, name), [])
            if value is not None and low <= value <= high and pack.sensor in known:
                before.append(value)
                clean[name] = value
            else:
                five = before[-5:]
                clean[name] = math.fsum(five) / len(five) if five else None
        if clean:
            found.append((pack.at, pack.city, pack.sensor, *pack.position, *(clean.get(n) for n in RANGES)))
    return found


def stats(packs: Iterable[Pack]) -> list[Row]:
    """Return milliseconds, city, sensor, observation, kind, and the figures of that kind as a tuple."""
    found: list[Row] = []
    blocks: dict[tuple[str, str], list[float]] = {}
    filters: dict[tuple[str, str], tuple[float, float]] = {}
    smooth: dict[tuple[str, str], list[float]] = {}
    seen: dict[tuple[str, str], set[str]] = {}
    for pack in packs:
        for name, value in pack.readings.items():
            head, key = (pack.at, pack.city, pack.sensor, name), (pack.sensor, name)
            seen.setdefault((pack.city, name), set()).add(pack.sensor)
            found.append((*head, "distinct", (float(len(seen[pack.city, name])),)))
            if value is None:
                continue
            block = blocks.setdefault(key, [])
            block.append(value)
            if len(block) % 5 == 0:
                found.append((*head, "average", (sum(block[-5:]) / 5,)))
            estimate, error = filters.get(key, (0.0, 30.0))
            error += 0.125
            gain = error / (error + 0.32)
            estimate += gain * (value - estimate)
            filters[key] = estimate, error * (1 - gain)
            smooth.setdefault(key, []).append(estimate)
            if len(smooth[key]) >= 10:
                found.append((*head, "forecast", tuple(_line(smooth[key][-10:]))))
    return found


def _line(values: list[float]) -> Iterator[float]:
    """Yield the ten values that follow on the least-squares line through ten."""
    n, total, moment = len(values), sum(values), sum(x * y for x, y in enumerate(values))
    sums, squares = sum(range(n)), sum(x * x for x in range(n))
    slope = (n * moment - sums * total) / (n * squares - sums * sums)
    base = (total - slope * sums) / n
    yield from (base + slope * x for x in range(n, n + 10))


def table_rows(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """Return rows of ETL's table in the form of ``etl``."""
    return [
        (_millis(r["at"]), r["city"], r["id"], r["longitude"], r["latitude"], *(r[n] for n in RANGES)) for r in rows
    ]


def figure_rows(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """Return rows of STATS' figures in the form of ``stats``."""
    return [(_millis(r["ts"]), r["city"], r["id"], r["obs"], r["kind"], tuple(r["figures"])) for r in rows]


def differences(wanted: Iterable[Row], got: Iterable[Row]) -> list[tuple[Row | None, Row | None]]:
    """Return rows that differ, beside each other: figures by more than a billionth, counts by more than a tenth."""
    both: dict[Row, tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((wanted, got)):
        for row in rows:
            both.setdefault(row[:5], ([], []))[side].append(row)
    pairs = (pair for left, right in both.values() for pair in zip_longest(left, right))
    return [pair for pair in pairs if not _same(*pair)]


def _same(a: Row | None, b: Row | None) -> bool:
    if a is None or b is None or a[:5] != b[:5]:
        return False
    tolerance = 0.1 if a[4] == "distinct" else 1e-9
    one, other = ([*r[5]] if isinstance(r[5], tuple) else [*r[5:]] for r in (a, b))
    return len(one) == len(other) and all(
        x == y or (x is not None and y is not None and math.isclose(x, y, rel_tol=tolerance, abs_tol=1e-9))
        for x, y in zip(one, other, strict=True)
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _millis(time: datetime | str) -> int:
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def main() -> int:
    """Compare the results of ETL and STATS."""
    import pyarrow.parquet as pq

    from examples.riot.city import SENSORS

    packs = packs_in(sorted((HERE / "data" / "packs").rglob("*.json")))
    results = HERE / "results"
    table = [row for file in sorted((results / "table").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    lines = [line for file in sorted((results / "figures").glob("*.json")) for line in file.read_text().splitlines()]
    pairs = {
        "etl": (etl(packs, SENSORS), table_rows(table)),
        "stats": (stats(packs), figure_rows(map(json.loads, lines))),
    }
    wrong = 0
    for name, (wanted, got) in pairs.items():
        if not got:
            print(f"{name}: no results")
            continue
        found = differences(wanted, got)
        wrong += len(found)
        print(f"{name}: {len(got)} rows of {len(packs)} packs, {'not as' if found else 'equal to'} the definition")
        for defined, row in found[:5]:
            print(f"  defined {defined}, found {row}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
