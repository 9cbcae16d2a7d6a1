"""Taxi trips with telemetry, the query over them, and its disturbances: rates, the link, another job.

A trip brings two kilobytes of readings of its vehicle. Two operators work on these: `levels` adds a number
to them, `rough` makes one number of them, and behind it a trip is small. So at high rates one core cannot do
both, and a narrow link carries only small trips.
"""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headwater as hw
from headwater.dataflow.graph import Dataflow

NAME = "loop"
LOCATION = "nyc"
SPEED = 60  # seconds of event time in one of the clock
WINDOW = 60  # seconds of event time
FILE_EVERY = 0.25  # seconds between two files
START = datetime(2013, 1, 1, tzinfo=UTC)
TELEMETRY_BYTES = 1500  # before base64
ZONES = 24

TRIP = "dropoff_datetime timestamp, zone int, fare double, telemetry string"
CUTS = ("readings", "rough", "in_town", "zones")
"""The operators that may be the first in the cloud."""


ROW = "ts timestamp, zone int, fare double"
_CHUNK = 64  # rows whose readings stay in a processor's cache


def smooth(telemetry: Iterable[str], passes: int) -> npt.NDArray[np.int16]:
    """Decode the readings of trips and smooth them repeatedly: each becomes the mean of itself and the one before.

    Uses whole numbers, so that the result is the same in a batch of any size.
    """
    raw = b"".join(base64.b64decode(text) for text in telemetry)
    readings = np.frombuffer(raw, dtype=np.uint8).reshape(-1, TELEMETRY_BYTES).astype(np.int16)
    for first in range(0, len(readings), _CHUNK):
        part = readings[first : first + _CHUNK]
        for _ in range(passes):
            part[:, 1:] += part[:, :-1]
            part[:, 1:] >>= 1
    return readings


def flow(data: str, passes: int) -> Dataflow:
    """Build the query; ``passes`` is the work of each of its two heavy operators per trip."""

    def levels(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = smooth(batch["telemetry"].to_pylist(), passes)
            yield batch.append_column("level", pa.array(found.max(axis=1).astype(np.int32)))

    def roughness(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = smooth(batch["telemetry"].to_pylist(), passes)
            rough = pa.array(np.abs(np.diff(found, axis=1)).sum(axis=1).astype(np.int64))
            yield batch.drop_columns(["telemetry"]).append_column("rough", rough)

    builder = hw.flow(NAME, locations=[LOCATION])
    trips = builder.read.csv(f"{data}/{{location}}", TRIP).named("trips")
    timed = trips.with_watermark("dropoff_datetime", "1 second")
    readings = timed.select("dropoff_datetime AS ts", "zone", "fare", "telemetry").named("readings")
    judged = (
        readings.map_batches(levels, f"{ROW}, telemetry string, level int")
        .named("levels")
        .map_batches(roughness, f"{ROW}, level int, rough bigint")
        .named("rough")
    )
    zones = (
        judged.where(f"zone BETWEEN 1 AND {ZONES}")
        .named("in_town")
        .group_by(hw.window("ts", f"{WINDOW} seconds"), "zone")
        .agg(trips="count(*)", fares="sum(fare)", level="max(level)", rough="sum(rough)")
        .named("zones")
    )
    told = ("window.end AS until", "zone", "trips", "round(fares, 2) AS fares", "level", "rough")
    zones.to_layer("cloud").select(*told).named("told").write.memory("result")
    return builder.build()


@dataclass(frozen=True)
class Phase:
    """A span of the run: trips a second, and its disturbances."""

    name: str
    seconds: float
    rate: int
    narrow: bool = False
    crowded: bool = False


def phases(seconds: float, warm: float) -> tuple[Phase, ...]:
    """Return the phases of a run. The phase before the first disturbance does not count: Java warms up."""
    return (
        Phase("warm", warm, 400),
        Phase("calm", 2 * seconds, 100),
        Phase("rate_800", seconds, 800),
        Phase("rate_2000", seconds, 2000),
        Phase("rate_100", seconds, 100),
        Phase("link_1mbit", seconds, 100, narrow=True),
        Phase("half_edge", seconds, 100, narrow=True, crowded=True),
    )


class Feed(threading.Thread):
    """Write trips at a rate that can be changed; event time goes with the clock, ``SPEED`` times as fast."""

    def __init__(self, place: Path, rate: int, *, seed: int = 1) -> None:
        super().__init__(daemon=True)
        self.rate = rate
        self.rows = 0
        self.begun = 0.0
        self._place = place
        self._over = threading.Event()
        self._source = random.Random(seed)

    def run(self) -> None:
        number, due, owed = 0, time.monotonic(), 0.0
        self.begun = time.time()
        while not self._over.is_set():
            number += 1
            due += FILE_EVERY
            self._over.wait(max(0.0, due - time.monotonic()))
            owed += self.rate * FILE_EVERY
            count = int(owed)
            owed -= count
            self.write(number, count)

    def write(self, number: int, count: int) -> None:
        """Write a file of trips."""
        first = START + timedelta(seconds=(number - 1) * FILE_EVERY * SPEED)
        apart = FILE_EVERY * SPEED / max(1, count)
        draw = self._source.randrange
        lines = [
            f"{(first + timedelta(seconds=n * apart)).strftime('%Y-%m-%d %H:%M:%S.%f')},"
            f"{draw(0, ZONES + 2)},{draw(250, 9000) / 100},"
            f"{base64.b64encode(self._source.randbytes(TELEMETRY_BYTES)).decode()}"
            for n in range(count)
        ]
        draft = self._place / f".{number:08d}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self._place / f"{number:08d}.csv")
        self.rows += count

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()

    def moment(self, event_time: datetime) -> float:
        """Return the time at which the trips up to an event time had been written."""
        return self.begun + (event_time - START).total_seconds() / SPEED


def sample(place: Path, rows: int) -> None:
    """Write a sample of trips, for the profile."""
    place.mkdir(parents=True, exist_ok=True)
    Feed(place, rows, seed=2).write(1, rows)


def spans_out(due: Sequence[tuple[float, float]], limit: float) -> list[tuple[float, float]]:
    """Return the spans with missing output, from the times when each window's rows were complete, and came out.

    A window's result is due ``limit`` seconds after its last trip was there.
    """
    late = sorted((there + limit, came) for there, came in due if came > there + limit)
    found: list[tuple[float, float]] = []
    for begin, end in late:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
