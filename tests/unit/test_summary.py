"""The summary of a change: units started, stopped, moved, split, fused."""

from __future__ import annotations

from pathlib import Path

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.plan import edit
from headwater.plan.build import build
from headwater.plan.deployment import Deployment
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.plan.summary import change_summary

ACME = Continuum.from_yaml(Path(__file__).parent / "acme.yaml")


def plan(*locations: str) -> DeploymentPlan:
    f = hw.flow("tiny", locations=list(locations or ("L1", "L4")))
    rows = f.read.csv("in/{location}", "id int, ts timestamp, v double", location_as="location")
    low = rows.with_watermark("ts", "1 second").where("v > 1").named("low").to_layer("site")
    high = low.group_by(hw.window("ts", "1 minute"), "location").agg(m="avg(v)").named("high")
    high.to_layer("cloud").write.memory("out")
    return build(f.build(), ACME)


def rebuilt(old: DeploymentPlan, deployment: Deployment) -> DeploymentPlan:
    return build(old.dataflow, old.continuum, deployment)


def told(old: DeploymentPlan | None, new: DeploymentPlan) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return {(t.kind, t.before, t.after) for t in change_summary(diff(old, new))}


def test_all_start_at_first_and_nothing_turns_where_nothing_changes() -> None:
    new = plan()
    assert told(None, new) == {("start", (), (u.id,)) for u in new.units}
    assert change_summary(diff(new, new)) == ()


def test_a_location_comes_and_goes() -> None:
    assert told(plan("L1", "L4"), plan("L1", "L4", "L5")) == {("start", (), ("low@E5",))}
    gone = told(plan("L1", "L4"), plan("L1"))
    assert gone == {("stop", ("low@E4",), ()), ("stop", ("high@S2",), ())}


def test_units_are_split_and_fused() -> None:
    old = plan()
    new = rebuilt(old, edit.split(old, "low@E1", "watermark"))
    assert told(old, new) == {
        ("split", ("low@E1",), ("watermark@E1", "low@E1")),
        ("split", ("low@E4",), ("watermark@E4", "low@E4")),
    }
    decided = diff(old, new).wanted
    assert told(decided, plan()) == {
        ("fuse", ("watermark@E1", "low@E1"), ("low@E1",)),
        ("fuse", ("watermark@E4", "low@E4"), ("low@E4",)),
    }


def test_a_unit_moves() -> None:
    old = plan("L1")
    found = change_summary(diff(old, rebuilt(old, edit.move(old, "high", "edge"))))
    (moved,) = [t for t in found if t.kind == "move"]
    assert "high@S1" in moved.before and any(u.endswith("@E1") for u in moved.after)
    assert moved.kind == "move" and moved.reason
