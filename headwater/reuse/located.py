"""Operators that treat the rows of each location separately: dataflows of different locations can share them. Pure."""

from __future__ import annotations

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.sources import Source

_ROW_BY_ROW = (*ops.STATELESS_SQL, ops.Explode, ops.Union, ops.Watermark, Lookup)


def separable(flow: Dataflow) -> frozenset[str]:
    """Return the operators whose output has, for each location, the rows of a run for this location alone.

    Their rows name their location, and nothing that leads to them keeps state: state has one event time for all
    locations, which rows of an added location may be too late for.
    """
    found: set[str] = set()
    for id_ in flow.order:
        operator = flow[id_]
        own = operator.per_location if isinstance(operator, Source) else isinstance(operator, _ROW_BY_ROW)
        if own and flow.types[id_].located_by and found.issuperset(operator.inputs):
            found.add(id_)
    return frozenset(found)
