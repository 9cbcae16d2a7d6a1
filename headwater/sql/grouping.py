"""Take apart the expressions of a grouped SELECT: its groups, its aggregates, and the columns made of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.core.errors import DataflowError
from headwater.sql import literals
from headwater.sql.lexer import quote_name
from headwater.sql.rewrite import is_aggregate, mapped
from headwater.sql.scope import contains, names_in
from headwater.sql.statement import RankCall
from headwater.sql.syntax import Call, Literal, Name, SyntaxNode

WINDOWS = ("window", "session_window")
"""Functions that group rows by time, and the names of the columns that they make."""


@dataclass
class GroupedColumns:
    """The groups of a SELECT, and its aggregates in the order in which they are found.

    ``columns`` are the groups' columns, in order; ``made`` those among them that are computed first.
    """

    taken: frozenset[str]
    columns: list[str] = field(default_factory=list)
    made: dict[str, SyntaxNode] = field(default_factory=dict)
    window: Call | None = None
    aggregates: dict[str, SyntaxNode] = field(default_factory=dict)
    _nodes: dict[SyntaxNode, SyntaxNode] = field(default_factory=dict)

    def group(self, node: SyntaxNode, name: str | None) -> None:
        """Add a group; ``name``: that of an item which is the same expression."""
        if node in self._nodes:
            return
        if isinstance(node, Call) and node.name in WINDOWS:
            if self.window is not None:
                raise DataflowError("GROUP BY has more than one window", hint="keep one")
            self.window = node
            self._nodes[node] = Name((node.name,))
        elif isinstance(node, Name) and len(node.parts) == 1:
            self.columns.append(node.parts[0])
            self._nodes[node] = node
        elif has_aggregate(node):
            raise DataflowError("GROUP BY has an aggregate", hint="group by columns; HAVING filters by aggregates")
        elif isinstance(node, Literal):
            raise DataflowError("GROUP BY has a constant", hint="leave it out: it makes no groups")
        else:
            free = name is not None and name.lower() not in self.taken
            made = name if free and name else self._fresh("group")
            self.columns.append(made)
            self.made[made] = node
            self._nodes[node] = Name((made,))

    @property
    def keys(self) -> frozenset[str]:
        """The names of the groups' columns, in lower case."""
        window = [self.window.name] if self.window is not None else []
        return frozenset(name.lower() for name in (*self.columns, *window))

    @property
    def outputs(self) -> list[str]:
        """The columns after the aggregation, in order."""
        return [*([self.window.name] if self.window is not None else []), *self.columns, *self.aggregates]

    def item(self, node: SyntaxNode, name: str | None) -> SyntaxNode:
        """Return an item over the columns after the aggregation; one without groups is an aggregate as a whole."""
        found = self._over_groups(node)
        if not has_aggregate(found) or contains(found, RankCall) or names_in(_without_aggregates(found)):
            return self.rewrite(node)
        return self._aggregate(found, name)

    def rewrite(self, node: SyntaxNode) -> SyntaxNode:
        """Return an expression over the columns after the aggregation."""
        known = {other: Name((name,)) for name, other in self.aggregates.items()}

        def place(one: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            return known.get(one) or (self._aggregate(one, None) if is_aggregate(one) else None)

        return mapped(self._over_groups(node), place)

    def _over_groups(self, node: SyntaxNode) -> SyntaxNode:
        found = mapped(node, lambda one, bound: self._nodes.get(one))
        outside = [n for n in names_in(_without_aggregates(found)) if n.parts[0].lower() not in self.keys]
        if outside:
            column = quote_name(outside[0].parts[0])
            raise DataflowError(
                f"the column {column} is neither in GROUP BY nor in an aggregate: a group has many values of it",
                hint=f"write max({column}), or add it to GROUP BY",
            )
        return found

    def _aggregate(self, node: SyntaxNode, name: str | None) -> SyntaxNode:
        known = next((n for n, other in self.aggregates.items() if other == node), None)
        if known is not None and name is None:
            return Name((known,))
        used = self.keys | {n.lower() for n in self.aggregates}
        made = self._fresh("aggregate") if name is None or name.lower() in used else name
        self.aggregates[made] = node
        return Name((made,))

    def _fresh(self, kind: str) -> str:
        used = self.taken | self.keys | {n.lower() for n in self.aggregates}
        number = 1
        while f"{kind}_{number}" in used:
            number += 1
        return f"{kind}_{number}"


def has_aggregate(node: SyntaxNode) -> bool:
    return is_aggregate(node) or any(map(has_aggregate, node.children))


def _without_aggregates(node: SyntaxNode) -> SyntaxNode:
    return mapped(node, lambda one, bound: _NULL if is_aggregate(one) else None)


_NULL = literals.null()
