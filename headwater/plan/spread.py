"""Share a unit out over hosts of a zone that differ, by the value of a column. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headwater.continuum import Host
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.dataflow.types import StreamType

_TYPES = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "timestamp")
"""Types of which equal values have equal hashes, however they came about."""


def kinds(hosts: Iterable[Host]) -> tuple[tuple[Host, ...], ...]:
    """Group hosts of equal capabilities, in written order."""
    found: list[list[Host]] = []
    for host in hosts:
        same = next((k for k in found if k[0].capabilities == host.capabilities), None)
        if same is None:
            found.append([host])
        else:
            same.append(host)
    return tuple(tuple(k) for k in found)


def strongest(hosts: Iterable[Host]) -> Host:
    """Choose the host with the most processors, then the most memory, then the first written."""

    def strength(host: Host) -> tuple[float, float]:
        found = (host.capabilities.get(name, 0) for name in ("n_cpu", "memory"))
        cpu, memory = (float(v) if isinstance(v, (int, float)) else 0.0 for v in found)
        return cpu, memory

    return max(hosts, key=strength)


def spread_column(dataflow: Dataflow, group: tuple[str, ...]) -> str | None:
    """Find a column of a unit's inputs by which its rows can be shared out; None where there is none.

    It must be in all inputs, with one type, and go unchanged into a key of every stateful operator:
    then the rows of a key are together in one part. A unit that reads sources of its own cannot be shared.
    """
    inside = set(group)
    if any(isinstance(dataflow[i], Source) for i in group):
        return None
    feeds = dict.fromkeys(p for i in group for p in dataflow[i].inputs if p not in inside)
    types = [dataflow.types[f] for f in feeds]
    first, *others = [{c.name: c.type.text for c in t.schema.columns} for t in types]
    names = [n for n, t in first.items() if t in _TYPES and all(o.get(n) == t for o in others)]
    # A location has few values: any other column shares more evenly.
    names.sort(key=lambda n: any(n in t.located_by for t in types))
    return next((n for n in names if _keeps_keys_together(dataflow, group, tuple(feeds), n)), None)


def _keeps_keys_together(
    dataflow: Dataflow, group: tuple[str, ...], feeds: tuple[str, ...], column: str
) -> bool:
    """Follow a column through the unit as if it told locations apart: the same rule decides."""
    types: dict[str, StreamType] = {
        f: replace(dataflow.types[f], located_by=frozenset((column,))) for f in feeds
    }
    for id_ in group:
        operator = dataflow[id_]
        inputs = tuple(types[i] for i in operator.inputs)
        keys = operator.partition_keys()
        if keys is not None:
            located = frozenset.intersection(*(t.located_by for t in inputs))
            if not {k.lower() for k in keys} & {c.lower() for c in located}:
                return False
        types[id_] = operator.output(inputs)
    return True
