"""What a unit reads, from where, and whether it keeps anything. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from headwater.dataflow.graph import Graph
from headwater.dataflow.sources import Source
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.onepass import root_of


def own_sources(flow: Graph, unit: Unit) -> tuple[Source, ...]:
    """Give the sources a unit reads itself."""
    return tuple(o for i in unit.operators if isinstance(o := flow[i], Source))


def reads(flow: Graph, unit: Unit) -> Mapping[str, int]:
    """Tell how often a unit's query reads each source and each operator of another unit: once for every
    way that leads there."""
    return Counter(i for i in _ways(flow, unit) if i not in unit.operators or not flow[i].inputs)


def visited(flow: Graph, unit: Unit) -> frozenset[str]:
    """Give the operators that a unit's query is built of as they are, its inputs among them: those behind the
    root of a pass are put into one expression, or do their work together."""
    return frozenset(_ways(flow, unit))


def _ways(flow: Graph, unit: Unit) -> Iterator[str]:
    """Go every way from the root of a unit's query up to what it reads."""
    todo = [root_of(flow, unit.operators)]
    while todo:
        id_ = todo.pop()
        yield id_
        if id_ in unit.operators:
            todo += reversed(flow[id_].inputs)


def source_locations(flow: Graph, unit: Unit) -> dict[str, tuple[str, ...]]:
    """Give the locations at which a unit reads each of its sources."""
    return {s.id: unit.locations if s.per_location else unit.locations[:1] for s in own_sources(flow, unit)}


def is_stateful(flow: Graph, unit: Unit) -> bool:
    """Tell whether a unit keeps something back from one batch to the next."""
    return any(flow[i].stateful for i in unit.operators)


def direct_time(plan: DeploymentPlan, unit: Unit) -> bool:
    """Tell whether the newest row written tells how far event time is: one input, nothing kept back.

    All the way from a source: where several writers were brought together before, the newest row of
    one says nothing of the others, however few units read them now.
    """
    inputs = plan.inputs(unit)
    writers = sum(len(places) for places in source_locations(plan.dataflow, unit).values()) + len(inputs)
    if is_stateful(plan.dataflow, unit) or writers != 1:
        return False
    return all(direct_time(plan, plan.unit(channel.producer)) for channel in inputs)
