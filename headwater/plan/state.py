"""Compatibility of a unit's state with a change, by the parts of Spark's state schema. Pure.

Spark numbers the stateful operators of a query and fixes the types of each one's keys and values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Graph
from headwater.dataflow.types import StreamType, stream_type
from headwater.plan.model import Unit
from headwater.plan.onepass import one_pass, root_of
from headwater.sql.expressions import check, check_aggregate
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import aggregate_calls, row_aggregates
from headwater.sql.schema import Schema


@dataclass(frozen=True)
class KeptState:
    """State of one operator; states with equal ``parts`` are compatible.

    ``number`` is Spark's number of the stateful operator; merged scans share one and are told apart by their
    ``tag``.
    """

    operator: str
    kind: str
    parts: Mapping[str, Any]
    number: int
    tag: str | None = None


def scan_tag(operator: str) -> str:
    """Return the name of a scan's state among that of others; all names have one length."""
    return hashlib.sha256(operator.encode()).hexdigest()[:16]


def kept_state(flow: Graph, unit: Unit) -> tuple[KeptState, ...]:
    """Return the state of a unit, operator by operator, as Spark numbers them: from its output upwards.

    Where branches of the unit meet again, the shared operators occur once for each.
    """
    found: list[KeptState] = []
    served = one_pass(flow, unit.operators, unit.outputs)
    together = served.scans if served is not None else ()

    def keep(id_: str, number: int) -> None:
        operator = flow[id_]
        types = [flow.types[i] for i in operator.inputs]
        tag = scan_tag(id_) if isinstance(operator, stateful.Scan) else None
        found.append(KeptState(id_, operator.kind, _parts(operator, types), number, tag))

    def visit(id_: str) -> None:
        if id_ not in unit.operators:
            return
        if flow[id_].stateful:
            keep(id_, found[-1].number + 1 if found else 0)
        for parent in flow[id_].inputs:
            visit(parent)

    for id_ in together:
        keep(id_, 0)
    visit(root_of(flow, unit.operators, unit.outputs))
    return tuple(found)


def state_difference(
    old: tuple[KeptState, ...],
    new: tuple[KeptState, ...],
    *,
    begin: Collection[str] = (),
    end: Collection[str] = (),
) -> str | None:
    """Return why ``new`` cannot use the state of ``old``; None if it can.

    ``begin`` and ``end``: scans that may start empty, and scans whose state may be dropped, among others.
    """
    before, after = _by_number(old), _by_number(new)
    for former, now in zip(before, after, strict=False):
        if former[0].tag is None or now[0].tag is None:
            if why := _other_state(former[0], now[0]):
                return why
            continue
        was = {k.tag: k for k in former}
        for kept in now:
            if kept.tag in was and (why := _other_state(was[kept.tag], kept)):
                return why
        tags = {k.tag for k in now}
        if gone := [k.operator for k in former if k.tag not in tags and k.operator not in end]:
            return f"{listed(gone)} has state and is no longer in the unit"
        if more := [k.operator for k in now if k.tag not in was and k.operator not in begin]:
            return f"{listed(more)} becomes stateful in the unit"
    if gone := [k.operator for ks in before[len(after) :] for k in ks]:
        return f"{listed(gone)} has state and is no longer in the unit"
    if more := [k.operator for ks in after[len(before) :] for k in ks]:
        return f"{listed(more)} becomes stateful in the unit"
    return None


def _by_number(kept: tuple[KeptState, ...]) -> list[tuple[KeptState, ...]]:
    return [tuple(ks) for _, ks in groupby(kept, key=lambda k: k.number)]


def _other_state(old: KeptState, new: KeptState) -> str | None:
    if old.kind != new.kind:
        return f"'{new.operator}' ({new.kind}) replaces '{old.operator}' ({old.kind}), which has state"
    changed = [name for name in new.parts if old.parts.get(name) != new.parts[name]]
    if changed:
        return f"'{new.operator}' ({new.kind}) has other state: {', '.join(changed)} changed"
    return None


def listed(names: Iterable[str]) -> str:
    """Return names as text."""
    return ", ".join(f"'{n}'" for n in names)


def _parts(operator: ops.Operator, types: list[StreamType]) -> dict[str, Any]:
    source = types[0]
    match operator:
        case stateful.Aggregate():
            return {
                "the window": operator.window and [type(operator.window).__name__, operator.window],
                "the keys": _typed(operator.keys, source.schema),
                "the aggregates": _calls(operator.aggregates, source.schema),
            }
        case stateful.Dedup():
            return {"the columns compared": _typed(operator.keys, source.schema)}
        case stateful.Join():
            return {
                "the kind of join": operator.how,
                "the keys": [_typed(operator.on, t.schema) for t in types],
                "the bounds": operator.bounds(),
                "the streams joined": [stream_type(t) for t in types],
            }
        case stateful.CountWindow():
            return {
                "the keys": _typed(operator.keys, source.schema),
                "the order": stateful.by_event_time(operator, source),
                "the values": _values(operator, source.schema),
            }
        case stateful.Scan():
            time = stateful.by_event_time(operator, source)
            return {
                "the keys": _typed(operator.keys, source.schema),
                "the order": time,
                # In event-time order, whole rows are buffered in the state.
                "the rows that wait": source.schema.text if time else None,
                "the form of the state": _form(json.loads(operator.initial)),
            }
    raise AssertionError(f"no rule for the state of {operator.kind}")


def _typed(columns: tuple[str, ...], schema: Schema) -> list[tuple[str, str]]:
    return [(c.lower(), schema.column(c).type.text) for c in columns]


def _calls(aggregates: tuple[tuple[str, str], ...], schema: Schema) -> list[Any]:
    """Return the aggregate functions' calls, which hold the buffers; expressions on them may change."""
    found: dict[str, Any] = {}
    for _, text in aggregates:
        for call in aggregate_calls(text, schema):
            columns = check_aggregate(call, schema).columns
            found[call] = [call, sorted((c, schema.column(c).type.text) for c in columns)]
    return list(found.values())


def _values(operator: stateful.CountWindow, schema: Schema) -> list[tuple[str, str]]:
    """Return the columns of the rows buffered until a window is full."""
    where = operator.where
    order = [check(quoted(c), schema, where=where).text for c in operator.order_by]
    calls = row_aggregates(operator.aggregates, schema, where=where).calls
    texts = dict.fromkeys([*order, *(argument for _, argument in calls)])
    return [(text, check(text, schema, where=where).type.text) for text in texts]


def _form(value: Any) -> Any:
    """Return the shape of a JSON value: the kind of each part."""
    if isinstance(value, dict):
        return {k: _form(v) for k, v in value.items()}
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__
