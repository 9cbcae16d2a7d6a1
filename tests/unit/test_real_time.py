"""Real-time mode: what a plan, a dataflow and a plain PySpark job accept, and the errors for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.realtime import check_slots
from headwater.continuum.model import Continuum
from headwater.continuum.sparksettings import SparkSettings
from headwater.core.errors import ContinuumError, DataflowError, DeploymentError, ErrorList
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.optionlists import check_options
from headwater.dataflow.sinks import RealTimeKafkaSink
from headwater.dataflow.stream import Stream
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.realtime import real_time_of
from headwater.query.counting import latency_of

SCHEMA = "id bigint, ts timestamp, k string, v double"
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "k", "type": "string"}]}'
CONTINUUM = Continuum.from_text(
    """
    layers: [edge, cloud]
    zones:
      C1: {layer: cloud}
      E1: {layer: edge, parent: C1, locations: [L1]}
    """
)


def topic(f: DataflowBuilder, **settings: Any) -> Stream:
    if "format" not in settings:
        return f.read.kafka("b:9092", "in", SCHEMA, **settings)
    return f.read.kafka("b:9092", "in", **settings)


def parsed(f: DataflowBuilder) -> Stream:
    return topic(f, format="raw").select("CAST(key AS string) AS k", "timestamp AS ts").with_watermark("ts", "1 minute")


def fast(stream: Stream, **settings: Any) -> None:
    stream.write.kafka("b:9092", "out", delivery="at_least_once", real_time="5 seconds", **settings).named("fast")


def counted(stream: Stream) -> Stream:
    return stream.group_by(hw.window("ts", "1 minute"), "k").count()


ACCEPTED: list[Callable[[DataflowBuilder], None]] = [
    lambda f: fast(topic(f).where("v > 0").select("id", "explode(split(k, ',')) AS part")),
    lambda f: fast(topic(f).union(topic(f))),
    lambda f: fast(topic(f, format="raw").select("CAST(value AS string) AS value")),
    lambda f: fast(counted(parsed(f)), key="k"),
    lambda f: fast(topic(f)),
]
REFUSED: list[tuple[Callable[[DataflowBuilder], None], str, str]] = [
    (lambda f: fast(f.read.json("/in", SCHEMA)), "reads Kafka topics alone, not files", "leave real_time= out"),
    (lambda f: fast(topic(f).map_batches(lambda b: b, SCHEMA)), "has no map_batches", "leave real_time= out"),
    (
        lambda f: fast(topic(f).with_watermark("ts", "1 minute").drop_duplicates("id")),
        "has no dedup",
        "leave real_time= out",
    ),
    (
        lambda f: fast(topic(f, format="avro", avro_schema=AVRO)),
        "values of avro are decoded in Python",
        "JSON or CSV",
    ),
    (
        lambda f: fast(counted(topic(f).with_watermark("ts", "1 minute")), key="k"),
        "a malformed record cannot be passed around an aggregate",
        'format="raw"',
    ),
    (lambda f: fast(counted(parsed(f))), "no reader knows which row is the newest", "give the sink key="),
    (
        lambda f: fast(parsed(f).group_by(hw.session_window("ts", "1 minute"), "k").count(), key="k"),
        "has no session windows",
        "windows of time",
    ),
    (
        lambda f: fast(counted(parsed(f)).select("k", "count").union(parsed(f).select("k", "1L AS count")), key="k"),
        "no union can be",
        "before the aggregate",
    ),
    (
        lambda f: fast(counted(parsed(f)).where("count > 3"), key="k"),
        "a result once written would stay",
        "before the aggregate",
    ),
    (lambda f: fast(topic(f).to_layer("cloud").where("v > 0")), "from a channel", "place and cut nothing between"),
]


@pytest.mark.parametrize("write", ACCEPTED)
def test_a_plan_accepts(write: Callable[[DataflowBuilder], None]) -> None:
    f = hw.flow("f", locations=["L1"])
    write(f)
    plan = build(f.build(), CONTINUUM)
    assert [real_time_of(plan.dataflow, u.operators) for u in plan.units] == [5.0]


@pytest.mark.parametrize(("write", "why", "hint"), REFUSED)
def test_a_plan_refuses(write: Callable[[DataflowBuilder], None], why: str, hint: str) -> None:
    f = hw.flow("f", locations=["L1"])
    write(f)
    with pytest.raises(ErrorList) as refused:
        build(f.build(), CONTINUUM)
    assert why in str(refused.value) and hint in str(refused.value)


def test_a_cut_before_the_sink_is_refused_and_a_second_sink_makes_one() -> None:
    f = hw.flow("f", locations=["L1"])
    kept = topic(f).where("v > 0").named("kept")
    fast(kept)
    flow = f.build()
    layers = marked_layers(flow, CONTINUUM)
    with pytest.raises(ErrorList, match="read the topic once for each sink"):
        build(flow, CONTINUUM, in_layers(flow, CONTINUUM, layers, cuts=frozenset({(flow.order[0], "kept")})))
    kept.write.console()
    with pytest.raises(ErrorList, match="read the topic once for each sink"):
        build(f.build(), CONTINUUM)


def test_the_sink_says_that_rows_may_be_repeated() -> None:
    f = hw.flow("f", locations=["L1"])
    with pytest.raises(DataflowError, match="at least once"):
        topic(f).write.kafka("b:9092", "out", real_time="5 seconds")
    with pytest.raises(DataflowError, match="real_time"):
        topic(f).write.kafka("b:9092", "out", delivery="at_least_once", real_time="1 second")
    with pytest.raises(DataflowError, match="deadletters"):
        topic(f).write.kafka("b:9092", "out", dead_letters="bad")
    fast(topic(f))
    (sink,) = f.build().sinks
    assert isinstance(sink, RealTimeKafkaSink) and sink.dead_letters == "out.dead-letters"


def test_options_are_those_of_the_java_client() -> None:
    f = hw.flow("f", locations=["L1"])
    fast(topic(f), linger_ms=1)
    (sink,) = f.build().sinks
    check_options(sink)
    f = hw.flow("f", locations=["L1"])
    fast(topic(f), acks="0")
    (sink,) = f.build().sinks
    with pytest.raises(DataflowError, match="acks"):
        check_options(sink)


def test_slots_of_other_queries_count() -> None:
    f = hw.flow("f", locations=["L1"])
    fast(topic(f))
    (sink,) = f.build().sinks
    assert isinstance(sink, RealTimeKafkaSink)
    check_slots(sink, needed=4, taken=2, slots=8, cores=2)
    with pytest.raises(DeploymentError, match=r"local\[8\]"):
        check_slots(sink, needed=4, taken=2, slots=7, cores=2)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[0]", "yarn", "spark://h:7077", "local[2,4]"])
def test_a_master_that_is_not_local_is_no_setting(master: str) -> None:
    with pytest.raises(ContinuumError, match="task slots"):
        SparkSettings.of_options("", [f"spark.master={master}"])
    SparkSettings.of_options("", ["spark.master=local[12]"])


def test_the_latency_is_that_of_the_slowest_input() -> None:
    observed = {"lag a L1": [[[2, 5], 7]], "lag b L1": [[[1, 9], 3]], "lag c L1": [[None, 0]], "rows a": [[4]]}
    found = latency_of(observed, 5.0)
    assert found is not None and (found.p50, found.p95, found.rows, found.over_s) == (0.002, 0.009, 10, 5.0)
    assert latency_of({"lag a L1": [[None, 0]]}, 5.0) is None
