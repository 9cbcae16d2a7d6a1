"""The predicted cost or saving of other cuts, from measurements."""

from __future__ import annotations

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.metrics import ChannelProgress, Progress, UnitProgress
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.cutcost import cut_cost
from headwater.plan.model import DeploymentPlan

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 1}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1}}}
""")


def planned(first_in_cloud: str, *, more: bool = False) -> DeploymentPlan:
    builder = hw.flow("f", locations=["L1"])
    read = builder.read.json("/in", "id bigint, ts timestamp, v double").named("read")
    some = read.with_watermark("ts", "1 second").where("v > 0").named("some")
    some = some.where("v > 1").named("more") if more else some
    counted = some.group_by(hw.window("ts", "1 minute")).agg(n="count(*)").named("counted")
    counted.write.memory("out")
    if more:
        some.where("v > 9").named("high").to_layer("cloud").write.memory("list")
    flow = builder.build()
    above = [o for o in flow.order[flow.order.index(first_in_cloud) :] if o != "high"]
    layers = {**marked_layers(flow, CONTINUUM), **dict.fromkeys(above, "cloud")}
    return build(flow, CONTINUUM, in_layers(flow, CONTINUUM, layers))


def seen(plan: DeploymentPlan, rows: int = 1000, bytes_: int = 20_000) -> Progress:
    """Return progress in which each channel is written at 2 kB/s, and each unit reads 90 rows/s."""
    channels = [ChannelProgress(channel=c.id, rows=rows, bytes=bytes_, bytes_per_s=2000.0) for c in plan.channels]
    units = [UnitProgress(unit=u.id, zone=u.zone, layer=u.layer, status="running", rows_per_s=90.0) for u in plan.units]
    return Progress(seconds=1.0, channels=tuple(channels), units=tuple(units))


def test_a_channel_that_goes_saves_what_went_through_it() -> None:
    apart, fused = planned("counted"), planned("out")
    words = cut_cost(apart, fused, seen(apart)).words()
    assert words[0] == "saves the channel some@E1 -> C1: 100 rows/s, 2kB/s, over E1-C1"


def test_a_channel_that_comes_costs_at_most_what_is_read() -> None:
    fused, apart = planned("out"), planned("counted")
    cost = cut_cost(fused, apart, seen(fused))
    assert [(f.channel, f.rows_per_s, f.at_most) for f in cost.added] == [("some@E1 -> C1", 90.0, True)]
    assert cost.queries == (2, 2)


def test_a_channel_of_an_operator_that_is_new_costs_at_most_what_is_read() -> None:
    fused, apart = planned("out"), planned("counted", more=True)
    words = cut_cost(fused, apart, seen(fused)).words()
    assert "costs a channel more@E1 -> C1: at most 90 rows/s, over E1-C1" in words


def test_what_nobody_measured_is_not_said() -> None:
    apart, fused = planned("counted"), planned("out")
    assert "not measured yet" in cut_cost(apart, fused, Progress(seconds=1.0)).words()[0]
    assert "not measured yet" in cut_cost(fused, apart, Progress(seconds=1.0)).words()[1]


def test_rows_behind_an_aggregate_are_not_foretold() -> None:
    together, apart = planned("some"), planned("out")
    (added,) = cut_cost(together, apart, seen(together)).added
    assert added.rows_per_s is None


def test_the_same_cuts_cost_nothing() -> None:
    assert cut_cost(planned("out"), planned("out"), Progress(seconds=1.0)).words() == []


def test_a_channel_of_a_new_operator_costs_at_most_what_is_read() -> None:
    before, after = planned("counted"), planned("counted", more=True)
    added = {f.channel: f.rows_per_s for f in cut_cost(before, after, seen(before)).added}
    assert added["high@E1 -> C1"] == 90.0
