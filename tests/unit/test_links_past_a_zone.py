"""Links that join a zone and one above it past those between: streams of zones by name cross them."""

from __future__ import annotations

import pytest

from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.plan.networks import routed
from tests.deployments.sideways import PAST_A_SITE
from tests.unit.test_links import begin


def test_a_link_past_a_site_carries_the_rows_of_a_zone_by_name_alone() -> None:
    by_name, read = begin()
    read.where("v > 9").named("alarms").to_zone("C1").where("v > 10").named("first").write.memory("m")
    by_layer, read = begin()
    read.to_layer("cloud").where("v > 10").named("first").write.memory("m")
    ways = [
        {
            c.node: way
            for c in build(flow.build(), Continuum.from_text(PAST_A_SITE)).channels
            for way in c.routes.values()
        }
        for flow in (by_name, by_layer)
    ]
    assert ways[0] == {"E1": ("E1-S1", "S1-C1"), "E2": ("E2-S1", "S1-C1"), "E4": ("E4-C1",)}
    assert ways[1] == {"E1": ("E1-S1", "S1-C1"), "E2": ("E2-S1", "S1-C1"), "E4": ("E4-S2", "S2-C1")}
    builder, read = begin("L4")
    read.to_zone("C1").where("v > 1").named("w").to_zone("E4").where("v > 2").named("valve").write.memory("m")
    down = build(builder.build(), Continuum.from_text(PAST_A_SITE))
    assert {(c.operator, way) for c in down.channels for way in c.routes.values()} == {
        ("read", ("E4-C1",)),
        ("w", ("E4-C1",)),
    }


@pytest.mark.parametrize(("site", "cloud", "broker"), [(True, True, "C1"), (True, False, None), (False, True, "C1")])
def test_a_channel_past_a_site_is_not_kept_there(site: bool, cloud: bool, broker: str | None) -> None:
    data = Continuum.from_text(PAST_A_SITE).to_data()
    for zone, there in (("S2", site), ("C1", cloud)):
        if there:
            data["zones"][zone]["broker"] = "broker:9092"
    builder, read = begin("L4")
    read.to_zone("C1").where("v > 10").named("first").write.memory("m")
    plan = build(builder.build(), Continuum.from_data(data))
    (channel,) = plan.channels
    assert channel.broker == broker
    if broker is not None:
        assert "while link E4-C1 is down" in plan.warnings[0]


def test_the_network_of_a_placement_has_the_routes_of_the_plan() -> None:
    continuum = Continuum.from_text(PAST_A_SITE)
    number = {zone.name: n for n, zone in enumerate(continuum.zones)}
    for named, way in (("C1", [("E4", "C1")]), ("S1", [("E4", "S2"), ("S2", "C1")])):
        network = routed(continuum, [named], {})
        assert network.route(number["E4"], number["C1"]) == tuple((number[a], number[b]) for a, b in way)
    back = routed(continuum, ["C1"], {}).route(number["C1"], number["E4"])
    assert back == ((number["C1"], number["E4"]),)
