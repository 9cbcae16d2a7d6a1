"""Streams are gathered in a zone between: where the rule applies, where it pays, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.channels.repetition import repeated_share, split_by
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.figures import FlowFigures
from headwater.plan.optimise import Optimised, RuleUse, optimise
from headwater.plan.place import PlacementRequest
from headwater.plan.profile import Known, OperatorProfile, Profile
from headwater.plan.search import optimise_placed
from headwater.rewrite.gathering import GATHER_STREAMS, gather_streams, is_gathering
from headwater.rewrite.rule import Rewritten
from headwater.rewrite.rules import RULES

ZONES = """
name: thin
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1, link: {bandwidth: BANDWIDTH}}
  S2: {layer: site, parent: C1, link: {bandwidth: BANDWIDTH}}
  E1: {layer: edge, parent: S1, locations: [L1], link: {bandwidth: BANDWIDTH}}
  E2: {layer: edge, parent: S1, locations: [L2], link: {bandwidth: BANDWIDTH}}
  E3: {layer: edge, parent: S1, locations: [L3], link: {bandwidth: BANDWIDTH}}
  E4: {layer: edge, parent: S2, locations: [L4], link: {bandwidth: BANDWIDTH}}
"""
LOCATIONS = ["L1", "L2", "L3", "L4"]
SCHEMA = "id bigint, ts timestamp, k string, v double"


def zones(bandwidth: str = "1Mbit/s") -> Continuum:
    return Continuum.from_text(ZONES.replace("BANDWIDTH", bandwidth))


def begun() -> tuple[DataflowBuilder, hw.Stream]:
    builder = hw.flow("gathers", locations=LOCATIONS)
    rows = builder.read.json("/in/{location}", SCHEMA, location_as="location").named("rows")
    return builder, rows.with_watermark("ts", "1 minute").named("timed")


def filtered(*, marked: bool = False) -> Dataflow:
    builder, timed = begun()
    warm = timed.where("v > 20").named("warm")
    (warm.to_layer("cloud") if marked else warm).write.memory("out")
    return builder.build()


def profile(repeated: float | None, name: str = "warm") -> Profile:
    found = {"warm": OperatorProfile(selectivity=0.5, bytes_out=40.0)}
    kept = found.get(name, OperatorProfile(bytes_out=40.0))
    return Profile(operators={**found, name: kept.model_copy(update={"repeated": repeated})})


def use_of(found: Optimised, operator: str = "warm") -> RuleUse | None:
    uses = [u for u in found.rewriting.rules if (u.rule, u.operator) == ("gather-streams", operator)]
    return uses[0] if uses else None


def layer_of(found: Optimised, continuum: Continuum, operator: str) -> str:
    plan = build(found.dataflow, continuum, found.deployment)
    return {unit.layer for unit in plan.units if operator in unit.operators}.pop()


@pytest.mark.parametrize("marked", [False, True])
def test_the_streams_of_a_site_become_one(marked: bool) -> None:
    flow, continuum = filtered(marked=marked), zones()
    found = optimise(flow, continuum, profile(0.6), (GATHER_STREAMS,))
    use = use_of(found)
    assert use is not None and use.applied
    assert layer_of(found, continuum, "warm.gathered") == "site"
    assert found.dataflow["out"].inputs == ("warm.gathered",)
    assert found.dataflow.types["warm.gathered"] == found.dataflow.types["warm"]
    # 4 streams of 500 rows/s of 40 bytes, in 2 sites: 1 - 0.6 (1 - 2/4) of them cross the links above.
    before, after = found.rewriting.before, found.rewriting.after
    assert before["S1-C1"] == pytest.approx(3 * 20_000) and after["S1-C1"] == pytest.approx(0.7 * 3 * 20_000)
    assert {link: after[link] for link in ("E1-S1", "E4-S2")} == {"E1-S1": 20_000.0, "E4-S2": 20_000.0}
    assert use.saves_bytes_per_s == pytest.approx(0.3 * 80_000)
    again = optimise(found.dataflow, continuum, found.profile, RULES)
    assert not any(u.applied for u in again.rewriting.rules), "there was more to save"
    assert build(found.dataflow, continuum, found.deployment).layers["warm.gathered"] == "site"
    if marked:  # as written: the marks say where it runs
        assert build(found.dataflow, continuum).layers["warm.gathered"] == "site"


def test_a_share_is_known_of_an_operator_before() -> None:
    found = optimise(filtered(), zones(), profile(0.6, "rows"), (GATHER_STREAMS,))
    assert (use := use_of(found)) is not None and use.applied


@pytest.mark.parametrize("repeated", [None, 0.0])
def test_nothing_is_gathered_or_told_where_no_repetition_is_known(repeated: float | None) -> None:
    assert use_of(optimise(filtered(), zones(), profile(repeated), RULES)) is None
    assert use_of(optimise(filtered(), zones(), None, RULES)) is None


def test_a_unit_has_to_save_a_share_of_a_link() -> None:
    """Of 80 kB/s over two links 24 kB/s are saved, 18 kB/s of one: 144 kbit/s."""
    for bandwidth, applied in (("14Mbit/s", True), ("15Mbit/s", False)):
        use = use_of(optimise(filtered(), zones(bandwidth), profile(0.6), (GATHER_STREAMS,)))
        assert use is not None and use.applied == applied
    assert "less than 1% of the bandwidth of any link" in str(use)
    unlimited = Continuum.from_text(ZONES.replace(", link: {bandwidth: BANDWIDTH}", ""))
    use = use_of(optimise(filtered(), unlimited, profile(0.9), (GATHER_STREAMS,)))
    assert use is not None and not use.applied


def test_a_zone_for_each_location_gathers_nothing() -> None:
    alone = Continuum.from_text("""
name: alone
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1, link: {bandwidth: 1Mbit/s}}
  S2: {layer: site, parent: C1, link: {bandwidth: 1Mbit/s}}
  E1: {layer: edge, parent: S1, locations: [L1], link: {bandwidth: 1Mbit/s}}
  E2: {layer: edge, parent: S2, locations: [L2], link: {bandwidth: 1Mbit/s}}
""")
    flow = replace(filtered(), locations=("L1", "L2"))
    assert use_of(optimise(flow, alone, profile(0.9), RULES)) is None
    two = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1], link: {bandwidth: 1Mbit/s}}
  E2: {layer: edge, parent: C1, locations: [L2], link: {bandwidth: 1Mbit/s}}
""")
    assert use_of(optimise(flow, two, profile(0.9), RULES)) is None


@pytest.mark.parametrize("marked", [False, True])
def test_only_the_readers_behind_a_link_read_the_gathered_stream(marked: bool) -> None:
    """Hours are counted at the edge, for its camera, and keys in the cloud, which has the rows of all locations."""
    builder, timed = begun()
    warm = timed.where("v > 20").named("warm")
    hours = warm.require("cam = true").group_by(hw.window("ts", "1 hour"), "location").agg(n="count(*)").named("hours")
    hours.write.memory("counted")
    above = warm.to_layer("cloud") if marked else warm
    above.group_by(hw.window("ts", "1 hour"), "k").agg(n="count(*)").named("keys").write.memory("keyed")
    above.write.memory("out")
    lines = [
        line.replace("{layer: edge", f"{{layer: edge, hosts: {{gw{n}: {{cam: true}}}}")
        for n, line in enumerate(ZONES.replace("BANDWIDTH", "1Mbit/s").splitlines())
    ]
    continuum = Continuum.from_text("\n".join(lines))
    found = optimise(builder.build(), continuum, profile(0.6), (GATHER_STREAMS,))
    readers = {name: found.dataflow[name].inputs for name in ("out", "keys", "hours")}
    assert readers == {"out": ("warm.gathered",), "keys": ("warm.gathered",), "hours": ("warm",)}
    layers = build(found.dataflow, continuum, found.deployment).layers
    assert {name: layers[name] for name in ("hours", "warm.gathered", "keys")} == {
        "hours": "edge",
        "warm.gathered": "site",
        "keys": "cloud",
    }


def test_no_stream_is_gathered_before_its_event_time() -> None:
    assert gather_streams(filtered(), "rows") is None
    assert isinstance(gather_streams(filtered(), "timed"), Rewritten)


def test_a_strategy_leaves_it_out_where_it_takes_longer() -> None:
    """Without limits, a unit more only delays rows; of the bytes it saves, AL knows those of a busy link."""
    request = PlacementRequest(strategy="optimal")
    found = optimise_placed(filtered(), zones("100Mbit/s"), profile(0.9), (GATHER_STREAMS,), request)
    assert not any(is_gathering(o) for o in found.dataflow.operators)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gathering_never_sends_more(data: st.DataObject) -> None:
    """Drawn marks, shares and bandwidths: the plan is valid, sends no more, and gathers above the streams' zones."""
    layers = st.sampled_from(["edge", "site", "cloud", None])
    builder, timed = begun()
    first = timed.where("v > 20").named("warm")
    if (layer := data.draw(layers)) is not None:
        first = first.to_layer(layer)
    second = first.select("id", "ts", "k", "location").named("narrow")
    if layer is not None and (upper := data.draw(st.sampled_from(["site", "cloud"]))) and layer != "cloud":
        second = second.to_layer(upper)
    second.write.memory("out")
    if data.draw(st.booleans()):
        first.group_by(hw.window("ts", "1 minute"), "location").agg(n="count(*)").write.memory("windows")
    flow = builder.build()
    shares = data.draw(st.fixed_dictionaries({n: st.floats(0, 0.95) for n in ("rows", "warm", "narrow")}))
    sizes = data.draw(st.fixed_dictionaries({n: st.floats(1, 200) for n in shares}))
    known = Profile(operators={n: OperatorProfile(bytes_out=sizes[n], repeated=shares[n]) for n in shares})
    continuum = zones(data.draw(st.sampled_from(["10kbit/s", "1Mbit/s", "1Gbit/s"])))
    found = optimise(flow, continuum, known, RULES)
    plan = build(found.dataflow, continuum, found.deployment)
    assert sum(found.rewriting.after.values()) <= sum(found.rewriting.before.values()) * (1 + 1e-9)
    for operator in found.dataflow.operators:
        if is_gathering(operator):
            assert plan.layers[operator.id] == "site" and plan.layers[operator.inputs[0]] == "edge"
            assert all(plan.layers[c] == "cloud" for c in found.dataflow.consumers[operator.id])


def test_a_rule_is_not_applied_twice() -> None:
    once = gather_streams(filtered(marked=True), "warm")
    assert isinstance(once, Rewritten)
    assert gather_streams(once.dataflow, "warm") is None and gather_streams(once.dataflow, "warm.gathered") is None
    figures = FlowFigures(dataflow=once.dataflow, continuum=zones(), known=Known(filtered(marked=True), profile(0.5)))
    assert figures.bytes_out("warm.gathered") == pytest.approx(0.75 * figures.bytes_out("warm"))


# ------------------------------------------------------------ measuring


def table(words: list[str], seed: int, rows: int = 600) -> pa.Table:
    found = np.random.default_rng(seed)
    return pa.table({"word": found.choice(words, rows), "n": found.integers(0, 10, rows)})


def own_words(number: int) -> list[str]:
    found = np.random.default_rng(1000 + number)
    return ["".join(map(chr, found.integers(97, 123, 60))) for _ in range(40)]


def test_words_of_all_locations_are_repeated() -> None:
    alike = [table(own_words(0), seed) for seed in range(4)]
    apart = [table(own_words(seed), seed) for seed in range(4)]
    found, none = repeated_share(alike), repeated_share(apart)
    assert found is not None and none is not None
    assert found > 0.3 and none < 0.1
    assert repeated_share([alike[0]] * 4) == pytest.approx(0.99, abs=0.02)


def test_the_share_predicts_the_streams_of_fewer_locations() -> None:
    alike = [table(own_words(0), seed) for seed in range(8)]
    shares = [repeated_share(alike[:count]) for count in (2, 4, 8)]
    assert all(share == pytest.approx(shares[1], abs=0.1) for share in shares)


def test_one_location_repeats_nothing_that_is_known(tmp_path: Path) -> None:
    rows = table(own_words(0), 1)
    assert repeated_share([]) is None and repeated_share([rows]) is None and repeated_share([rows, rows[:2]]) is None
    located = pa.concat_tables(
        rows.append_column("at", pa.array([at] * len(rows), pa.string())) for at in ("L1", None, "L2")
    )
    found = split_by(located, ["at"], 100)
    assert [len(own) for own in found] == [100, 100, 100]
    assert {own["at"][0].as_py() for own in found} == {"L1", None, "L2"}
