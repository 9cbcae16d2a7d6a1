"""Join a stream with another one, or with a table, by the condition of a SQL join: as operators of the fluent API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from headwater.core.errors import DataflowError
from headwater.dataflow.columnmethods import ColumnMethods
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stream import Stream
from headwater.dataflow.types import is_time
from headwater.sql.columnnames import free_name
from headwater.sql.expressions import check_condition
from headwater.sql.grouping import has_aggregate
from headwater.sql.joinbounds import LEFT, RIGHT, JoinTerms, join_terms
from headwater.sql.lexer import quote_name, quoted
from headwater.sql.printer import printed
from headwater.sql.rewrite import mapped
from headwater.sql.scope import Scope, all_of, conjuncts, contains
from headwater.sql.statement import JoinKind, RankCall
from headwater.sql.syntax import CaseWhen, Name, PredicateCall, SyntaxNode

_NO_OPERATOR = "Headwater has no operator for it"
_KINDS: dict[JoinKind, str] = {"left_semi": "LEFT SEMI", "left_anti": "LEFT ANTI"}
_INSTEAD: dict[JoinKind, str] = {
    "left_semi": "write a JOIN b and SELECT DISTINCT the columns of a; with a reference table, it works",
    "left_anti": "write a LEFT JOIN b ON ... WHERE b.ts IS NULL; with a reference table, it works",
}
_BOUND = "AND b.ts BETWEEN a.ts - INTERVAL 1 MINUTE AND a.ts + INTERVAL 1 MINUTE"
NO_TIME = (
    'declare it where the stream is read, .with_watermark("ts", "10 seconds"), '
    "or here: FROM readings WATERMARK ts DELAY OF INTERVAL 10 SECONDS"
)
"""The line to write where a stream has no event time."""

ScopedStream: TypeAlias = tuple[Stream, Scope]
"""A stream, and the relations whose columns it has."""
ScopedTable: TypeAlias = tuple[ReferenceTable, Scope]
"""A table, and the relation whose columns it has."""
Rows = TypeVar("Rows", bound=ColumnMethods)


def filtered(rows: Rows, condition: SyntaxNode) -> Rows:
    """Keep the rows of a stream or table for which a condition over its columns is true."""
    if has_aggregate(condition):
        raise DataflowError("WHERE has an aggregate", hint="filter groups by HAVING count(*) > 5")
    if contains(condition, RankCall):
        raise DataflowError("WHERE has a rank", hint="write QUALIFY ROW_NUMBER() OVER (...) <= 10")
    return rows.where(check_condition(printed(condition), rows.schema).text)


def paired(one: ScopedStream, other: ScopedStream, condition: SyntaxNode, *, how: JoinKind, alias: str) -> ScopedStream:
    """Pair the rows of two streams; ``alias``: a name of the right stream, for columns whose names both have."""
    if how not in ("inner", "left"):
        raise DataflowError(f"{_KINDS[how]} JOIN of streams: {_NO_OPERATOR}", hint=_INSTEAD[how])
    (left, mine), (right, theirs) = one, other
    times = []
    for stream in (left, right):
        if stream.shape.event_time is None:
            raise DataflowError("a stream of the join has no event time", hint=NO_TIME)
        times.append(stream.shape.event_time.column)
    by_window = not any(is_time(s.schema.column(t).type) for s, t in zip((left, right), times, strict=True))
    parts = list(conjuncts(condition))
    terms = _terms(condition, mine, theirs, (times[0], times[1]))
    if by_window and terms.earliest == terms.latest == "0 seconds":
        terms.keys.insert(0, (times[0], times[1]))
    _check(terms, times, alias, by_window=by_window, how=how)
    if terms.left:
        left = filtered(left, mine.resolve(all_of([parts[n] for n in terms.left])))
    if terms.right:
        right = filtered(right, theirs.resolve(all_of([parts[n] for n in terms.right])))
    copied = by_window and how == "left"
    right, names = _renamed(left, right, terms.keys, alias, copied=copied)
    keys = tuple(dict.fromkeys(k for k, _ in terms.keys))
    bounds = None if by_window or terms.earliest is None or terms.latest is None else (terms.earliest, terms.latest)
    joined = left.join(right, keys, between=bounds, how=how)
    time = Name((names[times[1].lower()],))
    keyed = {} if copied else {right_.lower(): left_ for left_, right_ in terms.keys}

    def place(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(node, Name) or node.parts[0].lower() in bound:
            return None
        name = node.parts[0].lower()
        key = Name((keyed[name], *node.parts[1:])) if name in keyed else None
        if key is not None and how == "left":
            # Rows without a partner have no value of its key; a partner always has an event time.
            return CaseWhen(None, ((PredicateCall("IS NULL", True, time), key),), None)
        return key or Name((names[name], *node.parts[1:]))

    scope = Scope((*mine.relations, *_placed(theirs, place).relations))
    if terms.both:
        joined = filtered(joined, scope.resolve(all_of([parts[n] for n in terms.both])))
    return joined, scope


def looked_up(
    one: ScopedStream, other: ScopedTable, condition: SyntaxNode, *, how: JoinKind, alias: str, once: bool = False
) -> ScopedStream:
    """Join a stream with a table; ``alias``: a name of the table, for columns whose names both have.

    ``once``: the result has no keys of the table, since they are those of the stream.
    """
    (stream, mine), (table, theirs) = one, other
    parts = list(conjuncts(condition))
    terms = _terms(condition, mine, theirs, None)
    if not terms.keys:
        raise DataflowError("the join with a table has no equal columns", hint="write ON a.k = b.k")
    if (terms.both and how != "inner") or (terms.left and how in ("left", "left_anti")):
        raise DataflowError(
            "a condition of the join is neither on the table alone, nor equal columns",
            hint="only an inner join can have it: filter the stream before the join, or the result after it",
        )
    if terms.left:
        stream = filtered(stream, mine.resolve(all_of([parts[n] for n in terms.left])))
    if terms.right:
        table = filtered(table, theirs.resolve(all_of([parts[n] for n in terms.right])))
    keys: dict[str, str] = {}
    for key, theirs_ in terms.keys:
        if (first := keys.setdefault(key, theirs_)).lower() != theirs_.lower():
            table = table.where(f"{quoted(first)} = {quoted(theirs_)}")
    if how not in ("inner", "left"):
        table = table.select(*(f"{quoted(theirs_)} AS {quoted(key)}" for key, theirs_ in keys.items()))
        return stream.join(table, tuple(keys), how=how), mine
    # Where a row has no partner, the table's keys are NULL: they are columns apart from those of the stream.
    table, names = _renamed(stream, table, list(keys.items()), alias, copied=how == "left" and not once)
    joined = stream.join(table, tuple(keys), how=how)

    def place(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(node, Name) or node.parts[0].lower() in bound:
            return None
        return Name((names[node.parts[0].lower()], *node.parts[1:]))

    scope = Scope((*mine.relations, *_placed(theirs, place).relations))
    if terms.both:
        joined = filtered(joined, scope.resolve(all_of([parts[n] for n in terms.both])))
    return joined, scope


def _terms(condition: SyntaxNode, mine: Scope, theirs: Scope, times: tuple[str, str] | None) -> JoinTerms:
    """Sort the parts of a condition, whose names get the side of their column."""
    both = Scope((*_sided(mine, LEFT).relations, *_sided(theirs, RIGHT).relations))
    return join_terms(both.resolve(condition), times)


def _check(terms: JoinTerms, times: list[str], alias: str, *, by_window: bool, how: str) -> None:
    if terms.earliest is None or terms.latest is None:
        missing = "bound" if terms.earliest is terms.latest else "second bound"
        if by_window:
            raise DataflowError(
                "the join of windows has no equal windows", hint="write ON a.window = b.window AND a.k = b.k"
            )
        raise DataflowError(
            f"the join has no {missing} on the time between two rows, so they would stay in the state for ever",
            hint=_with_times(times, alias),
        )
    if not terms.keys:
        raise DataflowError("the join has no equal columns", hint="write ON a.k = b.k " + _BOUND)
    if how == "left" and (terms.left or terms.both):
        raise DataflowError(
            "a condition of a LEFT JOIN is neither on its right stream, nor equal columns, nor a bound of time",
            hint="filter the left stream first: FROM (SELECT * FROM a WHERE ...) a LEFT JOIN b ON ...",
        )


def _sided(scope: Scope, side: str) -> Scope:
    def place(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        return Name((side, *node.parts)) if isinstance(node, Name) and node.parts[0].lower() not in bound else None

    return _placed(scope, place)


def _placed(scope: Scope, place: Callable[[SyntaxNode, frozenset[str]], SyntaxNode | None]) -> Scope:
    """Replace names in the values of a scope's columns."""
    relations = tuple(
        replace(r, columns=tuple(replace(c, value=mapped(c.value, place)) for c in r.columns)) for r in scope.relations
    )
    return Scope(relations)


def _with_times(times: list[str], alias: str) -> str:
    right = f"{alias or 'b'}.{quote_name(times[1])}"
    left = f"a.{quote_name(times[0])}"
    return f"add AND {right} BETWEEN {left} - INTERVAL 1 MINUTE AND {left} + INTERVAL 1 MINUTE to the ON of the join"


def _renamed(
    left: Stream, right: Rows, pairs_of_keys: Sequence[tuple[str, str]], alias: str, *, copied: bool
) -> tuple[Rows, dict[str, str]]:
    """Give the right side's keys the left names, and its other columns names that the left stream has not.

    ``copied``: its keys are kept under other names too, which are NULL where a row has no partner.
    """
    keys = {theirs.lower(): mine for mine, theirs in pairs_of_keys}
    used = [*left.columns]
    names: dict[str, str] = {}
    pairs = [(theirs, mine) for mine, theirs in pairs_of_keys]
    for column in right.columns:
        if column.lower() in keys and not copied:
            names[column.lower()] = keys[column.lower()]
            continue
        taken = column.lower() in {u.lower() for u in used}
        name = free_name(f"{alias or 'right'}_{column}", used) if taken else column
        used.append(name)
        names[column.lower()] = name
        pairs.append((column, name))
    if all(a.lower() == b.lower() for a, b in pairs):
        return right, names
    order = {c.lower(): n for n, c in enumerate(right.columns)}
    pairs.sort(key=lambda pair: order[pair[0].lower()])
    return right.select(*(f"{quoted(a)} AS {quoted(b)}" for a, b in pairs)), names
