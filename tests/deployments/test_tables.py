"""Tables and partitioned files as sinks of deployments: equal to one batch run, with Spark killed, and moved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, batch_result, check_equivalent, compare
from headwater.testing.readback import rows_in
from tests.conformance.postgresql import server
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows
from tests.deployments.test_run_again import CONTINUUM as SMALL
from tests.deployments.test_run_again import Runs, some

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate PostgreSQL server."""
    yield from server()


def to_tables(source: str, out: Path) -> Dataflow:
    """Write the rows of the sites, of several units to each, and windows of them in the cloud."""
    builder = hw.flow("tables", locations=LOCATIONS)
    read = builder.read.json(source, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    clean = read.where("v IS NOT NULL").with_columns(day="to_date(ts)").to_layer("site").named("clean")
    clean.write.delta(str(out / "delta"), partition_by=["day", "k"], compact_after=3).named("delta")
    clean.select("id", "ts", "tags", "k", "location").write.iceberg(
        "plant.rows",
        catalog=f"sqlite:///{out / 'catalog.db'}",
        warehouse=str(out / "warehouse"),
        partition_by="k",
        compact_after=3,
    ).named("iceberg")
    clean.write.parquet(str(out / "files"), partition_by=["location", "k"]).named("parts")
    cloud = clean.to_layer("cloud").group_by(hw.window("ts", "20 seconds"), "k").agg(n="count(*)", mean="avg(v)")
    cloud.write.delta(str(out / "windows")).named("windows")
    return builder.build()


def test_tables_equal_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = BoundedSource(tmp_path / "in", rows(60, seed=7), rows_per_file=20)
    source.release_all()
    flow = to_tables(source.path, tmp_path / "out")
    outcome = check_equivalent(flow, Continuum.from_text(CONTINUUM), endpoint, tmp_path / "run", max_rows_per_batch=20)
    assert all(count > 0 for count in outcome.rows.values())
    writers = [u for u in outcome.plan.units if "delta" in u.outputs]
    assert len(writers) > 1, "several units write to one table"
    assert (tmp_path / "out" / "delta" / "day=2023-11-14" / "k=k1").is_dir()


@pytest.mark.long  # short tests kill writers of tables, and the Spark of another sink
def test_tables_are_exact_with_spark_killed(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made: dict[str, list[Any]] = rows(60, seed=11)
    chance = random.Random(2)
    for at in sorted(chance.sample(range(10, 28), 2), reverse=True):
        made["L1"].insert(at, KILL)
    source = BoundedSource(tmp_path / "in", made, rows_per_file=8)
    flow = to_tables(source.path, tmp_path / "out")
    check_equivalent(flow, Continuum.from_text(CONTINUUM), endpoint, tmp_path / "run", source=source)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_tables_are_exact_with_spark_killed_often(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made: dict[str, list[Any]] = rows(200, seed=12)
    chance = random.Random(3)
    for at in sorted(chance.sample(range(10, 98), 8), reverse=True):
        made["L1"].insert(at, KILL)
    source = BoundedSource(tmp_path / "in", made, rows_per_file=8)
    flow = to_tables(source.path, tmp_path / "out")
    check_equivalent(flow, Continuum.from_text(CONTINUUM), endpoint, tmp_path / "run", source=source)


def moved(source: str, out: Path, layer: str) -> Dataflow:
    """Return a dataflow whose rows one layer writes: its units take the table over from those of another layer."""
    builder = hw.flow("again", locations=LOCATIONS)
    read = builder.read.json(source, SCHEMA, location_as="location").named("read")
    clean = read.where("v > -1000").named("clean").to_layer(layer)
    counted = clean.scan(
        _count, "id bigint, k string, n bigint", keys=["location", "k"], order_by="id", initial=0
    ).named("counted")
    counted.write.delta(str(out / "delta")).named("delta")
    counted.write.iceberg(
        "plant.rows", catalog=f"sqlite:///{out / 'catalog.db'}", warehouse=str(out / "warehouse")
    ).named("iceberg")
    return builder.build()


def _count(state: int, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return state + 1, {"id": row["id"], "k": row["k"], "n": state + 1}


@pytest.mark.long
def test_a_unit_that_writes_tables_moves_with_its_state(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = BoundedSource(tmp_path / "in", rows(60, seed=17), rows_per_file=10)
    runs, released = Runs(tmp_path / "run", endpoint), iter(source.release())
    some(released, 2)
    runs.settled(runs.propose(dataflow=moved(source.path, out, "edge")))
    some(released, 2)
    flow = moved(source.path, out, "site")
    runs.settled(runs.propose(dataflow=flow))
    for _ in released:
        pass
    with runs.run(runs.propose(dataflow=flow).plan) as one:
        one.drain()
    expected = batch_result(endpoint.session(), flow, SMALL)
    for sink in flow.sinks:
        found = rows_in(sink, expected[sink.id].schema)
        assert found.num_rows > 100
        assert not compare(expected[sink.id], found), sink.id


def upserting(source: str, url: str, table: str) -> Dataflow:
    builder = hw.flow("upserts", locations=LOCATIONS)
    read = builder.read.json(source, SCHEMA).with_watermark("ts", "5 seconds")
    site = read.select("k", "ts", "id", "v").to_layer("site")
    site.write.postgres(url, table, keys="k", order_by=["ts", "id"]).named("newest")
    site.write.postgres(url, f"{table}_all").named("all")
    return builder.build()


@pytest.mark.long
def test_postgresql_has_the_newest_row_of_each_key(postgresql: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    import psycopg
    import psycopg.sql

    made: dict[str, list[Any]] = rows(60, seed=11)
    events = [row for items in made.values() for row in items]
    made = {place: list(items) for place, items in made.items()}
    made["L1"].insert(20, KILL)
    made["L2"].insert(20, PAUSE)
    source = BoundedSource(tmp_path / "in", made, rows_per_file=8)
    with psycopg.connect(postgresql) as connection:  # without a user in the URL it is that of the process
        connection.execute(psycopg.sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(psycopg.sql.Identifier(getuser())))
    url = f"postgresql://{postgresql.rpartition('@')[2]}"
    plan = build(upserting(source.path, url, "newest"), Continuum.from_text(CONTINUUM))
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    run.start()
    try:
        for event in source.release():
            if event is PAUSE:
                run.settle()
            elif event is KILL:
                endpoint.kill()
                endpoint.restart()
                run = LocalRun(plan, tmp_path / "run", endpoint, settings)
                run.start()
        run.drain()
    finally:
        run.stop()
    newest: dict[str, Any] = {}
    for row in sorted(events, key=lambda r: (r["ts"], r["id"])):
        newest[row["k"]] = (row["k"], row["id"], row["v"])
    with psycopg.connect(postgresql) as connection:
        assert connection.execute("SELECT k, id, v FROM newest ORDER BY k").fetchall() == sorted(newest.values())
        ids = [i for (i,) in connection.execute("SELECT id FROM newest_all ORDER BY id").fetchall()]
    assert ids == sorted(row["id"] for row in events)


def test_tables_of_another_run_are_refused(postgresql: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = BoundedSource(tmp_path / "in", {"L1": rows(20, seed=3)["L1"]})
    source.release_all()
    builder = hw.flow("again", locations=["L1"])
    stream = builder.read.json(source.path, "id bigint, k string").to_layer("cloud")
    stream.write.delta(str(out / "delta")).named("delta")
    stream.write.iceberg("a.b", catalog=f"sqlite:///{out / 'c.db'}", warehouse=str(out / "w")).named("iceberg")
    stream.write.parquet(str(out / "files"), partition_by="k").named("parts")
    plan = build(builder.build(), SMALL)
    expected = batch_result(endpoint.session(), plan.dataflow, SMALL)

    def run(directory: str, choice: Any) -> None:
        runs = Runs(tmp_path / directory, endpoint)
        with runs.run(plan, choice) as one:
            one.drain()

    def counts() -> list[int]:
        return [rows_in(sink, expected[sink.id].schema).num_rows for sink in plan.dataflow.sinks]

    run("first", "refuse")
    assert counts() == [10, 10, 10]
    with pytest.raises(DeploymentError, match=r"holds .*rows of another run"):
        run("second", "refuse")
    run("third", "append")
    assert counts() == [20, 20, 20]
    run("fourth", "overwrite")
    assert counts() == [10, 10, 10]
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake(str(out / "delta"), pa.table({"id": [1], "k": ["theirs"]}), mode="append")
    with pytest.raises(DeploymentError, match="the table may hold rows of others"):
        run("fifth", "overwrite")
    assert counts()[0] == 11


# -- tables as sources ---------------------------------------------------------------------------


def from_table(table: Path, out: Path, layer: str) -> Dataflow:
    """Count the rows of a table, in one layer or another, into another table."""
    builder = hw.flow("again", locations=LOCATIONS)
    read = builder.read.delta(str(table / "{location}"), SCHEMA, location_as="location").named("read")
    clean = read.where("v > -1000").named("clean").to_layer(layer)
    counted = clean.scan(
        _count, "id bigint, k string, n bigint", keys=["location", "k"], order_by="id", initial=0
    ).named("counted")
    counted.write.delta(str(out)).named("counts")
    return builder.build()


class Filling:
    """Tables of three locations that get the rows of a bounded source, a commit for each file."""

    def __init__(self, directory: Path, made: dict[str, list[Any]]) -> None:
        self.directory = directory
        self._left = {place: [items[n : n + 10] for n in range(0, len(items), 10)] for place, items in made.items()}

    def some(self, count: int) -> None:
        import deltalake
        import pyarrow as pa

        schema = pa.schema(
            [("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.float64())]
        ).append(pa.field("tags", pa.list_(pa.string())))
        for place, files in self._left.items():
            for rows_ in files[:count]:
                made = [{**row, "ts": datetime.fromisoformat(row["ts"])} for row in rows_]
                table = pa.Table.from_pylist(made, schema)
                deltalake.write_deltalake(str(self.directory / place), table, mode="append")
            del files[:count]
            deltalake.DeltaTable(str(self.directory / place)).optimize.compact()


@pytest.mark.long
def test_a_delta_table_is_read_once_over_kills_and_a_move(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    filling, out = Filling(tmp_path / "tables", rows(60, seed=17)), tmp_path / "counts"
    runs = Runs(tmp_path / "run", endpoint)
    filling.some(2)
    runs.settled(runs.propose(dataflow=from_table(filling.directory, out, "edge")))
    filling.some(2)
    flow = from_table(filling.directory, out, "site")
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    one = LocalRun(runs.propose(dataflow=flow).plan, runs.directory, endpoint, settings)
    one.start()
    filling.some(1)
    one.settle()
    filling.some(2)
    endpoint.kill()
    endpoint.restart()
    filling.some(100)
    with runs.run(runs.propose(dataflow=flow).plan) as last:
        last.drain()
    expected = batch_result(endpoint.session(), flow, SMALL)["counts"]
    found = rows_in(flow["counts"], expected.schema)
    assert found.num_rows > 100
    assert not compare(expected, found)


@pytest.mark.long
def test_what_one_deployment_writes_another_reads(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = BoundedSource(tmp_path / "in", rows(60, seed=7), rows_per_file=20)
    source.release_all()
    continuum = Continuum.from_text(CONTINUUM)
    flow = to_tables(source.path, out)
    check_equivalent(flow, continuum, endpoint, tmp_path / "run", max_rows_per_batch=20)
    builder = hw.flow("reads", locations=["L1"])
    builder.read.delta(str(out / "delta")).select("id", "day", "k").write.memory("of_delta")
    iceberg = builder.read.iceberg(
        "plant.rows",
        "id bigint, tags array<string>",
        catalog=f"sqlite:///{out / 'catalog.db'}",
        warehouse=str(out / "warehouse"),
    )
    iceberg.write.memory("of_iceberg")
    files = builder.read.parquet(str(out / "files"), "id bigint, k string, location string")
    files.write.memory("of_files")
    outcome = check_equivalent(builder.build(), continuum, endpoint, tmp_path / "second")
    written = batch_result(endpoint.session(), flow, continuum)["delta"].num_rows
    assert outcome.rows == {"of_delta": written, "of_iceberg": written, "of_files": written}
