"""Rewrite checked expressions: substitute columns, decompose aggregates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.expressions import check
from headwater.sql.functions import AGGREGATES
from headwater.sql.inference import Inference, Place
from headwater.sql.lexer import quote_name, quote_string, quoted
from headwater.sql.parser import parse
from headwater.sql.schema import Column, DataType, Schema
from headwater.sql.special import AGGREGATE_RULES, ORDERED
from headwater.sql.syntax import Call, Field, Lambda, Name, Star, SyntaxNode

ROW_FUNCTIONS = ("count", "sum", "avg", "min", "max", "first", "last", "collect_list")
"""Aggregates of rows in their order: those of windows of rows. Row patterns have all but ``collect_list``."""
_AGGREGATES = frozenset([*AGGREGATES, *AGGREGATE_RULES, *ORDERED])


def is_aggregate(node: SyntaxNode) -> bool:
    """Return whether a node is a call of an aggregate function."""
    return isinstance(node, Call) and node.name.lower() in _AGGREGATES


SAME_FUNCTION = {"mean": "avg", "first_value": "first", "last_value": "last", "array_agg": "collect_list"}


def substitute(text: str, definitions: Mapping[str, str], schema: Schema, *, place: Place = "scalar") -> str:
    """Replace each column by its definition; ``schema`` is that of the definitions' columns.

    ``place``: "outside" for an expression of aggregates.
    """
    nodes = {name.lower(): parse(definition) for name, definition in definitions.items()}
    placed = frozenset[str]().union(*map(_names, nodes.values()))

    def put(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if isinstance(node, Lambda) and placed & {p.lower() for p in node.parameters}:
            # A lambda's variable must not capture a column in a definition.
            return mapped(_renamed(node, placed), put, bound)
        if not isinstance(node, Name) or node.parts[0].lower() in bound:
            return None
        found = nodes.get(node.parts[0].lower())
        if found is None:
            return None
        for part in node.parts[1:]:
            found = Name((*found.parts, part)) if isinstance(found, Name) else Field(found, part)
        return found

    return Inference(schema, place=place).walk(mapped(parse(text), put)).text


def _names(node: SyntaxNode) -> frozenset[str]:
    """Return all names in a tree, columns' and variables', in lower case."""
    found: set[str] = set()

    def see(node: SyntaxNode, bound: frozenset[str]) -> None:
        if isinstance(node, Name):
            found.add(node.parts[0].lower())
        elif isinstance(node, Lambda):
            found.update(p.lower() for p in node.parameters)

    mapped(node, see)
    return frozenset(found)


def _renamed(node: Lambda, taken: frozenset[str]) -> Lambda:
    """Return the lambda with new names for its variables in ``taken``."""
    used = taken | _names(node)
    new: dict[str, str] = {}
    for parameter in node.parameters:
        name = parameter.lower()
        if name in taken:
            while name in used:
                name += "_"
            used |= {name}
            new[parameter.lower()] = name

    def rename(inner: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(inner, Name) or inner.parts[0].lower() in bound:
            return None
        name = new.get(inner.parts[0].lower())
        return None if name is None else Name((name, *inner.parts[1:]))

    parameters = tuple(new.get(p.lower(), p) for p in node.parameters)
    return replace(node, parameters=parameters, body=mapped(node.body, rename))


def mapped(
    node: SyntaxNode,
    change: Callable[[SyntaxNode, frozenset[str]], SyntaxNode | None],
    bound: frozenset[str] = frozenset(),
) -> SyntaxNode:
    """Rebuild a tree with ``change`` applied from the top; ``bound``: lambda variables in scope."""
    changed = change(node, bound)
    if changed is not None:
        return changed
    if isinstance(node, Lambda):
        bound = bound | {p.lower() for p in node.parameters}

    def value(item: Any) -> Any:
        if isinstance(item, SyntaxNode):
            return mapped(item, change, bound)
        return tuple(value(i) for i in item) if isinstance(item, tuple) else item

    return replace(node, **{f.name: value(getattr(node, f.name)) for f in fields(node) if f.init})


def row_struct(columns: Iterable[str]) -> str:
    """Return a struct of columns, each under its own name."""
    return f"named_struct({', '.join(f'{quote_string(c)}, {quote_name(c)}' for c in columns)})"


def ranks(rows: str, by: Iterable[str], most: int, *, distinct: bool) -> str:
    """Return the ranks, as far as ``most``, of the rows of the sorted array ``rows``, as an array in its order.

    A rank is one more than the number of rows, or of distinct values, in front. It takes one pass over the rows.
    """

    def value(row: str) -> str:
        return f"named_struct({', '.join(f'{quote_string(c)}, {row}.{quoted(c)}' for c in columns)})"

    columns = tuple(by)
    next_rank = "a.rank + 1" if distinct else "a.row + 1"
    rank = f"if({value('x')} <=> a.last, a.rank, {next_rank})"
    kept = f"if({rank} <= {most}, concat(a.ranks, array({rank})), a.ranks)"
    step = f"named_struct('row', a.row + 1, 'rank', {rank}, 'last', {value('x')}, 'ranks', {kept})"
    first = f"named_struct('row', 1, 'rank', 1, 'last', {value(f'get({rows}, 0)')}, 'ranks', array(1))"
    return f"aggregate(slice({rows}, 2, size({rows})), {first}, (a, x) -> {step}, a -> a.ranks)"


JSON_TIMES = (
    "'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", 'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\""
)
"""Options of Spark's to_json that keep the microseconds of times, which it cuts to milliseconds by default."""


def row_json(columns: Iterable[str]) -> str:
    """Return columns as the text of a JSON object, with the microseconds of times."""
    return f"to_json({row_struct(columns)}, map({JSON_TIMES}))"


def aggregate_calls(text: str, schema: Schema) -> tuple[str, ...]:
    """Return the calls of aggregate functions in an expression, canonical, each once: the required buffers."""
    found: dict[str, None] = {}

    def take(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(node, Call) or node.name.lower() not in _AGGREGATES:
            return None
        found.setdefault(Inference(schema, place="outside").walk(node).text)
        return node

    mapped(parse(text), take)
    return tuple(found)


@dataclass(frozen=True)
class RowAggregates:
    """Decomposed aggregates: ``calls`` (function, argument), ``outputs`` (alias, text over ``__g<i>``)."""

    calls: tuple[tuple[str, str], ...]
    types: tuple[DataType, ...]
    outputs: tuple[tuple[str, str], ...]


def row_aggregates(aggregates: tuple[tuple[str, str], ...], schema: Schema, *, where: str) -> RowAggregates:
    """Decompose aggregates over windows of rows into simple calls and expressions over their results."""
    calls: dict[tuple[str, str], DataType] = {}
    trees: list[tuple[str, SyntaxNode]] = []

    def take(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(node, Call) or node.name.lower() not in _AGGREGATES:
            return None
        function = SAME_FUNCTION.get(node.name.lower(), node.name.lower())
        arguments = node.arguments
        if function not in ROW_FUNCTIONS or node.filter is not None or node.distinct or len(arguments) != 1:
            raise DataflowError(
                f"{node.name}(...) is not supported over windows of rows",
                where=where,
                hint=f"use {', '.join(ROW_FUNCTIONS)} of one expression, and arithmetic on them",
            )
        (argument,) = arguments
        text = "1" if isinstance(argument, Star) else Inference(schema, place="scalar").walk(argument).text
        call = (function, text)
        if call not in calls:
            calls[call] = row_aggregate_type(function, check(text, schema, where=where).type, "windows of rows", where)
        return Name((f"__g{list(calls).index(call)}",))

    for alias, text in aggregates:
        trees.append((alias, mapped(parse(text), take)))
    found = Schema(tuple(Column(f"__g{i}", t) for i, t in enumerate(calls.values())), internal=True)
    outputs = tuple((alias, Inference(found, place="scalar").walk(tree).text) for alias, tree in trees)
    return RowAggregates(tuple(calls), tuple(calls.values()), outputs)


def row_aggregate_type(function: str, argument: DataType, over: str, where: str) -> DataType:
    """Return the type of an aggregate that is computed row by row; ``over``: the rows, in messages."""
    text = argument.text
    whole = text in ("tinyint", "smallint", "int", "bigint")
    if function == "count":
        return DataType.parse("bigint")
    if function in ("sum", "avg"):
        if not whole and text not in ("float", "double"):
            raise DataflowError(
                f"{function} of {text} is not supported over {over}",
                where=where,
                hint="cast it to double or bigint",
            )
        return DataType.parse("bigint" if function == "sum" and whole else "double")
    if not whole and text not in ("float", "double", "string", "boolean", "timestamp", "date"):
        raise DataflowError(
            f"{function} of {text} is not supported over {over}",
            where=where,
            hint="select its parts first",
        )
    return DataType.parse(f"array<{text}>") if function == "collect_list" else argument
