"""Plans: the units and channels of a dataflow on a continuum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from benchmarks.reuse.science import dataflow
from benchmarks.reuse.workloads import workload
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList, PlacementError
from headwater.core.jsonform import dump, load
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan.build import annotated, build, marked_layers, one_unit, unit_per_operator
from headwater.plan.deployment import Deployment
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.onepass import one_pass, outputs_of
from headwater.plan.outline import outline
from headwater.plan.pieces import pieces
from headwater.plan.spec import UnitSpec, spec_of

ACME = Continuum.from_yaml(Path(__file__).parents[2] / "examples/acme/continuum.yaml")
SCHEMA = "id bigint, ts timestamp, k string, v double, tags array<string>"
LOCATIONS = ("L1", "L2", "L4")


def begin(*locations: str) -> tuple[DataflowBuilder, Stream]:
    builder = hw.flow("f", locations=locations or LOCATIONS)
    return builder, builder.read.json("/d/{location}", SCHEMA, location_as="location")


def paper(require: str = "gpu = true") -> Dataflow:
    """Build figure 2 of FlowUnits: first processing at the edge, detection at the site, learning in the cloud."""
    builder, rows = begin()
    fp = rows.named("read").where("v > 0").named("FP").with_watermark("ts", "5 seconds")
    window = hw.window("ts", "1 minute")
    ad = fp.to_layer("site").group_by(window, "location", "k").agg(m="avg(v)").named("AD")
    ml = ad.to_layer("cloud").require(require).where("m > 1").named("ML")
    ml.write.memory("out")
    return builder.build()


def test_clear_text_over_a_network_is_named() -> None:
    zones = {"E1": "grpc+tcp://10.0.0.4:7070", "E2": "10.0.0.5:7070", "E3": "grpc+tcp://127.0.0.1:7070"}
    listed = {
        name: {"layer": "edge", "at": at, "parent": "C1", "locations": [f"L{name}"]} for name, at in zones.items()
    }
    continuum = Continuum.from_data({"layers": ["edge", "cloud"], "zones": {"C1": {"layer": "cloud"}, **listed}})
    assert continuum.clear_text == ("E1 at grpc+tcp://10.0.0.4:7070",)
    builder, rows = begin("LE1", "LE2", "LE3")
    rows.to_layer("cloud").write.memory("out")
    (warning,) = build(builder.build(), continuum, None).warnings
    assert warning.startswith("clear text at E1 at grpc+tcp://10.0.0.4:7070: whoever reads the network")


def members(plan: DeploymentPlan) -> list[tuple[str, str]]:
    return [("+".join(u.operators), u.zone) for u in plan.units]


def reasons(dataflow: Dataflow, deployment: Deployment | None = None, on: Continuum = ACME) -> list[str]:
    """Return the texts of the errors that building a plan raises."""
    with pytest.raises(ErrorList) as caught:
        build(dataflow, on, deployment)
    assert all(isinstance(e, PlacementError) and e.hint and e.where for e in caught.value.errors)
    return [str(e) for e in caught.value.errors]


# ---------------------------------------------------------------- the paper's example


def test_paper_units_and_hosts() -> None:
    plan = build(paper(), ACME)
    first = "read+watermark+FP"
    assert members(plan) == [
        (first, "E1"), (first, "E2"), (first, "E4"), ("AD", "S1"), ("AD", "S2"), ("ML+out", "C1"),
    ]  # fmt: skip
    assert [u.hosts for u in plan.units] == [("gw1",), ("gw2",), ("gw4",), ("s1a", "s1b"), ("s2a",), ("vm1",)]
    assert [u.locations for u in plan.units] == [
        ("L1",), ("L2",), ("L4",), ("L1", "L2"), ("L4",), LOCATIONS,
    ]  # fmt: skip
    assert plan.unit("AD@S1").layer == "site"
    assert plan.warnings == ()


def test_paper_channels_and_links() -> None:
    plan = build(paper(), ACME)
    found = {(c.producer, c.consumers, c.links) for c in plan.channels}
    up = {z.name: z.link.name for z in ACME.zones if z.link is not None}
    assert found == {
        ("FP@E1", ("AD@S1",), (up["E1"],)), ("FP@E2", ("AD@S1",), (up["E2"],)),
        ("FP@E4", ("AD@S2",), (up["E4"],)), ("AD@S1", ("out@C1",), (up["S1"],)),
        ("AD@S2", ("out@C1",), (up["S2"],)),
    }  # fmt: skip
    assert len(plan.inputs(plan.unit("out@C1"))) == 2 and plan.outputs(plan.unit("out@C1")) == ()
    event_time = plan.channels[0].event_time
    assert event_time is not None and event_time.column == "ts"
    assert len({c.id for c in plan.channels}) == 5 and len({u.checkpoint for u in plan.units}) == 6


def test_plan_as_data() -> None:
    data = dump(outline(build(paper(), ACME)))
    assert data["layers"] == {
        "read": "edge", "watermark": "edge", "FP": "edge", "AD": "site", "ML": "cloud", "out": "cloud",
    }  # fmt: skip
    cloud = next(u for u in data["units"] if u["zone"] == "C1")
    assert cloud["sinks"] == ["out"] and len(cloud["reads"]) == 2 and cloud["hosts"] == ["vm1"]
    assert all(len(ids) == 1 for ids in data["links"].values()) and len(data["links"]) == 5


def test_no_location_named_means_all() -> None:
    builder = hw.flow("f")
    builder.read.json("/d/{location}", SCHEMA).write.memory("out")
    assert [u.zone for u in build(builder.build(), ACME).units] == ["E1", "E2", "E3", "E4", "E5"]


def test_keys_of_units_are_their_content() -> None:
    one, two = build(paper(), ACME), build(paper("n_cpu >= 4"), ACME)
    assert [u.key for u in one.units] == [u.key for u in two.units]
    assert one.unit("out@C1").hosts == ("vm1",) and two.unit("out@C1").hosts == ("vm1", "vm2")


# ---------------------------------------------------------------- placement errors


def test_unknown_layer() -> None:
    builder, rows = begin()
    rows.to_layer("clod").where("v > 1").write.memory("out")
    (text, *_) = reasons(builder.build())
    assert "'where'" in text and "no layer 'clod'" in text and "did you mean 'cloud'" in text


def test_layer_below_input() -> None:
    builder, rows = begin()
    rows.drop("location").to_layer("cloud").where("v > 1").to_layer("site").where("v > 2").write.memory("out")
    (text, *_) = reasons(builder.build())
    assert "'where-2'" in text and "below its input 'where' in layer cloud" in text and "cloud or higher" in text


def test_unknown_location() -> None:
    builder, rows = begin("L1", "L9")
    rows.write.memory("out")
    (text,) = reasons(builder.build())
    assert "no zone covers location L9" in text and "there are L1, L2" in text


def test_location_not_covered_by_a_layer() -> None:
    gap = Continuum.from_text(
        "name: t\nlayers: [edge, site, cloud]\nzones:\n  C: {layer: cloud}\n"
        "  S: {layer: site, parent: C}\n  E: {layer: edge, parent: S, locations: [L1]}\n"
        "  F: {layer: edge, parent: C, locations: [L2]}\n"
    )
    builder, rows = begin("L1", "L2")
    rows.to_layer("site").where("v > 1").write.memory("out")
    (text,) = reasons(builder.build(), on=gap)
    assert "'where'" in text and "no zone of layer site covers location L2" in text


@pytest.mark.parametrize("layer", ["edge", "site"])
def test_replicated_keys_without_location(layer: str) -> None:
    builder, rows = begin()
    window = hw.window("ts", "1 minute")
    rows.with_watermark("ts", "1 s").to_layer(layer).group_by(window, "k").count().write.memory("out")
    (text,) = reasons(builder.build())
    assert "'aggregate'" in text and "the keys (k) do not tell the location apart" in text
    assert "add the location column to its keys (location)" in text and f"(not {layer})" in text
    assert len(build(builder.build(), ACME, one_unit(builder.build(), ACME)).units) == 1


def test_replicated_without_keys_or_location_column() -> None:
    builder = hw.flow("f", locations=LOCATIONS)
    rows = builder.read.json("/d/{location}", SCHEMA)
    rows.count_window(3, order_by="id").agg(n="count(*)").write.memory("out")
    (text,) = reasons(builder.build())
    assert "it has no keys" in text and "location_as='location'" in text


def test_one_zone_needs_no_location_key() -> None:
    builder, rows = begin("L1", "L2")  # both below S1
    window = hw.window("ts", "1 minute")
    rows.with_watermark("ts", "1 s").to_layer("site").group_by(window, "k").count().write.memory("out")
    assert [u.zone for u in build(builder.build(), ACME).units] == ["E1", "E2", "S1"]


def test_one_path_read_in_several_zones() -> None:
    builder = hw.flow("f", locations=LOCATIONS)
    builder.read.json("/d/all", SCHEMA).write.memory("out")
    (text,) = reasons(builder.build())
    assert "'files'" in text and "read in 3 zones: E1, E2, E4" in text and "{location}" in text


def test_no_host_says_why_of_each_host_and_operator() -> None:
    builder, rows = begin()
    cloud = rows.to_layer("cloud").require("gpu = true", "n_cpu >= 32").where("v > 1").named("big")
    cloud.write.memory("out")
    texts = reasons(builder.build())
    assert [t.split()[1] for t in texts] == ["'big'", "'out'"]
    for text in texts:
        assert "no host of zone C1 meets gpu = true and n_cpu >= 32" in text
        assert "vm1: n_cpu >= 32: host has 16" in text and "vm2: gpu = true: host has false" in text


def test_no_host_at_an_edge_names_the_zone() -> None:
    builder = hw.flow("f", locations=("L4", "L5"))
    rows = builder.read.json("/d/{location}", SCHEMA)
    rows.require("n_cpu >= 2").where("v > 1").write.memory("out")
    assert all("zone E5" in text and "gw5" in text for text in reasons(builder.build()))


def test_requirement_changes_inside_a_piece() -> None:
    builder, rows = begin()
    big = rows.to_layer("cloud").require("gpu = false").where("v > 1").named("a")
    big.where("v > 2").named("b").to_layer("cloud").require("gpu = true").where("v > 3").named("c").write.memory("out")
    plan = build(builder.build(), ACME)
    cloud = [(u.operators, u.hosts) for u in plan.units if u.zone == "C1"]
    assert cloud == [(("a", "b"), ("vm2",)), (("c", "out"), ("vm1",))]
    assert [c.links for c in plan.channels if c.producer == "b@C1"] == [()]


def test_watermark_after_merging_zones_is_warned_of() -> None:
    builder, rows = begin()
    late = rows.to_layer("site").with_columns(ts="date_trunc('second', ts)")
    late.with_watermark("ts", "1 s").write.memory("out")
    (warning,) = build(builder.build(), ACME, None).warnings
    assert "of L1, L2 before its event time is declared" in warning and "with_watermark" in warning


def test_watermark_after_merging_locations_of_a_zone_is_warned_of() -> None:
    builder, rows = begin()
    late = rows.with_columns(ts="date_trunc('second', ts)").to_layer("cloud").with_columns(ts="ts + INTERVAL 1 SECOND")
    late.with_watermark("ts", "1 s").write.memory("out")
    shared = ACME.to_data() | {"zones": {"C1": {"layer": "cloud"}}}
    shared["zones"]["E1"] = {"layer": "edge", "parent": "C1", "locations": list(ACME.locations)}
    (warning,) = build(builder.build(), Continuum.from_data(shared | {"layers": ["edge", "cloud"]}), None).warnings
    assert "before its event time is declared" in warning


# ---------------------------------------------------------------- pieces


def flow_of(write: Any) -> Dataflow:
    builder, rows = begin()
    write(rows.named("s"))
    return builder.build()


def cut(dataflow: Dataflow, *edges: tuple[str, str], hosts: Any = lambda id_: ()) -> list[str]:
    return ["+".join(piece) for piece in pieces(dataflow, edges, hosts)]


def diamond(rows: Stream) -> None:
    left, right = rows.where("v > 1").named("l"), rows.where("v < 1").named("r")
    left.union(right).named("u").write.memory("out")


def test_uncut_diamond_is_one_piece() -> None:
    assert cut(flow_of(diamond)) == ["s+l+r+u+out"]


def test_diamond_with_a_cut_falls_apart() -> None:
    # The path around the cut would put both of its ends into one query.
    found = cut(flow_of(diamond), ("s", "l"))
    assert all(not {"s", "l"} <= set(piece.split("+")) for piece in found)
    assert sorted("+".join(found).split("+")) == ["l", "out", "r", "s", "u"]


def test_pieces_that_would_wait_for_each_other() -> None:
    def write(rows: Stream) -> None:
        around = rows.where("v > 1").named("b").where("v > 2").named("c")
        rows.where("v > 0").named("a").union(around).named("u").write.memory("out")

    # The piece s+a+u would wait for b+c, and b+c for it.
    dataflow, edges = flow_of(write), {("s", "b"), ("c", "u")}
    found = pieces(dataflow, edges)
    check_pieces(dataflow, found, edges)
    assert len(found) > 2


def test_any_one_edge_can_be_cut() -> None:
    def write(rows: Stream) -> None:
        a = rows.where("v > 1").named("a")
        b = rows.where("v > 2").named("b")
        a.union(a.where("v > 5").named("c")).named("d").union(b).named("e").write.memory("out")

    dataflow = flow_of(write)
    for edge in [(p, o.id) for o in dataflow.operators for p in o.inputs]:
        check_pieces(dataflow, pieces(dataflow, [edge]), {edge})


def test_fan_out_shares_a_trunk() -> None:
    def write(rows: Stream) -> None:
        base = rows.where("v > 1").named("base")
        base.where("v > 2").write.memory("x")
        base.select("id").write.memory("y")

    dataflow = flow_of(write)
    (piece,) = pieces(dataflow, ())
    found = one_pass(dataflow, piece, outputs_of(dataflow, piece))
    assert found is not None and found.root == "base" and outputs_of(dataflow, piece) == ("x", "y")


def test_fan_out_over_more_than_filters_is_cut() -> None:
    def write(rows: Stream) -> None:
        base = rows.where("v > 1").named("base")
        base.explode("tags", "tag").named("each").write.memory("x")
        base.write.memory("y")

    dataflow = flow_of(write)
    found = pieces(dataflow, ())
    assert sorted("+".join(p) for p in found) == ["each+x", "s+base+y"]
    assert all(one_pass(dataflow, p, outputs_of(dataflow, p)) is not None for p in found)


def test_only_what_cannot_pass_is_cut_off() -> None:
    def write(rows: Stream) -> None:
        base = rows.where("v > 1").with_watermark("ts", "5 seconds").named("base")
        base.where("v > 2").named("p").write.memory("x")
        left, right = base.where("v > 3").named("l"), base.where("v < 3").named("r")
        other = right.select("id", "ts AS at").named("o")
        left.join(other, on="id", within="1 second").named("j").write.memory("y")
        left.union(right).named("u").where("v > 4").named("q").write.memory("z")

    found = pieces(flow_of(write), ())
    assert ["+".join(sorted(p)) for p in found] == ["base+l+o+p+q+r+s+u+where+x+z", "j+y"]


def test_a_cut_that_a_union_leads_around_costs_no_more_than_that() -> None:
    def write(rows: Stream) -> None:
        base = rows.where("v > 1").named("base")
        low = base.where("v > 2").named("low").where("v > 3").named("lower")
        low.union(base.where("v < 0").named("r")).named("u").where("v != 9").named("w").write.memory("x")

    found = pieces(flow_of(write), {("base", "low")})
    assert ["+".join(sorted(p)) for p in found] == ["base+r+s", "low+lower+u+w+x"]


def keep(state: Any, row: dict[str, Any]) -> Any:
    return row["v"], row


def edges(flow: Dataflow) -> set[tuple[str, str]]:
    return {(p, c) for c in flow.order for p in flow[c].inputs}


def test_cuts_that_other_cuts_make_superfluous_are_closed() -> None:
    """State that two branches share is cut off; what lies behind it is one query again where its branches meet."""

    def write(rows: Stream) -> None:
        first = rows.scan(keep, SCHEMA, keys="k", order_by="ts").named("first")
        left = first.scan(keep, SCHEMA, keys="k", order_by="ts").named("left")
        right = first.where("v > 1").scan(keep, SCHEMA, keys="k", order_by="ts").named("right")
        both = left.union(right).named("both").scan(keep, SCHEMA, keys="k", order_by="ts").named("last")
        both.write.memory("x")

    found = pieces(flow_of(write), ())
    assert ["+".join(sorted(p)) for p in found] == ["first+s", "both+last+left+right+where+x"]


@pytest.mark.parametrize("name", ["synth-17", "synth-02", "synth-05"])
def test_no_two_pieces_could_be_one(name: str) -> None:
    (graph,) = [g for g in workload("opmw35_synth") if g.name == name]
    flow = dataflow(graph, Path("/x"))
    found = pieces(flow, ())
    member = {id_: piece for piece in found for id_ in piece}
    for one, other in {(member[p], member[c]) for p, c in edges(flow)} - {(p, p) for p in found}:
        both = tuple(o for o in flow.order if o in one or o in other)
        alone = pieces(flow, {e for e in edges(flow) if (e[0] in both) != (e[1] in both)}, operators=both)
        around: nx.DiGraph[Any] = nx.DiGraph([(member[p], member[c]) for p, c in edges(flow) if member[p] != member[c]])
        around.remove_edge(one, other)
        assert len(alone) > 1 or nx.has_path(around, one, other), f"{one} and {other}"


def test_a_sink_that_spark_writes_has_a_unit_of_its_own() -> None:
    def write(rows: Stream) -> None:
        rows.write.memory("x")
        rows.write.jdbc("jdbc:x:y", "t").named("own")

    assert cut(flow_of(write)) == ["s+x", "own"]
    builder, rows = begin()
    rows.named("s").write.jdbc("jdbc:x:y", "t").named("own")
    assert cut(builder.build()) == ["s+own"]  # alone, it shares the query


def test_a_topic_shares_the_query() -> None:
    def write(rows: Stream) -> None:
        rows.write.memory("x")
        rows.write.kafka("b:9092", "t").named("topic")

    assert cut(flow_of(write)) == ["s+select+topic+x"]


def test_channel_of_a_unit_read_twice() -> None:
    builder, rows = begin("L1")
    clean = rows.where("v > 1").named("clean")
    clean.to_layer("site").where("v > 2").write.memory("near")
    clean.to_layer("cloud").where("v > 3").write.memory("far")
    plan = build(builder.build(), ACME)
    (channel,) = plan.channels
    assert channel.routes == {"near@S1": ("E1-S1",), "far@C1": ("E1-S1", "S1-C1")}
    assert channel.links == ("E1-S1", "S1-C1")
    assert [ACME.link(name).lower for name in channel.links] == ["E1", "S1"]


def test_unit_per_operator() -> None:
    plan = build(paper(), ACME, unit_per_operator(paper(), ACME))
    # A watermark is only a mark: it stays with its input.
    assert [o for o, zone in members(plan) if zone in ("E1", "S1", "C1")] == [
        "read+watermark", "FP", "AD", "ML", "out",
    ]  # fmt: skip


def test_one_unit() -> None:
    dataflow = paper("n_cpu >= 4")
    plan = build(dataflow, ACME, one_unit(dataflow, ACME))
    assert members(plan) == [("+".join(dataflow.order), "C1")] and plan.channels == ()


def test_layers_meet_in_the_higher_one() -> None:
    builder, rows = begin()
    low = rows.to_layer("site").where("v > 1")
    low.union(rows.to_layer("cloud").where("v < 1")).named("u").write.memory("out")
    assert marked_layers(builder.build(), ACME)["u"] == "cloud"


# ---------------------------------------------------------------- any graph


@st.composite
def dataflows(draw: st.DrawFn) -> Dataflow:
    """Draw a graph of filters, projections, unions and explodes; some streams are used several times."""
    builder, rows = begin()
    layers = ["edge", "site", "cloud"]
    streams: list[tuple[Stream, int]] = [(rows.select("id", "v", "tags"), 0)]
    used: set[int] = set()
    for _ in range(draw(st.integers(0, 9))):
        n = draw(st.integers(0, len(streams) - 1))
        stream, layer = streams[n]
        used.add(n)
        if draw(st.integers(0, 3)) == 0:
            layer = draw(st.integers(layer, 2))
            stream = stream.to_layer(layers[layer])
        match draw(st.sampled_from(["where", "select", "union", "explode"])):
            case "where":
                stream = stream.where(f"v > {draw(st.integers(0, 3))}")
            case "select":
                stream = stream.select("id", "v + 1 AS v", "tags")
            case "explode":
                stream = stream.explode("tags", "tag").select("id", "v", "array(tag) AS tags")
            case _:
                m = draw(st.integers(0, len(streams) - 1))
                used.add(m)
                layer = max(layer, streams[m][1])
                stream = stream.union(streams[m][0])
        streams.append((stream, layer))
    for n, (stream, _) in enumerate(streams):
        if n not in used or draw(st.booleans()):
            if draw(st.integers(0, 5)) == 0:
                stream.write.jdbc("jdbc:x:y", "t").named(f"out{n}")
            else:
                stream.write.memory(f"out{n}")
    return builder.build()


def check_pieces(dataflow: Dataflow, found: Any, edges: set[tuple[str, str]]) -> None:
    assert sorted(o for piece in found for o in piece) == sorted(dataflow.order)
    member = {o: n for n, piece in enumerate(found) for o in piece}
    graph = nx.DiGraph((member[p], member[o]) for o in dataflow.order for p in dataflow[o].inputs)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    assert nx.is_directed_acyclic_graph(graph)
    assert all(low < high for low, high in graph.edges)  # inputs first
    assert all(member[p] != member[o] for p, o in edges)
    assert all(
        len(outputs_of(dataflow, p)) == 1 or one_pass(dataflow, p, outputs_of(dataflow, p)) is not None for p in found
    )


@settings(max_examples=60, deadline=None)
@given(dataflows(), st.data())
def test_any_graph_in_any_pieces(dataflow: Dataflow, data: st.DataObject) -> None:
    assert Dataflow.from_json(dataflow.to_json()) == dataflow
    assert Dataflow.from_json(dataflow.to_json()).keys == dataflow.keys
    every = sorted({(p, o) for o in dataflow.order for p in dataflow[o].inputs})
    some = set(data.draw(st.lists(st.sampled_from(every), unique=True)))
    check_pieces(dataflow, pieces(dataflow, some), some)


@settings(max_examples=40, deadline=None)
@given(dataflows())
def test_any_graph_is_planned(dataflow: Dataflow) -> None:
    for deploy in (one_unit, annotated, unit_per_operator):
        plan = build(dataflow, ACME, deploy(dataflow, ACME))
        per_zone: dict[tuple[str, str], int] = {}
        for unit in plan.units:
            for operator in unit.operators:
                per_zone[operator, unit.zone] = per_zone.get((operator, unit.zone), 0) + 1
        assert set(per_zone.values()) == {1}
        assert {operator for operator, _ in per_zone} == set(dataflow.order)
        graph = nx.DiGraph((c.producer, unit) for c in plan.channels for unit in c.consumers)
        assert nx.is_directed_acyclic_graph(graph)
        # Every stream that leaves a unit is read, once by each instance above it.
        assert all(c.consumers for c in plan.channels)
        assert len({u.id for u in plan.units}) == len(plan.units)
        assert len({c.id for c in plan.channels}) == len(plan.channels)
        dump(outline(plan))


@pytest.mark.parametrize("idle_after", [None, "5 minutes"])
def test_idleness_is_in_a_stored_plan_where_it_is_stated(idle_after: str | None) -> None:
    builder = hw.flow("f", locations=("L1",))
    read = builder.read.json("/d/{location}", "ts timestamp").with_watermark("ts", "1 s", idle_after=idle_after)
    read.to_layer("cloud").group_by(hw.window("ts", "1 minute")).count().write.memory("out")
    plan = build(builder.build(), ACME)
    text = json.dumps(to_document(plan))
    assert from_document(json.loads(text)) == plan
    # The ids of plans from before there was idleness stay the same.
    assert ("idle_after" in text) == (idle_after is not None)
    spec = spec_of(plan, plan.units[-1].id)
    assert load(UnitSpec, dump(spec), what="a spec") == spec
