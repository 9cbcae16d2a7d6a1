"""Inputs of a unit, their locations, and whether the unit is stateful. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from headwater.dataflow.graph import Graph
from headwater.dataflow.operators import Watermark
from headwater.dataflow.sources import Source
from headwater.dataflow.stateful import Join
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.onepass import root_of


def own_sources(flow: Graph, unit: Unit) -> tuple[Source, ...]:
    """Return the sources that a unit reads itself."""
    return tuple(o for i in unit.operators if isinstance(o := flow[i], Source))


def reads(flow: Graph, unit: Unit) -> Mapping[str, int]:
    """Return how often a unit's query reads each source and each operator of another unit: once per path to it."""
    return Counter(i for i in _ways(flow, unit) if i not in unit.operators or not flow[i].inputs)


def visited(flow: Graph, unit: Unit) -> frozenset[str]:
    """Return the operators that appear unchanged in a unit's query, inputs included.

    Operators behind the root of a pass are merged into one expression, or run as one stateful operator.
    """
    return frozenset(_ways(flow, unit))


def _ways(flow: Graph, unit: Unit) -> Iterator[str]:
    """Yield the input at the end of every path from the root of a unit's query."""
    todo = [root_of(flow, unit.operators, unit.outputs)]
    while todo:
        id_ = todo.pop()
        yield id_
        if id_ in unit.operators:
            todo += reversed(flow[id_].inputs)


def source_locations(flow: Graph, unit: Unit) -> dict[str, tuple[str, ...]]:
    """Return the locations at which a unit reads each of its sources."""
    return {
        s.id: unit.locations if s.per_location else (unit.read_for.get(s.id, unit.locations[0]),)
        for s in own_sources(flow, unit)
    }


def is_stateful(flow: Graph, unit: Unit) -> bool:
    """Return whether a unit keeps state from one batch to the next."""
    return any(flow[i].stateful for i in unit.operators)


def reads_history(flow: Graph, unit: Unit) -> bool:
    """Return whether a unit reads history, which has an event time of its own after its end."""
    return any(isinstance(o := flow[i], Watermark) and o.history is not None for i in unit.operators)


def holds_back(flow: Graph, unit: Unit, output: str) -> float:
    """Return by how many seconds of event time rows of an output may be older than the watermark of the unit's query.

    A join passes on rows that have waited for a partner, as old as its bounds allow; every other operator passes
    on rows from the watermark on. Joins behind each other add up.
    """
    found: dict[str, float] = {}
    for id_ in unit.operators:
        operator = flow[id_]
        own = max(map(abs, operator.bounds())) if isinstance(operator, Join) else 0.0
        found[id_] = own + max((found.get(i, 0.0) for i in operator.inputs), default=0.0)
    return found[output]


def direct_time(plan: DeploymentPlan, unit: Unit) -> bool:
    """Return whether the newest row written marks the progress of event time: one input, no state, no history.

    This must hold on the whole path from a source: where several writers were merged before, the newest row of
    one says nothing of the others, however few units read them now.
    """
    inputs = plan.inputs(unit)
    writers = sum(len(places) for places in source_locations(plan.dataflow, unit).values()) + len(inputs)
    if is_stateful(plan.dataflow, unit) or writers != 1 or reads_history(plan.dataflow, unit):
        return False
    return all(direct_time(plan, plan.unit(channel.producer)) for channel in inputs)
