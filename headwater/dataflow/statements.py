"""SELECT statements as operators: the calls of the fluent API that a statement stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import stateful
from headwater.dataflow.joining import NO_TIME, Rows, ScopedStream, ScopedTable, filtered, looked_up, paired
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stream import Stream
from headwater.dataflow.types import is_time
from headwater.sql.columnnames import free_name, spark_name
from headwater.sql.expressions import check, check_aggregate, check_condition
from headwater.sql.functions import GENERATORS
from headwater.sql.grouping import WINDOWS, GroupedColumns, has_aggregate
from headwater.sql.joinbounds import interval_text
from headwater.sql.lexer import quote_name, quoted
from headwater.sql.printer import printed
from headwater.sql.ranking import rank_bound, with_qualify
from headwater.sql.schema import Schema, suggest
from headwater.sql.scope import Scope, ScopeColumn, ScopeRelation, all_of, conjuncts, contains
from headwater.sql.statement import (
    Clause,
    JoinRelation,
    PlaceHint,
    Query,
    QueryRelation,
    RankCall,
    Relation,
    SelectItem,
    SelectQuery,
    StatementError,
    StreamRelation,
    UnionQuery,
    UnknownStream,
    WithQuery,
    place_in,
)
from headwater.sql.syntax import Call, Literal, Name, Star, SyntaxNode


@dataclass(frozen=True, eq=False)
class _View:
    """A query of a WITH clause, and the queries that it knows."""

    query: Query
    views: _Views


_Views: TypeAlias = Mapping[str, _View]


@dataclass(frozen=True)
class _Column:
    """A column of the result: its name, if it has one, and its value over the columns of the stream."""

    name: str | None
    value: SyntaxNode
    at: int


def translate(
    query: Query, text: str, find: Callable[[str], Stream | ReferenceTable | None], known: tuple[str, ...]
) -> Stream:
    """Return the stream of a statement; ``find`` returns a stream or table by its name, ``known`` are the names."""
    return _Translator(text, find, known).stream(query, {})


class _Translator:
    def __init__(
        self, text: str, find: Callable[[str], Stream | ReferenceTable | None], known: tuple[str, ...]
    ) -> None:
        self._text = text
        self._find = find
        self._known = known
        self._done: dict[_View, Stream] = {}  # streams of named queries: a query that is used twice runs once

    @contextmanager
    def _at(self, at: int) -> Iterator[None]:
        """Give errors their position in the text."""
        try:
            yield
        except StatementError:
            raise
        except DataflowError as error:
            raise StatementError(error.what, where=place_in(self._text, at), hint=error.hint) from None

    def _error(self, at: int, what: str, hint: str) -> StatementError:
        return StatementError(what, where=place_in(self._text, at), hint=hint)

    # ------------------------------------------------------------ queries

    def stream(self, query: Query, views: _Views, names: list[str] | None = None) -> Stream:
        """Return the stream of a query; ``names``: those of a union's columns, for columns without one."""
        match query:
            case WithQuery(named, body):
                for name, one in named:
                    views = {**views, name.lower(): _View(one, views)}
                return self.stream(body, views, names)
            case UnionQuery():
                return self._union(query, views, names)
        return self._select(query, views, names or [])

    def _union(self, query: UnionQuery, views: _Views, names: list[str] | None) -> Stream:
        left = self.stream(query.left, views, names)
        right = self.stream(query.right, views, left.columns)
        with self._at(query.at):
            if len(left.columns) != len(right.columns):
                raise DataflowError(
                    f"the queries have {len(left.columns)} and {len(right.columns)} columns",
                    hint="select the same columns, in the same order",
                )
            pairs = list(zip(right.columns, left.columns, strict=True))
            if any(mine.lower() != theirs.lower() for mine, theirs in pairs):
                right = right.select(*(f"{quoted(mine)} AS {quoted(theirs)}" for mine, theirs in pairs))
            found = left.union(right)
        return self._distinct(found, query.at) if query.distinct else found

    def _select(self, query: SelectQuery, views: _Views, names: list[str]) -> Stream:
        stream, scope, query = self._source_of(query, views)
        if query.where is not None:
            stream = self._where(stream, query.where, scope.resolve)
        columns, whole = self._columns(query, scope, stream)
        columns = [replace(c, name=names[n]) if c.name is None and n < len(names) else c for n, c in enumerate(columns)]
        stream, columns = self._exploded(stream, columns)
        qualify: SyntaxNode | None = None
        aliases = {c.name.lower(): c.value for c in columns if c.name is not None}
        if query.qualify is not None:
            with self._at(query.qualify.at):
                qualify = scope.resolve(query.qualify.node, aliases)
        if query.groups or query.group_all or query.having or any(has_aggregate(c.value) for c in columns):
            stream, columns, qualify = self._grouped(stream, query, scope, columns, qualify)
            whole = True
        if qualify is not None and query.qualify is not None:
            with self._at(query.qualify.at):
                stream, columns = self._ranked(stream, columns, qualify)
        for column in columns:
            if contains(column.value, RankCall):
                raise self._error(
                    column.at, "ROW_NUMBER() without a bound needs all rows of its partition",
                    "bound it: QUALIFY ROW_NUMBER() OVER (...) <= 10, or SELECT * FROM (...) WHERE rank <= 10",
                )  # fmt: skip
        if not (whole and _is_identity(columns, stream)):
            stream = self._project(stream, columns)
        return self._distinct(stream, query.at) if query.distinct else stream

    def _project(self, stream: Rows, columns: list[_Column]) -> Rows:
        texts = []
        for column in columns:
            with self._at(column.at):
                text = check(printed(column.value), stream.schema).text
                if column.name is None:
                    raise DataflowError(f"{cut(text, 300)} has no name", hint=f"write {cut(text, 300)} AS result")
                texts.append(f"{text} AS {quoted(column.name)}")
        with self._at(columns[0].at):
            names = [c.name.lower() for c in columns if c.name is not None]
            double = next((n for n in names if names.count(n) > 1), None)
            if double is not None:
                raise DataflowError(
                    f"two columns are called {double!r}", hint=f"name the columns: a.{double} AS a_{double}, ..."
                )
            return stream.select(*texts)

    def _distinct(self, stream: Stream, at: int) -> Stream:
        """Drop equal rows: at once where the event time is a time, at the end of a window otherwise."""
        time = stream.shape.event_time
        if time is None:
            raise self._error(
                at, "DISTINCT without the event time keeps every row for ever",
                "select the event time too, or group: SELECT window, k FROM ... GROUP BY window(ts, '1 hour'), k; "
                '.drop_duplicates("k") on the stream drops those within the delay of the watermark',
            )  # fmt: skip
        with self._at(at):
            if is_time(stream.schema.column(time.column).type):
                return stream.drop_duplicates()
            columns = stream.columns
            counted = stream.group_by(*columns).agg(**{free_name("rows", columns): "count(*)"})
            return counted.select(*map(quoted, columns))

    # ------------------------------------------------------------ FROM

    def _source_of(self, query: SelectQuery, views: _Views) -> tuple[Stream, Scope, SelectQuery]:
        source = query.source
        if isinstance(source, StreamRelation | QueryRelation):
            inner, known = self._inner(source, views)
            if isinstance(inner, SelectQuery):
                outer, bounded = with_qualify(query, inner, source.alias)
                if outer is not query:
                    stream = self._placed(self.stream(bounded, known), query.hint, source.at)
                    return *self._viewed(stream, _scope(source.alias, stream), query), outer
        stream, scope = self._relation(source, views, query.hint)
        return *self._viewed(stream, scope, query), query

    def _inner(self, source: StreamRelation | QueryRelation, views: _Views) -> tuple[Query | None, _Views]:
        if isinstance(source, QueryRelation):
            return source.query, views
        view = views.get(source.name.lower())
        return (view.query, view.views) if view is not None else (None, views)

    def _relation(self, source: Relation, views: _Views, hint: PlaceHint) -> tuple[Stream, Scope]:
        match source:
            case JoinRelation():
                return self._join(source, views, hint)
            case QueryRelation(query, alias, at):
                stream = self.stream(query, views)
            case StreamRelation(name, alias, at):
                stream = self._named(name, views, at)
                if (mark := source.watermark) is not None:
                    with self._at(mark.column.at):
                        column = check(printed(mark.column.node), stream.schema).text
                        stream = stream.with_watermark(column, interval_text(mark.delay.node))
        return self._placed(stream, hint, at), _scope(alias, stream)

    def _placed(self, stream: Stream, hint: PlaceHint, at: int) -> Stream:
        with self._at(at):
            stream = stream.to_layer(hint.layer) if hint.layer is not None else stream
            return stream.require(*hint.requires) if hint.requires else stream

    def _named(self, name: str, views: _Views, at: int) -> Stream:
        view = views.get(name.lower())
        if view is not None:
            if view not in self._done:
                self._done[view] = self.stream(view.query, view.views)
            return self._done[view]
        stream = self._find(name)
        if isinstance(stream, ReferenceTable):
            raise self._error(
                at, f"{name!r} is a reference table, and no stream",
                "join a stream with it: FROM readings r JOIN machines m ON r.machine = m.machine",
            )  # fmt: skip
        if stream is None:
            near = suggest(name, (*self._known, *views), kind="streams")
            error = UnknownStream(
                f"there is no stream {name!r}",
                where=place_in(self._text, at),
                hint=f'{near}; name one: .named("{name}"), or sql(text, {name}=stream)',
            )
            error.name = name.lower()
            raise error
        return stream

    def _viewed(self, stream: Stream, scope: Scope, query: SelectQuery) -> tuple[Stream, Scope]:
        for view in query.views:
            with self._at(view.array.at):
                array = check(printed(scope.resolve(view.array.node)), stream.schema).text
                stream = stream.explode(array, view.column, position=view.position, outer=view.outer)
            names = [view.position] if view.position is not None else []
            columns = tuple(ScopeColumn(n, Name((n,))) for n in (*names, view.column))
            scope = Scope((*scope.relations, ScopeRelation(view.alias, columns)))
        return stream, scope

    # ------------------------------------------------------------ JOIN

    def _join(self, source: JoinRelation, views: _Views, hint: PlaceHint) -> ScopedStream:
        if not isinstance(source.left, JoinRelation) and (first := self._table(source.left, views)) is not None:
            return self._swapped(source, first, source.left.alias, views, hint)
        left = self._relation(source.left, views, hint)
        table = self._table(source.right, views)
        if table is not None:
            with self._at(source.on.at):
                return looked_up(left, table, source.on.node, how=source.how, alias=source.right.alias)
        right = self._relation(source.right, views, hint)
        with self._at(source.on.at if source.how in ("inner", "left") else source.at):
            return paired(left, right, source.on.node, how=source.how, alias=source.right.alias)

    def _swapped(
        self, source: JoinRelation, table: ScopedTable, alias: str, views: _Views, hint: PlaceHint
    ) -> ScopedStream:
        """Join a reference table with a stream, as the stream with the table."""
        if source.how != "inner":
            raise self._error(
                source.left.at, "a row of a reference table without a partner would only come at the end of the stream",
                "begin with the stream: FROM readings r LEFT JOIN machines m ON r.machine = m.machine",
            )  # fmt: skip
        stream = self._relation(source.right, views, hint)
        with self._at(source.on.at):
            joined, scope = looked_up(stream, table, source.on.node, how="inner", alias=alias)
        *mine, theirs = scope.relations
        return joined, Scope((theirs, *mine))

    def _table(self, source: StreamRelation | QueryRelation, views: _Views) -> ScopedTable | None:
        """Return a relation that is a reference table; None: it is a stream."""
        query, known = self._inner(source, views)
        if query is not None:
            table = self._of_table(query, known)
        else:
            found = self._find(source.name) if isinstance(source, StreamRelation) else None
            table = found if isinstance(found, ReferenceTable) else None
        if table is None:
            return None
        if isinstance(source, StreamRelation) and source.watermark is not None:
            raise self._error(source.at, "a reference table has no event time", "leave out WATERMARK")
        return table, _scope(source.alias, table)

    def _of_table(self, query: Query, views: _Views) -> ReferenceTable | None:
        """Return the rows of a query whose FROM is a reference table; None: it is a stream."""
        if isinstance(query, WithQuery):
            for name, one in query.named:
                views = {**views, name.lower(): _View(one, views)}
            return self._of_table(query.body, views)
        if not isinstance(query, SelectQuery) or isinstance(query.source, JoinRelation):
            return None
        of = self._table(query.source, views)
        if of is None:
            return None
        table, scope = of
        asked = (query.groups, query.group_all, query.having, query.qualify, query.distinct, query.views)
        if any(asked) or query.hint != PlaceHint() or any(has_aggregate(item.node) for item in query.items):
            raise self._error(
                query.items[0].at, "a query of a reference table has more than columns and WHERE",
                "write SELECT columns FROM table WHERE condition, or prepare the rows in the table",
            )  # fmt: skip
        if query.where is not None:
            with self._at(query.where.at):
                table = filtered(table, scope.resolve(query.where.node))
        columns, _ = self._columns(query, scope, table)
        return self._project(table, columns)

    # ------------------------------------------------------------ SELECT

    def _where(self, stream: Stream, clause: Clause, resolve: Callable[[SyntaxNode], SyntaxNode]) -> Stream:
        with self._at(clause.at):
            return filtered(stream, resolve(clause.node))

    def _columns(self, query: SelectQuery, scope: Scope, stream: Stream | ReferenceTable) -> tuple[list[_Column], bool]:
        """Return the columns of the result, and whether there is a star, whose columns need no projection."""
        found: list[_Column] = []
        whole = False
        for item in query.items:
            with self._at(item.at):
                if isinstance(item.node, Star):
                    star = self._star(item, scope, stream)
                    whole = whole or not item.node.parts
                    found += [_Column(c.name, c.value, item.at) for c in star]
                    continue
                aliases = {c.name.lower(): c.value for c in found if c.name is not None}
                value = scope.resolve(item.node, aliases)
                named = _declared(item.node, scope) if isinstance(item.node, Name) else spark_name(item.node)
                name = item.alias or named
                found.append(_Column(name, value, item.at))
        return found, whole

    def _star(self, item: SelectItem, scope: Scope, stream: Stream | ReferenceTable) -> tuple[ScopeColumn, ...]:
        assert isinstance(item.node, Star)
        parts = item.node.parts
        if parts and scope.relation(parts[0]) is None:
            # Of a struct: window.*
            value = scope.resolve(Name(parts))
            fields = getattr(check(printed(value), stream.schema).type, "fields", None)
            if fields is None:
                raise DataflowError(
                    f"{parts[0]!r} is neither a stream nor a struct", hint=f"write {parts[0]} without .*"
                )
            assert isinstance(value, Name)
            return tuple(ScopeColumn(f.name, Name((*value.parts, f.name))) for f in fields)
        columns = scope.columns_of(parts[0]) if parts else scope.star
        without = {name.lower() for name in item.without}
        unknown = without - {c.name.lower() for c in columns}
        if unknown:
            name = min(unknown)
            raise DataflowError(f"there is no column {name!r}", hint=suggest(name, tuple(c.name for c in columns)))
        return tuple(c for c in columns if c.name.lower() not in without)

    def _exploded(self, stream: Stream, columns: list[_Column]) -> tuple[Stream, list[_Column]]:
        """Make rows of an item that is a generator: ``explode(tags) AS tag``."""
        found = []
        for column in columns:
            call = column.value
            if isinstance(call, Call) and call.name in GENERATORS:
                with self._at(column.at):
                    if call.name not in ("explode", "explode_outer") or len(call.arguments) != 1 or column.name is None:
                        hint = "write explode(tags) AS tag, or LATERAL VIEW posexplode(tags) AS i, tag"
                        raise DataflowError(f"{call.name} is no column", hint=hint)
                    array = check(printed(call.arguments[0]), stream.schema).text
                    name = free_name(column.name, stream.columns)
                    stream = stream.explode(array, name, outer=call.name == "explode_outer")
                    column = replace(column, value=Name((name,)))
            found.append(column)
        return stream, found

    # ------------------------------------------------------------ GROUP BY

    def _grouped(
        self, stream: Stream, query: SelectQuery, scope: Scope, columns: list[_Column], qualify: SyntaxNode | None
    ) -> tuple[Stream, list[_Column], SyntaxNode | None]:
        grouping = GroupedColumns(frozenset(c.lower() for c in stream.columns))
        for clause in self._groups(query, scope, columns):
            with self._at(clause.at):
                same = next((c.name for c in columns if c.value == clause.node), None)
                grouping.group(clause.node, same)
        at = query.groups[0].at if query.groups else query.items[0].at
        if stream.shape.event_time is None:
            raise self._error(at, "a group of a stream without event time never ends", NO_TIME)
        time = stream.shape.event_time.column
        if grouping.window is None and time.lower() not in grouping.keys:
            raise self._error(
                at, f"the groups have no window and not the event time {time!r}, so none ever ends",
                f"write GROUP BY window({quote_name(time)}, '1 minute')"
                + "".join(f", {quote_name(c)}" for c in grouping.columns),
            )  # fmt: skip
        found = []
        for column in columns:
            with self._at(column.at):
                found.append(replace(column, value=grouping.item(column.value, column.name)))
        condition: SyntaxNode | None = None
        if query.having is not None:
            with self._at(query.having.at):
                aliases = {c.name.lower(): c.value for c in columns if c.name is not None}
                condition = grouping.rewrite(scope.resolve(query.having.node, aliases, aliases_first=True))
        if qualify is not None and query.qualify is not None:
            with self._at(query.qualify.at):
                qualify = grouping.rewrite(qualify)
        with self._at(at):
            made = {name: check(printed(node), stream.schema).text for name, node in grouping.made.items()}
            stream = stream.with_columns(**made) if made else stream
            window = [_window(grouping.window, stream.schema)] if grouping.window is not None else []
            grouped = stream.group_by(*window, *map(quote_name, grouping.columns))
        aggregates = {}
        for name, node in grouping.aggregates.items():
            owner = next((c for c, f in zip(columns, found, strict=True) if f.value == Name((name,))), None)
            with self._at(owner.at if owner is not None else at):
                text = check_aggregate(printed(node), stream.schema).text
                if owner is not None and owner.name is None:
                    raise DataflowError(f"{cut(text, 300)} has no name", hint=f"write {cut(text, 300)} AS result")
                aggregates[name] = text
        with self._at(at):
            counted = aggregates or {free_name("rows", grouping.outputs): "count(*)"}
            stream = grouped.agg(**counted)
        if condition is not None and query.having is not None:
            stream = self._where(stream, replace(query.having, node=condition), lambda node: node)
        return stream, found, qualify

    def _groups(self, query: SelectQuery, scope: Scope, columns: list[_Column]) -> Iterator[Clause]:
        if query.group_all:
            yield from (Clause(c.value, c.at) for c in columns if not has_aggregate(c.value))
        aliases = {c.name.lower(): c.value for c in columns if c.name is not None}
        for clause in query.groups:
            with self._at(clause.at):
                node = clause.node
                if isinstance(node, Literal) and type(node.value) is int:
                    if not 1 <= node.value <= len(columns):
                        raise DataflowError(
                            f"there is no column {node.value}", hint=f"the result has {len(columns)} columns"
                        )
                    yield Clause(columns[node.value - 1].value, clause.at)
                else:
                    yield Clause(scope.resolve(node, aliases), clause.at)

    # ------------------------------------------------------------ QUALIFY

    def _ranked(self, stream: Stream, columns: list[_Column], qualify: SyntaxNode) -> tuple[Stream, list[_Column]]:
        bounds = [(part, rank_bound(part)) for part in conjuncts(qualify)]
        known = [bound for _, bound in bounds if bound is not None]
        if not known:
            raise DataflowError("QUALIFY has no bound on a rank", hint="write QUALIFY ROW_NUMBER() OVER (...) <= 10")
        (call, most) = known[0]
        if len(known) > 1 or any(contains(c.value, RankCall) and c.value != call for c in columns):
            raise DataflowError("a SELECT has two ranks", hint="put one of them into a query of its own")
        if call.name not in ("row_number", "rank", "dense_rank"):
            raise DataflowError(
                f"{call.name}() has no top list", hint="write ROW_NUMBER(), RANK() or DENSE_RANK() OVER (...) <= 10"
            )
        per = [
            _window(node, stream.schema)
            if isinstance(node, Call) and node.name in WINDOWS
            else _plain(node, "PARTITION BY")
            for node in call.partition
        ]
        if not per:
            raise DataflowError("the rank has no partition", hint="write PARTITION BY window")
        ways = {key.descending for key in call.order}
        if len(ways) != 1:
            raise DataflowError(
                "a top list is ordered by columns of one direction", hint="write ORDER BY n DESC, or ORDER BY n"
            )
        by = [_plain(key.value, "ORDER BY") for key in call.order]
        name = next((c.name for c in columns if c.value == call and c.name is not None), None)
        name = free_name(name or "rank", stream.columns)
        stream = stream.top_k(most, by, per=per, rank=name, ties=call.name, ascending=not ways.pop())  # type: ignore[arg-type]
        rest = [part for part, bound in bounds if bound is None]
        if rest:
            stream = stream.where(check_condition(printed(all_of(rest)), stream.schema).text)
        return stream, [replace(c, value=Name((name,))) if c.value == call else c for c in columns]


def _scope(alias: str, stream: Stream | ReferenceTable) -> Scope:
    return Scope.of(alias, tuple(ScopeColumn(c, Name((c,))) for c in stream.columns))


def _declared(node: Name, scope: Scope) -> str:
    """Return the name of an item that is only a column, as it is declared."""
    owner = scope.relation(node.parts[0]) if len(node.parts) > 1 else None
    column = owner.find(node.parts[1]) if owner is not None else None
    used = 2 if column is not None else 1
    column = column or scope.find(node.parts[0])
    return column.name if column is not None and len(node.parts) == used else node.parts[-1]


def _is_identity(columns: list[_Column], stream: Stream) -> bool:
    return [(c.name, c.value) for c in columns] == [(name, Name((name,))) for name in stream.columns]


def _plain(node: SyntaxNode, clause: str) -> str:
    if not isinstance(node, Name) or len(node.parts) > 1:
        raise DataflowError(f"{clause} of a rank needs a column", hint="select the expression in a query below first")
    return node.parts[0]


def _window(call: Call, schema: Schema) -> stateful.TimeWindow | stateful.SessionWindow:
    """Return the window of a GROUP BY."""
    column, *spans = call.arguments or (Star(),)
    if isinstance(column, Call) and column.name == "window_time" and len(column.arguments) == 1:
        (column,) = column.arguments  # a window of windows
    most = 2 if call.name == "window" else 1
    if not isinstance(column, Name) or len(column.parts) > 1 or not 1 <= len(spans) <= most:
        example = (
            "window(ts, '1 hour'), or window(ts, '1 hour', '5 minutes')"
            if most == 2
            else "session_window(ts, '5 minutes')"
        )
        raise DataflowError(f"{call.name} takes a time and spans", hint=f"write {example}; windows begin at the epoch")
    texts = []
    for span in spans:
        if isinstance(span, Literal) and isinstance(span.value, str):
            texts.append(span.value)
        else:
            texts.append(interval_text(span))
    name = check(printed(column), schema).text
    return stateful.window(name, *texts) if call.name == "window" else stateful.session_window(name, *texts)
