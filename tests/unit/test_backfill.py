"""Backfill: what history may be, where both are cut, and how event time is planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.idleness import IdleInputs, InputSeen, lift_of
from headwater.channels.base import END
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, HeadwaterError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Watermark, Where
from headwater.dataflow.stream import Stream
from headwater.plan.build import build, unit_per_operator
from headwater.plan.spec import spec_of
from headwater.query.counting import Counting, Tally, WatermarkInput
from headwater.query.ingest import has_nothing_new

SCHEMA = "id bigint, ts timestamp, v double"
CONTINUUM = Continuum.from_text(
    "name: p\nlayers: [edge, cloud]\nzones:\n  C: {layer: cloud}\n  E: {layer: edge, parent: C, locations: [L1]}\n"
)


def begin() -> tuple[DataflowBuilder, Stream, Stream]:
    builder = hw.flow("f", locations=["L1"])
    live = builder.read.kafka("b:9092", "t", SCHEMA).with_watermark("ts", "90 seconds")
    return builder, live, builder.read.parquet("/history", SCHEMA)


def old_topic(builder: DataflowBuilder, **options: Any) -> Stream:
    return builder.read.kafka("b:9092", "t", SCHEMA, **options)


def marks(flow: Dataflow) -> dict[str, Watermark]:
    return {o.inputs[0]: o for o in flow.operators if isinstance(o, Watermark)}


def test_history_has_the_event_time_of_the_live_stream() -> None:
    builder, live, history = begin()
    both = live.backfill(history.where("id > 0").select("v", "ts", "id"), until="2026-01-31T13:00:00+01:00")
    assert both.columns == live.columns and both.shape.event_time == live.shape.event_time
    both.write.memory("out")
    flow = builder.build()
    assert Dataflow.from_json(flow.to_json()) == flow
    found = marks(flow)
    assert (found["files"].history, found["files"].delay) == ("unordered", "90 seconds")
    plain = next(o for o in found.values() if o.history is None)
    assert "history" not in plain.config(), "stored keys have no history"
    conditions = [o.condition for o in flow.operators if isinstance(o, Where)]
    bound = "timestamp'2026-01-31T12:00:00Z'"
    assert any(f"ts < {bound} OR ts IS NULL" in c.replace("`", "") for c in conditions)
    assert any(f"ts >= {bound} OR ts IS NULL" in c.replace("`", "") for c in conditions)


def test_history_in_order_passes_time_while_it_is_read() -> None:
    builder, live, history = begin()
    live.backfill(history, disorder="1 hour").write.memory("out")
    mark = marks(builder.build())["files"]
    assert (mark.history, mark.delay) == ("ordered", "1 hour")
    with pytest.raises(DataflowError, match="at most 300 days out of order"):
        live.backfill(history, disorder="301 days")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda f, live, old: f.read.json("/d", SCHEMA).backfill(old), "the live stream has no event time"),
        (lambda f, live, old: live.backfill(old.with_watermark("ts", "1 s")), "history has an event time already"),
        (lambda f, live, old: live.backfill(old, until="yesterday"), "until='yesterday' is no timestamp"),
        (lambda f, live, old: live.backfill(old.with_columns(ts="ts + INTERVAL 1 HOUR")), "is computed or copied by"),
        (lambda f, live, old: live.backfill(old.union(old)), "its end is seen at a source only"),
        (lambda f, live, old: live.backfill(f.read.mqtt("b:1883", "t", SCHEMA)), "of which no end can be seen"),
        (lambda f, live, old: live.backfill(f.read.sensors(rows=5)), "of which no end can be seen"),
        (lambda f, live, old: live.backfill(old_topic(f)), "the topic 't', which has no end while others write to it"),
        (lambda f, live, old: live.backfill(old.select("id", "ts")), "v"),
    ],
)  # fmt: skip
def test_what_is_no_history_is_refused(make: Callable[[Any, Any, Any], Any], what: str) -> None:
    with pytest.raises(DataflowError) as caught:
        make(*begin())
    assert what in str(caught.value) and caught.value.hint


def test_history_may_be_an_earlier_range_of_the_topic() -> None:
    builder, live, _ = begin()
    live.backfill(old_topic(builder, ending={0: 7}).where("id > 0")).write.memory("out")
    flow = builder.build()
    assert Dataflow.from_json(flow.to_json()) == flow
    assert [o.history for o in flow.operators if isinstance(o, Watermark)] == [None, "unordered"]


def test_history_that_is_used_elsewhere_too_is_refused() -> None:
    builder, live, history = begin()
    chosen = history.where("id > 0")
    live.backfill(chosen).write.memory("out")
    chosen.write.memory("other")
    with pytest.raises(HeadwaterError, match="for it alone"):
        builder.build()


def test_a_unit_with_history_passes_on_its_event_time_not_its_newest_row() -> None:
    builder, live, history = begin()
    both = live.backfill(history).to_layer("cloud").group_by(hw.window("ts", "1 hour")).agg(n="count(*)")
    both.write.memory("out")
    flow = builder.build()
    plan = build(flow, CONTINUUM, unit_per_operator(flow, CONTINUUM))
    direct = {u.operators: spec_of(plan, u.id).direct_time for u in plan.units}
    assert direct[("files", marks(flow)["files"].id)] is False
    assert any(direct.values()), "a live source is as before"


def offsets(checkpoint: Path, *batches: dict[str, str]) -> None:
    (checkpoint / "offsets").mkdir(parents=True)
    for number, found in enumerate(batches):
        lines = ["v2", "{}", *(f"{name}:{offset}" for name, offset in found.items())]
        (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def test_a_source_has_ended_when_a_later_batch_finds_nothing_new(tmp_path: Path) -> None:
    one, two, three = '{"logOffset":0}', '{"logOffset":1}', '{"logOffset":2}'
    offsets(
        tmp_path,
        {"s_L1": one, "s_L1__1": one, "s_L10": one},
        {"s_L1": one, "s_L1__1": two, "s_L10": one},
        {"s_L1": one, "s_L1__1": two, "s_L10": three},
    )
    assert not has_nothing_new(tmp_path, 0, "s_L1"), "there is no batch before"
    assert not has_nothing_new(tmp_path, 1, "s_L1"), "its second read has gone on"
    assert has_nothing_new(tmp_path, 2, "s_L1") and not has_nothing_new(tmp_path, 2, "s_L10")
    assert not has_nothing_new(tmp_path, 3, "s_L1"), "there is no such batch"


def test_history_that_has_ended_is_nothing_to_wait_for() -> None:
    live = InputSeen(name="a", location="A", time=5, quiet=70, idle_after=60)
    history = InputSeen(name="h", location="H", time=None, quiet=900, idle_after=None)
    assert lift_of([live, history]) is None, "history that is read holds back all"
    assert lift_of([live, InputSeen(name="h", location="H", time=END, quiet=900, idle_after=None)]) == 5
    inputs = [WatermarkInput("h", "H", (0,), 5.0, None, "s_h")]

    class Query:
        tally = Tally(Counting(inputs=inputs))

    query: Any = Query()
    query.tally.times["h"] = 7
    (reading,) = IdleInputs().of_reads(query, 1.0, ())
    (ended,) = IdleInputs().of_reads(query, 1.0, {"h"})
    assert (reading.time, ended.time) == (None, END)
