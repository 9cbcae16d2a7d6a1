"""History in tables, files and topics before a live stream: each row once, also if Spark is killed in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.stream import Stream
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from tests.conftest import running_broker
from tests.deployments.test_backfill import BEGIN, LAST, SCHEMA, UNTIL, Input, check, newest_window, rows, text
from tests.faults import until
from tests.topics import Topic

CONTINUUM = Continuum.from_text(
    "name: c\nlayers: [edge, cloud]\nzones:\n  C: {layer: cloud}\n"
    "  E1: {layer: edge, parent: C, locations: [L1]}\n  E2: {layer: edge, parent: C, locations: [L2]}\n"
)
ONE_ZONE = Continuum.from_text("name: c\nlayers: [cloud]\nzones:\n  C: {layer: cloud, locations: [L1]}\n")
SETTINGS = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False), max_rows_per_batch=9)
COLUMNS = f"{SCHEMA}, location string"
SMALL = 7  # rows of a file


class World(NamedTuple):
    """Where a test puts its rows, and the broker of its topics, if it has one."""

    place: Path
    broker: LocalBroker | None = None


class Given(NamedTuple):
    """A live stream with event time, its history, and the function that sends live rows of a location."""

    live: Stream
    history: Stream
    send: Callable[[str, Sequence[dict[str, Any]]], None]


def parts(found: Sequence[dict[str, Any]]) -> Iterator[pa.Table]:
    """Yield rows as tables, each for a file."""
    for at in range(0, len(found), SMALL):
        some = [{**row, "ts": datetime.fromisoformat(row["ts"])} for row in found[at : at + SMALL]]
        yield pa.Table.from_pylist(some).cast(
            pa.schema({"id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "k": pa.string(), "location": pa.string()})
        )


def from_files(builder: Any, world: World, history: Stream) -> Given:
    new = Input(world.place / "new")
    live = builder.read.json(f"{new.directory}/{{location}}", SCHEMA, location_as="location")
    return Given(live, history, new.put)


def delta(builder: Any, world: World, old: Sequence[dict[str, Any]]) -> Given:
    deltalake = pytest.importorskip("deltalake")
    for part in parts(old):
        deltalake.write_deltalake(str(world.place / "old"), part, mode="append")
    read = builder.read.delta(str(world.place / "old"), COLUMNS, follow=False, max_files_per_batch=2, layer="cloud")
    return from_files(builder, world, read)


def parquet(builder: Any, world: World, old: Sequence[dict[str, Any]]) -> Given:
    for location in {row["location"] for row in old}:
        directory = world.place / "old" / location
        directory.mkdir(parents=True)
        for number, part in enumerate(parts([row for row in old if row["location"] == location])):
            pq.write_table(part.drop_columns(["location"]), directory / f"{number}.parquet")
    path = f"{world.place}/old/{{location}}"
    return from_files(
        builder, world, builder.read.parquet(path, SCHEMA, location_as="location", maxFilesPerTrigger="2")
    )


def csv(builder: Any, world: World, old: Sequence[dict[str, Any]]) -> Given:
    (world.place / "old").mkdir()
    for number, part in enumerate(parts(old)):
        pc.write_csv(part, world.place / "old" / f"{number}.csv")
    options = {"header": "true", "maxFilesPerTrigger": "2", "layer": "cloud"}
    return from_files(builder, world, builder.read.csv(f"{world.place}/old", COLUMNS, **options))


def one_topic(
    builder: Any, world: World, old: Sequence[dict[str, Any]], places: Callable[[Topic], tuple[Any, Any]]
) -> Given:
    """Read one topic twice: to a place, and from that place on; the rows around it are there from the start."""
    assert world.broker is not None
    topic = Topic(world.broker)
    for number, row in enumerate(old):
        topic.send(row, partition=number % 2, timestamp=millis(row["ts"]))
    ending, starting = places(topic)

    def send(location: str, found: Sequence[dict[str, Any]]) -> None:
        for number, row in enumerate(found):
            topic.send({**row, "location": location}, partition=number % 2, timestamp=millis(row["ts"]))

    def read(**options: Any) -> Stream:
        found: Stream = builder.read.kafka(topic.servers, topic.name, COLUMNS, layer="cloud", **options)
        return found

    return Given(read(starting=starting), read(ending=ending), send)


def millis(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def topic_by_offsets(builder: Any, world: World, old: Sequence[dict[str, Any]]) -> Given:
    def places(topic: Topic) -> tuple[Any, Any]:
        ends = {p: sum(r.partition() == p for r in topic.records()) for p in (0, 1)}
        return ends, ends

    return one_topic(builder, world, old, places)


def topic_by_time(builder: Any, world: World, old: Sequence[dict[str, Any]]) -> Given:
    return one_topic(builder, world, sorted(old, key=lambda row: row["ts"]), lambda _: (text(UNTIL), text(UNTIL)))


HISTORIES = {f.__name__: f for f in (delta, parquet, csv, topic_by_offsets, topic_by_time)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as started:
        yield started


def planned(kind: str, world: World, continuum: Continuum) -> tuple[DeploymentPlan, Given]:
    old = [
        {**row, "location": location}
        for number, location in enumerate(continuum.locations)
        for row in rows(BEGIN, UNTIL, 20, first=number * 1000)
    ]
    random.Random(kind).shuffle(old)
    builder = hw.flow("histories", locations=continuum.locations)
    given = HISTORIES[kind](builder, world, old)
    both = given.live.with_watermark("ts", "5 seconds").backfill(given.history, until=text(UNTIL))
    both.select("id", "ts").write.memory("rows")
    cloud = both.to_layer("cloud").group_by(hw.window("ts", "30 seconds"), "k").agg(n="count(*)", least="min(id)")
    cloud.write.memory("windows")
    return build(builder.build(), continuum), given


def has_ended(run: LocalRun) -> bool:
    """Return whether a unit was told that its history has ended."""
    run.look()
    return any(run.layout.root.glob("**/control/lift-*"))


WHEN: dict[str, Callable[[LocalRun], bool]] = {
    "while history is read": lambda run: run.sink_rows("rows").num_rows > 0,
    "at the end of history": has_ended,
}


def run_with_kills(
    kind: str, world: World, endpoint: LocalEndpoint, kills: Sequence[str], continuum: Continuum = CONTINUUM
) -> None:
    plan, given = planned(kind, world, continuum)

    def begun() -> LocalRun:
        run = LocalRun(plan, world.place / "run", endpoint, SETTINGS)
        run.start()
        return run

    def send(begin: int, end: int) -> None:
        for number, location in enumerate(continuum.locations):
            given.send(location, rows(begin, end, 20, first=100_000 * (number + 1) + begin - BEGIN))

    send(UNTIL, UNTIL + 100)
    run = begun()
    try:
        for kill in kills:
            until(lambda: WHEN[kill](run), kill)  # noqa: B023
            endpoint.kill()
            endpoint.restart()
            run = begun()
        send(UNTIL + 100, LAST)
        until(lambda: newest_window(run) > LAST - 60, "a window behind the end of history")
        run.drain()
        check(run, endpoint, len(continuum.locations) * (30 + 15))
    finally:
        run.stop()


@pytest.mark.long
def test_history_in_a_table_with_spark_killed_at_its_end(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    run_with_kills("delta", World(tmp_path), endpoint, ["at the end of history"], ONE_ZONE)


@pytest.mark.long
@pytest.mark.parametrize("kills", [[], *([k] for k in WHEN)], ids=lambda kills: kills[0] if kills else "no kill")
@pytest.mark.parametrize("kind", ["delta", "parquet", "csv"])
def test_history_in_tables_and_files(kind: str, kills: list[str], endpoint: LocalEndpoint, tmp_path: Path) -> None:
    run_with_kills(kind, World(tmp_path), endpoint, kills)


@pytest.mark.long
@pytest.mark.parametrize("kills", [[], list(WHEN)], ids=["no kill", "kills"])
@pytest.mark.parametrize("kind", ["topic_by_offsets", "topic_by_time"])
def test_history_in_the_topic_itself(
    kind: str, kills: list[str], broker: LocalBroker, kafka_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    run_with_kills(kind, World(tmp_path, broker), kafka_endpoint, kills)
