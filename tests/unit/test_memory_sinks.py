"""Which unit takes over the rows of a memory sink that moves."""

from __future__ import annotations

from headwater.plan.build import build, in_layers
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import Save
from tests.deployments.test_moved_brokers import below, planned
from tests.unit.changes import steps_of

AT = "b:9092"


def taken(before: DeploymentPlan, after: DeploymentPlan) -> dict[str, list[tuple[str, str, bool]]]:
    """Return for each unit the sinks whose rows it takes."""
    change = diff(before, after)
    found = {t.unit: [(s.sink, s.unit, s.alone) for s in t.sinks] for t in change.transfers if t.sinks}
    saved = {(s.unit, sink) for s in steps_of(change) if isinstance(s, Save) for sink in s.sinks}
    assert saved == {(unit, sink) for every in found.values() for sink, unit, _ in every}
    return found


def test_a_sink_goes_along_with_its_unit_or_alone() -> None:
    high, low = planned("/in", AT, "counted", ("clean", "counted")), below("/in", AT)
    assert taken(high, low) == {"out@E1": [("out", "out@C1", False)]}
    assert taken(low, high) == {"out@C1": [("out", "out@E1", False)]}
    apart = planned("/in", AT, "list", ("clean", "counted"))
    assert taken(apart, low) == {"out@E1": [("out", "out@C1", True)]}, "the windows come from another unit"
    assert taken(high, apart) == {}, "it stays in the cloud"


def test_a_sink_that_is_cut_off_takes_its_rows() -> None:
    low = below("/in", AT)
    decided = in_layers(
        low.dataflow, low.continuum, dict.fromkeys(low.dataflow.order, "edge"), cuts=frozenset([("counted", "list")])
    )
    apart = build(low.dataflow, low.continuum, decided)
    assert taken(low, apart) == {}, "the sink's directory is that of its node"
