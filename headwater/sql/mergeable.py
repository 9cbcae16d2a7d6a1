"""Split aggregates into parts that are computed apart and merged: sums of sums, and so on. Pure.

The merged result is that of one aggregate over all rows: exactly for whole numbers, decimals, minima, maxima, counts
and top rows; for floating-point numbers as exactly as their sums in another order of rows.

Aggregates that need all values of a column, but not each of its rows, are merged from groups by these values: distinct
ones, percentiles by the counts of values, and HyperLogLog++, whose registers are maxima over the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headwater.core.errors import DataflowError
from headwater.sql.columnnames import free_name
from headwater.sql.expressions import check_aggregate
from headwater.sql.inference import Inference
from headwater.sql.lexer import quoted
from headwater.sql.parser import parse, parse_generated
from headwater.sql.printer import printed
from headwater.sql.rewrite import is_aggregate, mapped
from headwater.sql.schema import Column, DecimalType, Schema
from headwater.sql.syntax import Call, Literal, SyntaxNode

_OF_ITSELF = frozenset(["min", "max", "bool_and", "every", "bool_or", "some", "any", "bit_and", "bit_or", "bit_xor"])
"""Aggregates that merge their own results."""
_SPREADS = {"var_pop": (0, False), "var_samp": (1, False), "variance": (1, False)}
_SPREADS |= {"stddev_pop": (0, True), "stddev_samp": (1, True), "stddev": (1, True), "std": (1, True)}
"""For variances and standard deviations: what is taken from the count, and whether the root is taken."""
_WHY = {
    "approx_count_distinct": "it needs all distinct values",
    "percentile_approx": "Spark merges no estimates of it",
    "approx_percentile": "Spark merges no estimates of it",
    "percentile": "it needs all values",
    "median": "it needs all values",
    "collect_list": "the order of its elements would change",
    "array_agg": "the order of its elements would change",
    "collect_set": "the order of its elements would change",
}
_OF_VALUES = frozenset(["approx_count_distinct", "percentile", "median"])
"""Aggregates, beside those with DISTINCT, that follow from the values of a column and the number of rows of each."""
_EXACT_DIGITS = 12
"""Digits of a quotient beyond those of the average: rounded twice, it is still the same for up to 10^11 rows."""


@dataclass(frozen=True)
class Merged:
    """Aggregates in two steps: ``partial`` over rows, ``final`` over the columns of the partial results."""

    partial: tuple[tuple[str, str], ...]
    final: tuple[tuple[str, str], ...]


class NotMergeable(DataflowError):
    """An aggregate whose partial results do not suffice for its result."""


def merged(
    aggregates: tuple[tuple[str, str], ...], schema: Schema, keys: Iterable[Column], *, value: Column | None = None
) -> Merged:
    """Split aggregates over rows of ``schema``; ``keys`` are the columns of groups beside them.

    ``value``: a further column of the partial results' groups (``value_column``). Raises NotMergeable with the reason.
    """
    splitting = _Splitting(schema, [key.name for key in keys], value)
    trees = [(alias, mapped(parse(text), splitting.split)) for alias, text in aggregates]
    partial = splitting.schema()
    final = []
    for (alias, tree), (_, text) in zip(trees, aggregates, strict=True):
        wanted, found = check_aggregate(text, schema).type, check_aggregate(printed(tree), partial)
        same = found.type == wanted
        final.append((alias, found.text if same else f"CAST({found.text} AS {wanted.text})"))
    return Merged(tuple(splitting.columns.items()), tuple(final))


def value_column(aggregates: tuple[tuple[str, str], ...], schema: Schema) -> Column | None:
    """Return the column of which some aggregates need all values; None if none does.

    Raises NotMergeable where they need those of several columns, or of an expression.
    """
    found: set[str] = set()

    def see(node: SyntaxNode, bound: frozenset[str]) -> None:
        if isinstance(node, Call) and is_aggregate(node) and _needs_values(node):
            found.update(printed(argument) for argument in (node.arguments if node.distinct else node.arguments[:1]))

    for _, text in aggregates:
        mapped(parse(text), see)
    if not found:
        return None
    columns = [c for c in schema.columns if {c.name.lower(), quoted(c.name).lower()} & {t.lower() for t in found}]
    if len(columns) != 1 or len({text.lower().strip("`") for text in found}) != 1:
        raise NotMergeable(f"all values of {', '.join(sorted(found))} are needed: those of one column could be grouped")
    return columns[0]


def _needs_values(node: Call) -> bool:
    name = node.name.lower()
    return (node.distinct and name not in ("min", "max")) or name in _OF_VALUES


class _Splitting:
    """The columns of the partial results, found so far."""

    def __init__(self, schema: Schema, taken: list[str], value: Column | None) -> None:
        self._schema = schema
        self._taken = taken
        self._value = value
        self.columns: dict[str, str] = {}

    def schema(self) -> Schema:
        """Return the columns of the partial results."""
        types = [Column(name, check_aggregate(text, self._schema).type) for name, text in self.columns.items()]
        values = () if self._value is None else (self._value,)
        return Schema((*values, *types), internal=True)

    def split(self, node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        """Return the merge of the partial results of an aggregate, or of the best rows; None for other nodes."""
        if (best := _best(node)) is not None:
            return self._top(*best)
        if not isinstance(node, Call) or not is_aggregate(node):
            return None
        name = node.name.lower()
        if self._value is not None and _needs_values(node):
            return self._of_values(node, self._value)
        if node.distinct and name not in ("min", "max"):
            raise NotMergeable(f"{name}(DISTINCT ...) needs all values")
        if name in _OF_ITSELF:
            return parse(f"{name}({self._column(node)})")
        if name in ("max_by", "min_by"):
            by = self._column(replace(node, name=name[:3], arguments=node.arguments[1:]))
            return parse(f"{name}({self._column(node)}, {by})")
        if name in ("count", "count_if", "regr_count"):
            return parse(f"sum({self._column(node)})")
        if name == "sum":
            return self._sum(node)
        if name in ("avg", "mean"):
            return self._mean(node)
        if name in _SPREADS:
            return self._spread(node, *_SPREADS[name])
        raise NotMergeable(f"{name}(...) is not merged from partial results: {_WHY.get(name, 'no rule is known')}")

    def _column(self, node: SyntaxNode) -> str:
        """Return the name of the column with a partial result."""
        text = Inference(self._schema, place="outside").walk(node).text
        for name, known in self.columns.items():
            if known == text:
                return quoted(name)
        name = free_name("partial", (*self._taken, *self._schema.names, *self.columns))
        self.columns[name] = text
        return quoted(name)

    def _of_values(self, node: Call, value: Column) -> SyntaxNode:
        """Return an aggregate over one row for each value, by the number of rows where that counts."""
        name = node.name.lower()
        if node.filter is not None:
            raise NotMergeable(f"{name}(...) has a FILTER: the rows of a value would be told apart")
        if name == "approx_count_distinct" and value.type.text in ("float", "double"):
            raise NotMergeable(f"{name} of {value.type.text} tells 0.0 from -0.0, and groups do not")
        if node.distinct or name == "approx_count_distinct":
            return node
        half = [parse("0.5D")] if name == "median" else []
        given, share, *frequency = [*node.arguments, *half]
        if frequency:
            raise NotMergeable(f"{name}(...) has a frequency of its own")
        count = self._column(Call("count", (given,)))
        return parse(f"percentile({printed(given)}, {printed(share)}, {count})")

    def _sum(self, node: Call) -> SyntaxNode:
        kind = Inference(self._schema, place="outside").walk(node).type
        return parse(f"CAST(sum({self._column(node)}) AS {kind.text})")

    def _mean(self, node: Call) -> SyntaxNode:
        (value,) = node.arguments
        kind = Inference(self._schema, place="scalar").walk(value).type
        mean = Inference(self._schema, place="outside").walk(node).type
        count = self._column(replace(node, name="count"))
        if not isinstance(kind, DecimalType):
            if mean.text != "double":
                raise NotMergeable(f"avg of {kind.text} is not merged from partial results")
            real = value if kind.text == "double" else parse(f"CAST({printed(value)} AS double)")
            total = self._column(replace(node, name="sum", arguments=(real,)))
            return parse(f"sum({total}) / nullif(sum({count}), 0)")
        assert isinstance(mean, DecimalType)
        total_type = Inference(self._schema, place="outside").walk(replace(node, name="sum")).type
        total = f"CAST(sum({self._column(replace(node, name='sum'))}) AS {total_type.text})"
        quotient = check_aggregate(f"{total} / nullif(sum({count}), 0)", self.schema())
        if not isinstance(quotient.type, DecimalType) or quotient.type.scale < mean.scale + _EXACT_DIGITS:
            raise NotMergeable(f"avg of {kind.text} would be rounded twice")
        return parse(f"CAST({quotient.text} AS {mean.text})")

    def _spread(self, node: Call, less: int, root: bool) -> SyntaxNode:
        """Merge counts, means and variances pair by pair, in an order that does not depend on their arrival."""
        n, m, v = (self._column(replace(node, name=name)) for name in ("count", "avg", "var_pop"))
        part = f"named_struct('n', CAST({n} AS double), 'm', {m}, 's', {v} * {n})"
        parts = f"array_sort(collect_list({part}) FILTER (WHERE {n} > 0))"
        both, step = "(a.n + x.n)", "(x.m - a.m)"
        mean = f"a.m + {step} * x.n / {both}"
        squares = f"a.s + x.s + {step} * {step} * a.n * x.n / {both}"
        added = f"named_struct('n', {both}, 'm', {mean}, 's', {squares})"
        found = f"a.s / (a.n - {less}D)"
        found = f"CASE WHEN a.n > {less}D THEN {f'sqrt({found})' if root else found} END"
        return parse_generated(
            f"aggregate({parts}, named_struct('n', 0D, 'm', 0D, 's', 0D), (a, x) -> {added}, a -> {found})"
        )

    def _top(self, node: Call, ascending: str, most: str) -> SyntaxNode:
        column = self._column(node)
        return parse_generated(f"slice(sort_array(flatten(collect_list({column})), {ascending}), 1, {most})")


def _best(node: SyntaxNode) -> tuple[Call, str, str] | None:
    """Recognize ``slice(sort_array(collect_list(row), ascending), 1, k)``: node, ascending, k."""
    match node:
        case Call("slice", (Call("sort_array", (Call("collect_list", _, False, None), *order)), Literal() as first, k)):
            if first.value == 1 and isinstance(k, Literal) and all(isinstance(o, Literal) for o in order):
                assert isinstance(node, Call)
                return node, printed(order[0]) if order else "true", printed(k)
    return None
