"""Write seeded position reports of vehicles on expressways: ``python -m examples.linearroad.generate --out DIR``.

A simulation in steps of 30 seconds, after Linear Road's: vehicles enter, drive as fast as the traffic in their segment
lets them, and leave; now and then two collide and stand for some minutes, and those behind them slow down. Each
vehicle reports every 30 seconds: time, vehicle, speed (mph), expressway, lane (0 entry, 1 to 3, 4 exit), direction (0
east, 1 west), segment (a mile) and position (feet from the western end). The roadside unit of each half of an
expressway has the reports of its segments in order: ``DIR/x0-west/reports-0001.csv`` and so on.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

START = datetime(2026, 3, 2, 7, tzinfo=UTC)
STEP = 30  # seconds
MILE = 5280  # feet
FEET = MILE * STEP / 3600  # that a vehicle drives in a step at 1 mph
CROWD = 15  # vehicles of a segment that do not slow each other down
SLOW = 12  # mph, in the segment of an accident and the one behind it


@dataclass(frozen=True)
class Report:
    """A position report; ``second`` counts from the start."""

    second: int
    vehicle: int
    speed: int
    expressway: int
    lane: int
    direction: int
    segment: int
    position: int

    def line(self) -> str:
        """Return the report as a line of CSV."""
        ts = (START + timedelta(seconds=self.second)).strftime("%Y-%m-%dT%H:%M:%SZ")
        rest = (self.vehicle, self.speed, self.expressway, self.lane, self.direction, self.segment, self.position)
        return ",".join([ts, *map(str, rest)])


@dataclass
class _Vehicle:
    number: int
    second: int  # of its reports within a step
    expressway: int
    direction: int
    position: float
    lane: int
    ends: int  # the segment of its exit
    stands: int = 0  # steps until it drives on
    speed: int = 0

    @property
    def segment(self) -> int:
        return int(self.position // MILE)

    @property
    def road(self) -> tuple[int, int]:
        return self.expressway, self.direction


def reports(
    minutes: int, *, seed: int = 1, expressways: int = 2, segments: int = 10, rate: float = 40.0, accidents: float = 0.2
) -> Iterator[Report]:
    """Yield the reports of some minutes in their order.

    ``rate``: vehicles a minute that enter each direction of an expressway; ``accidents``: new ones a minute there.
    """
    drawn = random.Random(seed)
    vehicles: list[_Vehicle] = []
    number = 0
    for step in range(minutes * 60 // STEP):
        crowd = Counter((*v.road, v.segment) for v in vehicles)
        stands = {(*v.road, v.segment) for v in vehicles if v.stands > 1}
        leaving = [v for v in vehicles if v.lane == 4]
        vehicles = [v for v in vehicles if v.lane != 4]
        for vehicle in vehicles:
            _drive(vehicle, drawn, crowd, stands, segments)
        for road in ((x, d) for x in range(expressways) for d in (0, 1)):
            if drawn.random() < accidents * STEP / 60:
                _collide([v for v in vehicles if v.road == road and not v.stands and v.lane in (1, 2, 3)], drawn)
            for _ in range(int(rate * STEP / 60 + drawn.random())):
                number += 1
                vehicles.append(_enter(number, road, drawn, segments))
        del leaving
        yield from sorted((_report(v, step) for v in vehicles), key=lambda r: (r.second, r.vehicle))


def _enter(number: int, road: tuple[int, int], drawn: random.Random, segments: int) -> _Vehicle:
    first, last = sorted(drawn.sample(range(segments), 2))
    begins, ends = (first, last) if road[1] == 0 else (last, first)
    return _Vehicle(number, drawn.randrange(STEP), *road, (begins + drawn.random() * 0.3) * MILE, 0, ends, speed=40)


def _drive(
    vehicle: _Vehicle,
    drawn: random.Random,
    crowd: Counter[tuple[int, int, int]],
    stands: set[tuple[int, int, int]],
    segments: int,
) -> None:
    if vehicle.stands:
        vehicle.stands -= 1
        vehicle.speed = 0
        return
    ahead = 1 if vehicle.direction == 0 else -1
    here = (*vehicle.road, vehicle.segment)
    speed = drawn.gauss(68, 6) - max(0, crowd[here] - CROWD)
    if here in stands or (*vehicle.road, vehicle.segment + ahead) in stands:
        speed = min(speed, SLOW)
    vehicle.speed = max(5, min(100, round(speed)))
    end = vehicle.position + ahead * vehicle.speed * FEET
    vehicle.position = min(max(end, 0.0), segments * MILE - 1.0)
    arrived = (vehicle.segment - vehicle.ends) * ahead >= 0
    vehicle.lane = 4 if arrived else drawn.choice((1, 2, 3))


def _collide(candidates: list[_Vehicle], drawn: random.Random) -> None:
    """Let two vehicles of one segment, if there are any, stand at one place."""
    by_segment: dict[int, list[_Vehicle]] = {}
    for vehicle in candidates:
        by_segment.setdefault(vehicle.segment, []).append(vehicle)
    pairs = [those for _, those in sorted(by_segment.items()) if len(those) > 1]
    if pairs:
        one, other = drawn.sample(drawn.choice(pairs), 2)
        other.position, other.lane = one.position, one.lane
        one.stands, other.stands = drawn.randint(6, 16), drawn.randint(6, 16)


def _report(vehicle: _Vehicle, step: int) -> Report:
    return Report(
        step * STEP + vehicle.second,
        vehicle.number,
        vehicle.speed,
        vehicle.expressway,
        vehicle.lane,
        vehicle.direction,
        vehicle.segment,
        int(vehicle.position),
    )


def stretch_of(report: Report, segments: int) -> str:
    """Return the location of a report: the half of its expressway."""
    return f"x{report.expressway}-{'west' if report.segment < segments / 2 else 'east'}"


def write_files(
    out: Path,
    minutes: int,
    *,
    seed: int = 1,
    expressways: int = 2,
    segments: int = 10,
    rate: float = 40.0,
    accidents: float = 0.2,
    per_file: int = 10_000,
) -> Iterator[Path]:
    """Write the reports of all stretches, ``per_file`` at a time, one file for each stretch; yield each file."""
    names = [f"x{x}-{half}" for x in range(expressways) for half in ("west", "east")]
    drawn = reports(minutes, seed=seed, expressways=expressways, segments=segments, rate=rate, accidents=accidents)
    number = 0
    while part := list(islice(drawn, per_file)):
        number += 1
        for name in names:
            path = out / name / f"reports-{number:04d}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f".{path.name}.part")
            hidden.write_text("".join(f"{r.line()}\n" for r in part if stretch_of(r, segments) == name))
            hidden.replace(path)
            yield path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write reports from the command line."""
    parser = argparse.ArgumentParser(
        prog="examples.linearroad.generate", description="Write seeded position reports of vehicles as CSV."
    )
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segments", type=int, default=10, help="miles of an expressway (default %(default)s)")
    parser.add_argument(
        "--rate", type=float, default=40.0, help="vehicles a minute and direction (default %(default)s)"
    )
    parser.add_argument("--accidents", type=float, default=0.2, help="a minute and direction (default %(default)s)")
    parser.add_argument("--per-file", type=int, default=10_000, help="reports before a new file (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="directory of the stretches' directories")
    given = parser.parse_args(arguments)
    for name in ("minutes", "segments", "per_file"):
        least = 2 if name == "segments" else 1
        if getattr(given, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    files = write_files(
        given.out,
        given.minutes,
        seed=given.seed,
        segments=given.segments,
        rate=given.rate,
        accidents=given.accidents,
        per_file=given.per_file,
    )
    print(f"{len(list(files))} files under {given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
