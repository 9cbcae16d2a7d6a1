"""Joins with tables of a database and Delta tables: one version for each batch, refreshed, equal to one batch run."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.lookup import Lookup
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan import build
from headwater.query.tables import TableVersions
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, check_equivalent
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows
from tests.faults import until

if TYPE_CHECKING:
    from headwater.dataflow.lookup import ReferenceTable

TABLE = "k string, name string, factor decimal(6, 2)"
NAMES = [("k0", "zero"), ("k1", "one"), ("k1", "uno"), (None, "nothing"), ("k9", "nine")]


class DerbyTable:
    """A table of a database inside the tests' Spark."""

    def __init__(self, directory: Path, endpoint: LocalEndpoint) -> None:
        self.url, self._endpoint = f"jdbc:derby:{directory / 'db'}", endpoint

    def write(self, factor: str) -> None:
        frame = self._endpoint.session().createDataFrame([(k, n, Decimal(factor)) for k, n in NAMES if k], TABLE)
        options = {"url": f"{self.url};create=true", "dbtable": "machines"}
        options["createTableColumnTypes"] = "k varchar(20), name varchar(20)"
        frame.coalesce(1).write.format("jdbc").options(**options).mode("overwrite").save()

    def table(self, builder: DataflowBuilder, **more: Any) -> ReferenceTable:
        return builder.table.jdbc(self.url, "machines", TABLE, **more)


class DeltaTable:
    """A Delta table in a directory."""

    def __init__(self, directory: Path, _endpoint: LocalEndpoint) -> None:
        self.path = str(directory / "machines")

    def write(self, factor: str) -> None:
        from deltalake import write_deltalake

        data = pa.table(
            {
                "k": pa.array([k for k, _ in NAMES], pa.string()),
                "name": [n for _, n in NAMES],
                "factor": pa.array([Decimal(factor)] * len(NAMES), pa.decimal128(6, 2)),
            }
        )
        write_deltalake(self.path, data, mode="overwrite")

    def table(self, builder: DataflowBuilder, **more: Any) -> ReferenceTable:
        return builder.table.delta(self.path, **more)


KINDS: list[Any] = [DerbyTable, DeltaTable]


def lookup_in(table: ReferenceTable, builder: DataflowBuilder) -> Lookup:
    stream = builder.read.json("/d/{location}", "k string").join(table, "k")
    assert isinstance(stream.operator, Lookup)
    return stream.operator


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_batch_keeps_its_version(kind: Any, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made, checkpoint, spark = kind(tmp_path, endpoint), tmp_path / "checkpoint", endpoint.session()
    made.write("1.50")
    builder = hw.flow("f", locations=["L1"])
    versions = TableVersions(tmp_path / "versions", lookup_in(made.table(builder, refresh="1 s"), builder))
    first = versions.begin(spark, checkpoint)
    assert versions.begin(spark, checkpoint) == versions.current(spark) == first, "nothing has changed"
    assert not versions.has_changed(endpoint.session)
    for log, batches in (("offsets", (0, 1)), ("commits", (0,))):
        (checkpoint / log).mkdir(parents=True)
        for batch in batches:
            (checkpoint / log / str(batch)).write_text("v1")
    made.write("7.00")
    assert versions.has_changed(endpoint.session)
    assert versions.begin(spark, checkpoint) == first, "batch 1 is to be repeated with the rows that it saw"
    assert {str(r.factor) for r in spark.read.parquet(str(first)).collect()} == {"1.50"}
    (checkpoint / "commits" / "1").write_text("v1")
    second = versions.begin(spark, checkpoint)
    assert second != first and not first.exists()
    assert {str(r.factor) for r in spark.read.parquet(str(second)).collect()} == {"7.00"}
    assert not versions.has_changed(endpoint.session)


def test_a_database_that_is_away_leaves_the_rows_as_they_were(
    endpoint: LocalEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, spark = DerbyTable(tmp_path, endpoint), endpoint.session()
    builder = hw.flow("f", locations=["L1"])
    versions = TableVersions(tmp_path / "versions", lookup_in(made.table(builder), builder))
    with pytest.raises(HeadwaterError, match="the table in the database was not read") as caught:
        versions.begin(spark, tmp_path / "checkpoint")
    assert caught.value.hint
    made.write("1.50")
    first = versions.begin(spark, tmp_path / "checkpoint")
    (tmp_path / "db").rename(tmp_path / "away")
    gone = TableVersions(
        tmp_path / "versions", lookup_in(builder.table.jdbc(f"{made.url}x", "machines", TABLE), builder)
    )
    assert gone.begin(spark, tmp_path / "checkpoint") == first
    assert not gone.has_changed(endpoint.session)
    assert "goes on with the rows that it has" in caplog.text


def test_columns_of_the_database_fit_the_schema_or_are_refused(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made, spark = DerbyTable(tmp_path, endpoint), endpoint.session()
    made.write("1.50")

    def read(schema: str, **more: Any) -> set[Any]:
        builder = hw.flow("f", locations=["L1"])
        table = builder.table.jdbc(made.url, schema=schema, **({"table": "machines"} | more))
        versions = TableVersions(tmp_path / schema.replace(" ", ""), lookup_in(table, builder))
        return {tuple(r) for r in spark.read.parquet(str(versions.current(spark))).collect()}

    assert ("k0", 1.5) in read("K string, factor double")
    assert ("k0", "1.50") in read("k string, factor string")
    query = 'SELECT "k", count(*) AS "n" FROM machines WHERE "name" <> \'a;b\' GROUP BY "k"'
    assert ("k1", 2) in read("k string, n bigint", table=None, query=query)
    with pytest.raises(RuntimeFailure, match="has no column 'most'"):
        read("k string, most double")
    with pytest.raises(RuntimeFailure, match=r"'factor' is decimal\(6,2\) in the database, not int"):
        read("k string, factor int")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_batch_run(kind: Any, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = kind(tmp_path, endpoint)
    made.write("1.50")
    items = rows(20, seed=12)
    items["L1"] = [*items["L1"][:6], PAUSE, *items["L1"][6:12], KILL, *items["L1"][12:]]
    source = BoundedSource(tmp_path / "in", items, rows_per_file=5)
    builder = hw.flow("joined", locations=LOCATIONS)
    readings = builder.read.json(source.path, SCHEMA, location_as="location")
    known = readings.join(made.table(builder), "k").with_watermark("ts", "5 seconds")
    windows = known.to_layer("cloud").group_by(hw.window("ts", "10 seconds"), "name")
    windows.agg(n="count(*)", most="max(factor)").write.memory("windows")
    every = readings.select("id", "k", "location").to_layer("site").join(made.table(builder), "k", how="left")
    every.write.memory("every")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", source=source)
    assert all(outcome.rows.values())


def test_changed_tables_are_taken_up_without_an_order(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made: list[Any] = [kind(tmp_path, endpoint) for kind in KINDS]
    for one in made:
        one.write("1.00")
    builder = hw.flow("refreshed", locations=["L1"])
    stream = builder.read.json(f"{tmp_path}/in/{{location}}", "k string, n int")
    for number, one in enumerate(made):
        table = one.table(builder, refresh="1 second")
        stream = stream.join(table, "k").select(
            "k", "n", *(f"factor{i}" for i in range(number)), f"factor AS factor{number}"
        )
    stream.write.memory("out")
    (tmp_path / "in/L1").mkdir(parents=True)
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    plan = build.build(builder.build(), Continuum.from_text(CONTINUUM))
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    run.start()
    try:

        def feed(n: int) -> None:
            (tmp_path / f"in/L1/.{n}").write_text(json.dumps({"k": "k0", "n": n}))
            (tmp_path / f"in/L1/.{n}").rename(tmp_path / f"in/L1/{n}.json")

        feed(0)
        until(lambda: run.sink_rows("out").num_rows == 1)
        for one in made:
            one.write("2.00")
        fed = [0]

        def taken_up() -> bool:
            fed.append(len(fed))
            feed(fed[-1])
            run.look()
            seen = run.sink_rows("out").select(["factor0", "factor1"]).to_pylist()
            return {"factor0": Decimal("2.00"), "factor1": Decimal("2.00")} in seen

        until(taken_up)
        run.drain()
        found = run.sink_rows("out").sort_by("n")
    finally:
        run.stop()
    assert found.column("n").to_pylist() == fed, "rows are lost or doubled"
    for name in ("factor0", "factor1"):
        factors = found.column(name).to_pylist()
        assert factors == sorted(factors), "an older version came back"
