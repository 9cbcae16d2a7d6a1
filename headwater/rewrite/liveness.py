"""Which columns of each operator's output are used behind it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.sql.expressions import check, check_aggregate
from headwater.sql.schema import Schema

Columns = frozenset[str] | None
"""Names in lower case; None: all columns."""


def used_columns(flow: Dataflow, id_: str, readers: Collection[str]) -> Columns:
    """Return the columns of an operator's output that some of its readers, and operators behind them, use.

    All of them where a sink, a Python function or a union reads them: these take rows as they are.
    """
    found: dict[str, Columns] = {}
    for behind in reversed(flow.order):
        if behind == id_:
            return _wanted(flow, id_, readers, found)
        found[behind] = _wanted(flow, behind, flow.consumers[behind], found)
    raise KeyError(id_)


def _wanted(flow: Dataflow, id_: str, readers: Collection[str], behind: Mapping[str, Columns]) -> Columns:
    """Return the columns of an operator's output that its readers use, with the event time."""
    if not readers:
        return None
    wanted: set[str] = set()
    for reader in readers:
        for number in (n for n, source in enumerate(flow[reader].inputs) if source == id_):
            columns = _used_by(flow, reader, number, behind[reader])
            if columns is None:
                return None
            wanted |= columns
    time = flow.types[id_].event_time
    return frozenset(wanted | ({time.column.lower()} if time is not None else set()))


def _used_by(flow: Dataflow, id_: str, number: int, behind: Columns) -> Columns:
    """Return the columns of one input that an operator uses, given the columns of its output that are used."""
    operator = flow[id_]
    schema = flow.types[operator.inputs[number]].schema
    match operator:
        case ops.Select():
            return _low(c for _, text in operator.columns for c in check(text, schema).columns)
        case stateful.Aggregate():
            window = () if operator.window is None else (operator.window.column,)
            return _low((*_plain(operator.keys), *window)) | _aggregated(operator.aggregates, schema)
        case stateful.CountWindow():
            named = _plain((*operator.keys, *operator.order_by))
            return _low(named) | _aggregated(operator.aggregates, schema)
    if behind is None:
        return None
    match operator:
        case ops.Where():
            return behind | _low(check(operator.condition, schema).columns)
        case ops.Explode():
            made = {operator.alias.lower(), (operator.position or operator.alias).lower()}
            return (behind - made) | _low(check(operator.expression, schema).columns)
        case ops.Watermark():
            return behind | _low(_plain((operator.column,)))
        case stateful.Dedup():
            return behind | _low(_plain(operator.keys))
        case stateful.Join() | Lookup():
            return (behind & _low(schema.names)) | _low(_plain(operator.on))
    return None


def _aggregated(aggregates: tuple[tuple[str, str], ...], schema: Schema) -> frozenset[str]:
    return _low(c for _, text in aggregates for c in check_aggregate(text, schema).columns)


def _plain(names: Iterable[str]) -> tuple[str, ...]:
    """Return column names without back-quotes."""
    return tuple(ops.plain_column(name) or name for name in names)


def _low(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
