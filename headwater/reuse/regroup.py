"""Aggregates served from running ones of finer groups or shorter windows: the same results from fewer rows. Pure.

Counts per area follow from counts per area and sensor in the same windows, and those of one area as well: both drop the
same late rows, because their windows end together. With equal groups, the running results are projected.

Counts per hour follow from counts per ten minutes. A row that is too late for its ten minutes is missing in its hour as
well, which alone may still take it: Spark guarantees to count only rows that are at most as late as the watermark's
delay, and both count these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.core.errors import HeadwaterError
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.fragment import Fragment
from headwater.dataflow.graph import Dataflow
from headwater.plan.onepass import melted, steps
from headwater.reuse.remainder import Columns, columns_over, rest_of
from headwater.sql.conditions import Conjunct, parts_of
from headwater.sql.expressions import check, check_aggregate
from headwater.sql.lexer import quote_name
from headwater.sql.mergeable import merged
from headwater.sql.rewrite import substitute
from headwater.sql.schema import Schema

_WINDOW = "window"


@dataclass(frozen=True)
class AggregateShape:
    """An aggregate in terms of the stream above its filters and projections.

    ``stream``: content key of ``begin``, whose columns are those of ``schema``; ``definitions``: the aggregate's input
    columns; ``keys``: names of groups' columns and their expressions; ``windows``: kind and event time;
    ``lengths``: microseconds of a window's size and slide, or of a session's gap.
    """

    aggregate: stateful.Aggregate
    stream: str
    begin: str
    schema: Schema
    conditions: tuple[Conjunct, ...]
    definitions: dict[str, str]
    keys: Columns
    windows: tuple[str, ...]
    lengths: tuple[int, ...]

    def value(self, text: str) -> str:
        """Return one of the aggregates' expressions over the stream's columns, in canonical form."""
        return check_aggregate(substitute(text, self.definitions, self.schema, place="outside"), self.schema).text


def regrouped(new: Dataflow, id_: str, running: Dataflow | Fragment, *, shorter: bool) -> Dataflow:
    """Compute an aggregate from a running one of the same or finer groups; the same dataflow if there is none.

    ``shorter``: also from one of shorter windows, into which its own divide.
    """
    if new.keys[id_] in running.keys.values() or (mine := _grouping(new, id_)) is None:
        return new
    fitting = [
        other
        for operator in running.operators
        if (other := _grouping(running, operator.id)) is not None
        if (other.stream, other.windows) == (mine.stream, mine.windows)
        if other.lengths == mine.lengths or (shorter and all(n % other.lengths[0] == 0 for n in mine.lengths))
    ]

    def price(other: AggregateShape) -> tuple[bool, int, int, int, str]:
        """Rank equal windows first, then the results of fewest rows."""
        longest = -other.lengths[0] if other.lengths else 0
        return other.lengths != mine.lengths, longest, len(other.keys), -len(other.conditions), other.aggregate.id

    for other in sorted(fitting, key=price):
        try:
            found = _served(new, mine, running, other)
        except HeadwaterError:  # a merged result that has no type, or another one
            continue
        if found is not None and found.types[id_] == new.types[id_]:
            return found
    return new


def _grouping(flow: Dataflow | Fragment, id_: str) -> AggregateShape | None:
    """Describe an aggregate; None for other operators, and where results are not output once and for all rows."""
    operator = flow[id_]
    if not isinstance(operator, stateful.Aggregate) or operator.mode is not None or operator.partial is not None:
        return None
    begin = operator.inputs[0]
    while isinstance(flow[begin], ops.STATELESS_SQL):
        (begin,) = flow[begin].inputs
    schema, source = flow.types[begin].schema, flow.types[operator.inputs[0]].schema
    condition, columns = melted(flow, begin, operator.inputs[0])
    definitions = {name: check(text, schema).text for name, text in columns}
    names = [ops.column_named(operator, key, source) for key in operator.keys]
    return AggregateShape(
        aggregate=operator,
        stream=flow.keys[begin],
        begin=begin,
        schema=schema,
        conditions=parts_of(condition, schema),
        definitions=definitions,
        keys=[(source.column(name).name, definitions[source.column(name).name]) for name in names],
        windows=_windows(operator, definitions),
        lengths=_lengths(operator),
    )


def _windows(operator: stateful.Aggregate, definitions: dict[str, str]) -> tuple[str, ...]:
    if operator.window is None:
        return ()
    by_name = {name.lower(): text for name, text in definitions.items()}
    return type(operator.window).__name__, by_name[operator.window.column.lower()]


def _lengths(operator: stateful.Aggregate) -> tuple[int, ...]:
    match operator.window:
        case stateful.TimeWindow(_, size, slide):
            texts = [size, slide or size]
        case stateful.SessionWindow(_, gap):
            texts = [gap]
        case None:
            texts = []
    return tuple(round(operator.duration(text, "window") * 1_000_000) for text in texts)


def shorter_windows(written: Dataflow, runs: Dataflow) -> dict[str, str]:
    """Return the aggregates of a dataflow that are computed from shorter windows, with the length of these."""
    found = {}
    for id_ in runs.order:
        operator = runs[id_]
        if not isinstance(operator, stateful.Aggregate):
            continue
        above = runs[operator.inputs[0]]
        while isinstance(above, ops.STATELESS_SQL):
            above = runs[above.inputs[0]]
        if above.id in written or not isinstance(above, stateful.Aggregate) or _lengths(above) == _lengths(operator):
            continue
        assert isinstance(above.window, stateful.TimeWindow)
        found[id_] = above.window.size
    return found


def _served(
    new: Dataflow, mine: AggregateShape, running: Dataflow | Fragment, other: AggregateShape
) -> Dataflow | None:
    """Put what remains of an aggregate on top of a copy of a running one; None if that lacks something."""
    rest = rest_of(mine.conditions, other.conditions)
    keys = _of_keys(mine, mine.keys, other)
    kept = None if rest is None else _of_keys(mine, [(f"{n}", part.text) for n, part in enumerate(rest)], other)
    if keys is None or kept is None:
        return None
    condition = " AND ".join(f"({text})" for _, text in kept)
    whole = mine.aggregate
    same = mine.lengths == other.lengths
    groups = same and {text for _, text in other.keys} == {text for _, text in mine.keys}
    if groups and (values := _values(mine, whole.aggregates, other)) is not None:
        return _put(new, mine, running, other, condition, [*_window(whole), *keys, *values], None)
    if isinstance(whole.window, stateful.SessionWindow) or len(set(other.lengths)) > 1:
        return None  # sessions of finer groups are others, and a result's event time is in several sliding windows
    source = new.types[whole.inputs[0]].schema
    parts = merged(whole.aggregates, source, [source.column(name) for name, _ in mine.keys])
    values = _values(mine, parts.partial, other)
    if values is None:
        return None
    window = whole.window if whole.window is None else replace(whole.window, column=_WINDOW)
    final = replace(whole, window=window, aggregates=parts.final)
    return _put(new, mine, running, other, condition, [*_window(whole), *keys, *values], final)


def _of_keys(mine: AggregateShape, wanted: Columns, other: AggregateShape) -> tuple[tuple[str, str], ...] | None:
    """Return expressions in terms of a running aggregate's keys; None if they follow from more than these.

    Spark groups -0.0 with 0.0 and all NaN together: of such keys only the groups themselves follow.
    """
    keys = {text for _, text in other.keys}
    for column in (c for _, text in wanted if text not in keys for c in check(text, mine.schema).columns):
        if any(real in mine.schema.column(column).type.text for real in ("float", "double")):
            return None
    return columns_over(wanted, other.keys, mine.schema)


def _window(whole: stateful.Aggregate) -> list[tuple[str, str]]:
    """Return the column of a result's window."""
    name = "session_window" if isinstance(whole.window, stateful.SessionWindow) else _WINDOW
    return [] if whole.window is None else [(name, name)]


def _values(mine: AggregateShape, wanted: Columns, other: AggregateShape) -> list[tuple[str, str]] | None:
    """Return aggregates in terms of a running aggregate's columns; None if one is missing."""
    given = {other.value(text): name for name, text in other.aggregate.aggregates}
    found = [(name, given.get(mine.value(text))) for name, text in wanted]
    return None if any(of is None for _, of in found) else [(name, quote_name(str(of))) for name, of in found]


def _put(
    new: Dataflow,
    mine: AggregateShape,
    running: Dataflow | Fragment,
    other: AggregateShape,
    condition: str,
    columns: Sequence[tuple[str, str]],
    final: stateful.Aggregate | None,
) -> Dataflow:
    """Add a copy of a running aggregate, with its filters and projections, and read it in place of the input."""
    whole, last = mine.aggregate, mine.begin
    added: list[ops.Operator] = []

    def add(operator: ops.Operator, suffix: str) -> None:
        nonlocal last
        name, number = f"{whole.id}.{suffix}", 2
        while name in new or any(o.id == name for o in added):
            name, number = f"{whole.id}.{suffix}.{number}", number + 1
        added.append(replace(operator, id=name, inputs=(last,), layer=whole.layer))
        last = name

    for operator in (*(steps(running, other.begin, other.aggregate.inputs[0]) or ()), other.aggregate):
        add(operator, "of")
    if condition:
        add(ops.Where(id="", inputs=(), requires=whole.requires, condition=condition), "where")
    top: ops.Operator = ops.Select(id="", inputs=(), requires=whole.requires, columns=tuple(columns))
    if final is not None:
        add(top, "select")
        top = final
    top = replace(top, id=whole.id, inputs=(last,), layer=whole.layer)
    return replace(new, operators=_read(*(top if o.id == whole.id else o for o in new.operators), *added))


def _read(*operators: ops.Operator) -> tuple[ops.Operator, ...]:
    """Leave out filters and projections that nothing reads any more."""
    read = {i for o in operators for i in o.inputs}
    kept = tuple(o for o in operators if o.id in read or not isinstance(o, ops.STATELESS_SQL))
    return kept if len(kept) == len(operators) else _read(*kept)
