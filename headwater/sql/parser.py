"""Read one Spark SQL expression.

Grammar and precedence are those of Spark's own ``SqlBaseParser.g4``, so the tree has the meaning that Spark gives
to the text. A transpiler's parser does not help: sqlglot reads ``a | b & c`` as ``(a | b) & c``, turns
``mod(a, 2)`` into ``a % 2`` and ``10L`` into a cast, and loses functions' names.
"""

from __future__ import annotations

from functools import lru_cache

from headwater.core.errors import DataflowError
from headwater.sql import literals
from headwater.sql.lexer import MAX_TEXT, Token, TokenReader, shorten, tokens
from headwater.sql.schema import DataType, TypeReader
from headwater.sql.syntax import (
    MAX_DEPTH,
    Alias,
    Binary,
    Call,
    CaseWhen,
    Cast,
    Field,
    Lambda,
    Name,
    OrderKey,
    PredicateCall,
    Star,
    Subscript,
    SyntaxNode,
    Unary,
    too_deep,
)

# Precedence of operators; predicates (IS, IN, LIKE, BETWEEN) are between NOT and comparison.
OR, AND, NOT, PREDICATE, COMPARISON, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, POSTFIX = range(1, 14)
BINDING = {
    "OR": OR, "AND": AND,
    "=": COMPARISON, "<=>": COMPARISON, "!=": COMPARISON,
    "<": COMPARISON, "<=": COMPARISON, ">": COMPARISON, ">=": COMPARISON,
    "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "<<": SHIFT, ">>": SHIFT, ">>>": SHIFT,
    "+": SUM, "-": SUM, "||": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "DIV": PRODUCT,
}  # fmt: skip
_SAME = {"==": "=", "<>": "!="}
_TYPED_LITERALS = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X")
_IS = ("NULL", "TRUE", "FALSE", "UNKNOWN")
REFLECTION = frozenset(["reflect", "java_method", "try_reflect"])
"""Functions of Spark that call any method of any Java class."""
_STATEMENTS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP")


MAX_NESTING = 70
"""Deepest accepted nesting of parentheses, calls and signs."""
_SHORT = 1000  # characters of a text whose tree is kept
_GENERATED_TEXT, _GENERATED_NESTING = 16 * 1024 * 1024, 110


def parse(text: str) -> SyntaxNode:
    """Read exactly one expression, without alias."""
    return _parsed(text) if len(text) <= _SHORT else _read(text)


def _read(text: str) -> SyntaxNode:
    return _shallow(ExpressionReader(text).only(alias=False))


_parsed = lru_cache(4096)(_read)
"""Plans, and each compilation, read the same short texts again and again; trees do not change."""


def parse_item(text: str) -> SyntaxNode:
    """Read one item of a projection: an expression, ``expression AS name``, ``*`` or ``name.*``."""
    return _shallow(ExpressionReader(text).only(alias=True))


def parse_generated(text: str, *, alias: bool = False) -> SyntaxNode:
    """Read text that Headwater has put together of checked expressions: it may be longer than a user's."""
    return ExpressionReader(text, longest=_GENERATED_TEXT, nesting=_GENERATED_NESTING).only(alias=alias)


def _shallow(node: SyntaxNode) -> SyntaxNode:
    if node.depth > MAX_DEPTH:
        raise too_deep()
    return node


class ExpressionReader(TokenReader):
    """Reads expressions; :mod:`headwater.sql.select` reads statements with it."""

    hint = "write one Spark SQL expression, such as \"v * 2 > 10 AND name LIKE 'a%'\""

    def __init__(self, text: str, *, longest: int = MAX_TEXT, nesting: int = MAX_NESTING, hints: bool = False) -> None:
        super().__init__(tokens(text, longest=longest, hints=hints), text=text)
        self._nested = 0
        self._most = nesting

    def only(self, *, alias: bool) -> SyntaxNode:
        """Read the whole text as one expression; ``alias``: or as one item of a projection."""
        if self._peek().kind == "end":
            raise DataflowError("the expression is empty", hint="write one Spark SQL expression")
        if self._peek().upper in _STATEMENTS and self._peek(1).kind in ("word", "quoted", "number"):
            raise DataflowError(
                f"{shorten(self._text)} is a statement, not an expression",
                hint="give one expression; select, where, join and group_by are operators of the dataflow",
            )
        if alias and self._take("*"):
            node: SyntaxNode = Star()
        else:
            node = self.expression()
        if alias and self._take_word("AS"):
            node = Alias(node, self._name("a name after AS"))
        token = self._peek()
        if token.kind == "end":
            return node
        if token.kind == "symbol" and token.text == ",":
            raise self._unexpected(token, "one expression only", "give each expression as an argument of its own")
        if token.kind in ("word", "quoted"):
            raise self._unexpected(token, "the end", f"to name the result, write AS {token.text}")
        raise self._unexpected(token, "the end")

    def expression(self, floor: int = OR) -> SyntaxNode:
        """Read conditions joined by AND and OR that bind at least as tightly as ``floor``."""
        self._nested += 1
        if self._nested > self._most:
            raise too_deep()
        if self._take_word("NOT") or self._take("!"):
            left: SyntaxNode = Unary("NOT", self.expression(NOT))
        else:
            left = self._predicate(self._value(COMPARISON))
        while (binding := BINDING.get(self._peek().upper, 0)) in (OR, AND) and binding >= floor:
            left = Binary(self._next().upper, left, self.expression(binding + 1))
        self._nested -= 1
        return left

    def _predicate(self, subject: SyntaxNode) -> SyntaxNode:
        if self._take_word("IS"):
            negated = self._take_word("NOT")
            if self._take_word("DISTINCT"):
                self._expect_word("FROM")
                return PredicateCall("IS DISTINCT FROM", negated, subject, (self._value(COMPARISON),))
            word = self._next()
            if word.upper not in _IS:
                raise self._unexpected(word, "NULL, TRUE, FALSE or DISTINCT FROM after IS")
            return PredicateCall(f"IS {word.upper}", negated, subject)
        ahead = 1 if self._peek().upper == "NOT" else 0
        operator = self._peek(ahead).upper
        if operator not in ("IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP"):
            return subject
        self.position += ahead + 1
        if operator == "IN":
            self._expect("(")
            self._refuse_query()
            return PredicateCall("IN", bool(ahead), subject, self._list())
        if operator == "BETWEEN":
            low = self._value(COMPARISON)
            self._expect_word("AND")
            return PredicateCall("BETWEEN", bool(ahead), subject, (low, self._value(COMPARISON)))
        if self._peek().upper in ("ANY", "ALL", "SOME") and self._peek(1).text == "(":
            raise self._unexpected(self._peek(), "one pattern", "join several LIKEs with OR or AND")
        pattern, escape = self._value(COMPARISON), None
        if operator in ("LIKE", "ILIKE") and self._take_word("ESCAPE"):
            token = self._next()
            if token.kind != "string" or len(token.text) != 1:
                raise self._unexpected(token, "one character in quotes after ESCAPE")
            escape = token.text
        operator = "RLIKE" if operator == "REGEXP" else operator
        return PredicateCall(operator, bool(ahead), subject, (pattern,), escape)

    def _value(self, floor: int) -> SyntaxNode:
        left = self._unary()
        while True:
            operator, width = self._operator()
            binding = BINDING.get(operator, 0)
            if binding < max(floor, COMPARISON):
                return left
            self.position += width
            left = Binary(operator, left, self._value(binding + 1))

    def _operator(self) -> tuple[str, int]:
        token = self._peek()
        if token.kind == "word":
            return (token.upper, 1) if token.upper == "DIV" else ("", 0)
        if token.kind != "symbol":
            return "", 0
        # Types end in '>>' too, so shifts are composed here from adjacent tokens.
        if token.text in ("<", ">"):
            width = 1
            while width < 3 and self._peek(width).text == token.text and self._peek(width).at == token.at + width:
                width += 1
            return token.text * width, width
        return _SAME.get(token.text, token.text), 1

    def _unary(self) -> SyntaxNode:
        token = self._peek()
        if token.kind != "symbol" or token.text not in ("-", "+", "~"):
            return self._postfix(self._primary())
        self.position += 1
        if token.text == "-" and self._peek().kind == "number":
            return self._postfix(literals.number(self._next().text, negative=True))
        self._nested += 1
        if self._nested > self._most:
            raise too_deep()
        node = Unary(token.text, self._unary())
        self._nested -= 1
        return node

    def _postfix(self, node: SyntaxNode) -> SyntaxNode:
        while True:
            if self._take("["):
                node = Subscript(node, self._value(COMPARISON))
                self._expect("]")
            elif self._peek().text == "." and self._peek(1).text == "*" and isinstance(node, Name):
                self.position += 2
                return Star(node.parts)
            elif self._take("."):
                name = self._name("a field name after '.'")
                node = Name((*node.parts, name)) if isinstance(node, Name) else Field(node, name)
            elif self._take("::"):
                node = Cast(node, self._type(), False)
            else:
                return node

    def _primary(self) -> SyntaxNode:
        token = self._next()
        if token.kind == "number":
            return literals.number(token.text)
        if token.kind == "string":
            return self._string(token)
        if token.kind == "quoted":
            return self._named(token)
        if token.kind == "word":
            return self._word(token)
        if token.kind == "symbol" and token.text == "(":
            return self._parenthesised()
        if token.kind == "symbol" and token.text == "*":
            raise self._unexpected(token, "an expression", "use '*' alone, or in count(*)")
        raise self._unexpected(token, "an expression")

    def _string(self, token: Token) -> SyntaxNode:
        parts = [token.text]
        while self._peek().kind == "string":
            parts.append(self._next().text)
        return literals.string("".join(parts))

    def _word(self, token: Token) -> SyntaxNode:
        word, following = token.upper, self._peek()
        if word in ("TRUE", "FALSE"):
            return literals.boolean(word == "TRUE")
        if word == "NULL":
            return literals.null()
        if word == "CASE":
            return self._case()
        if word in _TYPED_LITERALS and following.kind == "string":
            return literals.typed(word, self._next().text)
        if word == "INTERVAL" and (following.kind in ("number", "string") or following.text in ("-", "+")):
            return self._interval()
        if following.kind == "symbol" and following.text == "(":
            return self._special_call(word) or self._named(token)
        if word in _STATEMENTS and following.kind in ("word", "quoted"):
            raise self._query(token)
        if word in ("THEN", "ELSE", "END", "WHEN", "AND", "OR", "IN", "LIKE", "BETWEEN", "AS", "IS", "NOT"):
            raise self._unexpected(token, "an expression", "put a column of that name in back-quotes")
        return self._named(token)

    def _named(self, token: Token) -> SyntaxNode:
        if self._take("->"):
            return Lambda((token.text,), self.expression())
        if not self._take("("):
            return Name((token.text,))
        return self._call(token.text.lower())

    def _call(self, name: str) -> SyntaxNode:
        if name in REFLECTION:
            raise DataflowError(
                f"{name} calls methods of Java classes, and {shorten(self._text)} uses it",
                hint="compute the value with functions of Spark SQL, or in map_batches(...)",
            )
        if self._peek().upper in _STATEMENTS and self._peek(1).kind in ("word", "quoted", "number"):
            raise self._query(self._peek())
        distinct = False
        if self._peek().upper in ("DISTINCT", "ALL") and self._peek(1).text not in (",", ")", "."):
            distinct = self._next().upper == "DISTINCT"
        arguments = () if self._take(")") else self._list(named=name == "struct", star=name == "count")
        condition, ignore_nulls = None, False
        order: tuple[OrderKey, ...] = ()
        if self._peek().upper == "WITHIN" and self._peek(1).upper == "GROUP":
            self.position += 2
            self._expect("(")
            order = self._order_keys()
            self._expect(")")
        if self._peek().upper == "FILTER" and self._peek(1).text == "(":
            self.position += 2
            self._expect_word("WHERE")
            condition = self.expression()
            self._expect(")")
        if self._peek().upper in ("IGNORE", "RESPECT") and self._peek(1).upper == "NULLS":
            ignore_nulls = self._next().upper == "IGNORE"
            self.position += 1
        call = Call(name, arguments, distinct, condition, ignore_nulls, order)
        if self._peek().upper == "OVER" and self._peek(1).kind in ("symbol", "word", "quoted"):
            return self._over(call)
        return call

    def _order_keys(self) -> tuple[OrderKey, ...]:
        """Read ``ORDER BY value [ASC | DESC], ...``."""
        self._expect_word("ORDER")
        self._expect_word("BY")
        found: list[OrderKey] = []
        while not found or self._take(","):
            value = self.expression()
            descending = self._peek().upper == "DESC"
            if self._peek().upper in ("ASC", "DESC"):
                self.position += 1
            if self._peek().upper == "NULLS":
                raise self._unexpected(
                    self._peek(), "no NULLS FIRST or LAST", "as in Spark, NULLs are the lowest values"
                )
            found.append(OrderKey(value, descending))
        return tuple(found)

    def _over(self, call: Call) -> SyntaxNode:
        """Read the OVER after a call."""
        raise self._unexpected(
            self._peek(), "no OVER", "window functions need all rows; group by window(...) and aggregate"
        )

    def _list(self, *, named: bool = False, star: bool = False) -> tuple[SyntaxNode, ...]:
        found: list[SyntaxNode] = []
        while True:
            if star and self._take("*"):
                node: SyntaxNode = Star()
            else:
                node = self.expression()
            if self._peek().text == "=>":
                raise self._unexpected(self._peek(), "no '=>'", "give arguments by position")
            if named and self._take_word("AS"):
                node = Alias(node, self._name("a field name after AS"))
            found.append(node)
            if self._take(")"):
                return tuple(found)
            self._expect(",")

    def _special_call(self, word: str) -> SyntaxNode | None:
        if word in ("CAST", "TRY_CAST"):
            self.position += 1
            value = self.expression()
            self._expect_word("AS")
            node = Cast(value, self._type(), word == "TRY_CAST")
            self._expect(")")
            return node
        if word == "EXTRACT":
            self.position += 1
            unit = self._next()
            if unit.kind not in ("word", "string"):
                raise self._unexpected(unit, "a field such as HOUR")
            self._expect_word("FROM")
            return Call("date_part", (literals.string(unit.text.lower()), self._closed(self.expression())))
        if word in ("POSITION", "SUBSTRING", "SUBSTR") and self._peek(1).text != ")":
            return self._infix_call(word.lower(), "IN" if word == "POSITION" else "FROM")
        if word == "TRIM":
            return self._trim()
        return None

    def _infix_call(self, name: str, keyword: str) -> SyntaxNode:
        """Read ``POSITION(a IN b)`` and ``SUBSTRING(a FROM b FOR c)``, or the plain call."""
        self.position += 1
        arguments = [self._value(COMPARISON)]
        if not self._take_word(keyword):
            if self._take(","):
                arguments += self._list()
            else:
                self._expect(")")
            return Call(name, tuple(arguments))
        arguments.append(self._value(COMPARISON))
        if name != "position" and self._take_word("FOR"):
            arguments.append(self._value(COMPARISON))
        self._expect(")")
        return Call(name, tuple(arguments))

    def _trim(self) -> SyntaxNode | None:
        sides = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
        side = self._peek(1).upper
        if side not in sides or self._peek(2).text in (",", ")", "."):
            return None
        self.position += 2
        mark = None if self._peek().upper == "FROM" else self._value(COMPARISON)
        self._expect_word("FROM")
        value = self._closed(self._value(COMPARISON))
        if mark is None:
            return Call(sides[side], (value,))
        return Call(sides[side], (value, mark) if side == "BOTH" else (mark, value))

    def _case(self) -> SyntaxNode:
        operand = None if self._peek().upper == "WHEN" else self.expression()
        branches: list[tuple[SyntaxNode, SyntaxNode]] = []
        while self._take_word("WHEN"):
            condition = self.expression()
            self._expect_word("THEN")
            branches.append((condition, self.expression()))
        if not branches:
            raise self._unexpected(self._peek(), "WHEN", "write CASE WHEN condition THEN value ELSE other END")
        otherwise = self.expression() if self._take_word("ELSE") else None
        self._expect_word("END")
        return CaseWhen(operand, tuple(branches), otherwise)

    def _interval(self) -> SyntaxNode:
        parts: list[tuple[str, str]] = []
        while True:
            sign = self._next().text if self._peek().text in ("-", "+") else ""
            token = self._next()
            if token.kind not in ("number", "string"):
                raise self._unexpected(token, "a number and a unit after INTERVAL")
            words = token.text.split()
            if token.kind == "string" and not parts and not sign and words[1:2] and words[1].isalpha():
                pairs = zip(words[::2], (_singular(w) for w in words[1::2]), strict=False)
                return literals.interval(tuple(pairs) if len(words) % 2 == 0 else (("", token.text),))
            unit = _singular(self._name("a unit of time"))
            if not parts and self._take_word("TO"):
                return literals.interval_range(sign + token.text, unit, _singular(self._name("a unit of time")))
            value = token.text.strip()
            if sign == "-":
                value = value[1:] if value.startswith("-") else "-" + value
            parts.append((value, unit))
            ahead = 1 if self._peek().text in ("-", "+") else 0
            unit_follows = _singular(self._peek(ahead + 1).text) in literals.UNITS
            if self._peek(ahead).kind not in ("number", "string") or not unit_follows or ahead:
                return literals.interval(tuple(parts))

    def _parenthesised(self) -> SyntaxNode:
        self._refuse_query()
        ahead = 0
        while self._peek(ahead).kind in ("word", "quoted") and self._peek(ahead + 1).text == ",":
            ahead += 2
        if ahead and self._peek(ahead + 1).text == ")" and self._peek(ahead + 2).text == "->":
            names = tuple(self._peek(i).text for i in range(0, ahead + 1, 2))
            self.position += ahead + 3
            return Lambda(names, self.expression())
        node = self.expression()
        if self._peek().text == ",":
            raise self._unexpected(self._peek(), "')'", "write struct(a, b) for several values in one")
        self._expect(")")
        if isinstance(node, Name) and len(node.parts) == 1 and self._take("->"):
            return Lambda(node.parts, self.expression())
        # A parenthesised name is no longer a dotted name; (a).b still takes a field of column a.
        return node

    def _closed(self, node: SyntaxNode) -> SyntaxNode:
        self._expect(")")
        return node

    def _type(self) -> DataType:
        reader = TypeReader(self._tokens, text=self._text, position=self.position)
        found = reader.data_type()
        self.position = reader.position
        return found

    def _refuse_query(self) -> None:
        if self._peek().upper in ("SELECT", "WITH", "VALUES", "FROM") and self._peek(1).text not in (
            ")",
            ",",
        ):
            raise self._query(self._peek())

    def _query(self, token: Token) -> DataflowError:
        return DataflowError(
            f"{shorten(self._text)} holds a query at position {token.at}",
            hint="subqueries do not run on streams; join the other stream with .join(...)",
        )

    def _name(self, wanted: str) -> str:
        token = self._next()
        if token.kind not in ("word", "quoted"):
            raise self._unexpected(token, wanted)
        return token.text

    def _take_word(self, word: str) -> bool:
        if self._peek().upper == word:
            self.position += 1
            return True
        return False

    def _expect_word(self, word: str) -> None:
        if not self._take_word(word):
            raise self._unexpected(self._peek(), word)


def _singular(unit: str) -> str:
    return unit.lower().removesuffix("s")
