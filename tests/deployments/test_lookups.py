"""Joins with reference tables: equal to one batch run for any cuts, and one version of a table for each batch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.lookup import Lookup
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan import build
from headwater.query import compile
from headwater.query.tables import TableVersions
from headwater.spark.endpoint import LocalEndpoint
from headwater.sql.statement import JoinKind
from headwater.testing import KILL, PAUSE, BoundedSource, check_equivalent
from headwater.testing.compare import compare
from tests.deployments.flows import CONTINUUM, LOCATIONS, SCHEMA, rows
from tests.deployments.test_oracle import DECISIONS
from tests.faults import until

TABLE = "k string, name string, factor decimal(6, 2), at struct<x:int,y:int>"


def write_table(path: Path, *, factor: str = "1.50") -> None:
    """Write a table in which a key occurs twice, one not at all, and one is NULL."""
    names = [("k0", "zero"), ("k1", "one"), ("k1", "uno"), (None, "nothing"), ("k9", "nine")]
    lines = [{"k": k, "name": name, "factor": factor, "at": {"x": n, "y": -n}} for n, (k, name) in enumerate(names)]
    scratch = path.with_name(f".{path.name}")
    scratch.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.replace(scratch, path)


def joined(path: str, table: Path, **more: Any) -> DataflowBuilder:
    builder = hw.flow("joined", locations=LOCATIONS)
    readings = builder.read.json(path, SCHEMA, location_as="location")
    machines = builder.table.json(str(table), TABLE, **more)
    known = readings.join(machines, "k").named("known").with_watermark("ts", "5 seconds")
    known.write.memory("rows")
    known.to_layer("cloud").group_by(hw.window("ts", "10 seconds"), "name").agg(n="count(*)").write.memory("windows")
    every = readings.select("id", "k", "location").to_layer("site").join(machines, "k", how="left")
    every.write.memory("every")
    readings.select("id", "k").join(machines, "k", how="left_semi").named("some").write.memory("known_ids")
    timed = readings.with_watermark("ts", "5 seconds").join(machines, "k", how="left_anti").named("others")
    timed.group_by(hw.window("ts", "10 seconds"), "location").agg(n="count(*)").write.memory("unknown")
    return builder


@pytest.mark.long
@pytest.mark.parametrize(
    ("decision", "embedded"),
    [("unit per layer", True), ("unit per operator", False), ("one unit", False)],
)
def test_equals_one_batch_run(decision: str, embedded: bool, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    write_table(tmp_path / "machines.json")
    items = rows(30, seed=12)
    items["L1"] = [*items["L1"][:6], PAUSE, *items["L1"][6:12], KILL, *items["L1"][12:]]
    source = BoundedSource(tmp_path / "in", items, rows_per_file=5)
    more = {} if embedded else {"refresh": "1 hour"}
    flow = joined(source.path, tmp_path / "machines.json", **more).build()
    lookups = [o for o in flow.operators if isinstance(o, Lookup)]
    assert [o.embedded is not None for o in lookups] == [embedded] * 4
    if embedded:
        (tmp_path / "machines.json").unlink()  # it is in the dataflow
    continuum = Continuum.from_text(CONTINUUM)
    wanted = DECISIONS[decision](flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted, source=source)
    assert all(outcome.rows.values())


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_rows_are_kept_as_by_sparks_own_join(
    how: JoinKind, timed: bool, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    """A key that the table has twice keeps a row once; NULL equals none."""
    write_table(file := tmp_path / "machines.json")
    session = endpoint.session()
    given = session.createDataFrame([(1, "k0"), (2, "k1"), (3, "k2"), (4, None)], "id int, k string")
    table = session.read.schema(TABLE).json(str(file))
    builder = hw.flow("kept", locations=["L1"])
    read = builder.read.json("/in/{location}", "id int, k string, ts timestamp")
    read = read.with_watermark("ts", "1 second") if timed else read
    lookup = read.join(builder.table.json(str(file), TABLE), "k", how=how).operator
    assert isinstance(lookup, Lookup) and lookup.adds_columns is False
    kept = compile.apply(lookup, [given], [read.shape], streaming=True, locations=["L1"], tables=lambda _: table)
    assert not compare(given.join(table, "k", how).select("id", "k").toArrow(), kept.toArrow())


@pytest.mark.parametrize("table", ["with rows", pytest.param("empty", marks=pytest.mark.long)])
def test_windows_behind_a_table_close(table: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    write_table(file := tmp_path / "machines.json")
    if table == "empty":
        file.write_text("")
    source = BoundedSource(tmp_path / "in", {"L1": rows(20, seed=13)["L1"]}, rows_per_file=10)
    builder = hw.flow("behind", locations=["L1"])
    timed = builder.read.json(source.path, SCHEMA).with_watermark("ts", "5 seconds").named("timed")
    known = timed.join(builder.table.json(str(file), TABLE), "k").select("ts", "name")
    every = known.union(timed.select("ts", "'any' AS name"))
    every.group_by(hw.window("ts", "10 seconds"), "name").agg(n="count(*)").write.memory("windows")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    outcome = check_equivalent(
        flow, continuum, endpoint, tmp_path / "run", decision=build.one_unit(flow, continuum), source=source
    )
    assert outcome.rows["windows"]


def test_a_changed_table_is_taken_up_without_an_order(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    table = tmp_path / "machines.json"
    write_table(table, factor="1.00")
    builder = hw.flow("refreshed", locations=["L1"])
    readings = builder.read.json(f"{tmp_path}/in/{{location}}", "k string, n int")
    readings.join(builder.table.json(str(table), TABLE, refresh="1 second"), "k").select("n", "factor").write.memory(
        "out"
    )
    flow = builder.build()
    (tmp_path / "in/L1").mkdir(parents=True)
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    run = LocalRun(build.build(flow, Continuum.from_text(CONTINUUM)), tmp_path / "run", endpoint, settings)
    run.start()
    try:

        def feed(n: int) -> None:
            (tmp_path / f"in/L1/.{n}").write_text(json.dumps({"k": "k0", "n": n}))
            (tmp_path / f"in/L1/.{n}").rename(tmp_path / f"in/L1/{n}.json")

        feed(0)
        until(lambda: run.sink_rows("out").num_rows == 1)
        write_table(table, factor="2.00")
        fed = [0]

        def taken_up() -> bool:
            fed.append(len(fed))
            feed(fed[-1])
            run.look()
            return any(str(f) == "2.00" for f in run.sink_rows("out").column("factor").to_pylist())

        until(taken_up)
        run.drain()
        found = run.sink_rows("out").sort_by("n")
    finally:
        run.stop()
    assert found.column("n").to_pylist() == fed, "rows are lost or doubled"
    factors = [str(f) for f in found.column("factor").to_pylist()]
    assert factors == sorted(factors), "an older version came back"


def test_an_interrupted_batch_keeps_its_version(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "t.json", tmp_path / "checkpoint"
    write_table(table)
    builder = hw.flow("f", locations=["L1"])
    stream = builder.read.json("/d/{location}", "k string").join(
        builder.table.json(str(table), TABLE, refresh="1 s"), "k"
    )
    assert isinstance(stream.operator, Lookup)
    versions, spark = TableVersions(tmp_path / "versions", stream.operator), endpoint.session()
    first = versions.begin(spark, checkpoint)
    assert versions.begin(spark, checkpoint) == versions.current(spark) == first, "nothing has changed"
    for log, batches in (("offsets", (0, 1)), ("commits", (0,))):
        (checkpoint / log).mkdir(parents=True)
        for batch in batches:
            (checkpoint / log / str(batch)).write_text("v1")
    write_table(table, factor="7.00")
    assert versions.has_changed(endpoint.session)
    assert versions.begin(spark, checkpoint) == first, "batch 1 is to be repeated with the rows that it saw"
    (checkpoint / "commits" / "1").write_text("v1")
    assert versions.current(spark) == first
    second = versions.begin(spark, checkpoint)
    assert second != first and not first.exists()
    assert {str(r.factor) for r in spark.read.parquet(str(second)).collect()} == {"7.00"}
    assert not versions.has_changed(endpoint.session)


def test_a_malformed_row_of_a_table_is_an_error_that_names_it(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("k0,1\nk1,many\n")
    builder = hw.flow("f", locations=["L1"])
    stream = builder.read.json("/d/{location}", "k string").join(builder.table.csv(str(table), "k string, n int"), "k")
    assert isinstance(stream.operator, Lookup)
    with pytest.raises(HeadwaterError, match=r"the table .*t\.csv was not read") as caught:
        TableVersions(tmp_path / "versions", stream.operator).current(endpoint.session())
    assert caught.value.hint


def test_a_table_with_another_column_goes_on_in_place(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    (tmp_path / "in/L1").mkdir(parents=True)
    found = []
    for number, (schema, text) in enumerate([("k string, n int", "k0,1\n"), ("k string, n int, more int", "k0,1,7\n")]):
        (tmp_path / "t.csv").write_text(text)
        builder = hw.flow("edited", locations=["L1"])
        readings = builder.read.json(f"{tmp_path}/in/{{location}}", "k string")
        known = readings.join(builder.table.csv(str(tmp_path / "t.csv"), schema), "k").named("known")
        known.select("k", schema.rsplit(" ", 2)[-2] + " AS n").named("picked").write.memory("out")
        plan = build.build(builder.build(), Continuum.from_text(CONTINUUM))
        run = LocalRun(plan, tmp_path / "run", endpoint, settings)
        run.start()
        try:
            (tmp_path / f"in/L1/.{number}").write_text(json.dumps({"k": "k0"}))
            (tmp_path / f"in/L1/.{number}").rename(tmp_path / f"in/L1/{number}.json")
            run.settle()
            found.append(sorted(run.sink_rows("out").column("n").to_pylist()))
        finally:
            run.stop()
    assert found[0] == [1]
    assert 7 in found[1]
