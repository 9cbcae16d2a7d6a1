"""Normal form of dataflows: equivalent chains of filters and projections get equal keys. Pure.

Between two other operators, a chain becomes one filter followed by one projection, independent of the names and
the order of its steps; columns that no later operator uses are dropped. Dataflows that differ only in these have
equal keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.types import StreamType
from headwater.plan.onepass import melted
from headwater.sql.conditions import canonical
from headwater.sql.expressions import check_aggregate


def normalized(flow: Dataflow) -> Dataflow:
    """Return an equivalent dataflow with its chains in normal form. Ends of chains keep their names."""
    return _Normalizing(flow).result()


class _Normalizing:
    """One normalization in progress: the new operators by name."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._found: dict[str, ops.Operator] = {}
        self._streams: dict[tuple[str, frozenset[str] | None], str] = {}

    def result(self) -> Dataflow:
        for id_ in self._flow.order:
            operator = self._flow[id_]
            if not isinstance(operator, ops.STATELESS_SQL):
                inputs = tuple(self._stream(i, self._looked_at(operator, n)) for n, i in enumerate(operator.inputs))
                self._found[id_] = replace(operator, inputs=inputs)
        return Dataflow(self._flow.name, tuple(self._found.values()), self._flow.locations)

    def _stream(self, id_: str, wanted: frozenset[str] | None) -> str:
        """Build the chain that ends in an operator; return the name of its new last operator."""
        flow = self._flow
        if not isinstance(flow[id_], ops.STATELESS_SQL):
            return id_
        if (id_, wanted) in self._streams:
            return self._streams[id_, wanted]
        begin = self._begin(id_)
        condition, columns = melted(flow, begin, id_)
        source = flow.types[begin]
        text = canonical(condition, source.schema)
        if wanted is not None:
            columns = sorted((n, t) for n, t in columns if n.lower() in wanted)
        above = self._stream(begin, None)
        last = flow[id_]
        same = all(ops.plain_column(t) == n for n, t in columns)
        selects = not (same and (wanted is not None or tuple(n for n, _ in columns) == source.schema.names))
        if text:
            name = self._name(id_ if not selects else f"{id_}.where", wanted)
            self._add(ops.Where(**_common(last, name, above), condition=text))
            above = name
        if selects:
            name = self._name(id_, wanted)
            self._add(ops.Select(**_common(last, name, above), columns=tuple(columns)))
            above = name
        self._streams[id_, wanted] = above
        return above

    def _begin(self, id_: str) -> str:
        """Return the operator above a chain: another kind, or one in another place."""
        flow, last = self._flow, self._flow[id_]
        while True:
            (parent,) = flow[id_].inputs
            above = flow[parent]
            same = (above.layer, above.requires) == (last.layer, last.requires)
            if not isinstance(above, ops.STATELESS_SQL) or not same:
                return parent
            id_ = parent

    def _looked_at(self, operator: ops.Operator, number: int) -> frozenset[str] | None:
        """Return the columns of an input that an operator uses, in lower case; None: all of them."""
        type_ = self._flow.types[operator.inputs[number]]
        match operator:
            case stateful.Aggregate():
                found = {k.lower() for k in operator.keys}
                if operator.window is not None:
                    found.add(operator.window.column.lower())
                return frozenset(found | _aggregated(operator.aggregates, type_) | _time(type_))
            case stateful.CountWindow():
                found = {k.lower() for k in (*operator.keys, *operator.order_by)}
                return frozenset(found | _aggregated(operator.aggregates, type_) | _time(type_))
        return None

    def _name(self, wanted: str, columns: frozenset[str] | None) -> str:
        name, number = wanted, 2
        while name in self._found or (name != wanted and name in self._flow):
            name, number = f"{wanted}.{number}", number + 1
        return name

    def _add(self, operator: ops.Operator) -> None:
        self._found[operator.id] = operator


def _common(last: ops.Operator, name: str, above: str) -> dict[str, Any]:
    return {"id": name, "inputs": (above,), "layer": last.layer, "requires": last.requires}


def _aggregated(aggregates: tuple[tuple[str, str], ...], type_: StreamType) -> set[str]:
    return {c.lower() for _, text in aggregates for c in check_aggregate(text, type_.schema).columns}


def _time(type_: StreamType) -> set[str]:
    return {type_.event_time.column.lower()} if type_.event_time is not None else set()
