"""Whether a unit's state can be gone on with after a change: what Spark's state schema depends on. Pure.

Spark numbers the stateful operators of a query and fixes for each the types of its keys and values.
What a column-pruned join or aggregate keeps also depends on what the operators behind it use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.expressions import check, check_aggregate
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.rewrite import aggregate_calls, row_aggregates
from headwater.dataflow.schema import Schema
from headwater.dataflow.types import StreamType
from headwater.plan.content import stream_type
from headwater.plan.model import DeploymentPlan, Unit

Needed = Mapping[str, frozenset[str]]
"""For each operator the columns of its output, in lower case, that what follows in the unit uses."""


@dataclass(frozen=True)
class Kept:
    """What one operator keeps; equal ``parts`` mean that one's state is the other's."""

    operator: str
    kind: str
    parts: Mapping[str, Any]


def kept_state(plan: DeploymentPlan, unit: Unit) -> tuple[Kept, ...]:
    """Give what a unit keeps, operator by operator, in the order in which Spark meets them."""
    flow, needed = plan.dataflow, _needed(plan.dataflow, unit)
    found: dict[str, Kept] = {}
    seen: set[str] = set()

    def visit(id_: str) -> None:
        if id_ in seen or id_ not in unit.operators:
            return
        seen.add(id_)
        operator = flow[id_]
        for parent in operator.inputs:
            visit(parent)
        if operator.stateful:
            types = [flow.types[i] for i in operator.inputs]
            found[id_] = Kept(id_, operator.kind, _parts(operator, types, needed[id_]))

    for output in unit.outputs:
        visit(output)
    return tuple(found.values())


def state_difference(old: tuple[Kept, ...], new: tuple[Kept, ...]) -> str | None:
    """Say why the state of ``old`` cannot be gone on with by ``new``; None where it can."""
    for a, b in zip(old, new, strict=False):
        if a.kind != b.kind:
            return f"'{b.operator}' ({b.kind}) stands where '{a.operator}' ({a.kind}) kept state"
        changed = [name for name in b.parts if a.parts.get(name) != b.parts[name]]
        if changed:
            return f"'{b.operator}' ({b.kind}) keeps something else: {', '.join(changed)} changed"
    if len(old) > len(new):
        gone = ", ".join(f"'{k.operator}'" for k in old[len(new) :])
        return f"{gone} kept state and is gone from the unit"
    if len(new) > len(old):
        more = ", ".join(f"'{k.operator}'" for k in new[len(old) :])
        return f"{more} begins to keep state in the unit"
    return None


def _parts(operator: ops.Operator, types: list[StreamType], needed: frozenset[str]) -> dict[str, Any]:
    source = types[0]
    match operator:
        case stateful.Aggregate():
            return {
                "the window": operator.window and [type(operator.window).__name__, operator.window],
                "the keys": _typed(operator.keys, source.schema),
                "the aggregates": _calls(operator.aggregates, source.schema),
                "what is used of it": sorted(needed & {alias.lower() for alias, _ in operator.aggregates}),
            }
        case stateful.Dedup():
            return {"the columns compared": _typed(operator.keys, source.schema)}
        case stateful.Join():
            return {
                "the kind of join": operator.how,
                "the keys": [_typed(operator.on, t.schema) for t in types],
                "the bounds": operator.bounds(),
                "the streams joined": [stream_type(t) for t in types],
                "what is used of it": sorted(needed),
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
                # In event-time order whole rows wait in the state.
                "the rows that wait": source.schema.text if time else None,
                "the form of the state": _form(json.loads(operator.initial)),
            }
    raise AssertionError(f"no rule for the state of {operator.kind}")


def _typed(columns: tuple[str, ...], schema: Schema) -> list[tuple[str, str]]:
    return [(c.lower(), schema.column(c).type.text) for c in columns]


def _calls(aggregates: tuple[tuple[str, str], ...], schema: Schema) -> list[Any]:
    """Give the aggregate functions' calls, which have the buffers; what is computed of them is free."""
    found: dict[str, Any] = {}
    for _, text in aggregates:
        for call in aggregate_calls(text, schema):
            columns = check_aggregate(call, schema).columns
            found[call] = [call, sorted((c, schema.column(c).type.text) for c in columns)]
    return list(found.values())


def _values(operator: stateful.CountWindow, schema: Schema) -> list[tuple[str, str]]:
    """Give the columns of the rows that wait for a window to be full."""
    where = operator.where
    order = [check(f"`{c}`", schema, where=where).text for c in operator.order_by]
    calls = row_aggregates(operator.aggregates, schema, where=where).calls
    texts = dict.fromkeys([*order, *(argument for _, argument in calls)])
    return [(text, check(text, schema, where=where).type.text) for text in texts]


def _form(value: Any) -> Any:
    """Give the shape of a JSON value: what kind each part is."""
    if isinstance(value, dict):
        return {k: _form(v) for k, v in value.items()}
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


# ---------------------------------------------------------------- what is used


def _needed(flow: Dataflow, unit: Unit) -> Needed:
    needed: dict[str, set[str]] = {id_: set() for id_ in unit.operators}
    for id_ in unit.outputs:
        needed[id_] |= _all(flow.types[id_])
    for id_ in reversed(unit.operators):
        operator = flow[id_]
        types = [flow.types[i] for i in operator.inputs]
        for parent, used in zip(operator.inputs, _uses(operator, types, needed[id_]), strict=True):
            if parent in needed:
                needed[parent] |= used
    return {id_: frozenset(used) for id_, used in needed.items()}


def _uses(operator: ops.Operator, types: list[StreamType], needed: set[str]) -> list[set[str]]:
    """Give the columns of each input that an operator uses when ``needed`` of its output is used."""
    schemas = [t.schema for t in types]
    times = [{t.event_time.column.lower()} if t.event_time else set[str]() for t in types]
    match operator:
        case ops.Where():
            return [needed | _columns(operator.condition, schemas[0])]
        case ops.Select():
            texts = [text for name, text in operator.columns if name.lower() in needed]
            return [set[str]().union(*(_columns(text, schemas[0]) for text in texts))]
        case ops.Explode():
            made = {name.lower() for name in (operator.alias, operator.position) if name}
            return [(needed - made) | _columns(operator.expression, schemas[0])]
        case ops.Union():
            return [set(needed) for _ in types]
        case ops.Watermark():
            return [needed | {operator.column.strip("`").lower()}]
        case stateful.Dedup():
            return [needed | {k.lower() for k in operator.keys} | times[0]]
        case stateful.Aggregate():
            used = {k.lower() for k in operator.keys} | times[0]
            for _, text in operator.aggregates:
                used |= {c.lower() for c in check_aggregate(text, schemas[0]).columns}
            return [used]
        case stateful.Join():
            on = {k.lower() for k in operator.on}
            return [on | time | (needed & _all(t)) for t, time in zip(types, times, strict=True)]
        case ops.Transform():
            # What a function of frames uses is unknown: another function may use other columns.
            return [_all(types[0]) | {f"function {operator.function.fingerprint}"}]
    return [_all(t) for t in types]


def _columns(text: str, schema: Schema) -> set[str]:
    return {c.lower() for c in check(text, schema).columns}


def _all(type_: StreamType) -> set[str]:
    return {name.lower() for name in type_.schema.names}
