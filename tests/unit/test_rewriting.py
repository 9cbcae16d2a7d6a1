"""Rewrite rules without Spark: what they change, what they refuse, what they save, and how they are asked for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headwater as hw
from headwater.app.client import Client, PlanRequest
from headwater.cli import app
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, PlacementError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Select, Watermark, Where
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.stateful import Aggregate
from headwater.plan.build import build, marked_layers
from headwater.plan.deployment import layers_of
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.figures import FlowFigures
from headwater.plan.optimise import optimise
from headwater.plan.profile import Known, OperatorProfile, Profile
from headwater.plan.setting import Setting
from headwater.plan.traffic import least_traffic, traffic
from headwater.rewrite.aggregates import DROP_EARLY, GROUP_VALUES, SPLIT_AGGREGATE
from headwater.rewrite.filters import FILTER_DOWN, FILTER_ORDER
from headwater.rewrite.projections import PRUNE_COLUMNS, SELECT_DOWN
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten, RuleResult
from headwater.rewrite.rules import RULES
from headwater.rewrite.semijoins import SEMI_JOIN
from headwater.sql.mergeable import NotMergeable, merged
from headwater.sql.raising import may_raise
from headwater.sql.schema import Schema

ZONES = """
name: plant
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {vm: {gpu: true}}}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E3: {layer: edge, parent: S2, locations: [L3]}
"""
CONTINUUM = Continuum.from_text(ZONES)
SCHEMA = "id bigint, ts timestamp, k string, v double, n int, d int"


def read(name: str = "test") -> tuple[DataflowBuilder, hw.Stream]:
    builder = hw.flow(name, locations=["L1", "L2", "L3"])
    return builder, builder.read.json("/in/{location}", SCHEMA, location_as="location").named("rows")


def timed() -> tuple[DataflowBuilder, hw.Stream]:
    builder, rows = read()
    return builder, rows.with_watermark("ts", "1 minute").named("timed")


def built(builder: DataflowBuilder, stream: hw.Stream) -> Dataflow:
    stream.write.memory("out")
    return builder.build()


def at(rule: RewriteRule, flow: Dataflow, id_: str) -> RuleResult:
    return rule.apply(flow, id_)


def refusal(rule: RewriteRule, flow: Dataflow, id_: str) -> str:
    found = at(rule, flow, id_)
    assert isinstance(found, NotRewritten)
    return found.reason


def conditions(flow: Dataflow) -> dict[str, tuple[str, str]]:
    """Return the input and the condition of each filter."""
    return {o.id: (o.inputs[0], o.condition) for o in flow.operators if isinstance(o, Where)}


# ---------------------------------------------------------------- filters


def test_a_filter_passes_a_projection_with_its_expressions() -> None:
    builder, rows = read()
    flow = built(builder, rows.select("id", "v * 2 AS w").named("twice").where("w > 4").named("big"))
    found = at(FILTER_DOWN, flow, "big")
    assert isinstance(found, Rewritten) and found.moved == ("big",)
    assert conditions(found.dataflow) == {"big": ("rows", "v * 2 > 4")}
    assert found.dataflow["twice"].inputs == ("big",) and found.dataflow["out"].inputs == ("twice",)


def test_a_filter_is_copied_to_the_inputs_of_a_union() -> None:
    builder, rows = read()
    one, two = rows.select("id", "k"), rows.select("id", "upper(k) AS k")
    found = at(FILTER_DOWN, built(builder, one.union(two).named("all").where("k = 'A'").named("some")), "some")
    assert isinstance(found, Rewritten)
    assert conditions(found.dataflow) == {"some.1": ("select", "k = 'A'"), "some.2": ("select-2", "k = 'A'")}
    assert found.dataflow["out"].inputs == ("all",) and found.origins == {"some.1": "some", "some.2": "some"}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_filter_behind_a_join_moves_to_the_sides_whose_columns_it_uses(how: Any) -> None:
    builder, rows = timed()
    left, right = rows.select("id", "ts", "k", "v"), rows.select("id AS other", "ts AS at", "k", "v AS w")
    joined = left.join(right, "k", within="1 second", how=how).named("pairs")
    flow = built(builder, joined.where("k = 'a' AND v > 1 AND w > 2 AND v > w").named("some"))
    found = at(FILTER_DOWN, flow, "some")
    assert isinstance(found, Rewritten)
    right_side = "(k = 'a') AND (w > 2)" if how == "inner" else "(k = 'a')"
    kept = "(v > w)" if how == "inner" else "(v > w) AND (w > 2)"
    assert conditions(found.dataflow) == {
        "some": ("pairs", kept),
        "some.of.select": ("select", "(k = 'a') AND (v > 1)"),
        "some.of.select-2": ("select-2", right_side),
    }


def test_behind_groups_only_conditions_on_keys_move() -> None:
    builder, rows = timed()
    counted = rows.group_by(hw.window("ts", "1 minute"), "k").agg(n="count(*)").named("counts")
    found = at(FILTER_DOWN, built(builder, counted.where("k = 'a' AND n > 3").named("some")), "some")
    assert isinstance(found, Rewritten)
    assert conditions(found.dataflow) == {"some": ("counts", "(n > 3)"), "some.of.timed": ("timed", "(k = 'a')")}


def test_a_condition_that_may_fail_stays_behind_the_filter_that_guards_it() -> None:
    builder, rows = read()
    flow = built(builder, rows.where("d <> 0").named("guard").where("n % d = 1").named("odd"))
    assert "may fail" in refusal(FILTER_DOWN, flow, "odd")
    builder, rows = read()
    flow = built(builder, rows.where("d <> 0").named("guard").where("n % 2 = 1").named("odd"))
    assert isinstance(at(FILTER_DOWN, flow, "odd"), Rewritten)


def test_filters_stay_behind_event_times_functions_and_shared_streams() -> None:
    builder, rows = read()
    flow = built(builder, rows.with_watermark("ts", "1 minute").named("timed").where("v > 1").named("some"))
    assert "advance the event time" in refusal(FILTER_DOWN, flow, "some")
    builder, rows = read()
    doubled = rows.map_batches(lambda batches: batches, "id bigint, v double").named("doubled")
    assert "Python function" in refusal(FILTER_DOWN, built(builder, doubled.where("v > 1").named("some")), "some")
    builder, rows = read()
    shared = rows.select("id", "v").named("shared")
    shared.write.memory("all")
    assert "'all' read all rows" in refusal(FILTER_DOWN, built(builder, shared.where("v > 1").named("some")), "some")


@pytest.mark.parametrize(
    ("text", "raises"),
    [
        ("v > 1", False), ("n = id", False), ("v * 2 + 1 < v", False), ("k = 'a' OR k IS NULL", False),
        ("n % 3 = 0", False), ("v / 2 > 1", False), ("k IN ('a', 'b')", False), ("v BETWEEN 1 AND 2", False),
        ("upper(k) = 'A'", False), ("coalesce(v, 0D) > 1", False), ("TRY_CAST(k AS int) = 1", False),
        ("CAST(n AS string) = '1'", False), ("NOT (v > 1)", False), ("CASE WHEN v > 1 THEN true END", False),
        ("n + 1 > 2", True), ("n / d > 1", True), ("n % d = 1", True), ("k > 1", True), ("CAST(k AS int) = 1", True),
        ("-n > 1", True), ("element_at(array(1), n) = 1", True), ("k LIKE '%a'", True), ("n % 0 = 1", True),
        ("exists(array(n), x -> x > 1)", True), ("date_add(CAST(ts AS date), n) IS NULL", True),
    ],
)  # fmt: skip
def test_expressions_that_may_fail(text: str, raises: bool) -> None:
    assert may_raise(text, Schema.parse(SCHEMA)) is raises


# ---------------------------------------------------------------- columns


def test_unused_columns_stay_before_the_link() -> None:
    builder, rows = timed()
    above = rows.where("d > 1").named("some").to_layer("cloud")
    means = above.group_by(hw.window("ts", "1 minute"), "k").agg(mean="avg(v)").named("means")
    flow = marked(built(builder, means))
    found = at(PRUNE_COLUMNS, flow, "some")
    assert isinstance(found, Rewritten)
    assert found.dataflow.types["some.columns"].schema.names == ("ts", "k", "v")
    assert found.dataflow["some.columns"].layer == "edge" and found.dataflow["means"].inputs == ("some.columns",)
    assert at(PRUNE_COLUMNS, found.dataflow, "some.columns") is None
    assert at(PRUNE_COLUMNS, flow, "timed") is None  # no link behind it


def test_a_sink_takes_all_columns() -> None:
    builder, rows = read()
    assert "a sink" in refusal(PRUNE_COLUMNS, marked(built(builder, rows.to_layer("cloud"))), "rows")


def test_a_projection_behind_a_link_moves_before_it_unless_it_requires_hosts() -> None:
    builder, rows = read()
    flow = marked(built(builder, rows.to_layer("cloud").select("v * 2 AS w").named("twice")))
    found = at(SELECT_DOWN, flow, "twice")
    assert isinstance(found, Rewritten) and found.dataflow["twice"].layer == "edge"
    builder, rows = read()
    bound = rows.to_layer("cloud").require("gpu = true").select("v * 2 AS w").named("twice")
    assert "requires hosts" in refusal(SELECT_DOWN, marked(built(builder, bound)), "twice")


def test_neighbouring_filters_are_swapped_unless_one_guards_the_other_or_others_read_between() -> None:
    builder, rows = read()
    first = rows.where("v > 5").named("first")
    flow = built(builder, first.where("id > 3").named("second").where("k = 'a'").named("third"))
    found = at(FILTER_ORDER, flow, "third")
    assert isinstance(found, Rewritten)
    assert [i for i in found.dataflow.order if i in ("first", "second", "third")] == ["first", "third", "second"]
    assert found.dataflow["out"].inputs == ("second",)
    assert at(FILTER_ORDER, flow, "first") is None
    guarded = built(*guard())
    assert "may fail on rows that 'first' drops" in refusal(FILTER_ORDER, guarded, "second")
    builder, rows = read()
    first = rows.where("v > 5").named("first")
    first.write.memory("all")
    assert "'all' read all rows" in refusal(
        FILTER_ORDER, built(builder, first.where("id > 3").named("second")), "second"
    )


def guard() -> tuple[DataflowBuilder, hw.Stream]:
    """Return a filter that keeps another one from a division by zero."""
    builder, rows = read()
    return builder, rows.where("id <> 0").named("first").where("10 / id > 1").named("second")


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_filters_are_in_the_order_of_the_least_load(data: st.DataObject) -> None:
    number = data.draw(st.integers(2, 4))
    shares = st.floats(0.05, 0.95)
    profiles = {
        f"f{n}": OperatorProfile(selectivity=data.draw(shares), cpu_s=data.draw(st.floats(1e-6, 1e-4)))
        for n in range(number)
    }
    builder, rows = timed()
    for n in range(number):
        rows = rows.where(f"id > {n}").named(f"f{n}")
    flow = built(builder, rows)
    profile = Profile(dataflow=flow.name, operators=profiles)
    found = optimise(flow, CONTINUUM, profile, (FILTER_ORDER,))
    order = [i for i in found.dataflow.order if i in profiles]

    def load(names: Sequence[str]) -> float:
        left, total = 1.0, 0.0
        for name in names:
            total += left * profiles[name].cpu_s
            left *= profiles[name].selectivity
        return total

    least = min(load(names) for names in itertools.permutations(profiles))
    assert load(order) == pytest.approx(least, rel=1e-4)
    saved = sum(use.saves_cores for use in found.rewriting.rules)
    rate = sum(FlowFigures(dataflow=flow, continuum=CONTINUUM, known=Known(flow, profile)).rows["rows"].values())
    assert saved == pytest.approx(rate * (load(list(profiles)) - least), rel=1e-3, abs=1e-4)


# ---------------------------------------------------------------- aggregates


def marked(flow: Dataflow) -> Dataflow:
    """Return the dataflow as rules see one with marks: each operator with its layer."""
    layers = marked_layers(flow, CONTINUUM)
    return flow.with_operators(replace(o, layer=layers[o.id]) for o in flow.operators)


def grouped(window: Any, **aggregates: str) -> Dataflow:
    builder, rows = timed()
    return built(builder, rows.to_layer("cloud").group_by(window, "k").agg(**aggregates).named("found"))


def test_sliding_windows_are_merged_from_panes() -> None:
    flow = grouped(hw.window("ts", "50 seconds", "20 seconds"), n="count(*)", mean="avg(v)")
    found = at(SPLIT_AGGREGATE, marked(flow), "found")
    assert isinstance(found, Rewritten)
    partial, final = found.dataflow["found.partial"], found.dataflow["found"]
    assert isinstance(partial, Aggregate) and isinstance(final, Aggregate)
    assert partial.partial and partial.window is not None and "10 seconds" in str(partial.window)
    assert partial.partition_keys() is None and final.partition_keys() == ("k",)
    assert (partial.layer, final.layer, final.inputs) == ("edge", "cloud", ("found.partial",))
    assert found.dataflow.types["found"] == flow.types["found"]
    assert at(SPLIT_AGGREGATE, found.dataflow, "found") is None


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        (grouped(hw.session_window("ts", "5 seconds"), n="count(*)"), "sessions"),
        (grouped(hw.window("ts", "5 seconds"), n="count(DISTINCT v)"), "all values"),
        (grouped(hw.window("ts", "5 seconds"), n="collect_list(v)"), "order of its elements"),
        (grouped(hw.window("ts", "5 seconds"), n="approx_count_distinct(v)"), "all distinct values"),
        (grouped(hw.window("ts", "5 seconds"), n="median(v)"), "all values"),
    ],
)
def test_aggregates_that_stay_whole(flow: Dataflow, reason: str) -> None:
    assert reason in refusal(SPLIT_AGGREGATE, marked(flow), "found")


@pytest.mark.parametrize(
    ("text", "partial", "final"),
    [
        ("count(DISTINCT V)", "count(*)", "count(DISTINCT v)"),
        ("sum(DISTINCT v) + count(*)", "count(*)", "sum(DISTINCT v) + sum(partial)"),
        ("approx_count_distinct(id, 0.1)", "count(*)", "approx_count_distinct(id, 0.1)"),
        ("median(v)", "count(v)", "percentile(v, 0.5D, partial)"),
        ("percentile(v, array(0.1, 0.9))", "count(v)", "percentile(v, array(0.1, 0.9), partial)"),
    ],
)
def test_aggregates_of_values_are_computed_from_groups_by_them(text: str, partial: str, final: str) -> None:
    flow = marked(grouped(hw.window("ts", "50 seconds", "20 seconds"), found=text))
    result = at(GROUP_VALUES, flow, "found")
    assert isinstance(result, Rewritten)
    first, last = result.dataflow["found.partial"], result.dataflow["found"]
    assert isinstance(first, Aggregate) and isinstance(last, Aggregate)
    assert first.keys == ("k", "id" if "id" in text else "v") and last.keys == ("k",)
    assert (first.aggregates, last.aggregates) == ((("partial", partial),), (("found", final),))
    assert result.dataflow.types["found"] == flow.types["found"]
    assert at(GROUP_VALUES, result.dataflow, "found") is None


@pytest.mark.parametrize(
    ("aggregates", "reason"),
    [
        ({"n": "count(DISTINCT v)", "m": "median(id)"}, "all values of `id`, `v`"),
        ({"n": "count(DISTINCT v, id)"}, "those of one column"),
        ({"n": "median(v + 1)"}, "those of one column"),
        ({"n": "count(DISTINCT v) FILTER (WHERE id > 3)"}, "has a FILTER"),
        ({"n": "approx_count_distinct(v)"}, "0.0 from -0.0"),
        ({"n": "percentile(v, 0.5, id)"}, "a frequency of its own"),
        ({"n": "count(DISTINCT v)", "all": "collect_list(v)"}, "order of its elements"),
    ],
)
def test_aggregates_of_values_that_stay_whole(aggregates: dict[str, str], reason: str) -> None:
    flow = marked(grouped(hw.window("ts", "5 seconds"), **aggregates))
    assert reason in refusal(GROUP_VALUES, flow, "found")


def test_values_are_not_grouped_where_no_aggregate_needs_them_or_they_are_keys() -> None:
    assert at(GROUP_VALUES, marked(grouped(hw.window("ts", "5 seconds"), n="count(*)")), "found") is None
    assert at(GROUP_VALUES, marked(grouped(hw.window("ts", "5 seconds"), n="count(DISTINCT k)")), "found") is None


def test_an_aggregate_without_a_link_before_it_stays_whole() -> None:
    builder, rows = timed()
    flow = built(builder, rows.group_by(hw.window("ts", "1 minute"), "location").agg(n="count(*)").named("found"))
    assert at(SPLIT_AGGREGATE, marked(flow), "found") is None


def test_averages_of_wide_decimals_would_be_rounded_twice() -> None:
    schema = Schema.parse("a decimal(38,10), b decimal(12,4)")
    assert merged((("x", "avg(b)"),), schema, []).partial[1] == ("partial_2", "sum(b)")
    with pytest.raises(NotMergeable, match="rounded twice"):
        merged((("x", "avg(a)"),), schema, [])


def test_duplicates_are_dropped_early_only_if_there_are_any() -> None:
    builder, rows = timed()
    flow = built(builder, rows.to_layer("cloud").drop_duplicates("id").named("once"))
    assert isinstance(at(DROP_EARLY, marked(flow), "once"), Rewritten)
    assert not optimise(flow, CONTINUUM, None, (DROP_EARLY,)).rewriting.rules[0].applied
    many = Profile(dataflow="test", operators={"once": OperatorProfile(selectivity=0.1)})
    found = optimise(flow, CONTINUUM, many, (DROP_EARLY,))
    assert [use.applied for use in found.rewriting.rules] == [True]
    assert found.profile is not None and found.profile.operators["once.partial"].selectivity == pytest.approx(0.3)


# ---------------------------------------------------------------- tables


def looked_up(table: Path, how: Any = "inner", **more: Any) -> Dataflow:
    table.write_text('{"k": "a", "name": "A"}\n')
    builder, rows = read()
    machines = builder.table.json(str(table), "k string, name string", **more)
    found = rows.to_layer("cloud").join(machines, "k", how=how).named("known")
    return built(builder, found)


def test_rows_without_a_partner_do_not_cross_a_link(tmp_path: Path) -> None:
    flow = looked_up(tmp_path / "machines.json")
    assert not any(use.applied for use in optimise(flow, CONTINUUM, None, (SEMI_JOIN,)).rewriting.rules)
    few = Profile(dataflow="test", operators={"known": OperatorProfile(selectivity=0.25, bytes_out=400.0)})
    for one in (flow, flow.with_operators(replace(o, layer=None) for o in flow.operators)):
        found = optimise(one, CONTINUUM, few, (SEMI_JOIN,))
        assert [use.rule for use in found.rewriting.rules if use.applied] == ["semi-join"]
        assert found.dataflow.types["known"].schema == flow.types["known"].schema
        assert found.dataflow.types["known.partners"].schema == flow.types["rows"].schema
        placement = found.deployment.placement
        assert (placement["known.partners", "L1"], placement["known", "L1"]) == (("E1",), ("vm",))
        whole, sent = (sum(links.values()) for links in (found.rewriting.before, found.rewriting.after))
        assert sent == pytest.approx(0.25 * whole)
        assert not any(use.applied for use in optimise(found.dataflow, CONTINUUM, None, (SEMI_JOIN,)).rewriting.rules)


def test_tables_that_zones_read_themselves_keep_their_rows_together(tmp_path: Path) -> None:
    flow = marked(looked_up(tmp_path / "machines.json", refresh="1 hour"))
    assert "other versions" in refusal(SEMI_JOIN, flow, "known")
    for how in ("left", "left_semi", "left_anti"):
        assert at(SEMI_JOIN, marked(looked_up(tmp_path / "machines.json", how)), "known") is None


def test_a_join_that_adds_little_to_few_rows_runs_in_front_of_the_link_itself(tmp_path: Path) -> None:
    flow = looked_up(tmp_path / "machines.json")
    unmarked = flow.with_operators(replace(o, layer=None) for o in flow.operators)
    few = Profile(dataflow="test", operators={"known": OperatorProfile(selectivity=0.25, bytes_out=10.0)})
    found = optimise(unmarked, CONTINUUM, few, (SEMI_JOIN,))
    assert not any(use.applied for use in found.rewriting.rules)
    assert found.deployment.placement["known", "L1"] == ("E1",)


# ---------------------------------------------------------------- traffic


def test_a_stream_with_several_readers_crosses_a_link_once() -> None:
    builder, rows = read()
    above = rows.to_layer("cloud")
    above.where("v > 1").write.memory("one")
    above.where("v < 1").write.memory("two")
    flow = builder.build()
    figures = FlowFigures(dataflow=flow, continuum=CONTINUUM, known=Known(flow, None))
    found = traffic(figures, marked_layers(flow, CONTINUUM))
    size = figures.bytes_out("rows")
    assert found["E1-S1"] == 1000 * size and found["S1-C1"] == 2000 * size and found["S2-C1"] == 1000 * size


def test_rows_without_a_column_have_the_measured_bytes_of_the_others() -> None:
    """By its type alone, a list has the bytes of a string; ``item`` has nearly all of a row here."""
    builder, rows = timed()
    columns = ("ts", "location", "named_struct('k', k) AS item", "array(v, v) AS list")
    whole = rows.select(*columns).named("whole")
    flow = built(builder, whole.select("ts", "location", "item.k AS k").named("picked"))
    pruned = flow.with_operators(
        replace(o, columns=o.columns[:3]) if isinstance(o, Select) and o.id == "whole" else o for o in flow.operators
    )

    def sizes(measured: dict[str, float] | None) -> tuple[float, float]:
        profile = Profile(operators={"whole": OperatorProfile(bytes_out=200.0, columns=measured)})
        figures = FlowFigures(dataflow=flow, continuum=CONTINUUM, known=Known(flow, profile))
        return figures.bytes_out("whole"), figures.after(pruned, {}).bytes_out("whole")

    assert sizes(None) == (200.0, pytest.approx(200 * 49 / 69))
    assert sizes({"TS": 0.04, "location": 0.01, "item": 0.9, "list": 0.05}) == (200.0, pytest.approx(190.0))
    repeated = {"ts": 0.04, "location": 0.01, "item": 0.9, "list": 0.93}
    assert sizes(repeated) == (200.0, pytest.approx(190.0)), "the list has nothing of its own"
    assert sizes({**repeated, "item": 0.97}) == (200.0, 200.0)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_layers_chosen_have_the_least_traffic(data: st.DataObject) -> None:
    """Compare the cut with all choices of layers that lead upwards."""
    builder, rows = timed()
    first = rows.where("v > 1").named("first")
    second = first.select("id", "ts", "location", "k").named("second")
    third = second.group_by(hw.window("ts", "1 minute"), "location").agg(n="count(*)").named("third")
    tap = data.draw(st.sampled_from([first, second]))
    tap.where("k = 'a'").named("tapped").write.memory("tap")
    flow = built(builder, third.group_by("window").agg(n="sum(n)").named("fourth"))
    shares = {o: OperatorProfile(selectivity=data.draw(st.floats(0.01, 4))) for o in flow.order if o not in ("rows",)}
    known = Known(flow, Profile(dataflow="test", operators=shares))
    figures = FlowFigures(dataflow=flow, continuum=CONTINUUM, known=known)
    ends = {o.id: "cloud" if isinstance(o, Sink) else "edge" for o in flow.operators}
    found = least_traffic(Setting(flow, CONTINUUM, ends, known), figures)
    fixed = {o.id: ends[o.id] for o in flow.operators if isinstance(o, Source | Sink | Watermark)}
    free = [o for o in flow.order if o not in fixed]
    layers, best = ("edge", "site", "cloud"), float("inf")
    for choice in itertools.product(layers, repeat=len(free)):
        tried = {**fixed, **dict(zip(free, choice, strict=True))}
        upwards = all(layers.index(tried[p]) <= layers.index(tried[c]) for c in flow.order for p in flow[c].inputs)
        if upwards and tried["fourth"] == "cloud":  # it needs the rows of all locations
            best = min(best, sum(traffic(figures, tried).values()))
    assert sum(traffic(figures, found).values()) == pytest.approx(best)


def test_an_operator_is_not_above_one_that_reads_it() -> None:
    """The cloud has all rows anyway, but the reader of the filter needs a host of the edge."""
    text = ZONES
    for n in (1, 2, 3):
        text = text.replace(f"locations: [L{n}]", f"hosts: {{pi{n}: {{camera: true}}}}, locations: [L{n}]")
    zones = Continuum.from_text(text)
    builder, rows = read()
    rows.write.memory("all")
    some = rows.where("v > 1").named("some").require("camera = true").select("v * 2 AS w").named("bound")
    found = optimise(built(builder, some), zones, None, ())
    layers, _ = layers_of(found.deployment.placement, zones, ["rows", "some", "bound", "all"])
    assert layers == {
        "rows": "edge", "some": "edge", "bound": "edge", "all": "cloud",
    }  # fmt: skip


def test_of_equally_good_layers_the_highest_is_chosen() -> None:
    builder, rows = read()
    found = optimise(built(builder, rows.select("*").named("same")), CONTINUUM, None, RULES)
    assert layers_of(found.deployment.placement, CONTINUUM, ["same"])[0] == {"same": "cloud"}


def test_ways_down_need_marks() -> None:
    builder, rows = timed()
    flow = built(builder, rows.to_layer("cloud").where("v > 1").to_layer("edge", by="location"))
    from dataclasses import replace

    bare = replace(flow, operators=tuple(replace(o, layer=None) for o in flow.operators))
    with pytest.raises(PlacementError, match="go down"):
        optimise(bare, CONTINUUM, None, RULES)


# ---------------------------------------------------------------- asking for it

FLOW = f"""
import headwater as hw

f = hw.flow("plant", locations=["L1", "L2", "L3"])
rows = f.read.json("/in/{{location}}", "{SCHEMA}", location_as="location").with_watermark("ts", "1 minute")
warm = rows.where("v > 1").named("warm").to_layer("cloud")
counts = warm.group_by(hw.window("ts", "1 minute"), "k").agg(n="count(*)").named("counts")
counts.write.memory("out")
plant = f.build()
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "zones.yaml").write_text(ZONES)
    store = ["--store", str(tmp_path / "store.db")]
    return [f"{tmp_path / 'flow.py'}:plant", "-c", str(tmp_path / "zones.yaml"), *store]


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_plan_tells_what_was_rewritten_and_what_it_saves(files: list[str]) -> None:
    shown = json.loads(ask("plan", *files, "--rewrite", "--json").stdout)["rewriting"]
    assert {(r["rule"], r["operator"]) for r in shown["rules"] if r["applied"]} == {
        ("prune-columns", "warm"), ("split-aggregate", "counts"),
    }  # fmt: skip
    assert shown["assumed"] and not shown["placed"]
    assert sum(shown["before"].values()) > 3 * sum(shown["after"].values())
    assert sum(r["saves_bytes_per_s"] for r in shown["rules"]) == pytest.approx(
        sum(shown["before"].values()) - sum(shown["after"].values())
    )
    text = ask("plan", *files, "--rewrite").stdout
    assert "split-aggregate at 'counts'" in text and "counts.partial" in text
    assert json.loads(ask("plan", *files, "--json").stdout)["rewriting"] is None


def test_a_rule_can_be_left_out(files: list[str]) -> None:
    less = [*files, "--rewrite", "--no-rewrite-rule", "split-aggregate", "--json"]
    shown = json.loads(ask("plan", *less).stdout)
    assert {r["rule"] for r in shown["rewriting"]["rules"]} == {"prune-columns"}
    assert not any("partial" in o for u in shown["units"] for o in u["operators"])
    assert {u["id"] for u in shown["units"]} == {"warm@E1", "warm@E2", "warm@E3", "out@C1"}
    wrong = ask("plan", *files, "--rewrite", "--no-rewrite-rule", "split-agregate")
    assert wrong.exit_code != 0 and "did you mean split-aggregate" in wrong.output.lower().replace("'", "")
    assert ask("plan", *files, "--no-rewrite-rule", "split-aggregate").exit_code == 2


def test_a_running_deployment_keeps_its_state_unless_an_aggregate_is_split() -> None:
    builder, rows = timed()
    counts = rows.to_layer("cloud").group_by(hw.window("ts", "1 minute"), "k").agg(n="count(*)").named("counts")
    flow = built(builder, counts.where("k <> 'a'").named("some"))
    running = build(flow, CONTINUUM)

    def changed(*rules: RewriteRule) -> PlanDiff:
        found = optimise(flow, CONTINUUM, None, rules)
        plan = build(found.dataflow, CONTINUUM, found.deployment)
        assert diff(plan, build(found.dataflow, CONTINUUM, found.deployment)).empty
        return diff(running, plan)

    kept = changed(FILTER_DOWN, PRUNE_COLUMNS)
    assert {(c.unit, c.state) for c in kept.changed if "C1" in c.unit} == {("out@C1", "kept")}
    assert "given up" not in {c.state for c in kept.units}
    with pytest.raises(HeadwaterError, match="--reset-state"):
        changed(*RULES)


def test_other_entrances_refuse_what_cannot_be_rewritten(files: list[str]) -> None:
    flow = grouped(hw.window("ts", "5 seconds"), n="count(*)")
    with pytest.raises(PlacementError, match="not rewritten"):
        PlanRequest(dataflow=flow, continuum=CONTINUUM, shape="one-unit", rewrite=True)
    with pytest.raises(PlacementError, match="nothing is rewritten"):
        PlanRequest(dataflow=flow, continuum=CONTINUUM, without_rules=frozenset(["filter-down"]))
    with pytest.raises(HeadwaterError, match="unknown rewrite rule"):
        request = PlanRequest(dataflow=flow, continuum=CONTINUUM, rewrite=True, without_rules=frozenset(["x"]))
        Client(files[-1]).propose(request)
    assert ask("plan", *files, "--rewrite", "--one-unit").exit_code == 2


def test_a_strategy_places_the_rewritten_dataflow(files: list[str]) -> None:
    shown = json.loads(ask("plan", *files, "--rewrite", "--strategy", "optimal", "--json").stdout)
    assert shown["prediction"]["strategy"] == "optimal" and shown["rewriting"]["rules"]
    assert any("warm.columns" in u["operators"] for u in shown["units"])
    (unused,) = (r for r in shown["rewriting"]["rules"] if r["rule"] == "split-aggregate")  # the links are unlimited
    assert not unused["applied"] and "no use of it" in unused["what"]
