"""Which units are shared out over a zone's nodes, and by which column."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headwater as hw
from headwater.continuum import Continuum
from headwater.dataflow.stream import Stream
from headwater.errors import ErrorList, PlacementError
from headwater.plan import edit
from headwater.plan.build import annotated, build
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan

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
    """Give a cloud of four hosts above an edge of two."""
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
    """Give the column, the node and the hosts of each unit in the cloud."""
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
    assert cloud(plan) == [(None, "big", ("big",))]  # the strongest


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
    assert edge == [("files", None, "pi2")]  # the stronger one


# ---------------------------------------------------------------- requirements


def test_what_requires_something_runs_where_it_is() -> None:
    assert cloud(planned(lambda s: by_window("k")(s.require("gpu = true")))) == [(None, "gpu", ("gpu",))]
    plan = planned(lambda s: by_window("k")(s.require("n_cpu >= 4")))
    assert cloud(plan) == on_each("k", ("gpu", "big", "twin"))


def between(stream: Stream) -> None:
    """Let an operator between others need what one host has."""
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


def test_an_operator_is_moved_to_a_host_alone() -> None:
    plan = planned(by_window("k"))
    moved = build(plan.dataflow, CONTINUUM, edit.move(plan, "count", "gpu"))
    assert [u.node for u in moved.units if "count" in u.operators] == ["gpu"]
    up = build(plan.dataflow, CONTINUUM, edit.move(plan, "low", "big"))  # from the edge
    assert [(u.zone, u.node) for u in up.units if "low" in u.operators] == [("C1", "big")]
    with pytest.raises(PlacementError, match="no layer or host is called 'smal'"):
        edit.move(plan, "count", "smal")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ((), "needs hosts to run on, each named once"),
        (("big", "big"), "needs hosts to run on, each named once"),
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
