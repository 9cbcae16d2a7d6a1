"""Results that are output as they change: what may take them, and how they are planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stateful import Aggregate
from headwater.dataflow.stream import Stream
from headwater.dataflow.tablesinks import DeltaSink, PostgresSink
from headwater.plan.build import build, unit_per_operator

CONTINUUM = Continuum.from_text(
    "name: p\nlayers: [edge, cloud]\nzones:\n  C: {layer: cloud}\n  E: {layer: edge, parent: C, locations: [L1]}\n"
)
URL = "postgresql://db.plant/plant"


def begin() -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/d/{location}", "id bigint, k string, ts timestamp, v double")
    return builder, read.with_watermark("ts", "5 seconds")


def means(read: Stream) -> Stream:
    grouped = read.group_by(hw.window("ts", "1 minute"), "k").agg(n="count(*)", mean="avg(v)")
    return grouped.select("window.start AS start", "upper(k) AS big", "k AS key", "n", "mean")


def test_the_aggregate_is_another_one_in_update_mode() -> None:
    builder, read = begin()
    stream = means(read).where("key <> 'x' AND start > timestamp'2026-01-01'")
    stream.write.memory("final")
    stream.write.output_mode("update").postgres(URL, "t", keys=["start", "key"]).named("early")
    stream.write.outputMode("update").delta("/out", keys=["start", "key"], compact_after=0).named("table")
    flow = builder.build()
    assert Dataflow.from_json(flow.to_json()) == flow
    assert flow.types["final"].schema.names == ("start", "big", "key", "n", "mean")
    for name in ("early", "table"):
        assert flow.types[name].schema.names == ("start", "big", "key", "n", "mean", "headwater_rows")
    modes = sorted(str(o.mode) for o in flow.operators if isinstance(o, Aggregate))
    assert modes == ["None", "update", "update"]
    plain = next(o for o in flow.operators if isinstance(o, Aggregate) and o.mode is None)
    assert "mode" not in plain.config(), "stored keys have no mode"
    early, table = flow["early"], flow["table"]
    assert isinstance(early, PostgresSink) and early.order_by == ("headwater_rows",)
    assert isinstance(table, DeltaSink) and table.keys == ("start", "key")


def _late(stream: Stream) -> Any:
    return stream.write.output_mode("update")


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda r: _late(means(r)).memory("m"), "'memory' adds rows"),
        (lambda r: _late(means(r)).parquet("/out"), "'write_files' adds rows"),
        (lambda r: _late(means(r)).kafka("b:9092", "t"), "'kafka' adds rows"),
        (lambda r: _late(means(r)).console(), "'console' adds rows"),
        (lambda r: _late(means(r)).delta("/out"), "'write_delta' adds rows"),
        (lambda r: _late(means(r)).postgres(URL, "t"), "'postgres' adds rows"),
        (lambda r: _late(means(r)).postgres(URL, "t", keys="start", order_by="n"), "ordered by their number of rows"),
        (lambda r: _late(r).postgres(URL, "t", keys="k"), "'watermark' (watermark) has no results that change"),
        (lambda r: _late(r.drop_duplicates("id")).postgres(URL, "t", keys="k"), "'dedup' (dedup) has no results"),
        (lambda r: means(r).write.output_mode("complete"), "use 'append' or 'update'"),
        (lambda r: _late(r.group_by(hw.session_window("ts", "1 minute")).agg(n="count(*)").select("n")).postgres(
            URL, "t", keys="n"), "Spark outputs sessions only when they have ended"),
        (lambda r: means(r).write.delta("/out", keys=["start", "key"]), "only as results of a group that change"),
    ],
)  # fmt: skip
def test_what_cannot_replace_rows_is_refused(write: Callable[[Stream], Any], what: str) -> None:
    _, read = begin()
    with pytest.raises(DataflowError) as caught:
        write(read)
    assert what in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("step", "keys", "what"),
    [
        (lambda s: s.where("n > 5"), ["start", "key"], "'n' changes from one result of a group to the next"),
        (lambda s: s, ["start", "n"], "the key 'n' changes from one result"),
        (lambda s: s, ["start", "big"], "two groups may have equal keys: 'k' is not among them"),
        (lambda s: s, ["key"], "two groups may have equal keys: 'window' is not among them"),
    ],
)  # fmt: skip
def test_keys_are_those_of_the_group(step: Callable[[Stream], Stream], keys: list[str], what: str) -> None:
    builder, read = begin()
    _late(step(means(read))).postgres(URL, "t", keys=keys)
    with pytest.raises(HeadwaterError) as caught:
        builder.build()
    assert what in str(caught.value)


def test_operators_in_json_get_no_results_that_change() -> None:
    builder, read = begin()
    _late(means(read)).postgres(URL, "t", keys=["start", "key"])
    data = builder.build().to_data()
    sink = next(o for o in data["operators"] if o["kind"] == "postgres")
    select = next(o for o in data["operators"] if o["kind"] == "select")
    memory = {"kind": "memory", "id": "m", "inputs": sink["inputs"], "layer": None, "requires": ""}
    explode = {**memory, "kind": "explode", "id": "e", "expression": "array(1)", "alias": "one"}
    for changed, what in (
        ([memory if o is sink else o for o in data["operators"]], "'memory' adds rows"),
        ([*data["operators"], explode, {**memory, "inputs": ["e"]}], "'explode' takes final results only"),
        ([{**o, "columns": o["columns"][:-1]} if o is select else o for o in data["operators"]], "headwater_rows"),
    ):
        with pytest.raises(ErrorList, match=what):
            Dataflow.from_data({**data, "operators": changed})


def test_a_query_in_update_mode_has_no_other_state() -> None:
    builder, read = begin()
    _late(means(read.drop_duplicates("id").where("v > 0"))).postgres(URL, "t", keys=["start", "key"])
    flow = builder.build()
    one, two = build(flow, CONTINUUM).units
    assert "dedup" in one.operators and "aggregate-updates" in two.operators and "postgres" in two.operators
    every = build(flow, CONTINUUM, unit_per_operator(flow, CONTINUUM))
    assert len(every.units) > 4
