"""A stream's results as they change: its aggregate in update mode, and the operators behind it, again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headwater.core.errors import DataflowError
from headwater.dataflow.operators import Select, Where
from headwater.dataflow.stateful import ROWS, Aggregate
from headwater.dataflow.streambase import S, StreamBase
from headwater.sql.lexer import quoted


def updating(stream: S, *, where: str) -> S:
    """Return the stream of an aggregate's results, with ``headwater_rows``, in each batch that changes them.

    The stream itself, with its final results, stays as it is. Raise DataflowError where no aggregate is behind it.
    """
    behind: list[S] = []
    at = stream
    while isinstance(at.operator, Where | Select):
        behind.append(at)
        (parent,) = at.parents
        assert isinstance(parent, type(stream))
        at = parent
    if not isinstance(at.operator, Aggregate):
        raise DataflowError(
            f"'{at.operator.id}' ({at.operator.kind}) has no results that change",
            where=where,
            hint="update mode is for .group_by(...).agg(...), with .where and .select behind it; leave it out here",
        )
    found = _again(at, at.parents[0], aggregates=(*at.operator.aggregates, (ROWS, "count(*)")), mode="update")
    for step in reversed(behind):
        more: dict[str, Any] = {}
        if isinstance(step.operator, Select):
            more["columns"] = (*step.operator.columns, (ROWS, quoted(ROWS)))
        found = _again(step, found, **more)
    return found


def _again(stream: S, parent: StreamBase, **settings: Any) -> S:
    """Return a copy of a stream's last operator behind another stream, under a name of its own."""
    name = stream.builder.new_id(f"{stream.operator.id}-updates")
    operator = replace(stream.operator, id=name, inputs=(parent.operator.id,), **settings)
    return replace(stream, operator=operator, parents=(parent,), shape=operator.output((parent.shape,)))
