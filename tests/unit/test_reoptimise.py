"""Other rewritings of a running dataflow: what the policy chooses, refuses, judges and remembers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.adapt.model import Facts, predict
from headwater.adapt.options import Option, Options
from headwater.adapt.reoptimise import other_rewritings, saves, unsafe
from headwater.adapt.rewritten import as_running, as_written
from headwater.adapt.slo import SLO
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.records import Decision
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.document import from_document, to_document
from headwater.plan.edit import Move
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import optimise
from headwater.plan.profile import OperatorProfile, Profile
from headwater.plan.written import Written
from headwater.rewrite.rules import rules_without
from tests.unit.looped import BEGIN, ZONES, Loop

CALM = SLO(mode="auto", max_latency=20.0, headroom=None, settle=15.0, cool_down=30.0)
ROWS = 1000.0
SELECTIVE, LOOSE = 0.1, 0.9
WITHOUT = ("split-aggregate", "prune-columns")


def filtered(*, marked: bool = True, behind: str = "") -> Dataflow:
    """Build two filters at the edge, and windows of few groups in the cloud; ``behind``: a condition on groups."""
    builder = hw.flow("two", locations=["nyc"])
    trips = builder.read.json("/data/{location}", "ts timestamp, zone int, a int, b int").named("trips")
    timed = trips.with_watermark("ts", "1 second").named("timed")
    kept = timed.where("a < 10").named("first").where("b < 10").named("second")
    kept = kept.to_layer("cloud") if marked else kept
    zones = kept.group_by(hw.window("ts", "1 minute"), "zone").agg(n="count(*)", a="sum(a)").named("zones")
    zones = zones.where(behind).named("behind") if behind else zones
    (zones.to_layer("cloud") if marked else zones).write.memory("result")
    return builder.build()


def profile(first: float, second: float, **others: float) -> Profile:
    """Return the profile of filters of these selectivities, which cost most of all operators."""
    operators = {
        "trips": OperatorProfile(cpu_s=5e-6, bytes_out=40),
        "first": OperatorProfile(cpu_s=200e-6, selectivity=first, bytes_out=40),
        "second": OperatorProfile(cpu_s=200e-6, selectivity=second, bytes_out=40),
        "zones": OperatorProfile(cpu_s=5e-6, selectivity=0.01, bytes_out=40),
        **{id_: OperatorProfile(cpu_s=5e-6, selectivity=share, bytes_out=40) for id_, share in others.items()},
    }
    return Profile(dataflow="two", operators=operators, rates={"trips": {"nyc": ROWS}})


def rewritten(flow: Dataflow, known: Profile, without: tuple[str, ...] = WITHOUT) -> tuple[DeploymentPlan, Profile]:
    """Plan a dataflow as ``apply --rewrite`` does; return the plan and its profile."""
    found = optimise(flow, ZONES, known, rules_without(without))
    assert found.profile is not None
    plan = build(found.dataflow, ZONES, found.deployment)
    return replace(plan, written=found.written(flow, without)), found.profile


def order(plan: DeploymentPlan) -> list[str]:
    return [id_ for id_ in plan.dataflow.order if id_ in ("first", "second")]


def options(plan: DeploymentPlan, known: Profile, slo: SLO = CALM) -> tuple[Option, list[Option]]:
    found = Options(plan, slo, Facts(profile=known), unexplained={}, within=0.9)
    return found.current, [o for o in found.others() if o.rules]


# ---------------------------------------------------------------- the dataflow as it was written


def test_a_plan_keeps_the_dataflow_as_it_was_written() -> None:
    flow = filtered()
    plan, _ = rewritten(flow, profile(LOOSE, SELECTIVE))
    assert order(plan) == ["second", "first"]
    assert plan.written is not None and plan.written.rules == ("filter-order at 'second': filter before 'first'",)
    again = from_document(to_document(plan))
    assert again == plan and again.written is not None and again.written.dataflow == flow


def test_a_plan_that_was_not_rewritten_has_the_document_that_it_had() -> None:
    flow = filtered()
    plan = build(flow, ZONES)
    assert "written" not in to_document(plan) and from_document(to_document(plan)).written is None


def test_edits_keep_the_dataflow_as_written_and_a_new_rewriting_begins_with_it(tmp_path: Path) -> None:
    client, flow = Client(str(tmp_path / "store.db")), filtered()
    first = PlanRequest(dataflow=flow, continuum=ZONES, rewrite=True, profiles={"two": profile(LOOSE, SELECTIVE)})
    client.apply(client.propose(first))
    edited = client.propose(PlanRequest(of="two", edits=(Move(operator="zones", to="edge"),)))
    assert edited.plan.written is not None and edited.plan.written.dataflow == flow
    client.apply(edited)
    again = client.propose(PlanRequest(of="two", rewrite=True, profiles={"two": profile(SELECTIVE, LOOSE)}))
    assert order(again.plan) == ["first", "second"]
    assert again.plan.written is not None and again.plan.written.dataflow == flow
    plain = client.propose(PlanRequest(dataflow=flow, continuum=ZONES))
    assert plain.plan.written is None


def test_a_running_dataflow_is_not_rewritten_past_its_state_by_apply_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"two": profile(0.5, 0.5, behind=0.1)}
    flow = filtered(behind="zone <> 3")
    monkeypatch.setattr("time.time", lambda: BEGIN)
    loop = Loop(tmp_path, CALM, plan=build(flow, ZONES), profile=known["two"])
    client = Client(str(tmp_path / "store.db"))
    request = PlanRequest(
        dataflow=flow, continuum=ZONES, rewrite=True, profiles=known, without_rules=frozenset(WITHOUT)
    )
    refused = client.propose(request).refused
    assert refused is not None and "'behind' would move before 'zones'" in str(refused)
    assert "--no-rewrite-rule filter-down" in str(refused)
    other = replace(request, without_rules=frozenset([*WITHOUT, "filter-down"]))
    assert client.propose(other).refused is None
    assert loop.store.active_plan("two") is not None


@pytest.mark.parametrize("without", [(), ("split-aggregate", "prune-columns")])
@pytest.mark.parametrize("marked", [True, False])
def test_figures_of_the_written_dataflow_follow_from_those_of_the_running_one(
    marked: bool, without: tuple[str, ...]
) -> None:
    flow = filtered(marked=marked, behind="zone <> 3 AND n > 1")
    plan, running = rewritten(flow, profile(LOOSE, SELECTIVE, behind=0.5), without)
    found = as_written(plan, running, None)
    for id_, own in profile(LOOSE, SELECTIVE, behind=0.5).operators.items():
        assert found.operators[id_].selectivity == pytest.approx(own.selectivity), id_
    back = as_running(plan, found)
    for id_, own in running.operators.items():
        assert back.operators[id_].selectivity == pytest.approx(own.selectivity), id_


# ---------------------------------------------------------------- options


def test_filters_are_reordered_where_measured_selectivities_say_so() -> None:
    plan, known = rewritten(filtered(), profile(SELECTIVE, LOOSE))
    assert order(plan) == ["first", "second"]
    assert options(plan, known)[1] == [], "nothing differs"
    _, (other,) = options(plan, profile(LOOSE, SELECTIVE))
    assert order(other.plan) == ["second", "first"]
    assert other.saves == "load" and not other.why_not and other.keeps
    assert other.plan.written is not None and other.plan.written.dataflow == filtered()


def test_rules_that_were_left_out_stay_left_out() -> None:
    plan, _ = rewritten(filtered(), profile(SELECTIVE, LOOSE), ("split-aggregate", "prune-columns", "filter-order"))
    assert options(plan, profile(LOOSE, SELECTIVE))[1] == []


def test_a_dataflow_that_was_not_rewritten_runs_as_it_was_written() -> None:
    plan = build(filtered(), ZONES)
    assert options(plan, profile(LOOSE, SELECTIVE))[1] == []


def test_placement_that_was_changed_meanwhile_stays() -> None:
    plan, _ = rewritten(filtered(), profile(SELECTIVE, LOOSE))
    placement = plan.deployment.placement
    moved = replace(plan.deployment, placement=placement.replaced({"zones": {"nyc": ("pi",)}}))
    plan = replace(build(plan.dataflow, ZONES, moved), written=plan.written)
    found = [o for o in options(plan, profile(LOOSE, SELECTIVE))[1] if order(o.plan) == ["second", "first"]]
    assert found and found[0].plan.layers["zones"] == "edge"


def test_a_filter_that_would_pass_state_is_not_moved() -> None:
    """Groups that it drops are in the state: their windows would be output."""
    running = build(filtered(behind="zone <> 3"), ZONES)
    written = replace(
        rewritten(filtered(behind="zone <> 3"), profile(0.5, 0.5, behind=0.1), ())[0].written, origins={}, rules=()
    )  # type: ignore[type-var]
    plan = replace(running, written=written)
    (found, *_) = other_rewritings(plan, Facts(profile=profile(0.5, 0.5, behind=0.1)))
    assert "zones" in found.why_not and "behind" in found.why_not
    assert all(o.why_not for o in options(plan, profile(0.5, 0.5, behind=0.1))[1])


def test_filters_are_reordered_beside_an_aggregate_that_cannot_be_split_now() -> None:
    flow = filtered()
    plan, _ = rewritten(flow, profile(SELECTIVE, LOOSE))
    assert plan.written is not None
    plan = replace(plan, written=replace(plan.written, without_rules=()))
    known = profile(LOOSE, SELECTIVE)
    rules = [other.rules for other in other_rewritings(plan, Facts(profile=known))]
    assert any("split-aggregate" in " ".join(own) for own in rules)
    assert any("split-aggregate" not in " ".join(own) and "filter-order" in " ".join(own) for own in rules)


shares = st.floats(0.05, 1.0)


@settings(max_examples=20, deadline=None)
@given(first=shares, second=shares, noise=st.lists(st.floats(0.96, 1.04), min_size=4, max_size=4))
def test_figures_within_noise_never_lead_there_and_back(first: float, second: float, noise: list[float]) -> None:
    """Whatever is chosen, figures that differ by a few per cent do not choose the former one again."""
    plan, _ = rewritten(filtered(), profile(SELECTIVE, LOOSE))
    before = profile(min(1.0, first * noise[0]), min(1.0, second * noise[1]))
    there = [o for o in options(plan, before)[1] if o.saves]
    after = profile(min(1.0, first * noise[2]), min(1.0, second * noise[3]))
    for option in there:
        assert not any(o.saves for o in options(option.plan, after)[1])


@settings(max_examples=15, deadline=None)
@given(first=shares, second=shares, gain=st.floats(0.0, 0.5), moved=st.integers(0, 10))
def test_what_saves_costs_less_by_gain_and_price(first: float, second: float, gain: float, moved: int) -> None:
    plan, _ = rewritten(filtered(), profile(SELECTIVE, LOOSE))
    known = Facts(profile=profile(first, second))
    now = predict(plan, known)
    for other in other_rewritings(plan, known):
        then = predict(other.plan, other.facts(known))
        found = saves(now, then, gain=gain, moved=moved)
        assert saves(then, now, gain=gain, moved=moved) is None or found is None
        if found == "load":
            assert then.cores * (1 + moved / 100) <= now.cores * (1 - gain) + 1e-9


# ---------------------------------------------------------------- the loop


Begin = Callable[..., Loop]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    number = itertools.count()

    def make(slo: SLO = CALM, without: tuple[str, ...] = WITHOUT, groups: float = 0.01) -> Loop:
        monkeypatch.setattr("time.time", lambda: BEGIN)
        plan, known = rewritten(filtered(), profile(SELECTIVE, LOOSE, zones=groups), without)
        place = tmp_path / str(next(number))
        place.mkdir()
        loop = Loop(place, slo, plan=plan, profile=known)
        monkeypatch.setattr("time.time", loop.clock)
        loop.rate(ROWS)
        return loop

    yield make


def drift(loop: Loop, first: float, second: float, zones: float = 0.01) -> None:
    """Change the true selectivities of the filters and of the aggregate."""
    known = loop.world.facts.profile
    changed = {id_: known.operators[id_].model_copy(update={"selectivity": share}) for id_, share in
               (("first", first), ("second", second), ("zones", zones))}  # fmt: skip
    loop.world.facts = replace(
        loop.world.facts, profile=known.model_copy(update={"operators": {**known.operators, **changed}})
    )


def chosen(one: Decision) -> dict[str, Any]:
    found: dict[str, Any] = one.data["alternatives"][one.data["chosen"]]
    return found


def test_the_loop_reorders_filters_when_the_data_changes(begin: Begin) -> None:
    loop = begin()
    loop.go(60)
    assert loop.decisions() == () and order(loop.world.plan) == ["first", "second"]
    drift(loop, LOOSE, SELECTIVE)
    loop.go(100)
    (found,) = loop.decisions()
    assert order(loop.world.plan) == ["second", "first"]
    assert (found.trigger, found.state) == ("rewriting", "kept")
    assert "filter-order at 'second'" in found.why
    assert "cores that rows take" in found.why
    assert chosen(found)["saves"] == "load" and chosen(found)["rules"]
    assert found.after is not None and "of the load of rows" in found.after["text"]
    drift(loop, SELECTIVE, LOOSE)
    loop.go(110)
    assert order(loop.world.plan) == ["first", "second"]
    assert [d.state for d in loop.decisions()] == ["kept", "kept"]


@pytest.mark.long
def test_selectivities_that_oscillate_within_noise_change_nothing(begin: Begin) -> None:
    loop = begin()
    for share in (0.45, 0.55, 0.47, 0.53, 0.45, 0.55):
        drift(loop, share, 1 - share)
        loop.go(40)
    assert loop.decisions() == ()


def test_a_rewriting_that_does_not_save_is_undone_and_not_tried_again(begin: Begin) -> None:
    """The filters exclude each other: whichever comes second drops most rows."""
    loop = begin()
    loop.go(60)
    for _ in range(240):
        first, second = order(loop.world.plan)
        share = {first: 0.6, second: 0.05}
        drift(loop, share["first"], share["second"])
        loop.go(1)
    assert [d.trigger for d in loop.decisions()] == ["rewriting", "undo"]
    tried, _ = loop.decisions()
    assert tried.state == "undone" and tried.after is not None and tried.after["verdict"] == "worse"
    assert order(loop.world.plan) == ["first", "second"]


def test_partial_aggregates_that_begin_to_pay_are_refused_and_filters_still_reordered(begin: Begin) -> None:
    loop = begin(without=("prune-columns",), groups=1.0)
    assert "zones.partial" not in loop.world.plan.dataflow, "partial results of one row each save nothing"
    loop.go(30)
    drift(loop, LOOSE, SELECTIVE)
    loop.go(100)
    (found,) = loop.decisions()
    assert (found.trigger, found.state) == ("rewriting", "kept")
    assert order(loop.world.plan) == ["second", "first"]
    split = [o for o in found.data["alternatives"] if any("split-aggregate" in rule for rule in o["rules"])]
    assert split and all(o["why_not"].startswith("refused: ") and "state" in o["why_not"] for o in split)


def test_advice_names_the_rule_and_waits_for_a_person(begin: Begin) -> None:
    loop = begin(replace(CALM, mode="advise"))
    loop.go(60)
    drift(loop, LOOSE, SELECTIVE)
    loop.go(60)
    (found,) = loop.decisions()
    assert found.state == "proposed" and order(loop.world.plan) == ["first", "second"]
    loop.store.want_decided(None, found.id)
    loop.go(60)
    assert order(loop.world.plan) == ["second", "first"]
    assert loop.store.decision(found.id).state == "kept"


# ---------------------------------------------------------------- what cannot go on


THREE = Continuum.from_text("""
name: three
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [nyc]}
""")


def test_a_filter_that_would_pass_rows_in_a_channel_is_not_moved() -> None:
    """Rows in the channel to the cloud were not filtered, and nobody behind it would filter them."""

    def planned(*order: str) -> DeploymentPlan:
        builder = hw.flow("two", locations=["nyc"])
        stream = builder.read.json("/data/{location}", "ts timestamp, zone int").with_watermark("ts", "1 second")
        for step in order:
            layer, _, name = step.partition(" ")
            stream = stream.to_layer(layer)
            stream = stream.where("zone > 3") if name == "kept" else stream.with_columns(more="zone + 1.0D")
            stream = stream.named(name)
        stream.to_layer("cloud").write.memory("result")
        flow = builder.build()
        return replace(build(flow, THREE), written=Written(dataflow=flow))

    running = planned("edge wide", "site wider", "cloud kept")
    same_channel = planned("edge wide", "edge kept", "site wider")
    assert same_channel.written is not None
    assert "'wider', whose channel holds rows" in unsafe(running, same_channel, same_channel.written)
    new_channel = planned("edge wide", "site wider", "site kept")
    assert new_channel.written is not None and unsafe(running, new_channel, new_channel.written) == ""
