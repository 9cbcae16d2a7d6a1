"""Results that are output as they change: seen early, and in the end equal to one batch run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.connectors.deltawriter import DeltaSinkWriter
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, check_equivalent
from headwater.testing.readback import rows_in
from tests.conformance.postgresql import server
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows
from tests.deployments.test_oracle import DECISIONS
from tests.faults import until

pytest.importorskip("deltalake")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate PostgreSQL server, without a user: it is that of the process."""
    import psycopg

    for url in server():
        with psycopg.connect(url, autocommit=True) as connection:
            role = psycopg.sql.Identifier(getuser())
            connection.execute(psycopg.sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(role))
        yield f"postgresql://{url.rpartition('@')[2]}"


def results(source: str, url: str, out: Path) -> DataflowBuilder:
    """Write windows of the sites and of the cloud as they change, and those of the cloud also when they are final."""
    builder = hw.flow("updates", locations=LOCATIONS)
    read = builder.read.json(source, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    site = (
        read.to_layer("site").drop_duplicates("id", "location").group_by(hw.window("ts", "20 seconds"), "location", "k")
    )
    counted = site.agg(n="count(*)", most="max(v)").where("k <> 'k3'")
    start = counted.select("window.start AS start", "location", "k", "n", "most * 2 AS twice")
    start.write.output_mode("update").delta(str(out / "delta"), keys=["start", "location", "k"]).named("delta")
    start.to_layer("cloud").write.outputMode("update").postgres(url, "sites", keys=["start", "location", "k"]).named(
        "postgres"
    )
    every = read.to_layer("cloud").group_by(hw.window("ts", "30 seconds", "10 seconds"))
    means = every.agg(n="count(*)", kinds="count(DISTINCT k)").named("means")
    means.write.memory("final")
    means.select("window.end AS end", "n", "kinds").write.output_mode("update").postgres(
        url, "means", keys="end"
    ).named("early")
    return builder


@pytest.mark.long
@pytest.mark.parametrize("decision", ["unit per layer", "unit per operator", "one unit"])
def test_equals_one_batch_run(decision: str, endpoint: LocalEndpoint, postgresql: str, tmp_path: Path) -> None:
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS sites, means, headwater_batches")
    items = rows(20, seed=5)
    items["L2"] = [*items["L2"][:9], PAUSE, *items["L2"][9:15], KILL, *items["L2"][15:]]
    source = BoundedSource(tmp_path / "in", items, rows_per_file=5)
    flow, continuum = results(source.path, postgresql, tmp_path / "out").build(), Continuum.from_text(CONTINUUM)
    wanted = DECISIONS[decision](flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted, source=source)
    assert all(outcome.rows.values())


def test_a_result_is_there_before_the_watermark_passes(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    builder = hw.flow("early", locations=["L1"])
    read = builder.read.json(f"{tmp_path}/in/{{location}}", "k string, ts timestamp, v double")
    hours = (
        read.with_watermark("ts", "10 seconds").group_by(hw.window("ts", "1 hour"), "k").agg(n="count(*)", s="sum(v)")
    )
    written = hours.select("window.start AS start", "k", "n", "s")
    written.write.memory("final")
    written.write.output_mode("update").delta(str(tmp_path / "out"), keys=["start", "k"]).named("early")
    flow = builder.build()
    (tmp_path / "in/L1").mkdir(parents=True)
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    plan = build(flow, Continuum.from_text(CONTINUUM))
    assert "update" in flow["aggregate-updates"].label
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    columns = pa.schema([("k", pa.string()), ("n", pa.int64()), ("s", pa.float64()), ("headwater_rows", pa.int64())])

    def seen() -> list[Any]:
        return sorted(tuple(row.values()) for row in rows_in(flow["early"], columns).to_pylist())

    def feed(name: str, *found: tuple[str, int, float]) -> None:
        lines = [
            json.dumps({"k": k, "ts": datetime.fromtimestamp(t, UTC).isoformat(), "v": v}) + "\n" for k, t, v in found
        ]
        (tmp_path / f"in/L1/.{name}").write_text("".join(lines))
        (tmp_path / f"in/L1/.{name}").rename(tmp_path / f"in/L1/{name}.json")

    run.start()
    try:
        feed("a", ("a", 10, 1.0), ("b", 20, 2.0))
        until(lambda: seen() == [("a", 1, 1.0, 1), ("b", 1, 2.0, 1)])
        feed("b", ("a", 30, 3.0))
        until(lambda: seen() == [("a", 2, 4.0, 2), ("b", 1, 2.0, 1)])
        assert run.sink_rows("final").num_rows == 0, "the watermark has passed"
        run.drain()
        final = run.sink_rows("final").to_pylist()
    finally:
        run.stop()
    assert sorted((r["k"], r["n"], r["s"], r["n"]) for r in final) == seen()


def test_batches_of_two_writers_to_a_delta_table_come_once_in_any_order(tmp_path: Path) -> None:
    def batch(*numbers: tuple[str | None, int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "Key \u00e4": pa.array([key for key, _ in numbers], pa.string()),
                "headwater_rows": pa.array([number for _, number in numbers], pa.int64()),
            }
        )

    def write(writer: int, number: int, *numbers: tuple[str | None, int]) -> None:
        sink = DeltaSinkWriter(
            {
                "table": str(tmp_path / "table"),
                "path": str(tmp_path / f"scratch{writer}"),
                "id": f"headwater-{writer}-x",
                "keys": ["Key \u00e4"],
                "fsync": False,
            },
            1,
        )
        task = sink.open()
        task.write(batch(*numbers))
        segment = task.close()
        assert segment is not None
        sink.commit([segment], number)

    def many(writer: int) -> None:
        for number in range(6):
            # A repeated batch, and one of results that are older than those of the batch before.
            own = [(f"own {writer}", number), (f"own {writer}", number - 1)]
            write(writer, number, (None, 10 * number + writer), ("a'b", 60 - number), *own)
            write(writer, number, (None, 1000), ("other", 1))

    threads = [threading.Thread(target=many, args=(writer,)) for writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    from deltalake import DeltaTable

    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert len(found) == 4
    assert {row["Key \u00e4"]: row["headwater_rows"] for row in found} == {
        None: 51, "a'b": 60, "own 0": 5, "own 1": 5
    }  # fmt: skip
