"""Any grouping of locations into zones gives the result of one batch run, however far their event times are apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import PAUSE, STOP, BoundedSource, batch_result, check_equivalent
from tests.deployments.test_event_time import BEGIN, continuum

SEEDS = 60
GROUPINGS = 2
"""Groupings tried with the data and the dataflow of a seed."""
DELAY = 60
SKEWS = (0, 0, 20, 3_600, 40_000, 86_400, 4 * 86_400)
"""Seconds by which a location may be ahead."""
SCHEMA = "id bigint, ts timestamp, v bigint"


def drawn_rows(rng: random.Random, locations: Sequence[str]) -> dict[str, list[Any]]:
    """Draw each location's rows, unordered and repeated within the watermark's delay, with pauses and silence."""
    found: dict[str, list[Any]] = {}
    silent = rng.sample(locations, rng.randrange(len(locations)))
    for number, location in enumerate(locations):
        begin, step = BEGIN + rng.choice(SKEWS), rng.choice((20, 120, 900))
        # Out of order by at most half the delay, so that no row is late at its own location.
        times = [(begin + step * n + rng.uniform(0, DELAY / 2), n) for n in range(rng.randrange(12, 40))]
        rows: list[Any] = []
        for at, n in sorted(times, key=lambda one: one[0] + rng.uniform(0, DELAY / 2)):
            text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
            rows.append({"id": 1000 * number + n, "ts": text, "v": rng.randrange(10)})
            if rng.random() < 0.2:
                rows.append(rows[-1])
        if location in silent:
            rows = rows[: rng.choice((0, len(rows) // 3))]
        for event in rng.choices((PAUSE, STOP), (9, 1), k=rng.randrange(2)):
            rows.insert(rng.randrange(len(rows) + 1), event)
        found[location] = rows
    return found


def drawn_flow(rng: random.Random, path: str, locations: Sequence[str]) -> Dataflow:
    """Draw a dataflow with duplicates dropped or not, and windows at the edge, in the cloud or in both."""
    builder = hw.flow("grouped", locations=list(locations))
    read = builder.read.json(path, SCHEMA, location_as="location")
    stream: Stream = read.where("v > 0") if rng.random() < 0.5 else read
    stream = stream.with_watermark("ts", f"{DELAY} seconds")
    if rng.random() < 0.5:
        stream = stream.drop_duplicates("location", "id")
    if rng.random() < 0.3:
        stream = stream.to_layer("cloud")
    size = rng.choice(("5 minutes", "1 hour"))
    window = rng.choice((hw.window("ts", size), hw.window("ts", size, "4 minutes"), hw.session_window("ts", size)))
    if size == "1 hour" and rng.random() < 0.5:
        window = hw.window("ts", "5 minutes")
    counted = stream.group_by(window, "location").agg(n="count(*)", v="sum(v)")
    if window == hw.window("ts", "5 minutes") and rng.random() < 0.7:
        # Windows of windows, over all locations.
        counted = counted.to_layer("cloud").group_by(hw.window("window", "1 hour")).agg(n="sum(n)", v="sum(v)")
    counted.to_layer("cloud").write.memory("out")
    return builder.build()


def drawn_groups(rng: random.Random, locations: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Share out locations among zones."""
    zones: dict[int, list[str]] = {}
    for location in locations:
        zones.setdefault(rng.randrange(len(locations)), []).append(location)
    return tuple(map(tuple, zones.values()))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_groupings_of_locations_give_one_result(seed: int, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    rng = random.Random(seed)
    locations = tuple("ABCDE"[: rng.randrange(2, 6)])
    rows, shape = drawn_rows(rng, locations), rng.random()
    expected = None
    for number in range(GROUPINGS):
        groups = drawn_groups(rng, locations)
        source = BoundedSource(tmp_path / "in" / str(number), rows, rows_per_file=15)
        flow = drawn_flow(random.Random(shape), source.path, locations)
        print(f"seed {seed}: {groups}, {[flow[o].kind for o in flow.order]}")
        run = tmp_path / f"run{number}"
        outcome = check_equivalent(flow, continuum(groups), endpoint, run, source=source, expected=expected)
        if expected is None:
            expected = batch_result(endpoint.session(), flow, continuum(groups))
        assert outcome.rows["out"] == expected["out"].num_rows > 0
