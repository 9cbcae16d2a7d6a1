"""Operators moved, units fused and split by name: the resulting deployment, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import PlacementError
from headwater.plan import edit
from headwater.plan.build import annotated, build
from headwater.plan.diff import diff
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.pieces import why_apart

CONTINUUM = Continuum.from_text("""
name: line
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
""")


def plan() -> DeploymentPlan:
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/d/{location}", "id bigint, ts timestamp, v double").named("read")
    low = read.with_watermark("ts", "1 second").where("v > 0").named("low").to_layer("site")
    once = low.drop_duplicates("id").named("once")
    windows = once.group_by(hw.window("ts", "1 minute")).agg(n="count(*)").named("windows")
    windows.to_layer("cloud").select("n").named("top").write.memory("out")
    flow = builder.build()
    return build(flow, CONTINUUM, annotated(flow, CONTINUUM))


def built(old: DeploymentPlan, deployment: object) -> list[tuple[str, tuple[str, ...]]]:
    return [(u.id, u.operators) for u in build(old.dataflow, CONTINUUM, deployment).units]  # type: ignore[arg-type]


def test_up_goes_all_that_comes_after() -> None:
    assert built(plan(), edit.move(plan(), "once", "cloud")) == [
        ("low@E1", ("read", "watermark", "low")),
        ("out@C1", ("once", "windows", "top", "out")),
    ]


def test_down_goes_all_that_comes_before() -> None:
    assert built(plan(), edit.move(plan(), "windows", "edge")) == [
        ("windows@E1", ("read", "watermark", "low", "once", "windows")),
        ("out@C1", ("top", "out")),
    ]


def test_no_source_is_taken_along() -> None:
    lifted = build(plan().dataflow, CONTINUUM, edit.move(plan(), "read", "site"))
    assert [u.id for u in lifted.units] == ["windows@S1", "out@C1"]
    with pytest.raises(PlacementError, match="'read' is read in layer site"):
        edit.move(lifted, "low", "edge")


def test_units_are_named_by_their_operators() -> None:
    assert edit.split(plan(), "once", "once") == edit.split(plan(), "windows@S1", "once")
    split = build(plan().dataflow, CONTINUUM, edit.split(plan(), "once", "once"))
    assert edit.fuse(split, "watermark", "once", layer="edge") == edit.fuse(split, "low", "once", layer="edge")
    assert edit.fuse(plan(), "once", "top", layer="cloud") == edit.fuse(plan(), "windows", "out", layer="cloud")


def test_a_unit_is_moved_without_its_sources() -> None:
    assert built(plan(), edit.move(plan(), "windows@S1", "cloud")) == built(plan(), edit.move(plan(), "once", "cloud"))
    assert built(plan(), edit.move(plan(), "low@E1", "site")) == [
        ("read@E1", ("read",)),
        ("windows@S1", ("watermark", "low", "once", "windows")),
        ("out@C1", ("top", "out")),
    ]


def test_a_unit_of_one_zone_is_moved_for_its_locations() -> None:
    two = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
  E2: {layer: edge, parent: C1, locations: [L2]}
""")
    builder = hw.flow("f", locations=["L1", "L2"])
    read = builder.read.json("/d/{location}", "id bigint, v double").named("read")
    read.where("v > 0").named("low").to_layer("cloud").write.memory("out")
    flow = builder.build()
    old = build(flow, two, annotated(flow, two))
    one = build(flow, two, edit.move(old, "low@E2", "cloud"))
    assert {(u.id, u.operators) for u in one.units} >= {("low@E1", ("read", "low")), ("read@E2", ("read",))}


def test_a_unit_is_not_named_after_a_select_without_name() -> None:
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/d/{location}", "id bigint, v double").where("v > 0")
    ratio = read.select("id", "v / 2 AS half").select("*", "half + 1 AS more")
    ratio.to_layer("site").select("id").select("id AS name").named("names").to_layer("cloud").write.memory("out")
    flow = builder.build()
    units = build(flow, CONTINUUM, annotated(flow, CONTINUUM)).units
    assert [u.id for u in units] == ["where@E1", "names@S1", "out@C1"]


def test_split_and_fused_again() -> None:
    two = edit.split(plan(), "windows@S1", "once")
    split = build(plan().dataflow, CONTINUUM, two)
    assert [u.id for u in split.units] == ["low@E1", "once@S1", "windows@S1", "out@C1"]
    assert edit.fuse(split, "once", "windows") == plan().deployment
    assert diff(plan(), split).transfers and diff(split, plan()).transfers


def test_a_watermark_stays_with_its_input() -> None:
    with pytest.raises(PlacementError, match="split after 'watermark'"):
        edit.split(plan(), "low@E1", "read")
    assert edit.split(plan(), "low@E1", "watermark").cuts


def whole(*, more: bool = False) -> DeploymentPlan:
    """Plan one unit with three stateful operators, and optionally another operator before the last of them."""
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/d/{location}", "id bigint, ts timestamp, v double").named("read")
    low = read.with_watermark("ts", "1 second").where("v > 0").named("low")
    once = low.drop_duplicates("id").named("once")
    if more:
        once = once.where("v < 9").named("more")
    rising = once.filter_acc(lambda a, row: row["v"], lambda a, row: True, keys=["id"], order_by=["ts"])
    windows = rising.named("rising").group_by(hw.window("ts", "1 minute")).agg(n="count(*)").named("windows")
    windows.write.memory("out")
    flow = builder.build()
    return build(flow, CONTINUUM, annotated(flow, CONTINUUM))


@pytest.mark.parametrize(
    ("last", "prompt"),
    [("once", True), ("rising", False), ("more", False)],  # nothing is known about the new operator
)
def test_what_was_held_back_may_come_over_a_new_channel(last: str, prompt: bool) -> None:
    """Deduplication emits rows at once; a fold in event-time order holds them back."""
    wanted = whole(more=last == "more")
    cut = diff(whole(), build(wanted.dataflow, CONTINUUM, edit.split(wanted, "out", last)))
    (upper,) = [c for c in cut.transfers if c.unit == "out@E1"]
    assert [(r.operator, r.source_units, r.prompt) for r in upper.readings] == [(last, (), prompt)]


def test_a_channel_that_comes_again_is_another_one() -> None:
    split = build(plan().dataflow, CONTINUUM, edit.split(plan(), "windows@S1", "once"))
    first = diff(plan(), split, generation=3).wanted
    (ended,) = {c.id for c in first.channels} - {c.id for c in plan().channels}
    fused = diff(first, plan(), generation=5)
    assert {c.channel for c in fused.channels if c.action == "ends"} == {ended}
    again = diff(fused.wanted, split, generation=7)
    assert ended not in {c.id for c in again.wanted.channels}
    assert from_document(to_document(again.wanted)).channels == again.wanted.channels
    assert {c.channel for c in again.channels if c.action == "continues"} == {c.id for c in plan().channels}


def test_units_of_two_layers_are_fused_where_one_says() -> None:
    with pytest.raises(PlacementError, match="low is in layer edge") as caught:
        edit.fuse(plan(), "low", "windows@S1")
    assert "--to edge or --to site" in str(caught.value)
    assert built(plan(), edit.fuse(plan(), "low", "windows", layer="edge"))[0] == (
        "windows@E1", ("read", "watermark", "low", "once", "windows"),
    )  # fmt: skip
    assert built(plan(), edit.fuse(plan(), "windows", "out", layer="cloud"))[1] == (
        "out@C1", ("once", "windows", "top", "out"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda p: edit.move(p, "onse", "edge"), "did you mean 'once'"),
        (lambda p: edit.move(p, "once", "egde"), "did you mean 'edge'"),
        (lambda p: edit.split(p, "windows@S2", "once"), "no unit or operator is called 'windows@S2'"),
        (lambda p: edit.split(p, "windows", "windows"), "nothing after it to cut off"),
        (lambda p: edit.split(p, "windows", "low"), "no operator of the unit is called 'low'"),
        (lambda p: edit.fuse(p, "low", "out"), "low and out are not neighbours"),
    ],
)
def test_what_is_no_edit(wrong: object, text: str) -> None:
    with pytest.raises(PlacementError) as caught:
        wrong(plan())  # type: ignore[operator]
    assert text in str(caught.value)


HOSTS = Continuum.from_text("""
name: hosts
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {gpu: {gpu: true}, plain: {gpu: false}}}
  E1: {layer: edge, parent: C1, locations: [L1]}
""")


def shaped(continuum: Continuum, shape: Callable[[hw.Stream], None]) -> DeploymentPlan:
    """Plan a dataflow whose stream 'rows' continues in the cloud."""
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.json("/d/{location}", "id bigint, ts timestamp, v double").with_watermark("ts", "1 second")
    shape(rows.named("rows").to_layer("cloud"))
    flow = builder.build()
    return build(flow, continuum, annotated(flow, continuum))


def fused(found: DeploymentPlan, first: str, second: str) -> DeploymentPlan:
    """Fuse the units of two operators."""
    unit = {id_: u.id for u in found.units for id_ in u.operators}
    return build(found.dataflow, found.continuum, edit.fuse(found, unit[first], unit[second]))


def cannot_be_one(found: DeploymentPlan, first: str = "first", second: str = "second") -> str:
    with pytest.raises(PlacementError, match="cannot be one query") as caught:
        fused(found, first, second)
    return str(caught.value)


def test_no_common_host_is_named() -> None:
    def shape(rows: hw.Stream) -> None:
        first = rows.where("v > -1").named("first")
        first.require("gpu = true").where("v > 0").named("second").write.memory("high")
        first.require("gpu = false").where("v > 1").named("third").write.memory("low")

    said = cannot_be_one(shaped(HOSTS, shape))
    assert "'second' runs on gpu, 'third' on plain: no host is common" in said


def test_an_output_that_no_pass_serves_is_named() -> None:
    def shape(rows: hw.Stream) -> None:
        first = rows.where("v > 0").named("first")
        first.write.memory("all")
        first.group_by(hw.window("ts", "1 minute")).agg(n="count(*)").named("second").write.memory("counts")

    said = cannot_be_one(shaped(CONTINUUM, shape))
    assert said.startswith("operator 'second' (aggregate)")
    assert "cannot serve the outputs 'all', 'counts': 'second' (aggregate) is before some of them only" in said


def test_a_sink_with_a_query_of_its_own_is_named() -> None:
    def shape(rows: hw.Stream) -> None:
        first = rows.where("v > 0").named("first")
        first.write.memory("all")
        first.write.jdbc("jdbc:postgresql://h/d", "t").named("second")

    said = cannot_be_one(shaped(CONTINUUM, shape))
    assert "Spark writes 'second' itself, in a query without other outputs" in said


def test_a_way_around_through_a_channel_is_named() -> None:
    def shape(rows: hw.Stream) -> None:
        first = rows.where("v > 0").named("first")
        around = first.group_by(hw.window("ts", "1 minute"), "id").agg(v="max(v)").named("around")
        around = around.select("id", "window_time(window) AS at", "v AS most")
        first.join(around, on="id", within="1 minute").named("second").write.memory("out")

    flow = shaped(CONTINUUM, shape).dataflow
    cuts = {("first", "around")}
    reason = why_apart(flow, ("first", "second"), cuts, lambda id_: (), operators=flow.order)
    assert reason == "another way from 'first' to 'second' leads through a channel"
