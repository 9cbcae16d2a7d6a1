"""Share a unit out over several hosts by the value of a column. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headwater.dataflow.graph import Graph
from headwater.dataflow.operators import ToLocations
from headwater.dataflow.sources import Source
from headwater.dataflow.types import StreamType

_TYPES = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "timestamp")
"""Types of which equal values have equal hashes, whatever their origin."""


def spread_column(flow: Graph, group: tuple[str, ...]) -> str | None:
    """Return a column of a unit's inputs by which its rows can be shared out; None if there is none.

    It must be in all inputs, with one type, and reach a key of every stateful operator unchanged: then all rows
    of a key are in one part. A unit that reads sources of its own cannot be shared out.
    """
    if any(isinstance(flow[i], Source) for i in group):
        return None
    types = [flow.types[f] for f in _feeds(flow, group)]
    first, *others = [{c.name: c.type.text for c in t.schema.columns} for t in types]
    names = [n for n, t in first.items() if t in _TYPES and all(o.get(n) == t for o in others)]
    # A location has few values: any other column balances better.
    names.sort(key=lambda n: any(n in t.located_by for t in types))
    return next((n for n in names if keys_by(flow, group, n) is not None), None)


def _feeds(flow: Graph, group: tuple[str, ...]) -> tuple[str, ...]:
    inside = set(group)
    return tuple(dict.fromkeys(p for i in group for p in flow[i].inputs if p not in inside))


def keys_by(flow: Graph, group: tuple[str, ...], column: str) -> Mapping[str, str] | None:
    """Return, for each keyed operator of a unit, its key that equals a column of the inputs; None if one has no
    such key.

    The column is traced through the unit by the rule for location columns.
    """
    types: dict[str, StreamType] = {
        f: replace(flow.types[f], located_by=frozenset((column,))) for f in _feeds(flow, group)
    }
    found: dict[str, str] = {}
    for id_ in group:
        operator = flow[id_]
        inputs = tuple(types[i] for i in operator.inputs)
        keys = operator.partition_keys()
        if keys is not None:
            located = {c.lower() for c in frozenset.intersection(*(t.located_by for t in inputs))}
            key = next((k for k in keys if k.lower() in located), None)
            if key is None:
                return None
            found[id_] = key
        out = operator.output(inputs)
        types[id_] = replace(out, located_by=inputs[0].located_by) if isinstance(operator, ToLocations) else out
    return found
