"""Read a SELECT statement of Spark SQL, for what a stream allows.

The grammar is that of Spark's ``SqlBaseParser.g4``, with QUALIFY. A clause that has no meaning for rows without an end
is refused with the reason, its position and the line to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.place import place_of_zone
from headwater.core.text import cut, shown_value
from headwater.sql import literals
from headwater.sql.lexer import Token
from headwater.sql.parser import ExpressionReader, parse
from headwater.sql.statement import (
    Clause,
    ExplodeView,
    JoinKind,
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
    WatermarkClause,
    WithQuery,
    place_in,
)
from headwater.sql.syntax import Call, Star, SyntaxNode

MOST_QUERIES = 40
"""Deepest accepted nesting of queries in parentheses."""
_TOP = "for a top list: QUALIFY ROW_NUMBER() OVER (PARTITION BY window ORDER BY n DESC) <= 10"
_OF_LEFT: dict[str, JoinKind] = {"SEMI": "left_semi", "ANTI": "left_anti"}
"""Joins that keep rows of the left side, as they are."""
_BOUNDED = "write a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL 1 MINUTE AND a.ts + INTERVAL 1 MINUTE"
_FROM_RIGHT = "the operator keeps unpaired rows of the left stream only; swap the streams: write b LEFT JOIN a ON ..."
REFUSED: Mapping[str, tuple[str, str, str]] = {
    "ORDER": ("ORDER BY", "rows have no last one, so none is known to come first", _TOP),
    "SORT": ("SORT BY", "rows have no last one, so none is known to come first", _TOP),
    "CLUSTER": ("CLUSTER BY", "rows have no last one, so none is known to come first", _TOP),
    "DISTRIBUTE": (
        "DISTRIBUTE BY",
        "Headwater partitions rows by the keys of the operators",
        "leave it out; /*+ LAYER(site) */ after SELECT chooses the layer",
    ),
    "LIMIT": ("LIMIT", "which rows come first depends on their arrival", _TOP),
    "OFFSET": ("OFFSET", "which rows come first depends on their arrival", _TOP),
    "FETCH": ("FETCH", "which rows come first depends on their arrival", _TOP),
    "INTERSECT": ("INTERSECT", "it needs all rows of the other query", _BOUNDED),
    "EXCEPT": ("EXCEPT", "it needs all rows of the other query", "write a LEFT JOIN b ON ... WHERE b.ts IS NULL"),
    "MINUS": ("MINUS", "it needs all rows of the other query", "write a LEFT JOIN b ON ... WHERE b.ts IS NULL"),
    "TABLESAMPLE": (
        "TABLESAMPLE",
        "a repeated batch must give the same rows",
        "write WHERE pmod(xxhash64(id), 100) < 10 for a tenth of the keys",
    ),
    "PIVOT": (
        "PIVOT",
        "the columns of a stream are fixed",
        "write one aggregate for each value: count_if(k = 'a') AS a, count_if(k = 'b') AS b",
    ),
    "UNPIVOT": ("UNPIVOT", "Headwater has no operator for it", "write LATERAL VIEW explode(array(a, b)) AS v"),
    "WINDOW": ("WINDOW", "windows of rows have no names here", "write OVER (PARTITION BY ... ORDER BY ...) in place"),
    "NATURAL": ("NATURAL JOIN", "a join needs a bound on the time between two rows", _BOUNDED),
    "CROSS": ("CROSS JOIN", "every row would stay in the state for ever", _BOUNDED),
    "RIGHT": ("RIGHT JOIN", "Headwater has no operator for it", _FROM_RIGHT),
    "FULL": (
        "FULL JOIN",
        "Headwater has no operator for it",
        "write a LEFT JOIN b ON ... UNION ALL the rows of b LEFT JOIN a ON ... WHERE a.ts IS NULL",
    ),
}
"""Words of clauses that no stream has: their name, the reason, and the line to write."""
_CLAUSES = frozenset([
    *REFUSED, *_OF_LEFT, "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "UNION", "JOIN", "INNER", "LEFT", "ON", "USING",
    "LATERAL", "WATERMARK", "AS", "SELECT",
])  # fmt: skip
_RESERVED = frozenset([
    "FROM", "WHERE", "SELECT", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ON", "USING", "UNION",
    "EXCEPT",
])  # fmt: skip
_LEADING = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "MERGE", "VALUES", "TABLE", "FROM", "EXPLAIN", "SET", "USE")
_HINT = "write SELECT columns FROM stream WHERE condition GROUP BY window(ts, '1 hour'), key"
Arguments = Mapping[str, Any] | Sequence[Any]


def parse_query(text: str, arguments: Arguments = ()) -> Query:
    """Read a statement; ``arguments`` are the values of its parameters, ``:name`` or ``?``."""
    reader = _StatementReader(text.rstrip().removesuffix(";"), arguments)
    try:
        return reader.whole()
    except StatementError:
        raise
    except DataflowError as error:
        raise StatementError(error.what, where=reader.place(), hint=error.hint) from None


class _StatementReader(ExpressionReader):
    hint = _HINT

    def __init__(self, text: str, arguments: Arguments) -> None:
        super().__init__(text, hints=True)
        self._queries = 0
        self._arguments = arguments
        self._positional = 0

    def place(self) -> str:
        """Return the position of the last token that was read."""
        return place_in(self._text, self._tokens[min(max(self.position - 1, 0), len(self._tokens) - 1)].at)

    def whole(self) -> Query:
        """Read the whole text as one query."""
        first = self._peek()
        if first.upper in _LEADING:
            raise self._error(first, f"{first.upper} is no query of streams", _HINT)
        found = self._query_body()
        self._refuse_clauses()
        if self._peek().kind != "end":
            raise self._unexpected(self._peek(), "the end")
        if not isinstance(self._arguments, Mapping) and self._positional < len(self._arguments):
            raise DataflowError(
                f"{len(self._arguments)} arguments for {self._positional} parameters", hint="write ? for each of them"
            )
        return found

    # ------------------------------------------------------------ queries

    def _query_body(self) -> Query:
        self._queries += 1
        if self._queries > MOST_QUERIES:
            raise self._error(self._peek(), f"queries are nested more than {MOST_QUERIES} deep", "name them: WITH ...")
        at = self._peek().at
        named: list[tuple[str, Query]] = []
        if self._take_word("WITH"):
            if self._peek().upper == "RECURSIVE":
                raise self._error(self._peek(), "a dataflow has no loops", "write WITH without RECURSIVE")
            while True:
                token = self._peek()
                name = self._name("the name of a query")
                if name.lower() in {known.lower() for known, _ in named}:
                    raise self._error(token, f"two queries are called {name}", "give each its own name")
                self._take_word("AS")
                self._expect("(")
                named.append((name, self._query_body()))
                self._expect(")")
                if not self._take(","):
                    break
        found = self._term()
        while self._peek().upper == "UNION":
            token = self._next()
            distinct = not self._take_word("ALL")
            if distinct:
                self._take_word("DISTINCT")
            found = UnionQuery(found, self._term(), token.at, distinct)
        self._queries -= 1
        return WithQuery(tuple(named), found, at) if named else found

    def _term(self) -> Query:
        if self._take("("):
            found = self._query_body()
            self._refuse_clauses()
            self._expect(")")
            return found
        return self._select()

    def _select(self) -> SelectQuery:
        begin = self._peek()
        self._expect_word("SELECT")
        hint = self._hints()
        distinct = self._take_word("DISTINCT")
        if not distinct and self._peek().upper == "ALL" and self._peek(1).text not in (",", "."):
            self.position += 1
        items = [self._item()]
        while self._take(","):
            items.append(self._item())
        if not self._take_word("FROM"):
            self._refuse_clauses()
            raise self._unexpected(self._peek(), "FROM and the name of a stream")
        source = self._relation()
        views: list[ExplodeView] = []
        while self._peek().upper == "LATERAL":
            views.append(self._lateral())
        where = self._clause() if self._take_word("WHERE") else None
        groups, group_all = self._groups()
        having = self._clause() if self._take_word("HAVING") else None
        qualify = self._clause() if self._take_word("QUALIFY") else None
        self._refuse_clauses()
        return SelectQuery(
            tuple(items), source, begin.at, hint, tuple(views), where, groups, group_all, having, qualify, distinct
        )

    def _hints(self) -> PlaceHint:
        layer, requires = None, []
        while self._take("/*+"):
            while not (self._peek().text == "*" and self._peek(1).text == "/"):
                token = self._next()
                if token.upper not in ("LAYER", "ZONE", "REQUIRE"):
                    hint = "write /*+ LAYER(site), REQUIRE('gpu = true') */, or ZONE('S1') in place of LAYER"
                    raise self._error(token, f"the hint {token.shown} is unknown", hint)
                self._expect("(")
                value = self._next()
                if value.kind not in ("word", "quoted", "string"):
                    raise self._unexpected(value, "a layer or zone, or a requirement in quotes")
                self._expect(")")
                self._take(",")
                if token.upper == "REQUIRE":
                    requires.append(value.text)
                elif layer is not None:
                    raise self._error(token, "a second place is given", "keep one LAYER or ZONE")
                else:
                    layer = value.text if token.upper == "LAYER" else place_of_zone(value.text)
            self.position += 2
        return PlaceHint(layer, tuple(requires))

    def _item(self) -> SelectItem:
        token = self._peek()
        if token.upper in _RESERVED and self._peek(1).text != ".":
            raise self._unexpected(token, "a column", "put a column of that name in back-quotes")
        if self._take("*"):
            return SelectItem(Star(), token.at, without=self._without())
        node = self.expression()
        if isinstance(node, Star):
            return SelectItem(node, token.at, without=self._without())
        return SelectItem(node, token.at, self._alias("the name of a column"))

    def _without(self) -> tuple[str, ...]:
        if self._peek().upper != "EXCEPT" or self._peek(1).text != "(":
            return ()
        self.position += 1
        return self._names()

    def _names(self) -> tuple[str, ...]:
        self._expect("(")
        names = [self._name("the name of a column")]
        while self._take(","):
            names.append(self._name("the name of a column"))
        self._expect(")")
        return tuple(names)

    def _alias(self, wanted: str) -> str | None:
        if self._take_word("AS"):
            return self._name(f"{wanted} after AS")
        token = self._peek()
        if token.kind == "quoted" or (token.kind == "word" and token.upper not in _CLAUSES):
            return self._next().text
        return None

    def _clause(self) -> Clause:
        at = self._peek().at
        return Clause(self.expression(), at)

    def _groups(self) -> tuple[tuple[Clause, ...], bool]:
        if not self._take_word("GROUP"):
            return (), False
        self._expect_word("BY")
        if self._peek().upper == "ALL" and self._peek(1).text not in (",", ".", "("):
            self.position += 1
            return (), True
        found: list[Clause] = []
        while True:
            token = self._peek()
            if (token.upper in ("CUBE", "ROLLUP", "GROUPING") and self._peek(1).kind != "symbol") or (
                token.upper in ("CUBE", "ROLLUP") and self._peek(1).text == "("
            ):
                raise self._error(
                    token, f"{token.upper} does not run on a stream: it groups the rows several times",
                    "write one SELECT for each grouping, joined by UNION ALL",
                )  # fmt: skip
            found.append(self._clause())
            if not self._take(","):
                return tuple(found), False

    # ------------------------------------------------------------ relations

    def _relation(self) -> Relation:
        found: Relation = self._primary_relation()
        while True:
            token = self._peek()
            if token.text == "," and token.kind == "symbol":
                raise self._error(token, "a comma pairs every row of a stream with all of the other's", _BOUNDED)
            how: JoinKind = "inner"
            if token.upper in ("INNER", "LEFT", *_OF_LEFT):
                self.position += 1
                if token.upper == "LEFT" and self._peek().upper in _OF_LEFT:
                    token = self._peek()
                    self.position += 1
                if token.upper == "LEFT":
                    how = "left"
                    self._take_word("OUTER")
                how = _OF_LEFT.get(token.upper, how)
                self._expect_word("JOIN")
            elif not self._take_word("JOIN"):
                return found
            right = self._primary_relation()
            if not self._take_word("ON"):
                self._refuse_clauses()
                raise self._error(self._peek(), "a join of streams needs a condition and a bound of time", _BOUNDED)
            found = JoinRelation(found, right, how, token.at, self._clause())

    def _primary_relation(self) -> StreamRelation | QueryRelation:
        token = self._peek()
        if token.upper == "LATERAL" or (token.upper == "VALUES" and self._peek(1).text == "("):
            raise self._error(token, f"{token.upper} is no stream", "name a stream, or write a query in parentheses")
        if self._take("("):
            query = self._query_body()
            self._refuse_clauses()
            self._expect(")")
            return QueryRelation(query, self._alias("the name of the query") or "", token.at)
        if token.upper == "STREAM" and (self._peek(1).text == "(" or self._peek(1).kind in ("word", "quoted")):
            return self._marked_stream()
        name = self._stream_name()
        watermark = self._watermark()
        return StreamRelation(name, self._alias("the name of the stream") or name, token.at, watermark)

    def _marked_stream(self) -> StreamRelation:
        """Read ``STREAM readings`` or ``STREAM(readings)``; all relations are streams."""
        token = self._next()
        if self._peek().kind != "symbol" and self._peek().upper in _CLAUSES:
            name = token.text
        elif self._take("("):
            name = self._stream_name()
            self._expect(")")
        else:
            name = self._stream_name()
        watermark = self._watermark()
        return StreamRelation(name, self._alias("the name of the stream") or name, token.at, watermark)

    def _stream_name(self) -> str:
        """Read ``readings``, or ``{readings}`` as PySpark writes the names of arguments."""
        if self._take("{"):
            name = self._name("the name of a stream")
            self._expect("}")
            return name
        token = self._peek()
        if token.upper in _RESERVED:
            raise self._unexpected(token, "the name of a stream")
        name = self._name("the name of a stream")
        while self._take("."):
            name += "." + self._name("the rest of a name")
        if self._peek().text == "(":
            raise self._error(
                token, f"the table function {name} is unknown", "group by window(ts, '1 hour'), or name a stream"
            )
        return name

    def _watermark(self) -> WatermarkClause | None:
        if not self._take_word("WATERMARK"):
            return None
        column = self._clause()
        self._expect_word("DELAY")
        self._expect_word("OF")
        return WatermarkClause(column, self._clause())

    def _lateral(self) -> ExplodeView:
        token = self._next()
        if not self._take_word("VIEW"):
            raise self._error(token, "LATERAL takes a VIEW here", "write LATERAL VIEW explode(tags) AS tag")
        outer = self._take_word("OUTER")
        function = self._clause()
        call = function.node
        if not isinstance(call, Call) or call.name not in ("explode", "posexplode") or len(call.arguments) != 1:
            raise self._error(
                token, "only explode and posexplode make rows here", "write LATERAL VIEW explode(tags) AS tag"
            )
        alias = "" if self._peek().upper == "AS" else self._name("the name of the view")
        self._expect_word("AS")
        names = [self._name("the name of a column")]
        if self._take(","):
            names.append(self._name("the name of a column"))
        if len(names) != (2 if call.name == "posexplode" else 1):
            raise self._error(
                token, f"{call.name} gives another number of columns", "explode(a) AS v; posexplode(a) AS i, v"
            )
        position = names[0] if len(names) == 2 else None
        return ExplodeView(Clause(call.arguments[0], function.at), alias, names[-1], position, outer)

    # ------------------------------------------------------------ expressions

    def _over(self, call: Call) -> SyntaxNode:
        self._expect_word("OVER")
        if not self._take("("):
            raise self._refused(self._peek(), "WINDOW")
        partition: list[SyntaxNode] = []
        if self._take_word("PARTITION"):
            self._expect_word("BY")
            partition.append(self.expression())
            while self._take(","):
                partition.append(self.expression())
        order = self._order_keys() if self._peek().upper == "ORDER" else ()
        if self._peek().upper in ("ROWS", "RANGE"):
            raise self._error(
                self._peek(), "a frame of rows does not run on a stream",
                "use .count_window(size, slide, keys=..., order_by='ts') on the stream, or a sliding window(...)",
            )  # fmt: skip
        self._expect(")")
        if call.arguments:
            raise self._error(
                self._peek(), f"{call.name}(...) OVER does not run on a stream: a value needs rows that may still come",
                "group by window(ts, '1 hour') and aggregate, or use .scan(...) on the stream",
            )  # fmt: skip
        return RankCall(call.name, tuple(partition), order)

    def _primary(self) -> SyntaxNode:
        token = self._peek()
        if token.kind != "symbol" or token.text not in (":", "?"):
            return super()._primary()
        self.position += 1
        if token.text == ":":
            name = self._name("the name of a parameter")
            if not isinstance(self._arguments, Mapping) or name not in self._arguments:
                raise self._error(token, f"the parameter :{name} has no value", f'give it: sql(text, {{"{name}": 5}})')
            return _constant(self._arguments[name])
        self._positional += 1
        if isinstance(self._arguments, Mapping) or len(self._arguments) < self._positional:
            raise self._error(token, "the parameter ? has no value", "give a list of values: sql(text, [5])")
        return _constant(self._arguments[self._positional - 1])

    # ------------------------------------------------------------ errors

    def _refuse_clauses(self) -> None:
        token = self._peek()
        if token.upper in REFUSED:
            raise self._refused(token)

    def _refused(self, token: Token, word: str = "") -> StatementError:
        name, reason, line = REFUSED[word or token.upper]
        return self._error(token, f"{name} does not run on streams: {reason}", line)

    def _error(self, token: Token, what: str, hint: str) -> StatementError:
        return StatementError(what, where=place_in(self._text, token.at), hint=hint)

    def _unexpected(self, token: Token, wanted: str, hint: str | None = None) -> DataflowError:
        return self._error(token, f"expected {wanted}, found {cut(token.shown, 200)}", hint or self.hint)

    def _query(self, token: Token) -> DataflowError:
        return self._error(
            token, "a query inside an expression needs all rows of its stream", "join the other stream; " + _BOUNDED
        )


def _constant(value: Any) -> SyntaxNode:
    """Return the literal of a parameter's value."""
    match value:
        case None:
            return literals.null()
        case bool():
            return literals.boolean(value)
        case int() | Decimal():
            return parse(str(value)) if isinstance(value, int) else parse(f"{value:f}BD")
        case float():
            return parse(
                f"{value!r}D" if value == value and abs(value) != float("inf") else f"CAST('{value}' AS double)"
            )
        case str():
            return literals.string(value)
        case datetime():
            return literals.typed("TIMESTAMP", value.isoformat(" "))
        case date():
            return literals.typed("DATE", value.isoformat())
    raise DataflowError(
        f"the value {shown_value(value)} cannot be a parameter", hint="give numbers, text, booleans, dates or times"
    )
