"""Names in a SELECT: the relations of its FROM, and the columns that its expressions mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headwater.core.errors import DataflowError
from headwater.sql.rewrite import mapped
from headwater.sql.schema import suggest
from headwater.sql.syntax import Binary, Field, Name, SyntaxNode


@dataclass(frozen=True)
class ScopeColumn:
    """A column of a relation: its name there, and its value over the columns of the stream."""

    name: str
    value: SyntaxNode


@dataclass(frozen=True)
class ScopeRelation:
    """A relation by its alias."""

    alias: str
    columns: tuple[ScopeColumn, ...]

    def find(self, name: str) -> ScopeColumn | None:
        """Return a column by name, ignoring case."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)


@dataclass(frozen=True)
class Scope:
    """The relations of a FROM, in order."""

    relations: tuple[ScopeRelation, ...]

    @classmethod
    def of(cls, alias: str, columns: tuple[ScopeColumn, ...]) -> Scope:
        """Return the scope of one relation."""
        return cls((ScopeRelation(alias, columns),))

    @property
    def star(self) -> tuple[ScopeColumn, ...]:
        """The columns of ``*``."""
        return tuple(column for relation in self.relations for column in relation.columns)

    def relation(self, alias: str) -> ScopeRelation | None:
        """Return a relation by its alias, ignoring case."""
        return next((r for r in self.relations if r.alias and r.alias.lower() == alias.lower()), None)

    def columns_of(self, alias: str) -> tuple[ScopeColumn, ...]:
        """Return the columns of ``alias.*``."""
        found = self.relation(alias)
        if found is None:
            names = tuple(r.alias for r in self.relations)
            raise DataflowError(f"there is no stream {alias!r} here", hint=suggest(alias, names, kind="streams"))
        return found.columns

    def find(self, name: str) -> ScopeColumn | None:
        """Return the only column of a name; None if there is none."""
        owners = [(r, c) for r in self.relations if (c := r.find(name)) is not None]
        if len(owners) > 1:
            aliases = " and ".join(r.alias or "a query" for r, _ in owners)
            raise DataflowError(
                f"the column {name!r} is in {aliases}", hint=f"write {owners[0][0].alias or 'alias'}.{name}"
            )
        return owners[0][1] if owners else None

    def resolve(
        self, node: SyntaxNode, aliases: Mapping[str, SyntaxNode] | None = None, *, aliases_first: bool = False
    ) -> SyntaxNode:
        """Replace names by the columns of the stream; ``aliases``: names of items of the SELECT."""
        known = aliases or {}

        def place(found: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            if not isinstance(found, Name) or found.parts[0].lower() in bound:
                return None
            first, *rest = found.parts
            if aliases_first and first.lower() in known:
                return with_fields(known[first.lower()], rest)
            owner = self.relation(first) if rest else None
            column = owner.find(rest[0]) if owner is not None else None
            if column is not None:
                return with_fields(column.value, rest[1:])
            column = self.find(first)
            if column is not None:
                return with_fields(column.value, rest)
            if owner is not None:
                names = tuple(c.name for c in owner.columns)
                raise DataflowError(f"{owner.alias} has no column {rest[0]!r}", hint=suggest(rest[0], names))
            return with_fields(known[first.lower()], rest) if first.lower() in known else found

        return mapped(node, place)


def with_fields(node: SyntaxNode, names: list[str]) -> SyntaxNode:
    """Take fields of a value."""
    for name in names:
        node = Name((*node.parts, name)) if isinstance(node, Name) else Field(node, name)
    return node


def conjuncts(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield the conditions that AND joins, in order."""
    todo = [node]
    while todo:
        found = todo.pop()
        if isinstance(found, Binary) and found.operator == "AND":
            todo += [found.right, found.left]
        else:
            yield found


def all_of(parts: list[SyntaxNode]) -> SyntaxNode:
    """Join conditions with AND."""
    found = parts[0]
    for part in parts[1:]:
        found = Binary("AND", found, part)
    return found


def names_in(node: SyntaxNode) -> tuple[Name, ...]:
    """Return the columns that a tree names, without the variables of its lambdas."""
    found: list[Name] = []

    def see(one: SyntaxNode, bound: frozenset[str]) -> None:
        if isinstance(one, Name) and one.parts[0].lower() not in bound:
            found.append(one)

    mapped(node, see)
    return tuple(found)


def contains(node: SyntaxNode, wanted: type[SyntaxNode]) -> bool:
    """Return whether a tree has a node of a class."""
    return isinstance(node, wanted) or any(contains(child, wanted) for child in node.children)
