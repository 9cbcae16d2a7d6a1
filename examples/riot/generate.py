"""Write seeded packs of sensors in SenML: ``python -m examples.riot.generate --minutes 10 --out DIR``.

The packs have the form of RIoTBench's SYS stream, five readings each; no real sensor, place or reading is in them. Air
quality follows dust and humidity, so it can be predicted. Some readings are out of range, are no numbers, or are
missing; some packs come after later ones, and some from sensors that nobody knows. A gateway has the packs of its
city, ``DIR/packs/boston/packs-0001.json`` and so on, one on a line, and the ticks of the timer that TRAIN reads,
``DIR/ticks/boston/tick-0001.json``: train on the minutes from ``start`` until ``end``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from examples.riot.city import CITIES, FIELDS, RANGES, SENSORS, UNITS

START = datetime(2026, 3, 2, 7, tzinfo=UTC)
STEP = 5  # seconds between two packs of a sensor
WIDTH = {"temperature": (-5.0, 38.0), "humidity": (20.0, 90.0), "light": (1400.0, 20000.0), "dust": (250.0, 4000.0)}
"""What readings vary between, well within the ranges."""


@dataclass(frozen=True)
class Faults:
    """Shares of readings out of range, of those that are no numbers or missing, and of packs that come late."""

    outside: float = 0.05
    unreadable: float = 0.02
    missing: float = 0.02
    late: float = 0.05

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}: give a share between 0 and 1")


@dataclass
class _Sensor:
    name: str
    position: tuple[str, str]
    at: dict[str, float] = field(default_factory=dict)
    """Where readings stand between their least and most, 0 to 1."""

    def readings(self, drawn: random.Random) -> dict[str, float]:
        """Move on at random, and return the readings."""
        found = {}
        for name, (low, high) in WIDTH.items():
            moved = self.at.get(name, drawn.random()) + drawn.gauss(0, 0.03)
            self.at[name] = min(1.0, max(0.0, moved))
            found[name] = low + (high - low) * self.at[name]
        air = 20 + found["dust"] / 20 + found["humidity"] / 2 + drawn.gauss(0, 4)
        return found | {"airquality_raw": min(360.0, max(18.0, air))}


def packs(
    city: str, minutes: int, *, seed: int = 1, faults: Faults | None = None, strangers: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield the packs of a city's sensors, and of some strangers, in the order in which its gateway has them.

    A late pack comes up to 5 seconds of event time after later ones.
    """
    faults = Faults() if faults is None else faults
    drawn = random.Random(f"{seed} {city}")
    names = [s for s in SENSORS if s.partition("-")[0] == city] + [f"{city}-unknown-{n}" for n in range(strangers)]
    sensors = [_Sensor(name, (f"{drawn.uniform(-180, 180):.6f}", f"{drawn.uniform(-60, 60):.6f}")) for name in names]
    found: list[tuple[float, dict[str, Any]]] = []
    for second in range(0, minutes * 60, STEP):
        for sensor in sensors:
            pack = {"e": list(_entries(sensor, drawn, faults)), "bt": int(START.timestamp() + second) * 1000}
            found.append((second + (STEP + 0.5 if drawn.random() < faults.late else 0), pack))
    found.sort(key=lambda item: item[0])
    yield from (pack for _, pack in found)


def _entries(sensor: _Sensor, drawn: random.Random, faults: Faults) -> Iterator[dict[str, str]]:
    longitude, latitude = sensor.position
    yield {"n": "source", "u": "string", "sv": sensor.name}
    yield {"n": "longitude", "u": "lon", "v": longitude}
    yield {"n": "latitude", "u": "lat", "v": latitude}
    values = sensor.readings(drawn)
    for name in FIELDS:
        low, high = RANGES[name]
        if drawn.random() < faults.missing:
            continue
        text = f"{values[name]:.2f}"
        if drawn.random() < faults.unreadable:
            text = drawn.choice(("", "n/a", "--"))
        elif drawn.random() < faults.outside:
            text = f"{drawn.choice((low - 50, high + 50)):.2f}"
        yield {"n": name, "u": UNITS[name], "v": text}


def write_files(
    out: Path,
    minutes: int,
    *,
    seed: int = 1,
    faults: Faults | None = None,
    per_file: int = 500,
    every: int = 2,
    cities: Sequence[str] = CITIES,
) -> Iterator[Path]:
    """Write the packs of all cities, ``per_file`` in a file, and a tick ``every`` so many minutes; yield each file.

    Raise ValueError for numbers below 1 and shares that are none.
    """
    for name, number in {"minutes": minutes, "per_file": per_file, "every": every}.items():
        if number < 1:
            raise ValueError(f"{name} is {number}: give at least 1")
    for city in cities:
        lines = [json.dumps(pack) for pack in packs(city, minutes, seed=seed, faults=faults)]
        for number, begin in enumerate(range(0, len(lines), per_file), start=1):
            yield _written(out / "packs" / city / f"packs-{number:04d}.json", lines[begin : begin + per_file])
        times = [START + timedelta(minutes=m) for m in range(0, minutes + 1, every)]
        for number, (start, end) in enumerate(pairwise(times), start=1):
            tick = json.dumps({"ts": _text(end), "start": _text(start), "end": _text(end)})
            yield _written(out / "ticks" / city / f"tick-{number:04d}.json", [tick])


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _written(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.part")
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.replace(path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write packs and ticks from the command line."""
    parser = argparse.ArgumentParser(prog="examples.riot.generate", description="Write seeded packs of sensors.")
    parser.add_argument("--minutes", type=int, default=10, help="length of the streams (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outside", type=float, default=Faults.outside, help="share of readings out of range")
    parser.add_argument("--late", type=float, default=Faults.late, help="share of packs that come late")
    parser.add_argument("--per-file", type=int, default=500, help="packs before a new file (default %(default)s)")
    parser.add_argument("--every", type=int, default=2, help="minutes between two ticks (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="directory of packs and ticks")
    given = parser.parse_args(arguments)
    try:
        faults = Faults(outside=given.outside, late=given.late)
        files = list(
            write_files(
                given.out, given.minutes, seed=given.seed, faults=faults, per_file=given.per_file, every=given.every
            )
        )
    except ValueError as error:
        parser.error(str(error))
    print(f"packs of {given.minutes} minutes and ticks in {len(files)} files under {given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
