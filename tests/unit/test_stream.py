"""The fluent API: valid dataflows, their schemas, and errors that show the line to write instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import DataflowError, ErrorList
from headwater.dataflow import graph
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream
from headwater.sql import functions
from tests.conformance.custom_sources import Files, FilesSink

SCHEMA = "id bigint, ts timestamp, k string, v double, tags array<string>, s struct<a:int,b:string>"
COLUMNS = ["id", "ts", "k", "v", "tags", "s", "location"]


def read(name: str = "f") -> Stream:
    return hw.flow(name, locations=["L1"]).read.json("/d/{location}", SCHEMA, location_as="location")


def timed() -> Stream:
    return read().with_watermark("ts", "5 seconds")


def means() -> Stream:
    return timed().group_by(hw.window("ts", "1 minute"), "location", "k").agg(n="count(*)", mean="avg(v)")


def other(stream: Stream) -> Stream:
    return stream.select("id", "ts AS at", "v AS w")


def fold(state: Any, row: dict[str, Any]) -> Any:
    return state, row


def test_public_names() -> None:
    names = ["Continuum", "Dataflow", "HeadwaterError", "Stream", "WindowMaker", "chop_time", "complete", "flow",
             "from_pyspark", "layer", "session_window", "sliding_time", "window"]  # fmt: skip
    assert sorted(hw.__all__) == names
    assert all(getattr(hw, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hw.nothing


# ---------------------------------------------------------------- valid dataflows

WINDOW = "window struct<start:timestamp,end:timestamp>"
REST = "tags array<string>, s struct<a:int,b:string>, location string"


def backfilled() -> Stream:
    live = timed()
    assert isinstance(live.builder, DataflowBuilder)
    history = live.builder.read.parquet("/old", f"{SCHEMA}, location string", layer="cloud")
    return live.backfill(history, until="2026-01-31T12:00:00Z", disorder="1 hour")


STREAMS: list[tuple[str, Callable[[], Stream], str]] = [
    ("where", lambda: read().where("v > 1"), f"{SCHEMA}, location string"),
    ("filter", lambda: read().filter("v > 1"), f"{SCHEMA}, location string"),
    ("select", lambda: read().select("ID", "v*2 AS w", "s.b"), "id bigint, w double, b string"),
    ("star", lambda: read().select("*", "s.a").drop("tags", "S", "ts"),
     "id bigint, k string, v double, location string, a int"),
    ("with_columns", lambda: read().select("id", "v").with_columns(v="id", w="v"),
     "id bigint, v bigint, w double"),
    ("explode", lambda: read().select("id", "tags").explode("tags", "tag", position="at", outer=True),
     "id bigint, tags array<string>, at int, tag string"),
    ("explode a map", lambda: read().select("id").explode("map_entries(map('a', id))", "e"),
     "id bigint, e struct<key:string,value:bigint>"),
    ("union", lambda: (s := read().select("id", "k")).union(s.select("k", "id"), s), "id bigint, k string"),
    ("to_layer by", lambda: read().select("id", "k").to_layer("edge", by="K"), "id bigint, k string"),
    ("to_layer as", lambda: read().select("id").to_layer("edge", location_as="l"), "id bigint, l string"),
    ("lookup", lambda: read().select("id", "k").join(hw.flow("t").table.json("/t", "k string, n int"), "k"),
     "id bigint, k string, n int"),
    ("lookup in a database", lambda: read().select("id", "k").join(
        hw.flow("t").table.jdbc("jdbc:postgresql://h/d", "t", "k string, n int", refresh="1 minute"), "k", how="left"),
     "id bigint, k string, n int"),
    ("lookup in a Delta table", lambda: read().select("id", "k").join(
        hw.flow("t").table.delta("/t", "k string, n int", version=4), "k"), "id bigint, k string, n int"),
    ("backfill", backfilled, f"{SCHEMA}, location string"),
    ("map_batches", lambda: read().map_batches(lambda batches: batches, "a int"), "a int"),
    ("transform", lambda: read().transform(lambda df: df, "a int, b map<string,int>"),
     "a int, b map<string,int>"),
    ("watermark", timed, f"{SCHEMA}, location string"),
    ("aggregate", means, f"{WINDOW}, location string, k string, n bigint, mean double"),
    ("count", lambda: timed().group_by("TS", "k").count(), "ts timestamp, k string, count bigint"),
    ("sliding", lambda: timed().group_by(hw.window("ts", "1 minute", "10 seconds")).agg(m="max(v)"),
     f"{WINDOW}, m double"),
    ("session", lambda: timed().group_by(hw.session_window("ts", "5 min"), "k").agg(m="first(tags)"),
     "session_window struct<start:timestamp,end:timestamp>, k string, m array<string>"),
    ("window of windows", lambda: means().group_by(hw.window("window", "1 hour")).agg(n="sum(n)"),
     f"{WINDOW}, n bigint"),
    ("dedup", lambda: timed().drop_duplicates("id"), f"{SCHEMA}, location string"),
    ("dedup all", lambda: timed().drop_duplicates_within_watermark(), f"{SCHEMA}, location string"),
    ("join", lambda: (s := timed()).join(other(s), "id", within="1 minute"),
     f"{SCHEMA}, location string, at timestamp, w double"),
    ("left join", lambda: (s := timed()).join(other(s), ["id"], between=("-1 s", "2 s"), how="left"),
     f"{SCHEMA}, location string, at timestamp, w double"),
    ("join within years", lambda: (s := timed()).join(other(s), "id", between=("-1 year", "INTERVAL 1 hour")),
     f"{SCHEMA}, location string, at timestamp, w double"),
    ("count_window", lambda: read().count_window(10, 5, keys=["location", "k"], order_by="id").agg(
        n="count(*)", span="max(v) - min(v)", mean="avg(id)", ids="array_agg(id)", both="size(collect_list(k)) + 1"),
     "location string, k string, n bigint, span double, mean double, ids array<bigint>, both int"),
    ("top_k", lambda: means().top_k(2, "n", per=["window", "k"], rank="place"),
     f"{WINDOW}, location string, k string, n bigint, mean double, place int"),
    ("scan", lambda: read().scan(fold, "k string, x double", keys="k", order_by="id", initial={"a": [1]}),
     "k string, x double"),
    ("filter_acc", lambda: read().filter_acc(lambda s, r: s, lambda s, r: True, keys="k", order_by="id"),
     f"{SCHEMA}, location string"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "schema"), [c[1:] for c in STREAMS], ids=[c[0] for c in STREAMS])
def test_schema_of_stream(make: Callable[[], Stream], schema: str) -> None:
    stream = make()
    assert stream.schema == hw_schema(schema)
    assert stream.columns == list(hw_schema(schema).names)
    stream.write.memory("out")
    builder = stream.builder
    assert isinstance(builder, DataflowBuilder)
    flow = builder.build()
    assert flow.types["out"].schema == stream.schema
    assert flow.types["out"] == stream.shape
    assert hw.Dataflow.from_json(flow.to_json()) == flow


def hw_schema(text: str) -> Any:
    from headwater.sql.schema import Schema

    return Schema.parse(text)


SOURCES: list[tuple[Callable[[DataflowBuilder], Stream], str]] = [
    (lambda f: f.read.files("/d", "a int", format="csv", sep=";"), "a int"),
    (lambda f: f.read.csv("/d", "a int", header="true", location_as="l"), "a int, l string"),
    (lambda f: f.read.json("/d", "a array<int>"), "a array<int>"),
    (lambda f: f.read.parquet("/d", "a decimal(10,2)"), "a decimal(10,2)"),
    (lambda f: f.read.rate(5, location_as="l"), "timestamp timestamp, value bigint, l string"),
    (lambda f: f.read.sensors(seed=3, machines=2, rows=10, rows_per_second=0),
     "machine string, ts timestamp, temperature double, label boolean, seq bigint"),
    (lambda f: f.read.mqtt("broker:1883", "a/{location}/#", "a int", qos=2, tls=True), "a int"),
    (lambda f: f.read.http("0.0.0.0:8080/rows/{location}", "a int", token_env="HEADWATER_SECRET_T", max_body=1000),
     "a int"),
    (lambda f: f.read.sparkplug("broker", "{location}", type="double", version="5"),
     "group_id string, edge_node string, device string, message string, metric string, alias bigint, value double, "
     "time timestamp, seq int, quality string, historical boolean, gap boolean"),
    (lambda f: f.read.opcua("opc.tcp://{location}:4840", ["ns=2;s=a", "i=7"], type="int", location_as="l"),
     "node string, value int, source_time timestamp, server_time timestamp, status string, quality string, "
     "gap boolean, l string"),
    (lambda f: f.read.kafka("b:9092", "t", "a int", key_as="k", starting={0: 7}), "a int, k string"),
    (lambda f: f.read.format(Files).option("path", "/d/{location}").load(location_as="l"),
     "n bigint, name string, l string"),
    (lambda f: f.read.delta("/d/{location}", "a int", version=3, location_as="l"), "a int, l string"),
    (lambda f: f.read.iceberg("n.t", "a int", catalog="sqlite:////d/c.db", warehouse="/d", snapshot=5), "a int"),
]  # fmt: skip
SINKS: list[Callable[[Stream], Any]] = [
    lambda s: s.write.files("/o", format="csv"),
    lambda s: s.write.csv("/o/{zone}"),
    lambda s: s.write.json("/o"),
    lambda s: s.write.parquet("/o"),
    lambda s: s.write.console(5),
    lambda s: s.write.memory("rows"),
    lambda s: s.write.for_each_batch(lambda table, number: None),
    lambda s: s.write.kafka("b:9092", "t", key="k", value="k", acks="all", linger_ms="5"),
    lambda s: s.write.kafka("b:9092", "t", delivery="at_least_once", real_time="1 minute", dead_letters="bad"),
    lambda s: s.write.mqtt("broker:1883", topic_from="k", qos=2, retain=True),
    lambda s: s.write.opcua("opc.tcp://plc/x", node_from="concat('ns=2;s=', k)", value="v", username_env="U"),
    lambda s: s.write.format(FilesSink).options(path="/o/{zone}").start(),
    lambda s: s.write.parquet("/o", partition_by=["k"]),
    lambda s: s.write.json("/o", target_file_size="64MiB", max_file_age="5 minutes"),
    lambda s: s.write.delta("/o/{zone}", partition_by="k", compact_after=0),
    lambda s: s.write.iceberg("n.t", catalog="postgresql://h/d?sslmode=require", warehouse="/w", password_env="P"),
    lambda s: s.write.postgres("postgresql://h:5433/d", "p.t", keys="k"),
    lambda s: s.write.jdbc("jdbc:x:y", "t", user_env="U", password_env="P", fetchsize="5"),
]


@pytest.mark.parametrize(("make", "schema"), SOURCES)
def test_source(make: Callable[[DataflowBuilder], Stream], schema: str) -> None:
    f = hw.flow("f")
    stream = make(f)
    assert stream.schema == hw_schema(schema)
    stream.write.console().named("end")
    flow = f.build()
    assert [s.id for s in flow.sources] == [stream.operator.id]
    assert hw.Dataflow.from_json(flow.to_json()) == flow


@pytest.mark.parametrize("write", SINKS)
def test_sink(write: Callable[[Stream], Any]) -> None:
    f = hw.flow("f")
    write(f.read.json("/d", "k string, v int")).named("end")
    flow = f.build()
    assert [s.id for s in flow.sinks] == ["end"]
    assert hw.Dataflow.from_json(flow.to_json()) == flow


def test_every_kind_is_reached_here() -> None:
    kinds = {make().operator.kind for _, make, _ in STREAMS}
    f = hw.flow("f")
    kinds |= {make(f).operator.kind for make, _ in SOURCES}
    rows = f.read.json("/d", "k string, v int")
    kinds |= {write(rows).stream.operator.kind for write in SINKS}
    assert kinds | {"select"} == set(graph.KINDS)
    assert functions.AGGREGATES


def test_event_time_and_location_follow_their_columns() -> None:
    stream = timed()
    assert stream.shape.event_time is not None
    assert (stream.shape.event_time.column, stream.shape.event_time.delay) == ("ts", 5.0)
    renamed = stream.select("ts AS at", "location AS place")
    assert renamed.shape.event_time is not None and renamed.shape.event_time.column == "at"
    assert renamed.shape.located_by == {"place"}
    assert stream.select("id").shape.event_time is None
    assert stream.select("upper(location) AS location").shape.located_by == frozenset()
    of_window = means().select("window_time( window ) AS t", "n")
    assert of_window.shape.event_time is not None and of_window.shape.event_time.column == "t"
    joined = stream.join(other(stream), "id", between=("-10 seconds", "1 minute"))
    assert joined.shape.event_time is not None and joined.shape.event_time.delay == 65.0


@pytest.mark.parametrize("spelling", ["TS", "`ts`", " ts "])
def test_watermark_by_another_spelling_is_the_declared_column(spelling: str) -> None:
    stream = read().with_watermark(spelling, "5 seconds")
    assert stream.shape.event_time is not None and stream.shape.event_time.column == "ts"
    assert stream.group_by(hw.window("ts", "1 minute")).count().columns == ["window", "count"]
    kept = stream.map_batches(lambda batches: batches, "ts timestamp").shape
    assert kept.event_time is not None


def test_layers_and_requirements() -> None:
    stream = read().to_layer("site").require("gpu = true").where("v > 1").require("n_cpu >= 4").where("v > 2")
    assert (stream.operator.layer, stream.operator.requires.text) == ("site", "gpu = true and n_cpu >= 4")
    cloud = stream.to_layer("cloud").where("v > 3")
    assert (cloud.operator.layer, cloud.operator.requires.text) == ("cloud", "")
    assert stream.union(cloud).operator.layer is None  # the higher layer; only the continuum knows which


def test_streams_are_immutable() -> None:
    stream = read()
    stream.where("v > 1").named("a")
    assert stream.operator.id == "files" and stream.columns == COLUMNS


def test_print_schema(capsys: pytest.CaptureFixture[str]) -> None:
    read().select("id", "tags").print_schema()
    assert capsys.readouterr().out == "root\n |-- id: bigint\n |-- tags: array<string>\n"


def test_a_long_dataflow_builds() -> None:
    f = hw.flow("long")
    stream = f.read.rate()
    for _ in range(1500):
        stream = stream.where("value > 1")
    stream.write.memory("m")
    flow = f.build()
    assert len(flow.operators) == 1502 and hw.Dataflow.from_json(flow.to_json()) == flow


# ---------------------------------------------------------------- errors

LOCK = threading.Lock()
G = hw.window("ts", "1 minute")
WRONG: list[tuple[Callable[[], Any], str, str, str]] = [
    # the expression; operator, problem and remedy that the message must name
    (lambda: read().where("nope > 1"), "'where'", "'nope'", "the columns are id, ts"),
    (lambda: read().where("kk = 'a'"), "'where'", "'kk'", "k"),
    (lambda: read().where("v + 1"), "'where'", "double", "compare it"),
    (lambda: read().where("rand() > 0.5"), "'where'", "rand()", "from the data"),
    (lambda: read().select("current_timestamp() AS n"), "'select'", "current_timestamp()", "from the data"),
    (lambda: read().with_columns(u="uuid()"), "'select'", "uuid()", "from the data"),
    (lambda: read().explode("array(rand())", "r"), "'explode'", "rand()", "from the data"),
    (lambda: timed().group_by(G).agg(n="sum(rand())"), "'aggregate'", "rand()", "from the data"),
    (lambda: read().select("id", "ID"), "'select'", "two columns are called", "rename"),
    (lambda: read().select("v AS __x"), "'select'", "'__x' is reserved", "'x'"),
    (lambda: read().select(), "'select'", "no columns", "at least one"),
    (lambda: read().drop(*COLUMNS), "'select'", "no columns", "at least one"),
    (lambda: read().drop("zz"), "drop after 'files'", "zz", "the columns are id, ts"),
    (lambda: read().with_columns(a="b"), "'select'", "'b'", "the columns are"),
    (lambda: read().with_columns(w="1", W="2"), "with_columns", "by case", "once"),
    (lambda: read().explode("v", "x"), "'explode'", "v is double", "array(...)"),
    (lambda: read().explode("tags", "ID"), "'explode'", "two columns are called", "rename"),
    (lambda: read().explode("tags", "__t"), "'explode'", "reserved", "'t'"),
    (lambda: read().union(), "union after 'files'", "without other streams", "union(b"),
    (lambda: (s := read()).union(s.select("id")), "'union'", "id bigint", "same columns"),
    (lambda: (s := read()).select("id").union(s.select("v AS id")), "'union'", "id double", "cast"),
    (lambda: read().union(read("g")), "union", "'f' and 'g'", "one dataflow"),
    (lambda: (s := read().with_columns(at="ts")).with_watermark("ts", "1 s").union(
        s.with_watermark("at", "1 s")), "'union'", "at, ts", "same name"),
    (lambda: read().group_by(G).agg(n="count(*)"), "'aggregate'", "watermark", ".with_watermark("),
    (lambda: timed().group_by(hw.window("v", "1 minute")).count(), "'aggregate'", "'v'", "hw.window('ts'"),
    (lambda: timed().group_by("k").count(), "'aggregate'", "'ts'", "hw.window('ts'"),
    (lambda: timed().group_by(G).agg(), "'aggregate'", "nothing", "count(*)"),
    (lambda: timed().group_by(G).agg(n="v"), "'aggregate'", "'v'", "max(v)"),
    (lambda: timed().group_by(G, "zz").count(), "'aggregate'", "'zz'", "the columns are"),
    (lambda: timed().group_by(G, "k").agg(K="count(*)"), "'aggregate'", "two columns", "rename"),
    (lambda: timed().group_by(G, G), "group_by after", "more than one window", "keep one"),
    (lambda: timed().group_by(hw.window("ts", "soon")).count(), "hw.window", "soon", "30 seconds"),
    (lambda: timed().group_by(hw.window("ts", "1 s", "2 s")).count(), "'aggregate'", "2 s", "slide <= size"),
    (lambda: timed().group_by(hw.session_window("ts", "0 s")).count(), "hw.session_window", "gap", "5 minutes"),
    (lambda: timed().with_watermark("ts", "1 s"), "'watermark-2'", "already has an event time: 'ts'", "once"),
    (lambda: read().with_watermark("v", "1 s"), "'watermark'", "v is double", "to_timestamp(v)"),
    (lambda: read().with_watermark("nope", "1 s"), "'watermark'", "'nope'", "the columns are"),
    (lambda: read().with_watermark("ts", "soon"), "with_watermark after 'files'", "'soon'", "30 seconds"),
    (lambda: read().drop_duplicates("id"), "'dedup'", "watermark", ".with_watermark("),
    (lambda: timed().drop_duplicates("nope"), "'dedup'", "'nope'", "the columns are"),
    (lambda: (s := timed()).join(other(s), "id"), "join after", "bound", "within="),
    (lambda: (s := timed()).join(other(s), "id", within="1 s", between=("0 s", "1 s")),
     "join", "bound", "not"),
    (lambda: (s := timed()).join(other(s), [], within="1 s"), "'join'", "key columns", "on='id'"),
    (lambda: (s := timed()).join(other(s), ["id", "ID"], within="1 s"), "'join'", "duplicate keys", "once"),
    (lambda: (s := timed()).join(other(s), "v", within="1 s"), "'join'", "'v'", "the columns are"),
    (lambda: (s := timed()).join(s.select("k AS id", "ts AS at"), "id", within="1 s"),
     "'join'", "string", "cast"),
    (lambda: (s := timed()).join(s, "id", within="1 s"), "'join'", "both streams have", "rename"),
    (lambda: (s := read()).join(other(s), "id", within="1 s"), "'join'", "left stream", ".with_watermark("),
    (lambda: (s := timed()).join(s.select("id"), "id", within="1 s"), "'join'", "right", ".with_watermark("),
    (lambda: (s := timed()).join(other(s), "id", between=("2 s", "1 s")), "'join'", "2 s, 1 s", "swap"),
    (lambda: (s := timed()).join(other(s), "id", within="1 s", how="right"),
     "join after 'watermark'", "'right'", "left"),  # type: ignore[arg-type]
    (lambda: (m := means()).join(m.select("k", "window AS w"), "k", within="1 s"), "'join'", "windows",
     "join(other, on=['window'"),
    (lambda: (m := means()).join(m.select("k", "window"), ["k"]), "'join'", "windows", "join(other, on=['window'"),
    (lambda: (m := means()).join(m.select("k", "window"), ["window", "k"], within="1 s"), "'join'", "no bounds",
     "leave out"),
    (lambda: (m := means()).join(m.select("k", "window_time(window) AS t"), "k", within="1 s"), "'join'",
     "a window, the other's is a time", "window_time(window)"),
    (lambda: means().drop_duplicates("k"), "'dedup'", "event time is a window", ".group_by('window', 'k')"),
    (lambda: timed().join(read("g"), "id", within="1 s"), "join", "'f' and 'g'", "one dataflow"),
    (lambda: means().top_k(2, "zz"), "top_k after", "'zz'", "the columns are window"),
    (lambda: means().top_k(2, "n", per="zz"), "top_k after", "'zz'", "the columns are window"),
    (lambda: means().top_k(0, "n"), "top_k after", "k is 0", "at least 1"),
    (lambda: read().scan(fold, "k string", keys="k", order_by="id", initial={1}),
     "scan after", "JSON", "lists"),
    (lambda: read().scan(fold, "k string", keys="k", order_by=[]), "'scan'", "no order", "order_by='ts'"),
    (lambda: read().scan(fold, "k string", keys="z", order_by="id"), "'scan'", "'z'", "the columns are"),
    (lambda: read().scan(fold, "k bigint", keys="k", order_by="id"), "'scan'", "'k'", "keep the types"),
    (lambda: read().scan(fold, "k bigin", keys="k", order_by="id"), "scan after", "'bigin'", "bigint"),
    (lambda: read().scan(lambda row: row, "k string", keys="k", order_by="id"),
     "scan", "2 arg", "(state, row)"),
    (lambda: means().scan(fold, "n bigint", keys="k", order_by="window"), "'scan'", "window", "window_time"),
    (lambda: read().map_batches(lambda b: LOCK, "a int"), "map_batches after", "lock", "inside the function"),
    (lambda: read().map_batches(3, "a int"),
     "map_batches after", "3", "pass a function"),  # type: ignore[arg-type]
    (lambda: read().map_batches(lambda b: b, "a intt"), "map_batches after", "'intt'", "int"),
    (lambda: read().transform(lambda a, b: a, "a int"), "transform after", "1 arg", "(df)"),
    (lambda: read().transform(lambda df: df, "__a int"), "transform", "reserved", "'a'"),
    (lambda: read().count_window(0, order_by="id"), "count_window after", "size is 0", "at least 1"),
    (lambda: read().count_window(2, 3, order_by="id").agg(n="count(*)"),
     "'count_window'", "every 3", "<= size"),
    (lambda: read().count_window(3, order_by="id").agg(n="stddev(v)"),
     "'count_window'", "stddev", "count, sum"),
    (lambda: read().count_window(3, order_by="id").agg(n="first(tags)"), "'count_window'", "array", "parts"),
    (lambda: read().count_window(3, order_by="id").agg(n="collect_list(tags)"), "'count_window'", "array", "parts"),
    (lambda: read().count_window(3, order_by="id").agg(n="sum(k)"), "'count_window'", "string", "cast"),
    (lambda: read().write.csv("/o"), "'write_files'", "'tags'", "JSON or Parquet"),
    (lambda: means().write.csv("/o"), "'write_files'", "'window'", "window.start"),
    (lambda: read().write.files("/o", format="orc"),
     "write.files after", "'orc'", "parquet"),  # type: ignore[arg-type]
    (lambda: read().write.json("/o", target_file_size="0B"), "write.json after", "too small", "at least"),
    (lambda: read().write.json("/o", max_file_age="soon"), "write.json after", "'soon'", ""),
    (lambda: read().write.console(0), "write.console after", "rows is 0", "at least 1"),
    (lambda: read().write.kafka("b", "t", key="v"), "'kafka'", "'key' is double", "cast it"),
    (lambda: read().write.kafka("b", "t", value="z"), "select after", "'z'", "the columns are"),
    (lambda: read().write.kafka("b", "t", delivery="twice"),  # type: ignore[arg-type]
     "write.kafka after", "'twice'", "at_least_once"),
    (lambda: read().write.kafka("b", "t", sasl_password="x"), "'kafka'", "sasl.password", "password_env"),
    (lambda: read().write.for_each_batch(lambda table: None), "for_each_batch", "2 arg", ""),
    (lambda: read().require("gpu"), "require after", "gpu", "gpu = true"),
    (lambda: hw.flow("f").read.rate(0), "read.rate of", "rows_per_second is 0", "at least 1"),
    (lambda: hw.flow("f").read.mqtt("b", "t", "a int", qos=3), "read.mqtt of", "qos is 3", "0, 1 or 2"),
    (lambda: hw.flow("f").read.sensors(machines=0), "read.sensors of", "machines is 0", "at least 1"),
    (lambda: hw.flow("f").read.sensors(rows_per_second=float("nan")),
     "read.sensors of", "rows_per_second is nan", "a finite number"),
    (lambda: hw.flow("f").read.sensors(interval="x"), "read.sensors of", "'x'", "30 seconds"),
    (lambda: hw.flow("f").read.json("/d", "a intt"), "read.files('/d')", "'intt'", "int"),
    (lambda: hw.flow("f").read.json("/d", "a int", location_as="A"), "'files'", "'A'", "another name"),
    (lambda: hw.flow("f").read.json("/d", "a int", location_as="__l"), "'files'", "reserved", "'l'"),
    (lambda: hw.flow("f").read.files("/d", "a int", format="orc"),
     "read.files of", "'orc'", "parquet"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("write", "operator", "problem", "remedy"), WRONG)
def test_error_names_operator_problem_and_remedy(
    write: Callable[[], Any], operator: str, problem: str, remedy: str
) -> None:
    with pytest.raises(DataflowError) as caught:
        write()
    error = caught.value
    assert operator in (error.where or "")
    assert problem in error.what
    assert error.hint or "->" in error.what
    assert remedy in str(error).split("->", 1)[1]


def test_one_name_for_two_operators_is_refused() -> None:
    f = hw.flow("f")
    rows = f.read.rate()
    rows.write.memory("a")
    rows.where("value > 1").write.memory("a")
    with pytest.raises(DataflowError, match="two operators are called 'a'"):
        f.build()


def test_a_stream_named_between_two_uses_is_there_twice() -> None:
    f = hw.flow("f")
    rows = f.read.rate().where("value > 1")
    rows.write.memory("a")
    rows.named("late").write.memory("b")
    flow = f.build()
    assert flow["b"].inputs == ("late",) and flow.keys["late"] == flow.keys["where"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "a b", "-a", "a\n", "a" * 101])
def test_names_that_could_be_no_file(name: str) -> None:
    rows = hw.flow("f").read.rate()
    for use in (hw.flow, rows.named, rows.write.memory, lambda place: hw.flow("f", locations=[place])):
        with pytest.raises(DataflowError, match="cannot be used"):
            use(name)


def test_empty_dataflow() -> None:
    f = hw.flow("f")
    f.read.rate().where("value > 1")
    with pytest.raises(ErrorList, match="empty"):
        f.build()


def bounds(**given: Any) -> Any:
    found: Any = (s := timed()).join(other(s), "id", **given).operator
    return found.intervals(), found.bounds()


def test_bounds_of_a_join_are_intervals_of_spark() -> None:
    day = 86_400.0
    assert bounds(within="4 seconds") == (((0, -4.0), (0, 4.0)), (-4.0, 4.0))
    assert bounds(within="1 hour 30 minutes")[1] == (-5400.0, 5400.0)
    assert bounds(between=("-1 week", "INTERVAL 2 days"))[1] == (-7 * day, 2 * day)
    assert bounds(between=("-1 year", "1 month")) == (((-12, 0.0), (1, 0.0)), (-372 * day, 31 * day))
    assert bounds(between=("1 month", "2 years"))[1] == (28 * day, 744 * day), "as wide as the calendar, or wider"
    for wrong in ("soon", "1.5 months", "1 fortnight", ""):
        with pytest.raises(DataflowError, match="item 1 of between"):
            bounds(between=(wrong, "1 day"))
    with pytest.raises(DataflowError, match="int where text is wanted"):
        bounds(between=(-1, 1))
