"""Which units can be shared out over hosts, and by which column."""

from __future__ import annotations

from dataclasses import replace

import headwater as hw
from headwater.continuum import Continuum
from headwater.dataflow.stream import Stream
from headwater.plan.build import annotated, build
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan

CONTINUUM = Continuum.from_text("""
layers: [edge, cloud]
zones:
  C1:
    layer: cloud
    hosts: {small: {n_cpu: 2}, gpu: {n_cpu: 4, gpu: true}, big: {n_cpu: 16}, twin: {n_cpu: 16}}
  E1: {layer: edge, parent: C1, locations: [L1]}
""")
SCHEMA = "id bigint, ts timestamp, k string, v double"


def planned(grow: object, *, spread: bool = True, requires: str = "") -> DeploymentPlan:
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.json("in/{location}", SCHEMA, location_as="at").with_watermark("ts", "5 seconds")
    stream: Stream = rows.where("v > 0").to_layer("cloud")
    if requires:
        stream = stream.require(requires)
    grow(stream)  # type: ignore[operator]
    flow = builder.build()
    return build(flow, CONTINUUM, replace(annotated(flow, CONTINUUM), spread=spread))


def cloud(plan: DeploymentPlan) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(u.part.column if u.part else None, u.hosts) for u in plan.units if u.zone == "C1"]


def by_window(key: str) -> object:
    return lambda s: s.group_by(hw.window("ts", "10 seconds"), key).agg(n="count(*)").write.memory("out")


def test_a_keyed_unit_is_shared_out_by_its_key() -> None:
    plan = planned(by_window("k"))
    assert cloud(plan) == [("k", ("small",)), ("k", ("gpu",)), ("k", ("big", "twin"))]
    ids = [u.id for u in plan.units if u.zone == "C1"]
    assert ids == ["out.1of3@C1", "out.2of3@C1", "out.3of3@C1"]
    (channel,) = plan.channels
    assert set(channel.consumers) == set(ids)
    assert len({u.checkpoint for u in plan.units}) == 4
    assert [u.part for u in from_document(to_document(plan)).units] == [u.part for u in plan.units]


def test_a_key_that_is_computed_on_the_way_cannot_share() -> None:
    plan = planned(lambda s: by_window("x")(s.with_columns(x="id % 3")))  # type: ignore[operator]
    assert cloud(plan) == [(None, ("big", "twin"))]


def test_a_renamed_key_is_followed() -> None:
    plan = planned(lambda s: by_window("x")(s.select("ts", "k AS x")))  # type: ignore[operator]
    assert {column for column, _ in cloud(plan)} == {"k"}


def test_without_state_any_column_shares_but_a_location_comes_last() -> None:
    plan = planned(lambda s: s.select("at", "v").write.memory("out"))
    assert {column for column, _ in cloud(plan)} == {"id"}


def test_no_key_is_no_way_to_share() -> None:
    plan = planned(lambda s: s.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").write.memory("out"))
    assert cloud(plan) == [(None, ("big", "twin"))]


def test_requirements_and_choice_come_first() -> None:
    assert cloud(planned(by_window("k"), requires="gpu = true")) == [(None, ("gpu",))]
    assert cloud(planned(by_window("k"), spread=False)) == [(None, ("small", "gpu", "big", "twin"))]


def test_sources_are_not_shared() -> None:
    plan = planned(by_window("k"))
    assert [u.part for u in plan.units if u.zone == "E1"] == [None]
