"""Plans of streams that go down the tree of zones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, ErrorList, PlacementError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.build import annotated, build, in_layers, marked_layers
from headwater.plan.content import holds_back
from headwater.plan.diff import diff
from headwater.plan.document import from_document, to_document
from headwater.plan.edit import Move, edited
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.plan.spread import spread_column
from tests.deployments.downward import DOWNWARD
from tests.deployments.flows import CONTINUUM, LOCATIONS

TREE = Continuum.from_text(CONTINUUM)
SCHEMA = "id bigint, ts timestamp, k string, v double"
LAYERS = ("edge", "site", "cloud")


def begin() -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("f", locations=LOCATIONS)
    return builder, builder.read.json("/d/{location}", SCHEMA, location_as="location").named("read")


def planned(name: str) -> DeploymentPlan:
    return build(DOWNWARD[name]("/d/{location}").build(), TREE)


def reasons(flow: Dataflow) -> list[str]:
    with pytest.raises(ErrorList) as caught:
        build(flow, TREE)
    assert all(isinstance(e, PlacementError) and e.hint and e.where for e in caught.value.errors)
    return [str(e) for e in caught.value.errors]


# ---------------------------------------------------------------- ways


def test_copies_go_to_the_zone_of_each_location_over_all_links_between() -> None:
    plan = planned("limits")
    (means,) = [c for c in plan.channels if c.operator == "means"]
    ways = {reader: links for reader, links in means.routes.items() if links}
    assert ways == {
        "alarms@E1": ("E1-S1", "S1-C1"),
        "alarms@E2": ("E2-S1", "S1-C1"),
        "alarms@E4": ("E4-S2", "S2-C1"),
    }
    assert means.located == {}, "each location takes all of them"
    assert [plan.unit(u).locations for u in ways] == [("L1",), ("L2",), ("L4",)]


def test_a_located_stream_is_divided_by_its_readers() -> None:
    plan = planned("back")
    (busy,) = [c for c in plan.channels if c.operator == "busy"]
    below = {u for u, links in busy.routes.items() if links}
    assert below == {"doubled@E1", "doubled@E2", "doubled@E4"}
    assert busy.located == dict.fromkeys(below, "location")
    assert spec_of(plan, "doubled@E1").located == {"busy": "location"}
    assert from_document(to_document(plan)) == plan


def test_the_document_of_other_plans_is_as_before() -> None:
    builder, read = begin()
    read.to_layer("cloud").write.memory("out")
    plan = build(builder.build(), TREE)
    assert all("located" not in channel for channel in to_document(plan)["channels"])


def test_a_unit_restarts_where_its_locations_change() -> None:
    before = planned("commands")
    at = before.unit("here@E1")
    flow = DOWNWARD["commands"]("/d/{location}").build()
    more = Continuum.from_text(CONTINUUM.replace("locations: [L1]", "locations: [L1, L9]"))
    changed = build(Dataflow(flow.name, flow.operators, locations=(*flow.locations, "L9")), more)
    assert changed.unit(at.id).locations == ("L1", "L9")
    assert spec_of(changed, at.id).content != spec_of(before, at.id).content


def test_joins_hold_rows_back_by_their_bounds() -> None:
    plan = planned("pairs")
    (unit,) = {u.operators: u for u in plan.units if "paired" in u.operators}.values()
    flow = plan.dataflow
    assert holds_back(flow, unit, "paired") == 2.0
    assert holds_back(flow, replace(unit, operators=(*unit.operators, "aggregate")), "aggregate") == 2.0
    assert holds_back(flow, unit, "even") == 0.0


@pytest.mark.parametrize("timed", [False, True])
def test_rows_meet_in_the_layer_that_was_marked_before(timed: bool) -> None:
    builder, read = begin()
    cloud = read.to_layer("cloud")
    cloud = cloud.with_watermark("ts", "1 second") if timed else cloud
    cloud.to_layer("edge", by="k").named("sent").write.memory("out")
    plan = build(builder.build(), TREE)
    (parent,) = plan.dataflow["sent"].inputs
    assert plan.layers[parent] == "cloud"


# ---------------------------------------------------------------- refused


def test_rows_that_do_not_name_their_location_cannot_go_down() -> None:
    builder, read = begin()
    read.to_layer("cloud").select("k", "v").to_layer("edge").where("v > 1").named("low").write.memory("out")
    (reason, *_) = reasons(builder.build())
    assert (
        "runs in layer edge, below its input 'select' in layer cloud, whose rows do not name their location" in reason
    )
    assert "to_layer('edge', location_as='site')" in reason


def test_rows_of_several_zones_cannot_be_given_to_locations() -> None:
    builder, read = begin()
    read.with_columns(to="upper(k)").named("addressed").to_layer("site", by="to").named("sent").write.memory("out")
    (reason, *_) = reasons(builder.build())
    assert "gives rows to locations, but its input 'addressed' runs in 3 zones: E1, E2, E4" in reason


@pytest.mark.parametrize(
    ("settings_", "what"),
    [
        ({"by": "nothing"}, "nothing"),
        ({"by": "v"}, "by='v' is double: it must hold the names of locations"),
        ({"location_as": "k"}, "location_as='k' names an existing column"),
        ({"by": "k", "location_as": "x"}, "to_layer takes either by or location_as"),
    ],
)
def test_wrong_columns_are_refused_at_their_line(settings_: dict[str, Any], what: str) -> None:
    _, read = begin()
    with pytest.raises(DataflowError, match=re.escape(what)):
        read.to_layer("edge", **settings_)


def test_a_key_of_the_input_does_not_become_the_location_s() -> None:
    builder, read = begin()
    sent = read.to_layer("cloud").to_layer("edge", location_as="site").named("sent")
    sent.with_watermark("ts", "1 s").group_by(hw.window("ts", "1 minute"), "site").agg(n="count(*)").write.memory("out")
    flow = builder.build()
    assert spread_column(flow, ("sent", "watermark", "aggregate")) is None


# ---------------------------------------------------------------- edits and strategies


def test_a_move_stops_at_a_way_down() -> None:
    plan = planned("limits")
    moved = build(plan.dataflow, TREE, edited(plan, Move(operator="alarms", to="site")))
    assert moved.layers["alarms"] == "site"
    assert moved.layers["to_locations"] == "edge", "its copies still go to the edge, and up again"
    assert moved.layers["means"] == "cloud"
    up = build(plan.dataflow, TREE, edited(plan, Move(operator="select-3", to="site")))
    assert up.layers["union"] == "site"
    assert {u.action for u in diff(plan, plan).units} == {"unchanged"}


@pytest.mark.parametrize(
    "strategy", ["aels", "aels_rp", "aels_rp_la", "local_search", "optimal", "atsoo_h", "tsoo_exact"]
)
@pytest.mark.parametrize("name", list(DOWNWARD))
def test_strategies_place_the_rest(name: str, strategy: str, tmp_path: Any) -> None:
    flow = DOWNWARD[name]("/d/{location}").build()
    request = PlanRequest(dataflow=flow, continuum=TREE, strategy=strategy)
    plan = Client(str(tmp_path / "store.db")).propose(request).plan
    behind = {c.id: plan.layers[c.id] for c in flow.operators for i in c.inputs if _falls(flow, i, c.id)}
    assert behind, "nothing goes down"
    assert set(behind.values()) == {"edge"}


def _falls(flow: Dataflow, upper: str, lower: str) -> bool:
    layers = marked_layers(flow, TREE)
    return LAYERS.index(layers[lower]) < LAYERS.index(layers[upper])


# ---------------------------------------------------------------- any layers


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_layers_give_a_plan_without_a_circle(data: st.DataObject) -> None:
    check_layers(data)


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_many_layers_give_plans_without_a_circle(data: st.DataObject) -> None:
    check_layers(data)


def check_layers(data: st.DataObject) -> None:
    """Plan a dataflow in drawn layers with drawn cuts; check the routes of its channels."""
    name = data.draw(st.sampled_from(sorted(DOWNWARD)))
    flow = DOWNWARD[name]("/d/{location}").build()
    layers = {o: "edge" if not flow[o].inputs else data.draw(st.sampled_from(LAYERS), label=o) for o in flow.order}
    edges = sorted((p, c) for c in flow.order for p in flow[c].inputs)
    cuts = frozenset(data.draw(st.lists(st.sampled_from(edges), max_size=3), label="cuts"))
    try:
        plan = build(flow, TREE, in_layers(flow, TREE, layers, cuts=cuts))
    except ErrorList as error:
        assert all(e.hint for e in error.errors)
        return
    graph: nx.DiGraph[str] = nx.DiGraph([(c.producer, reader) for c in plan.channels for reader in c.routes])
    assert nx.is_directed_acyclic_graph(graph)
    positions = {u.id: n for n, u in enumerate(plan.units)}
    assert all(positions[a] < positions[b] for a, b in graph.edges)
    assert all(plan.heights[a] <= plan.heights[b] for a, b in graph.edges)
    for channel in plan.channels:
        producer = plan.unit(channel.producer)
        for reader in channel.routes:
            missing = set(producer.locations) - set(plan.unit(reader).locations)
            whole = all(
                flow[c].kind == "to_locations"
                for c in flow.consumers[channel.operator]
                if c in plan.unit(reader).operators
            )
            assert (reader in channel.located) == (bool(missing) and not whole)
    assert from_document(to_document(plan)) == plan


def test_units_do_not_wait_for_each_other() -> None:
    """The edge reads the cloud's sums beside its own rows, and the cloud reads the edge's rows beside its sums."""
    builder, read = begin()
    timed = read.with_watermark("ts", "1 second").named("timed")
    counted = (
        timed.to_layer("cloud").group_by(hw.window("ts", "1 minute"), "location").agg(n="count(*)").named("counted")
    )
    back = counted.to_layer("edge").select("location", "window_time(window) AS ts", "n").named("back")
    own = timed.select("location", "ts", "CAST(1 AS bigint) AS n").named("own")
    again = own.union(back).named("again")
    again.to_layer("cloud").union(counted.select("location", "window_time(window) AS ts", "n")).write.memory("out")
    plan = build(builder.build(), TREE)
    assert all(not ({"counted", "out"} <= set(unit.operators)) for unit in plan.units)
    graph: nx.DiGraph[str] = nx.DiGraph([(c.producer, reader) for c in plan.channels for reader in c.routes])
    assert nx.is_directed_acyclic_graph(graph)
    assert annotated(plan.dataflow, TREE) == plan.deployment
