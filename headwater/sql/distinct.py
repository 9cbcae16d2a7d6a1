"""Aggregates of distinct values over sets, for streams: Spark has none with DISTINCT there."""

from __future__ import annotations

from dataclasses import replace

from headwater.sql.inference import Inference
from headwater.sql.parser import parse, parse_generated
from headwater.sql.printer import printed
from headwater.sql.rewrite import is_aggregate, mapped
from headwater.sql.schema import DOUBLE, FLOAT, Schema
from headwater.sql.syntax import Call, SyntaxNode


def without_distinct(text: str, schema: Schema) -> str:
    """Return an aggregate expression in which sets of the values stand for DISTINCT.

    A set is sorted before its values are added: sums of floating-point numbers do not depend on the order of rows.
    """

    def place(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
        if not isinstance(node, Call) or not node.distinct or not is_aggregate(node):
            return None
        plain = replace(node, distinct=False)
        return plain if node.name in ("min", "max") else parse_generated(_over_set(plain, schema))

    return printed(mapped(parse(text), place))


def _over_set(node: Call, schema: Schema) -> str:
    values = []
    for argument in node.arguments:
        value = printed(argument)
        # As for Spark's DISTINCT, 0.0 and -0.0 are one value.
        zero = Inference(schema, place="scalar").walk(argument).type in (FLOAT, DOUBLE)
        values.append(f"({value}) + 0D" if zero else value)
    value = values[0]
    if len(values) > 1:  # a row with a NULL does not count
        fields = ", ".join(f"'v{n}', {v}" for n, v in enumerate(values))
        value = f"CASE WHEN {' AND '.join(f'({v}) IS NOT NULL' for v in values)} THEN named_struct({fields}) END"
    kept = f"collect_set({value})"
    kept += f" FILTER (WHERE {printed(node.filter)})" if node.filter is not None else ""
    size = f"size({kept})"
    found = Inference(schema, place="outside").walk(node).type.text
    if node.name == "count":
        return f"CAST({size} AS {found})"
    added = f"CAST(coalesce(a + CAST(x AS {found}), CAST(x AS {found})) AS {found})"
    total = f"aggregate(array_sort({kept}), CAST(NULL AS {found}), (a, x) -> {added})"
    return total if node.name == "sum" else f"{total} / CAST({size} AS double)"
