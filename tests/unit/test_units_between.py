"""A unit that comes between a stream and its reader, or goes: which unit reads on at which position."""

from __future__ import annotations

from typing import Literal

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.plan.diff import PlanDiff, diff
from headwater.plan.model import DeploymentPlan

ZONES = Continuum.from_text("""
name: three
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
""")
Between = Literal["", "filter", "other", "once", "other once"]


def plan(between: Between, *, also: str = "") -> DeploymentPlan:
    """Filter at the edge, do something or nothing at the site, count in the cloud; ``also``: a further reader there."""
    builder = hw.flow("between", locations=["L1", "L2"])
    rows = builder.read.json("/in/{location}", "id bigint, ts timestamp, k string, v double", location_as="location")
    warm = rows.with_watermark("ts", "5 seconds").where("v > 1").named("warm")
    site = warm.to_layer("site")
    if between.endswith("once"):
        found = site.drop_duplicates("id", "ts").named(between.replace(" ", "_"))
    else:
        found = site.where("v > 2").named(between) if between else warm
    counts = found.to_layer("cloud").group_by(hw.window("ts", "1 minute"), "k").agg(n="count(*)")
    counts.named("counts").write.memory("out")
    if also:
        site.where("v > 3").named(also).write.memory("more")
    return build(builder.build(), ZONES)


def readings(found: PlanDiff) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return, for each unit that takes something over, its inputs and the units at whose position it reads on."""
    return {t.unit: {r.operator: r.source_units for r in t.readings} for t in found.transfers}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "filter", {"filter@S1": {"warm": ("out@C1",)}}),
        ("filter", "", {"out@C1": {"warm": ("filter@S1",)}}),
        ("filter", "other", {"other@S1": {"warm": ("filter@S1",)}}),
        ("", "once", {"once@S1": {"warm": ("out@C1",)}}),
        ("once", "", {"out@C1": {"warm": ("once@S1",)}}),
        ("once", "other once", {"other_once@S1": {"warm": ("once@S1",)}}),
    ],
)
def test_the_next_reader_reads_on(before: Between, after: Between, expected: dict[str, dict[str, tuple[str]]]) -> None:
    found = diff(plan(before), plan(after))
    assert readings(found) == expected
    (reader,) = (u for u in found.units if u.unit == "out@C1")
    assert (reader.action, reader.state) == ("replace", "transferred" if not after else "kept")


def test_a_further_reader_begins_by_itself() -> None:
    """Nobody stops to read the stream, so there is no position to take over."""
    assert readings(diff(plan(""), plan("", also="hot"))) == {}
    assert readings(diff(plan("", also="hot"), plan(""))) == {}
    # The reader that stays is not asked for its position, and the one that goes served another sink.
    found = readings(diff(plan("", also="hot"), plan("filter")))
    assert found == {"filter@S1": {"warm": ("out@C1",)}}


def test_a_unit_beside_a_reader_that_stays_begins_by_itself() -> None:
    """The unit that stays is not stopped, so its position cannot be taken."""

    def united(*, also: bool) -> DeploymentPlan:
        builder = hw.flow("between", locations=["L1", "L2"])
        rows = builder.read.json("/in/{location}", "id bigint, ts timestamp, k string, v double")
        timed = rows.with_watermark("ts", "5 seconds").named("timed")
        found = timed.to_layer("site").where("v > 0").named("hot").to_layer("cloud")
        if also:
            found = found.union(timed.to_layer("cloud").where("v > 1").named("cold"))
        found.select("id", "k").named("narrow").write.memory("out")
        return build(builder.build(), ZONES)

    found = diff(united(also=False), united(also=True))
    (reader,) = (u for u in found.units if u.unit == "out@C1")
    assert (reader.action, readings(found)) == ("replace", {})
    assert readings(diff(united(also=True), united(also=False))) == {}


def test_reasons_name_the_unit_whose_position_is_taken() -> None:
    reasons = {u.unit: u.reason for u in diff(plan("filter"), plan("")).changed}
    assert reasons["out@C1"].endswith("it reads on where filter@S1 ended")
    assert reasons["filter@S1"] == "out@C1 reads on where it ends"
