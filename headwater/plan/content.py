"""What a unit does by itself, whatever feeds it: by this the units of two plans are compared. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.dataflow.sources import Source
from headwater.dataflow.types import StreamType
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.plan.onepass import root_of


def stream_type(type_: StreamType) -> tuple[str, str | None]:
    """Give what a reader has to know of a stream: its columns, and which is the event time."""
    return type_.schema.text, type_.event_time.column if type_.event_time else None


def unit_content(plan: DeploymentPlan, unit: Unit) -> dict[str, Any]:
    """Give what decides whether a unit must restart, apart from its host.

    Names of operators inside count as little as layers do: an output is known by its name and by what is
    computed for it from the unit's inputs.
    """
    flow = plan.dataflow
    keys: dict[str, str] = {}
    for id_ in unit.operators:
        parents = [keys.get(i) or f"{i}: {stream_type(flow.types[i])}" for i in flow[id_].inputs]
        keys[id_] = flow.key_over(id_, parents)
    return {
        "outputs": {id_: keys[id_] for id_ in unit.outputs},
        "types": {id_: stream_type(flow.types[id_]) for id_ in unit.outputs},
        "locations": sorted([keys[s], list(places)] for s, places in source_locations(plan, unit).items()),
        "frontier": _frontier(plan, unit),
        "kept": {c.operator: kept_at(plan, c) for c in plan.outputs(unit)},
        "part": None if unit.part is None else [unit.part.index, unit.part.count, unit.part.column],
    }


def kept_at(plan: DeploymentPlan, channel: Channel) -> list[str | None]:
    """Tell where a channel is kept: the broker's zone and address, or nothing for its producer's disk."""
    if channel.broker is None:
        return []
    broker = plan.continuum.zone(channel.broker).broker
    return [channel.broker, broker.servers if broker else None]


def own_sources(plan: DeploymentPlan, unit: Unit) -> tuple[Source, ...]:
    """Give the sources a unit reads itself."""
    return tuple(o for i in unit.operators if isinstance(o := plan.dataflow[i], Source))


def reads(plan: DeploymentPlan, unit: Unit) -> Mapping[str, int]:
    """Tell how often a unit's query reads each source and each operator of another unit: once for every
    way that leads there."""
    flow = plan.dataflow
    return Counter(i for i in _ways(plan, unit) if i not in unit.operators or not flow[i].inputs)


def visited(plan: DeploymentPlan, unit: Unit) -> frozenset[str]:
    """Give the operators that a unit's query is built of as they are, its inputs among them: those behind the
    root of a pass are put into one expression, or do their work together."""
    return frozenset(_ways(plan, unit))


def _ways(plan: DeploymentPlan, unit: Unit) -> Iterator[str]:
    """Go every way from the root of a unit's query up to what it reads."""
    todo = [root_of(plan.dataflow, unit.operators)]
    while todo:
        id_ = todo.pop()
        yield id_
        if id_ in unit.operators:
            todo += reversed(plan.dataflow[id_].inputs)


def source_locations(plan: DeploymentPlan, unit: Unit) -> dict[str, tuple[str, ...]]:
    """Give the locations at which a unit reads each of its sources."""
    return {s.id: unit.locations if s.per_location else unit.locations[:1] for s in own_sources(plan, unit)}


def is_stateful(plan: DeploymentPlan, unit: Unit) -> bool:
    """Tell whether a unit keeps something back from one batch to the next."""
    return any(plan.dataflow[i].stateful for i in unit.operators)


def direct_time(plan: DeploymentPlan, unit: Unit) -> bool:
    """Tell whether the newest row written tells how far event time is: one input, nothing kept back.

    All the way from a source: where several writers were brought together before, the newest row of
    one says nothing of the others, however few units read them now.
    """
    inputs = plan.inputs(unit)
    writers = sum(len(places) for places in source_locations(plan, unit).values()) + len(inputs)
    if is_stateful(plan, unit) or writers != 1:
        return False
    return all(direct_time(plan, plan.unit(channel.producer)) for channel in inputs)


def _frontier(plan: DeploymentPlan, unit: Unit) -> dict[str, Any]:
    """Tell how a unit without state knows its event time: a second input makes another query of it."""
    if is_stateful(plan, unit):
        return {}
    direct = direct_time(plan, unit)
    timed = {c.operator: c.event_time.delay for c in plan.outputs(unit) if c.event_time is not None}
    return {operator: delay if direct else None for operator, delay in timed.items()}
