"""Units that are partitioned over a zone's nodes, and the columns that partition them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList, HeadwaterError, PlacementError
from headwater.core.jsonform import dump_json, load_json
from headwater.core.requirement import Requirement
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan import edit
from headwater.plan.build import annotated, build
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.document import from_document, plan_id, to_document
from headwater.plan.edit import Edit, Fuse, Move, Split, Spread
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.spread import spread_column
from headwater.plan.steps import unit_statuses_of
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import carry_out, steps_of
from tests.unit.test_locations import line
from tests.unit.test_plan import dataflows

HOSTS: dict[str, dict[str, object]] = {
    "small": {"n_cpu": 2},
    "gpu": {"n_cpu": 4, "gpu": True},
    "big": {"n_cpu": 16},
    "twin": {"n_cpu": 16},
}
EVERY = tuple(HOSTS)
SCHEMA = "id bigint, ts timestamp, k string, v double"
Grow = Callable[[Stream], object]
Cloud = list[tuple[str | None, str, tuple[str, ...]]]


def of_hosts(**more: object) -> Continuum:
    """Return a cloud of four hosts above an edge of two."""
    hosts = {name: {**capabilities, **more} for name, capabilities in HOSTS.items()}
    pis = {name: {"n_cpu": cpus, **more} for name, cpus in (("pi1", 1), ("pi2", 4))}
    edge = {"layer": "edge", "parent": "C1", "locations": ["L1"], "hosts": pis}
    return Continuum.from_data(
        {"layers": ["edge", "cloud"], "zones": {"C1": {"layer": "cloud", "hosts": hosts}, "E1": edge}}
    )


CONTINUUM, ONE_NODE = of_hosts(at="local"), of_hosts()


def planned(grow: Grow, continuum: Continuum = CONTINUUM) -> DeploymentPlan:
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.json("in/{location}", SCHEMA, location_as="at").with_watermark("ts", "5 seconds")
    grow(rows.where("v > 0").named("low").to_layer("cloud"))
    return build(builder.build(), continuum)


def cloud(plan: DeploymentPlan) -> Cloud:
    """Return the column, the node and the hosts of each unit in the cloud."""
    return [(u.part.column if u.part else None, u.node, u.hosts) for u in plan.units if u.zone == "C1"]


def on_each(column: str, hosts: tuple[str, ...] = EVERY) -> Cloud:
    return [(column, host, (host,)) for host in hosts]


def by_window(key: str) -> Grow:
    def grow(stream: Stream) -> None:
        windows = stream.group_by(hw.window("ts", "10 seconds"), key)
        windows.agg(n="count(*)").named("count").write.memory("out")

    return grow


def test_a_keyed_unit_is_shared_out_by_its_key() -> None:
    plan = planned(by_window("k"))
    assert cloud(plan) == on_each("k")
    ids = [u.id for u in plan.units if u.zone == "C1"]
    assert ids == ["out.1of4@small", "out.2of4@gpu", "out.3of4@big", "out.4of4@twin"]
    (channel,) = plan.channels
    assert set(channel.consumers) == set(ids) and set(channel.routes.values()) == {("E1-C1",)}
    assert len({u.checkpoint for u in plan.units}) == 5
    assert [u.part for u in from_document(to_document(plan)).units] == [u.part for u in plan.units]


def test_a_key_that_is_computed_on_the_way_cannot_share() -> None:
    plan = planned(lambda s: by_window("x")(s.with_columns(x="id % 3")))
    assert cloud(plan) == [(None, "big", ("big",))]  # the strongest host


def test_a_renamed_key_is_followed() -> None:
    assert cloud(planned(lambda s: by_window("x")(s.select("ts", "k AS x")))) == on_each("k")


def test_without_state_any_column_shares_but_a_location_comes_last() -> None:
    assert cloud(planned(lambda s: s.select("at", "v").write.memory("out"))) == on_each("id")


def test_no_key_is_no_way_to_share() -> None:
    plan = planned(lambda s: s.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").write.memory("out"))
    assert cloud(plan) == [(None, "big", ("big",))]


def test_sources_are_not_shared() -> None:
    plan = planned(by_window("k"))
    edge = [(u.operators[0], u.part, u.node) for u in plan.units if u.zone == "E1"]
    assert edge == [("files", None, "pi2")]  # the stronger host


# ---------------------------------------------------------------- requirements


def test_what_requires_something_runs_where_it_is() -> None:
    assert cloud(planned(lambda s: by_window("k")(s.require("gpu = true")))) == [(None, "gpu", ("gpu",))]
    plan = planned(lambda s: by_window("k")(s.require("n_cpu >= 4")))
    assert cloud(plan) == on_each("k", ("gpu", "big", "twin"))


def between(stream: Stream) -> None:
    """Require a capability of one host for an operator between two others."""
    before = stream.where("v > 1").named("before")
    needs = before.require("gpu = true").where("v > 2").named("needs")
    by_window("k")(needs.to_layer("cloud"))


def test_what_requires_nothing_beside_it_has_all_nodes_still() -> None:
    plan = planned(between)
    where = {o: [u.node for u in plan.units if o in u.operators] for o in ("before", "needs", "count")}
    assert where == {"before": [*EVERY], "needs": ["gpu"], "count": [*EVERY]}
    ways = {(c.operator, c.node): c.consumers for c in plan.channels}
    parts = tuple(u.id for u in plan.units if "count" in u.operators)
    assert {node: ways["before", node] for node in EVERY} == dict.fromkeys(EVERY, ("needs@gpu",))
    assert ways["needs", "gpu"] == parts and len(parts) == 4
    assert all(c.links == () for c in plan.channels if c.zone == "C1")


def test_a_branch_that_requires_something_leaves_the_others_where_they_are() -> None:
    def branches(stream: Stream) -> None:
        stream.require("gpu = true").where("v > 2").named("needs").write.memory("some")
        by_window("k")(stream)

    plan = planned(branches)
    assert {u.node for u in plan.units if "count" in u.operators} == set(EVERY)
    assert [u.id for u in plan.units if "needs" in u.operators] == ["some@gpu"]


# ---------------------------------------------------------------- one node


@pytest.mark.parametrize("grow", [by_window("k"), between, lambda s: s.select("at").write.memory("out")])
def test_a_zone_of_one_node_is_never_parted(grow: Grow) -> None:
    plan = planned(grow, ONE_NODE)
    assert [(u.part, u.node) for u in plan.units] == [(None, "E1"), (None, "C1")]
    hosts = ("gpu",) if grow is between else EVERY
    assert plan.units[1].hosts == hosts  # together, in one query
    for over in (("small", "big"), ("gpu",)) if grow is not between else ():
        spread = build(plan.dataflow, ONE_NODE, edit.spread(plan, "out", over))
        assert [(u.id, u.part, u.hosts) for u in spread.units[1:]] == [("out@C1", None, over)]


# ---------------------------------------------------------------- edits


def test_a_unit_is_spread_over_hosts_that_are_named() -> None:
    plan = planned(by_window("k"))
    two = build(plan.dataflow, CONTINUUM, edit.spread(plan, "out", ("twin", "small")))
    assert cloud(two) == on_each("k", ("small", "twin"))  # in the zone's order
    one = build(plan.dataflow, CONTINUUM, edit.spread(two, "out", ("gpu",)))
    assert cloud(one) == [(None, "gpu", ("gpu",))]
    assert edit.spread(one, "out@gpu", EVERY) == plan.deployment == annotated(plan.dataflow, CONTINUUM)


def test_operators_on_different_hosts_of_one_node_are_not_one_query() -> None:
    plan = planned(by_window("k"), ONE_NODE)
    moved = build(plan.dataflow, ONE_NODE, edit.move(plan, "count", "small"))
    assert [(u.id, u.operators, u.hosts) for u in moved.units[1:]] == [("out@C1", ("count", "out"), ("small",))]
    apart = build(plan.dataflow, ONE_NODE, edit.move(moved, "out", "big"))
    assert [(u.operators, u.hosts) for u in apart.units[1:]] == [
        (("count",), ("small",)),
        (("out",), ("big",)),
    ]


def test_an_operator_is_moved_to_a_host_alone() -> None:
    plan = planned(by_window("k"))
    moved = build(plan.dataflow, CONTINUUM, edit.move(plan, "count", "gpu"))
    assert [u.node for u in moved.units if "count" in u.operators] == ["gpu"]
    up = build(plan.dataflow, CONTINUUM, edit.move(plan, "low", "big"))  # from the edge
    assert [(u.zone, u.node) for u in up.units if "low" in u.operators] == [("C1", "big")]
    with pytest.raises(PlacementError, match="no layer, host or zone is called 'smal'"):
        edit.move(plan, "count", "smal")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ((), "must be at least one, each named once"),
        (("big", "big"), "must be at least one, each named once"),
        (("pi1",), "no host of zone C1 is called 'pi1'"),
    ],
)
def test_hosts_of_the_zone_are_named_once(over: tuple[str, ...], says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        edit.spread(planned(by_window("k")), "out", over)


def test_what_cannot_be_shared_out_is_not_spread() -> None:
    plan = planned(lambda s: by_window("x")(s.with_columns(x="id % 3")))
    with pytest.raises((PlacementError, ErrorList), match="cannot be shared out over small, big: no column"):
        edit.spread(plan, "out", ("small", "big"))
    needy = planned(lambda s: by_window("k")(s.require("gpu = true")))
    with pytest.raises((PlacementError, ErrorList), match="requires gpu = true, and host small does not"):
        edit.spread(needy, "out", ("small", "gpu"))
    source = planned(by_window("k"))
    with pytest.raises((PlacementError, ErrorList), match="cannot be shared out over pi1, pi2"):
        edit.spread(source, "low", ("pi1", "pi2"))


# ---------------------------------------------------------------- any graph, any history

TREE = Continuum.from_text("""
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {at: local, gpu: true, n_cpu: 2}, c2: {at: local, n_cpu: 8}}}
  S1:
    layer: site
    parent: C1
    hosts: {s1: {at: local, n_cpu: 2}, s2: {at: local, gpu: true, n_cpu: 4}, s3: {at: local, n_cpu: 4}}
  S2: {layer: site, parent: C1, hosts: {t1: {gpu: true}, t2: {}}}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {a1: {at: local}, a2: {at: local, gpu: true}}}
  E2: {layer: edge, parent: S1, locations: [L2], hosts: {b1: {gpu: true}}}
  E4: {layer: edge, parent: S2, locations: [L4], hosts: {d1: {gpu: true}, d2: {}}}
""")


def check_plan(plan: DeploymentPlan) -> None:
    """Check that each row takes one path, to hosts that may run the operators."""
    flow, continuum = plan.dataflow, plan.continuum
    again = from_document(json.loads(json.dumps(to_document(plan))))
    assert again == plan and plan_id(again) == plan_id(plan)  # unit statuses refer to a plan by its id
    order = [u.id for u in plan.units]
    assert len({*order, *(c.id for c in plan.channels)}) == len(order) + len(plan.channels)
    assert all(order.index(c.producer) < order.index(r) for c in plan.channels for r in c.consumers)
    together: dict[tuple[str, tuple[str, ...], str], list[Unit]] = {}
    for unit in plan.units:
        together.setdefault((unit.name, unit.locations, unit.zone), []).append(unit)
        assert unit.hosts and {continuum.node_of(h).name for h in unit.hosts} == {unit.node}
        for host in unit.hosts:
            assert all(not flow[o].requires.unmet(continuum.host(host).capabilities) for o in unit.operators)
        spec = spec_of(plan, unit.id)
        assert load_json(UnitSpec, dump_json(spec), what="a unit") == spec
    for parts in together.values():
        shares = [(u.part.index, u.part.count) for u in parts if u.part is not None]
        assert shares == ([(n, len(parts)) for n in range(len(parts))] if len(parts) > 1 else [])
        assert len({u.node for u in parts}) == len(parts)
        assert len({u.part.column for u in parts if u.part is not None}) <= 1
    for unit in plan.units:
        for operator in {p for o in unit.operators for p in flow[o].inputs} - {*unit.operators}:
            read = [c for c in plan.inputs(unit) if c.operator == operator]
            found = Counter(x for c in read for x in plan.unit(c.producer).locations)
            parts = {x: [u for u in plan.units if operator in u.operators and x in u.locations] for x in found}
            assert found == {x: len(parts[x]) for x in unit.locations}  # from each part once


@settings(max_examples=60, deadline=None)
@given(dataflows(), st.data())
def test_any_graph_is_planned_over_nodes(flow: Dataflow, data: st.DataObject) -> None:
    free = [o.id for o in flow.operators if o.id not in {s.id for s in flow.sources}]
    needy = data.draw(st.sets(st.sampled_from(free), max_size=3))
    gpu = Requirement.parse("gpu = true")
    flow = flow.with_operators(replace(o, requires=gpu) if o.id in needy else o for o in flow.operators)
    plan = build(flow, TREE)
    check_plan(plan)
    for id_ in free:  # stateless: without requirements, a unit that reads only channels runs on all nodes
        for unit in [u for u in plan.units if id_ in u.operators and not needy & {*u.operators}]:
            shared = spread_column(flow, unit.operators) is not None
            nodes = {u.node for u in plan.units if id_ in u.operators and u.zone == unit.zone}
            assert nodes == {n.name for n in TREE.zone(unit.zone).nodes} or not shared
    started = diff(None, plan)
    nodes_of = SimulatedNodes()
    carry_out(steps_of(started), nodes_of, started, {})
    assert nodes_of.differences(started.wanted, flow.name) == []


FLOW = line("L1", "L2", "L4")
NOT_SHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Histories are not shrunk: they are short, and shrinking takes minutes."""


class Running:
    """A plan that runs on simulated nodes and is edited."""

    def __init__(self) -> None:
        self.nodes, started = SimulatedNodes(), diff(None, build(FLOW, TREE))
        self.plan = started.wanted
        carry_out(steps_of(started), self.nodes, started, {})
        self.begun = self.states()
        assert set(self.begun) == {"fold", "count"}
        self.number = 1

    def states(self) -> dict[str, set[str]]:
        """Return, by operator, the units that began the state of the running units."""
        found: dict[str, set[str]] = {}
        for kept in self.nodes.kept(FLOW.name).values():
            for operator, begun_by in kept.items():
                found.setdefault(operator, set()).update(begun_by.split(" + "))
        return found

    def decide(self, one: Edit) -> PlanDiff:
        """Return the changes of an edit; raise an error if it is refused."""
        plan = build(FLOW, TREE, edit.edited(self.plan, one))
        self.number += 2
        return diff(self.plan, plan, generation=self.number)

    def change(self, decided: PlanDiff) -> None:
        """Execute a change; compare the running units with its plan."""
        check_plan(decided.wanted)
        carry_out(steps_of(decided), self.nodes, decided, unit_statuses_of(self.plan))
        self.plan = decided.wanted
        assert self.nodes.differences(self.plan, FLOW.name) == []
        assert self.states() == self.begun


def test_a_location_leaves_parts_for_a_unit_of_its_own() -> None:
    """The parts no longer read the inputs of the new unit."""
    running = Running()
    running.change(running.decide(Split(unit="out", after="list")))
    running.change(running.decide(Move(operator="list", to="c1", at="L1")))
    assert [(u.id, u.locations) for u in running.plan.units if "list" in u.operators] == [
        ("list@c1", ("L1",)), ("list.1of2@c1", ("L2", "L4")), ("list.2of2@c2", ("L2", "L4")),
    ]  # fmt: skip
    running.change(running.decide(Move(operator="list", to="cloud")))


def drawn(data: st.DataObject, plan: DeploymentPlan) -> Edit:
    """Draw a plausible edit of a plan."""
    unit = data.draw(st.sampled_from(plan.units))
    hosts = [host.name for host in TREE.zone(unit.zone).hosts]
    kind = data.draw(st.sampled_from((Move, Move, Spread, Spread, Split, Fuse)))
    if kind is Spread:
        over = data.draw(st.sets(st.sampled_from(hosts), min_size=1))
        return Spread(unit=unit.id, over=tuple(sorted(over)))
    if kind is Split:
        return Split(unit=unit.id, after=data.draw(st.sampled_from(unit.operators)))
    if kind is Fuse and plan.channels:
        channel = data.draw(st.sampled_from(plan.channels))
        reader = data.draw(st.sampled_from(channel.consumers))
        return Fuse(first=channel.producer, second=reader, to=plan.unit(reader).layer)
    return Move(
        operator=data.draw(st.sampled_from(("clean", "fold", "count", "list"))),
        to=data.draw(st.sampled_from(("edge", "site", "cloud", *(h.name for h in TREE.hosts)))),
        at=data.draw(st.sampled_from((None, "L1", "L2", "L4"))),
    )


@settings(max_examples=15, deadline=None, phases=NOT_SHRUNK)
@given(st.data())
def test_any_history_of_edits_keeps_all_state(data: st.DataObject) -> None:
    check_history(data)


@pytest.mark.long
@settings(max_examples=300, deadline=None, phases=NOT_SHRUNK)
@given(st.data())
def test_many_histories_of_edits_keep_all_state(data: st.DataObject) -> None:
    check_history(data)


def check_history(data: st.DataObject) -> None:
    """Edit a running plan several times, each time with a drawn edit."""
    running = Running()
    for _ in range(data.draw(st.integers(1, 8))):
        one = drawn(data, running.plan)
        try:
            decided = running.decide(one)
        except HeadwaterError as refused:
            event(f"{type(one).__name__} refused: {str(refused).splitlines()[0][-60:]}")
            continue
        event(f"{type(one).__name__}, {len(decided.changed)} of {len(decided.wanted.units)} units change")
        running.change(decided)
