"""A DataFrame of a job as a stream or a table: the relations whose columns it has, for names such as ``left.id``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headwater.core.errors import DataflowError
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stream import Stream
from headwater.sql.columnnames import free_name
from headwater.sql.columns import ExpressionMessages, Message, attribute_parts
from headwater.sql.lexer import quoted
from headwater.sql.printer import printed
from headwater.sql.scope import Scope, ScopeColumn, ScopeRelation
from headwater.sql.syntax import Alias, Name, SyntaxNode


@dataclass(frozen=True)
class JobFrame:
    """A stream or a table, its relations, and for each of these the numbers of the plans that it comes from.

    One relation is an ordinary DataFrame; several are a join, in which two columns may have one name. A static
    DataFrame is a reference table.
    """

    rows: Stream | ReferenceTable
    scope: Scope
    plans: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, rows: Stream | ReferenceTable, plans: Iterable[int], alias: str = "") -> JobFrame:
        """Return a frame of one relation."""
        columns = tuple(ScopeColumn(c, Name((c,))) for c in rows.columns)
        return cls(rows, Scope.of(alias, columns), (frozenset(plans),))

    @property
    def stream(self) -> Stream:
        """The stream; raise DataflowError for a static DataFrame."""
        return stream_of(self.rows)

    @property
    def all_plans(self) -> frozenset[int]:
        """The numbers of all plans that it comes from."""
        return frozenset().union(*self.plans)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [c.name for c in self.scope.star]

    def over(self, rows: Stream | ReferenceTable) -> JobFrame:
        """Return the frame with a stream or table of the same columns."""
        return replace(self, rows=rows)

    def then(self, rows: Stream | ReferenceTable) -> JobFrame:
        """Return a frame of other columns."""
        return JobFrame.of(rows, self.all_plans)

    def resolve(self, node: SyntaxNode) -> SyntaxNode:
        """Replace names by the columns of the stream."""
        if isinstance(node, Alias):
            return replace(node, value=self.resolve(node.value))
        simple = len(self.scope.relations) == 1 and not self.scope.relations[0].alias
        return node if simple else self.scope.resolve(node)

    def place(self, message: Message, reader: ExpressionMessages) -> SyntaxNode | None:
        """Read ``df.column`` as the column of the relation that comes from ``df``."""
        if message.WhichOneof("expr_type") != "unresolved_attribute" or len(self.plans) == 1:
            return None
        part = message.unresolved_attribute
        owners = [r for r, plans in zip(self.scope.relations, self.plans, strict=True) if part.plan_id in plans]
        if not part.HasField("plan_id") or not owners:
            return None
        if len(owners) > 1:
            raise DataflowError(
                f"the column {part.unparsed_identifier!r} of a DataFrame on both sides of a join",
                hint='give the sides names, a.alias("l").join(b.alias("r"), ...), and write F.col("l.id")',
            )
        return Name((owners[0].alias, *attribute_parts(part.unparsed_identifier)))

    def flat(self, what: str) -> Stream | ReferenceTable:
        """Return the stream or table with the columns under their own names; ``what`` needs these."""
        star = self.scope.star
        names = [c.name for c in star]
        lower = [n.lower() for n in names]
        double = next((n for n in lower if lower.count(n) > 1), None)
        if double is not None:
            raise DataflowError(
                f"two columns are called {double!r}, so {what} is ambiguous",
                hint=f'drop one, .drop(b["{double}"]), or select columns with names of their own',
            )
        if all(c.value == Name((c.name,)) for c in star) and names == self.rows.columns:
            return self.rows
        return self.rows.select(*(f"{printed(c.value)} AS {quoted(c.name)}" for c in star))

    def flattened(self, what: str) -> JobFrame:
        """Return the frame over ``flat(what)``, with its relations."""
        relations = tuple(
            replace(r, columns=tuple(ScopeColumn(c.name, Name((c.name,))) for c in r.columns))
            for r in self.scope.relations
        )
        return replace(self, rows=self.flat(what), scope=Scope(relations))


def stream_of(rows: Stream | ReferenceTable) -> Stream:
    """Return rows that are a stream; raise DataflowError for those of a static DataFrame."""
    if isinstance(rows, ReferenceTable):
        raise DataflowError(
            "a static DataFrame is read as a reference table, which has columns and filters only",
            hint='join a stream with it: readings.join(machines, "machine")',
        )
    return rows


def named(frame: JobFrame, otherwise: str, taken: Iterable[str]) -> JobFrame:
    """Give each relation of a frame an alias that no other has, so that names can say which they mean."""
    used = list(taken)
    relations: list[ScopeRelation] = []
    for relation in frame.scope.relations:
        alias = relation.alias or free_name(otherwise, used)
        if alias.lower() in {u.lower() for u in used}:
            raise DataflowError(
                f"two DataFrames of a join are called {alias!r}", hint='give each a name of its own: .alias("r")'
            )
        used.append(alias)
        relations.append(replace(relation, alias=alias))
    return replace(frame, scope=Scope(tuple(relations)))
