"""Operators in another layer for some locations: plans, refusals, edits and changes."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList, HeadwaterError, PlacementError
from headwater.core.jsonform import dump
from headwater.dataflow.graph import Dataflow
from headwater.plan import edit
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.deployment import Edge
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.document import from_document, plan_id, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.outline import outline
from headwater.plan.state import kept_state
from headwater.plan.steps import Drain, Stop, unit_statuses_of
from headwater.plan.transfer import StateTransfer
from headwater.render.deployment import plan_view
from headwater.testing.nodes import SimulatedNodes
from tests.deployments.flows import CONTINUUM as THREE
from tests.unit.changes import carry_out, steps_of
from tests.unit.test_plan import dataflows

CONTINUUM = Continuum.from_text("""
name: tree
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E3: {layer: edge, parent: S2, locations: [L3]}
""")
SCHEMA = "id bigint, ts timestamp, k string, v double"
WHERE = tuple[str, str, tuple[str, ...]]


def line(*locations: str, keys: tuple[str, ...] = ("location", "k"), tap: bool = False) -> Dataflow:
    """Build a filter, a fold in event-time order, windows and a list; ``tap``: the filter's output is also written."""
    builder = hw.flow("f", locations=locations or ("L1", "L2", "L3"))
    read = builder.read.json("/d/{location}", SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "5 seconds").where("v > 0").named("clean")
    if tap:
        clean.to_layer("cloud").write.memory("tap")
    fold = clean.filter_acc(lambda a, row: row["v"], lambda a, row: True, keys=keys, order_by=["ts", "id"])
    windows = fold.named("fold").group_by(hw.window("ts", "1 minute"), *keys).agg(n="count(*)")
    windows.named("count").to_layer("cloud").select("n").named("list").write.memory("out")
    return builder.build()


def deployed(
    flow: Dataflow, at: dict[str, dict[str, str]], *cuts: Edge, layers: dict[str, str] | None = None
) -> DeploymentPlan:
    usual = {**marked_layers(flow, CONTINUUM), **(layers or {})}
    return build(flow, CONTINUUM, in_layers(flow, CONTINUUM, usual, cuts=frozenset(cuts), at=at))


def units(plan: DeploymentPlan) -> list[WHERE]:
    return [(u.id, "+".join(o for o in u.operators if o != "watermark"), u.locations) for u in plan.units]


def ways(plan: DeploymentPlan) -> set[tuple[str, str, str]]:
    return {(c.operator, c.producer, reader) for c in plan.channels for reader in c.consumers}


def up(*names: str, to: str = "cloud") -> dict[str, str]:
    return dict.fromkeys(names, to)


def reasons(flow: Dataflow, at: dict[str, dict[str, str]], **layers: str) -> str:
    with pytest.raises(ErrorList) as caught:
        deployed(flow, at, layers=layers)
    assert all(isinstance(e, PlacementError) and e.hint and e.where for e in caught.value.errors)
    return str(caught.value)


# ---------------------------------------------------------------- the value


def test_what_is_as_everywhere_is_left_out() -> None:
    one = deployed(line(), {"L2": {"count": "edge"}, "L1": {"count": "cloud", "fold": "edge"}})
    assert one.layers_at == {"L1": {"count": "cloud"}} and one == deployed(line(), {"L1": up("count")})
    assert one.layers == marked_layers(line(), CONTINUUM)
    assert [one.layer(*x) for x in (("count", "L1"), ("count", "L2"), ("fold", "L1"))] == [
        "cloud", "edge", "edge",
    ]  # fmt: skip
    assert deployed(line(), {"L1": {"fold": "edge"}}) == deployed(line(), {})


def test_what_most_locations_have_is_usual() -> None:
    most = deployed(line(), {"L1": up("count"), "L2": up("count")})
    assert most == deployed(line(), {"L3": {"count": "edge"}}, layers=up("count"))
    assert most.layers["count"] == "cloud" and most.layers_at == {"L3": {"count": "edge"}}


def test_a_plan_is_stored_with_its_layers_by_location() -> None:
    plan = deployed(line(), {"L2": up("fold", "count")})
    assert from_document(to_document(plan)) == plan
    assert dump(outline(plan))["at"] == {"L2": up("count", "fold")}
    usual = deployed(line(), {})
    assert outline(usual).at == {} and from_document(to_document(usual)).layers_at == {}
    assert plan_id(plan) != plan_id(usual)


# ---------------------------------------------------------------- units and channels


def test_zones_are_cut_in_different_places() -> None:
    plan = deployed(line(), {"L2": up("fold", "count")})
    assert units(plan) == [
        ("count@E1", "read+clean+fold+count", ("L1",)),
        ("count@E3", "read+clean+fold+count", ("L3",)),
        ("clean@E2", "read+clean", ("L2",)),
        ("count@C1", "fold+count", ("L2",)),
        ("out@C1", "list+out", ("L1", "L2", "L3")),
    ]
    assert ways(plan) == {
        ("clean", "clean@E2", "count@C1"),
        ("count", "count@C1", "out@C1"), ("count", "count@E1", "out@C1"), ("count", "count@E3", "out@C1"),
    }  # fmt: skip
    assert plan.inputs(plan.unit("out@C1"))[-1].links == ()
    assert "count@C1 on" in (text := shown(plan)) and "for L2" in text and "for L1" not in text


def shown(plan: DeploymentPlan) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(plan_view(plan))
    return captured.get()


def test_all_that_one_zone_has_for_the_same_locations_is_one_unit() -> None:
    both = deployed(line("L1", "L2"), dict.fromkeys(("L1", "L2"), up("fold", "count")))
    assert units(both)[-1] == ("out@C1", "fold+count+list+out", ("L1", "L2"))
    assert len(both.units) == 3


def test_three_layers_and_a_fork() -> None:
    at = {"L1": up("fold", to="site") | up("count"), "L3": up("fold", "count")}
    plan = deployed(line(tap=True), at)
    assert sorted(units(plan)) == [
        ("clean@E1", "read+clean", ("L1",)), ("clean@E2", "read+clean+fold", ("L2",)),
        ("clean@E3", "read+clean", ("L3",)),
        ("count@C1", "count", ("L1", "L3")), ("count@E2", "count", ("L2",)),
        ("fold@C1", "fold", ("L3",)), ("fold@S1", "fold", ("L1",)),
        ("out@C1", "list+out", ("L1", "L2", "L3")), ("tap@C1", "tap", ("L1", "L2", "L3")),
    ]  # fmt: skip
    assert {(o, p) for o, p, reader in ways(plan) if reader == "count@C1"} == {
        ("fold", "fold@S1"), ("fold", "fold@C1"),
    }  # fmt: skip
    assert {p for _, p, reader in ways(plan) if reader == "tap@C1"} == {"clean@E1", "clean@E2", "clean@E3"}
    assert {r for _, p, r in ways(plan) if p == "clean@E3"} == {"tap@C1", "fold@C1"}


def test_a_cut_holds_wherever_both_of_its_ends_are() -> None:
    plan = deployed(line(), {"L2": up("fold", "count")}, ("fold", "count"))
    assert [u for u, *_ in units(plan) if u.startswith("fold")] == ["fold@E1", "fold@E3", "fold@C1"]


# ---------------------------------------------------------------- refusals


def test_rows_that_came_together_are_not_parted() -> None:
    text = reasons(line(), {"L2": up("count")}, fold="site", count="site")
    assert "'count'" in text and "would run in S1 (L1) and C1 (L2)" in text
    assert "its input 'fold' has the rows of L1, L2 merged in zone S1" in text
    assert "put 'count' in one layer for L1, L2" in text


def test_data_goes_down_where_rows_name_their_location() -> None:
    plan = deployed(line(), {"L3": up("fold")})
    (fold,) = [c for c in plan.channels if c.operator == "fold" and c.zone == "C1"]
    ((reader, links),) = fold.routes.items()
    assert plan.unit(reader).locations == ("L3",) and links
    assert fold.located == {}, "the channel has no other rows"


def test_keys_have_to_tell_the_location_where_there_are_several_zones() -> None:
    everywhere = {"fold": "cloud", "count": "cloud"}
    deployed(line(keys=("k",)), {}, layers=everywhere)
    text = reasons(line(keys=("k",)), {"L2": up("fold", "count", to="edge")}, **everywhere)
    assert "runs in 2 zones (C1, E2)" in text and "(not cloud, edge)" in text


def test_one_input_is_read_in_one_zone() -> None:
    builder = hw.flow("f", locations=("L1", "L2"))
    builder.read.json("/d/all", SCHEMA).named("read").write.memory("out")
    text = reasons(builder.build(), {"L1": up("read", "out", to="site")}, read="cloud", out="cloud")
    assert "the same input would be read in 2 zones: S1, C1" in text


def test_what_is_not_there_has_no_layer() -> None:
    text = reasons(line(), {"L9": up("fold", "count"), "L1": {"fild": "cloud", "count": "clod"}})
    assert "unknown location L9" in text and "did you mean 'fold'?" in text and "did you mean 'cloud'?" in text


# ---------------------------------------------------------------- edits


def test_moved_for_one_location_and_back() -> None:
    plan = deployed(line(), {})
    moved = edit.move(plan, "fold", "cloud", location="L2")
    assert moved == deployed(line(), {"L2": up("fold", "count")}).deployment
    again = build(plan.dataflow, CONTINUUM, moved)
    back = edit.move(again, "count", "edge", location="L2")
    assert back == plan.deployment
    all_up = build(plan.dataflow, CONTINUUM, edit.move(again, "fold", "cloud"))
    assert all_up.layers_at == {} and all_up.layers == {**plan.layers, **up("fold", "count")}
    # Downwards for L2, upwards for the other locations.
    site = build(plan.dataflow, CONTINUUM, edit.move(again, "count", "site"))
    assert site.layers_at == {"L2": {"fold": "site"}} and site.layers["count"] == "site"
    assert site.layers["fold"] == "edge"


def test_moved_one_by_one_is_moved_everywhere() -> None:
    plan = deployed(line(), {})
    for location in ("L2", "L1", "L3"):
        plan = build(plan.dataflow, CONTINUUM, edit.move(plan, "fold", "cloud", location=location))
    assert plan.deployment == edit.move(deployed(line(), {}), "fold", "cloud")


def test_edits_that_do_not_say_what_is_meant() -> None:
    plan = deployed(line(), {"L2": up("fold", "count")})
    for wrong, text in [
        (lambda: edit.move(plan, "fold", "cloud", location="L7"), "no location is called 'L7'"),
        (lambda: edit.split(plan, "count", "fold"), "name one of count@E1, count@E3, count@C1"),
        (lambda: edit.fuse(plan, "count@C1", "out", layer="edge"), "headwater move fold --to LAYER"),
        (lambda: edit.fuse(plan, "count@C1", "out"), "runs in layer cloud for L2, "),
        (lambda: edit.fuse(plan, "clean@E2", "count@C1"), "choose the layer"),
    ]:
        with pytest.raises(PlacementError) as caught:
            wrong()
        assert text in str(caught.value)


def test_split_and_fused_with_layers_by_location() -> None:
    plan = deployed(line(), {"L2": up("fold", "count")})
    split = build(plan.dataflow, CONTINUUM, edit.split(plan, "count@C1", "fold"))
    assert ("fold@C1", "fold", ("L2",)) in units(split) and split.layers_at == plan.layers_at
    assert edit.fuse(split, "fold@C1", "count@C1") == plan.deployment


# ---------------------------------------------------------------- transfers of state


def actions(decided: PlanDiff) -> dict[str, str]:
    return {u.unit: f"{u.action} {u.state}" for u in decided.changed}


def transfers(decided: PlanDiff) -> dict[str, StateTransfer]:
    return {c.unit: c for c in decided.transfers}


def test_state_of_a_location_joins_that_of_another_and_leaves_it_again() -> None:
    flow = line("L1", "L2")
    apart, joined = (
        deployed(flow, {"L2": up("fold", "count")}),
        deployed(flow, {}, layers=up("fold", "count")),
    )
    there = diff(apart, joined)
    assert actions(there) == {
        "clean@E1": "start none", "out@C1": "replace transferred", "count@E1": "stop transferred",
        "count@C1": "stop transferred",
    }  # fmt: skip
    transfer = transfers(there)["out@C1"]
    assert {s.operator: [d.unit for d in s.source_units] for s in transfer.shares} == {
        "fold": ["count@E1", "count@C1"], "count": ["count@E1", "count@C1"],
    }  # fmt: skip
    assert all(s.by is None for s in transfer.shares)
    (reading,) = transfer.readings
    assert (reading.source_units, reading.joined, reading.prompt) == (("count@C1",), True, True)
    assert transfer.counted == ("count@E1", "count@C1")
    back = diff(there.wanted, apart)
    # Late rows have been counted once for both locations, and go on in one of the units.
    assert {unit: found.counted for unit, found in transfers(back).items() if found.counted} == {
        "count@E1": ("out@C1",)
    }
    for unit, location in (("count@E1", "L1"), ("count@C1", "L2")):
        shares = transfers(back)[unit].shares
        assert [(s.by, s.values) for s in shares] == [("location", (location,))] * 2
        assert {d.unit for s in shares for d in s.source_units} == {"out@C1"}
    assert "clean@E2" not in actions(back)


def test_a_unit_that_gets_a_location_more_is_replaced_with_its_state() -> None:
    flow = line()
    one, two = (deployed(flow, dict.fromkeys(at, up("fold", "count"))) for at in (("L2",), ("L1", "L2")))
    there = diff(one, two)
    assert actions(there) == {
        "clean@E1": "start none", "count@C1": "replace transferred", "out@C1": "update_inputs none",
        "count@E1": "stop transferred",
    }  # fmt: skip
    (change,) = [u for u in there.units if u.unit == "count@C1"]
    assert change.reason == "it takes over L1; it takes over the state of count@E1"
    shares = transfers(there)["count@C1"].shares
    assert [[d.unit for d in s.source_units] for s in shares] == [["count@E1", "count@C1"]] * 2
    # The event time of L2 at out@C1 does not hold for L1: the channel is a new one.
    assert {c.channel.split("-")[0] for c in there.channels if c.action == "begins"} == {"clean", "count"}
    assert there.wanted.unit("count@C1").tag != one.unit("count@C1").tag
    back = diff(there.wanted, one)
    assert actions(back) == {
        "count@E1": "start transferred", "count@C1": "replace transferred", "out@C1": "update_inputs none",
        "clean@E1": "stop none",
    }  # fmt: skip
    assert [(s.by, s.values) for s in transfers(back)["count@C1"].shares] == [("location", ("L2",))] * 2
    assert [c.channel for c in back.channels if c.action == "begins"] == [
        c.id for c in back.wanted.channels if c.producer == "count@E1"
    ]


def stateless(*, tap: bool = False) -> Dataflow:
    builder = hw.flow("f", locations=("L1", "L2", "L3"))
    read = builder.read.json("/d/{location}", SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "5 seconds").where("v > 0").named("clean")
    if tap:
        clean.to_layer("cloud").write.memory("tap")
    clean.with_columns(w="v + 1").named("more").to_layer("cloud").select("w").write.memory("out")
    return builder.build()


def test_without_state_event_time_comes_from_where_the_rows_were() -> None:
    one, two = (deployed(stateless(), dict.fromkeys(at, up("more"))) for at in (("L2",), ("L1", "L2")))
    there = diff(one, two)
    transfer = transfers(there)["more@C1"]
    assert transfer.source_units == ("more@E1", "more@C1")  # the first only for its event time
    assert [(r.source_units, r.joined, r.prompt) for r in transfer.readings] == [(("more@C1",), True, True)]
    assert actions(diff(there.wanted, one))["more@C1"] == "replace none"


def test_what_nobody_reads_on_is_read_out() -> None:
    """The filter of L1 stays for its tap; the unit that leaves the location first reads its remaining rows."""
    flow = stateless(tap=True)
    both, one = (deployed(flow, dict.fromkeys(at, up("more"))) for at in (("L1", "L2"), ("L2",)))
    steps = [f"{s.kind} {s.unit}" for s in steps_of(diff(both, one)) if isinstance(s, Drain | Stop)]
    assert steps == ["stop clean@E1", "drain more@C1", "stop more@C1"]


LAYERS = ("edge", "site", "cloud")


@st.composite
def histories(draw: st.DrawFn) -> list[DeploymentPlan]:
    """Draw plans of one dataflow, each an edit of the previous one, mostly for one location."""
    cuts = draw(st.sets(st.sampled_from([("clean", "fold"), ("fold", "count"), ("list", "out")])))
    plan = deployed(line(tap=draw(st.booleans())), {}, *cuts)
    made = [plan]
    for _ in range(draw(st.integers(1, 5))):
        operator = draw(st.sampled_from(("clean", "fold", "count", "list")))
        where = draw(st.sampled_from(("L1", "L2", "L3", "L1", "L2", "L3", None)))
        try:
            to = edit.move(plan, operator, draw(st.sampled_from(LAYERS)), location=where)
            plan = build(plan.dataflow, CONTINUUM, to)
        except HeadwaterError:
            continue
        made.append(plan)
    return made


@settings(max_examples=15, deadline=None)
@given(histories())
def test_any_history_keeps_each_state_once(plans: list[DeploymentPlan]) -> None:
    check_history(plans)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(histories())
def test_many_histories_keep_each_state_once(plans: list[DeploymentPlan]) -> None:
    check_history(plans)


def check_history(plans: list[DeploymentPlan]) -> None:
    """Check that the state of an operator for a location is only in the unit that reads the location's rows."""
    running = diff(None, plans[0]).wanted
    zones = SimulatedNodes()
    unit_statuses = carry_out(steps_of(diff(None, running)), zones, diff(None, running), {})
    assert unit_statuses == unit_statuses_of(running)
    for number, plan in enumerate(plans[1:]):
        check_plan(plan)
        decided = diff(running, plan, generation=2 * number + 3)
        check_states(decided)
        carry_out(steps_of(decided), zones, decided, unit_statuses_of(running))
        running = decided.wanted
        assert not zones.differences(running, running.dataflow.name)


def check_plan(plan: DeploymentPlan) -> None:
    assert from_document(to_document(plan)).units == plan.units
    graph = nx.DiGraph((c.producer, unit) for c in plan.channels for unit in c.consumers)
    assert nx.is_directed_acyclic_graph(graph)
    order = [u.id for u in plan.units]
    assert all(order.index(a) < order.index(b) for a, b in graph.edges)
    assert len(set(order)) == len(order) and len({c.id for c in plan.channels}) == len(plan.channels)
    taken = [(o, x) for u in plan.units for o in u.operators for x in u.locations]
    locations = plan.dataflow.locations
    assert sorted(taken) == sorted((o, x) for o in plan.dataflow.order for x in locations)
    for unit in plan.units:  # each row takes one path
        for operator in {p for o in unit.operators for p in plan.dataflow[o].inputs} - {*unit.operators}:
            read = [plan.unit(c.producer) for c in plan.inputs(unit) if c.operator == operator]
            assert sorted(x for u in read for x in u.locations) == sorted(unit.locations)


def check_states(decided: PlanDiff) -> None:
    old, new = decided.running, decided.wanted
    assert old is not None
    takes = transfers(decided)
    for unit in new.units:
        before = next((v for v in old.units if v.checkpoint == unit.checkpoint), None)
        for kept in kept_state(new.dataflow, unit):
            holders = [v for v in old.units if kept.operator in v.operators]
            holders = [v for v in holders if set(v.locations) & set(unit.locations)]
            if unit.id not in takes:
                assert before is not None and holders == [before] and before.locations == unit.locations
                continue
            (share,) = [s for s in takes[unit.id].shares if s.operator == kept.operator]
            assert [d.unit for d in share.source_units] == [v.id for v in holders]
            more = {x for v in holders for x in v.locations} - set(unit.locations)
            assert share.values == (unit.locations if more else ())


@settings(max_examples=40, deadline=None)
@given(dataflows(), st.data())
def test_any_graph_is_planned_by_location(flow: Dataflow, data: st.DataObject) -> None:
    usual = marked_layers(flow, CONTINUUM)
    at: dict[str, dict[str, str]] = {}
    for location in ("L1", "L2", "L4"):
        own = at.setdefault(location, {})
        for id_ in flow.order:
            lowest = max([LAYERS.index(own[i]) for i in flow[id_].inputs], default=0)
            own[id_] = data.draw(st.sampled_from(LAYERS[max(lowest, LAYERS.index(usual[id_])) :]))
    tree = Continuum.from_text(THREE)
    try:
        plan = build(flow, tree, in_layers(flow, tree, usual, at=at))
    except ErrorList as refused:
        assert "merged in zone S1" in str(refused)
    else:
        check_plan(plan)
