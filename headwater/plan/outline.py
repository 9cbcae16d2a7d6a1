"""Outline of a plan for people and programs: units on nodes, channels over links, and warnings. Pure.

It omits the code of operators; the document of a plan (``plan.document``) holds that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from headwater.core.jsonform import named
from headwater.plan.deployment import Edge
from headwater.plan.model import Channel, DeploymentPlan, Unit


@dataclass(frozen=True, kw_only=True)
class UnitOutline:
    """A unit: its operators, its place, the key of its state, and the channels that it reads and writes."""

    id: str
    node: str
    zone: str
    layer: str
    operators: tuple[str, ...]
    locations: tuple[str, ...]
    hosts: tuple[str, ...]
    key: str
    tag: str
    epoch: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sinks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ChannelOutline:
    """A channel between units; ``links`` are those its rows cross, ``broker`` the zone of its broker."""

    id: str
    operator: str
    producer: Annotated[str, named("from")]
    consumers: Annotated[tuple[str, ...], named("to")]
    schema: str
    links: tuple[str, ...]
    kind: Literal["filelog", "kafka"]
    broker: str | None


@dataclass(frozen=True, kw_only=True)
class PlanOutline:
    """A plan. ``at``: the layers of locations that differ. ``links``: the channels that cross each link."""

    dataflow: str
    locations: tuple[str, ...]
    layers: Mapping[str, str]
    at: Mapping[str, Mapping[str, str]]
    shared: bool
    cuts: tuple[Edge, ...]
    units: tuple[UnitOutline, ...]
    channels: tuple[ChannelOutline, ...]
    links: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]


def outline(plan: DeploymentPlan) -> PlanOutline:
    """Return the outline of a plan."""
    return PlanOutline(
        dataflow=plan.dataflow.name,
        locations=plan.dataflow.locations,
        layers=plan.layers,
        at=plan.layers_at,
        shared=plan.pooled,
        cuts=tuple(sorted(plan.deployment.cuts)),
        units=tuple(_unit(plan, unit) for unit in plan.units),
        channels=tuple(_channel(plan, channel) for channel in plan.channels),
        links=_grouped((link, c.id) for c in plan.channels for link in c.links),
        warnings=plan.warnings,
    )


def _unit(plan: DeploymentPlan, unit: Unit) -> UnitOutline:
    sinks = {sink.id for sink in plan.dataflow.sinks}
    return UnitOutline(
        id=unit.id,
        node=unit.node,
        zone=unit.zone,
        layer=unit.layer,
        operators=unit.operators,
        locations=unit.locations,
        hosts=unit.hosts,
        key=unit.key,
        tag=unit.tag,
        epoch=unit.epoch,
        reads=tuple(c.id for c in plan.inputs(unit)),
        writes=tuple(c.id for c in plan.outputs(unit)),
        sinks=tuple(o for o in unit.outputs if o in sinks),
    )


def _channel(plan: DeploymentPlan, channel: Channel) -> ChannelOutline:
    return ChannelOutline(
        id=channel.id,
        operator=channel.operator,
        producer=channel.producer,
        consumers=channel.consumers,
        schema=plan.dataflow.types[channel.operator].schema.text,
        links=channel.links,
        kind="filelog" if channel.broker is None else "kafka",
        broker=channel.broker,
    )


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}
