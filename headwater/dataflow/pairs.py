"""Pairs of the rows of two streams by position, made by a scan of both. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown
from headwater.dataflow.types import StreamType
from headwater.dataflow.windowmakers import has_map
from headwater.sql.columnnames import free_name
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import row_struct
from headwater.sql.schema import Column, Schema

_SIDES = ("left", "right")
Projection: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of name and expression."""


@dataclass(frozen=True)
class Pairing:
    """How two streams are paired: both as rows of one schema, with their columns in a struct of their side.

    ``schema``: keys and structs of a pair; ``columns``: its columns.
    """

    keys: tuple[str, ...]
    sides: tuple[str, str]
    tagged: tuple[Projection, Projection]
    schema: Schema
    columns: Projection


def pairing(
    left: StreamType, right: StreamType, keys: tuple[str, ...], order_by: tuple[str, ...], *, where: str
) -> Pairing:
    """Return how two streams are paired; refuse streams that cannot be."""
    if not order_by:
        raise DataflowError(
            "rows have no position without order_by",
            where=where,
            hint="order_by='ts' (the event time: exact wherever it runs) or a counter the rows carry",
        )
    both = (*keys, *order_by)
    _check(left, right, both, where=where)
    taken = {n.lower() for n in both}
    mine = left.schema.columns
    theirs = tuple(c for c in right.schema.columns if c.name.lower() not in taken)
    clash = {c.name.lower() for c in mine} & {c.name.lower() for c in theirs}
    if clash or not theirs:
        raise DataflowError(
            f"both streams have: {cut(', '.join(sorted(clash)), 200)}"
            if clash
            else "the other stream has only the columns of keys and order_by",
            where=where,
            hint="select them in the other stream under another name: .select('k', 'ts', 'v AS w')",
        )
    names = {c.name.lower(): c.name for c in mine}
    by = tuple(names[k.lower()] for k in keys)
    plain = tuple((c, quoted(c)) for c in dict.fromkeys(names[n.lower()] for n in both))
    first, second = (free_name(side, taken) for side in _SIDES)
    types = Schema(mine).struct, Schema(theirs).struct
    schema = Schema((*(left.schema.column(k) for k in by), Column(first, types[0]), Column(second, types[1])))
    of_left = [(c.name, quoted(c.name) if c.name in by else f"{first}.{quoted(c.name)}") for c in mine]
    return Pairing(
        keys=by,
        sides=(first, second),
        tagged=(
            (*plain, (first, row_struct(c.name for c in mine)), (second, f"CAST(NULL AS {types[1].text})")),
            (*plain, (first, f"CAST(NULL AS {types[0].text})"), (second, row_struct(c.name for c in theirs))),
        ),
        schema=schema,
        columns=(*of_left, *((c.name, f"{second}.{quoted(c.name)}") for c in theirs)),
    )


def _check(left: StreamType, right: StreamType, both: tuple[str, ...], *, where: str) -> None:
    for side, stream in zip(("this", "the other"), (left, right), strict=True):
        for name in both:
            if stream.schema.find(name) is None:
                raise DataflowError(
                    f"{side} stream has no column {shown(name)}",
                    where=where,
                    hint=f"its columns are {cut(', '.join(stream.schema.names), 600)}",
                )
        if maps := [c.name for c in stream.schema.columns if has_map(c.type)]:
            raise DataflowError(
                f"rows that wait hold no maps: {cut(', '.join(maps), 200)}",
                where=where,
                hint="select the other columns before it, or map_entries(...)",
            )
    for name in both:
        mine, theirs = (s.schema.column(name).type.text for s in (left, right))
        if mine != theirs:
            raise DataflowError(
                f"'{name}' is {mine} in this stream and {theirs} in the other", where=where, hint="cast one of them"
            )
    times = [s.event_time.column.lower() if s.event_time is not None else "missing" for s in (left, right)]
    if times[0] != times[1]:
        raise DataflowError(
            f"the event time is {times[0]} in this stream and {times[1]} in the other",
            where=where,
            hint="give it one name in both streams: .with_watermark('ts', '10 seconds')",
        )


def pair_fold(pairs: Pairing) -> tuple[Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any] | None]], Any]:
    """Return a scan's function that pairs the n-th row of one side with the n-th of the other, and its first state.

    The state has the rows of the side that is ahead, in order.
    """
    keys, (left, right) = pairs.keys, pairs.sides

    def paired(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any] | None]:
        waiting = state["waiting"]
        mine, other = (left, right) if row[left] is not None else (right, left)
        if not waiting[other]:
            waiting[mine].append(row[mine])
            return {"waiting": waiting}, None
        found = {**{k: row[k] for k in keys}, mine: row[mine], other: waiting[other].pop(0)}
        return {"waiting": waiting}, found

    # Rows that wait have the columns of their stream: with others the state is another one.
    return paired, {"waiting": {left: [], right: []}, "rows of": {pairs.schema.text: None}}
