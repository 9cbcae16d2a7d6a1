"""Find the bound of a top list: ``ROW_NUMBER() OVER (...) <= 10``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headwater.sql.scope import all_of, conjuncts, contains
from headwater.sql.statement import Clause, RankCall, SelectQuery
from headwater.sql.syntax import Binary, Literal, Name, SyntaxNode

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


def rank_bound(part: SyntaxNode) -> tuple[RankCall, int] | None:
    """Return the rank that a condition bounds, and the highest one that it lets pass."""
    if not isinstance(part, Binary) or part.operator not in _TURNED:
        return None
    left, operator, right = part.left, part.operator, part.right
    if isinstance(right, RankCall):
        left, operator, right = right, _TURNED[operator], left
    if not isinstance(left, RankCall) or not isinstance(right, Literal) or type(right.value) is not int:
        return None
    match operator:
        case "<=":
            return left, right.value
        case "<":
            return left, right.value - 1
        case "=" if right.value == 1:
            return left, 1
    return None


def with_qualify(outer: SelectQuery, inner: SelectQuery, alias: str) -> tuple[SelectQuery, SelectQuery]:
    """Move the bound on a rank from the WHERE around a query into the query, as its QUALIFY."""
    ranks = {i.alias.lower(): i.node for i in inner.items if i.alias and isinstance(i.node, RankCall)}
    if not ranks or outer.where is None or inner.qualify is not None:
        return outer, inner
    moved: list[SyntaxNode] = []
    kept: list[SyntaxNode] = []
    for part in conjuncts(outer.where.node):
        placed = _with_ranks(part, ranks, alias)
        if rank_bound(placed) is None:
            kept.append(part)
        else:
            moved.append(placed)
    if not moved:
        return outer, inner
    where = Clause(all_of(kept), outer.where.at) if kept else None
    return replace(outer, where=where), replace(inner, qualify=Clause(all_of(moved), outer.where.at))


def _with_ranks(part: SyntaxNode, ranks: Mapping[str, SyntaxNode], alias: str) -> SyntaxNode:
    """Replace the name of a rank by its call, on either side of a comparison."""

    def placed(side: SyntaxNode) -> SyntaxNode:
        if not isinstance(side, Name) or (len(side.parts) == 2 and side.parts[0].lower() != alias.lower()):
            return side
        return ranks.get(side.parts[-1].lower(), side) if len(side.parts) <= 2 else side

    if not isinstance(part, Binary) or contains(part, RankCall):
        return part
    return replace(part, left=placed(part.left), right=placed(part.right))
