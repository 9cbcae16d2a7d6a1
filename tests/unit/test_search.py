"""The rewriting is chosen together with the placement: by the cost of the requested strategy."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.core.errors import PlacementError
from headwater.dataflow.graph import Dataflow
from headwater.placement.situation import Limits
from headwater.plan.optimise import Optimised, optimise
from headwater.plan.place import PlacementRequest, place
from headwater.plan.prediction import Prediction
from headwater.plan.profile import OperatorProfile, Profile
from headwater.plan.search import optimise_placed, setting_of
from headwater.rewrite.rules import RULES


def continuum(*, edge: float, bandwidth: str, memory: str = "1GiB") -> Continuum:
    """Return two edges below a cloud; ``edge``: the speed of their hosts, where the cloud's is 4."""
    link = f"{{bandwidth: {bandwidth}, latency: 1ms}}"
    edges = "\n".join(
        f"  E{n}: {{layer: edge, parent: C1, locations: [L{n}], link: {link}, "
        f"hosts: {{e{n}: {{n_cpu: 1, cpu: {edge}, memory: {memory}}}}}}}"
        for n in (1, 2)
    )
    return Continuum.from_text(f"""
name: plant
layers: [edge, cloud]
zones:
  C1: {{layer: cloud, hosts: {{vm: {{n_cpu: 4, cpu: 4, memory: 8GiB}}}}}}
{edges}
""")


def windows() -> Dataflow:
    builder = hw.flow("plant", locations=["L1", "L2"])
    rows = builder.read.json("/in/{location}", "ts timestamp, k string, v double, w double").named("rows")
    timed = rows.with_watermark("ts", "1 minute").named("timed")
    counts = timed.to_layer("cloud").group_by(hw.window("ts", "1 minute"), "k").agg(s="sum(v)").named("counts")
    counts.write.memory("out")
    return builder.build()


def profile(flow: Dataflow, *, aggregate: float, rate: float = 1000.0, selectivity: float = 0.01) -> Profile:
    """Return the profile of ``windows``; ``aggregate``: core seconds of its aggregate per row."""
    operators = {id_: OperatorProfile(cpu_s=1e-6, selectivity=1.0) for id_ in flow.order}
    operators["counts"] = OperatorProfile(cpu_s=aggregate, selectivity=selectivity)
    return Profile(dataflow=flow.name, operators=operators, rates={"rows": {"*": rate}})


def placed(found: Optimised, network: Continuum, request: PlacementRequest) -> Prediction:
    return place(setting_of(found, network), request)[1]


def test_a_rule_that_saves_bytes_is_left_out_where_it_costs_time() -> None:
    flow = windows()
    known = profile(flow, aggregate=8e-4)  # a slow edge is nearly full with it
    slow, fast = continuum(edge=1, bandwidth="1Gbit/s"), continuum(edge=4, bandwidth="200kbit/s")
    request = PlacementRequest(strategy="aels")
    by_bytes = optimise(flow, slow, known, RULES)
    found = optimise_placed(flow, slow, known, RULES, request)
    assert "counts.partial" in by_bytes.dataflow and "counts.partial" not in found.dataflow
    assert found.left_out == {"split-aggregate"}
    told = next(use for use in found.rewriting.rules if use.rule == "split-aggregate" and not use.applied)
    assert told.operator == "counts" and "'aels' has AL" in told.what and "with it, and AL" in told.what
    assert placed(found, slow, request).latency < 0.999 * placed(by_bytes, slow, request).latency
    assert found.written(flow, ["drop-early"]).without_rules == ("drop-early", "split-aggregate")
    thin = optimise_placed(flow, fast, known, RULES, request)
    assert "counts.partial" in thin.dataflow and not thin.left_out
    assert not any(use.applied for use in thin.rewriting.rules if use.rule == "prune-columns")  # useless beside it


def test_a_rule_is_left_out_where_the_placement_makes_no_use_of_it() -> None:
    """The partial sums, too dear for the edges, are placed beside the final ones."""
    flow, network = windows(), continuum(edge=1, bandwidth="1Gbit/s")
    known, request = profile(flow, aggregate=8e-4), PlacementRequest(strategy="optimal")
    by_bytes = setting_of(optimise(flow, network, known, RULES), network)
    _, prediction = place(by_bytes, request)
    assert prediction.layers["counts.partial"] == "cloud"
    found = optimise_placed(flow, network, known, RULES, request)
    assert found.dataflow.order == flow.order and not found.left_out
    assert {use.rule for use in found.rewriting.rules if "no use of it" in use.what} == {
        "split-aggregate", "prune-columns",
    }  # fmt: skip


def test_a_plan_tells_which_rules_were_left_out() -> None:
    flow, network = windows(), continuum(edge=1, bandwidth="1Gbit/s")
    profiles = {flow.name: profile(flow, aggregate=8e-4)}
    asked = PlanRequest(dataflow=flow, continuum=network, rewrite=True, strategy="aels", profiles=profiles)
    shown = Client(None).propose(asked)
    assert shown.rewriting is not None and "split-aggregate" in " ".join(shown.rewriting.words)
    assert shown.plan.written is not None and shown.plan.written.without_rules == ("split-aggregate",)
    without_strategy = Client(None).propose(replace(asked, strategy=None))
    assert "counts.partial" in without_strategy.plan.dataflow


def test_limits_come_first_for_a_scheduler() -> None:
    """Without partial sums, both links are over the limit of the bandwidth into the cloud."""
    flow = windows()
    known = profile(flow, aggregate=1e-5)
    network = continuum(edge=2, bandwidth="100Mbit/s")
    request = PlacementRequest(strategy="tsoo_exact", limits=Limits(max_bandwidth=50_000.0))
    found = optimise_placed(flow, network, known, RULES, request)
    check = placed(found, network, request).limit_check
    assert "counts.partial" in found.dataflow and check is not None and check.kept


def test_the_error_of_the_strategy_is_that_of_the_rewriting_by_bytes() -> None:
    flow = windows()
    with pytest.raises(PlacementError, match="unknown strategy"):
        optimise_placed(flow, continuum(edge=1, bandwidth="1Gbit/s"), None, RULES, PlacementRequest(strategy="fastest"))


CASE = given(
    edge=st.floats(0.2, 8),
    bandwidth=st.sampled_from(["200kbit/s", "1Mbit/s", "10Mbit/s", "1Gbit/s"]),
    aggregate=st.floats(1e-6, 1e-3),
    rate=st.floats(10, 1500),
    selectivity=st.floats(0.001, 2),
    strategy=st.sampled_from(["optimal", "aels", "local_search", "tsoo_exact"]),
)


@settings(max_examples=10, deadline=None)
@CASE
def test_no_other_set_of_the_applied_rules_costs_less(
    edge: float, bandwidth: str, aggregate: float, rate: float, selectivity: float, strategy: str
) -> None:
    check_cost(edge, bandwidth, aggregate, rate, selectivity, strategy)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@CASE
def test_in_many_cases_no_other_set_of_the_applied_rules_costs_less(
    edge: float, bandwidth: str, aggregate: float, rate: float, selectivity: float, strategy: str
) -> None:
    check_cost(edge, bandwidth, aggregate, rate, selectivity, strategy)


def check_cost(edge: float, bandwidth: str, aggregate: float, rate: float, selectivity: float, strategy: str) -> None:
    """Compare the chosen rules with each other set of them by the cost of the best placement."""
    flow, network = windows(), continuum(edge=edge, bandwidth=bandwidth)
    known = profile(flow, aggregate=aggregate, rate=rate, selectivity=selectivity)
    request = PlacementRequest(strategy=strategy)

    def cost(found: Optimised) -> float:
        try:
            prediction = placed(found, network, request)
        except PlacementError:
            return math.inf
        return prediction.latency if prediction.limit_check is None else prediction.limit_check.cost

    try:
        found = cost(optimise_placed(flow, network, known, RULES, request))
    except PlacementError:
        found = math.inf
    applied = {use.rule for use in optimise(flow, network, known, RULES).rewriting.rules if use.applied}
    sets = [among for size in range(len(applied) + 1) for among in combinations(sorted(applied), size)]
    others = [tuple(r for r in RULES if r.name not in without) for without in sets]
    others += [(), *(tuple(r for r in RULES if r is not rule) for rule in RULES)]
    assert all(found <= cost(optimise(flow, network, known, rules)) / 0.998 for rules in others)
