"""Print syntax trees as Spark SQL: the only text that Spark is given, and the canonical text of expressions.

Spark reads the printed text to the tree that was checked, whatever the original text looked like: there are no
comments, and strings are written anew. In text for Spark every name is in back-quotes; in canonical text, which plans
and messages show, only those that need them.
"""

from __future__ import annotations

from headwater.core.errors import DataflowError
from headwater.sql.functions import AGGREGATES, SCALARS, VOLATILE
from headwater.sql.lexer import quote_name, quote_string, quoted
from headwater.sql.names import RULED, RULED_AGGREGATES, TIME_UNITS, UNIT_FIRST
from headwater.sql.parser import (
    BINDING,
    COMPARISON,
    NOT,
    OR,
    POSTFIX,
    PREDICATE,
    SUM,
    UNARY,
    parse_generated,
)
from headwater.sql.schema import ArrayType, DataType, MapType, StructType
from headwater.sql.syntax import (
    Alias,
    Binary,
    Call,
    CaseWhen,
    Cast,
    Field,
    Lambda,
    Literal,
    Name,
    PredicateCall,
    Star,
    Subscript,
    SyntaxNode,
    Unary,
    too_deep,
)

_KNOWN = frozenset([*SCALARS, *VOLATILE, *AGGREGATES, *RULED, *RULED_AGGREGATES, *UNIT_FIRST])


def printed_text(text: str) -> str:
    """Read an expression and print it: fit to stand inside other SQL text."""
    try:
        return f"({printed(parse_generated(text))})"
    except RecursionError:
        raise too_deep() from None


def printed(node: SyntaxNode) -> str:
    """Print a tree for Spark, with parentheses only where Spark would otherwise read another tree."""
    return _Printer().text(node)


def canonical(node: SyntaxNode) -> str:
    """Print a tree as canonical text: back-quotes only where a reader of the text needs them."""
    return _CanonicalPrinter().text(node)


def enclosed(node: SyntaxNode, floor: int) -> str:
    """Print a tree as canonical text, in parentheses if it binds less tightly than ``floor``."""
    return _CanonicalPrinter().within(node, floor)


def printed_type(found: DataType) -> str:
    """Print a type, with the names of its fields in back-quotes."""
    match found:
        case ArrayType(element):
            return f"array<{printed_type(element)}>"
        case MapType(key, value):
            return f"map<{printed_type(key)}, {printed_type(value)}>"
        case StructType(fields):
            return f"struct<{', '.join(f'{quoted(f.name)}: {printed_type(f.type)}' for f in fields)}>"
    return found.text


class _Printer:
    """Prints text for Spark."""

    index_floor = COMPARISON + 1
    """Binding below which a subscript gets parentheses."""

    def first(self, name: str) -> str:
        """Print a name that stands alone, or before a dot."""
        return quoted(name)

    def part(self, name: str) -> str:
        """Print a name after a dot."""
        return quoted(name)

    def function(self, name: str) -> str:
        """Print a function's name."""
        # Spark's grammar has forms of its own for some bare names; none of them is among the known functions.
        return name if name in _KNOWN else quoted(name)

    def type_text(self, found: DataType) -> str:
        """Print a type."""
        return printed_type(found)

    def text(self, node: SyntaxNode) -> str:
        """Print a tree."""
        match node:
            case Literal():
                return node.text
            case Name((first, *rest)):
                return ".".join([self.first(first), *map(self.part, rest)])
            case Star():
                return ".".join([*map(self.first, node.parts), "*"])
            case Binary():
                return self._binary(node)
            case Unary(operator, operand):
                if operator == "NOT":
                    return f"NOT {self.within(operand, NOT)}"
                text = self.within(operand, UNARY)
                return f"{operator}({text})" if text.startswith("-") else f"{operator}{text}"
            case PredicateCall():
                return self._predicate(node)
            case CaseWhen():
                return self._case(node)
            case Cast(value, type_, safe):
                return f"{'TRY_CAST' if safe else 'CAST'}({self.text(value)} AS {self.type_text(type_)})"
            case Field(value, name):
                # (a).b is a field of a column; a.b may be a column of a table a.
                text = f"({self.text(value)})" if isinstance(value, Name) else self.within(value, POSTFIX)
                return f"{text}.{self.part(name)}"
            case Subscript(value, index):
                return f"{self.within(value, POSTFIX)}[{self.within(index, self.index_floor)}]"
            case Lambda(parameters, body):
                names = ", ".join(map(self.first, parameters))
                return f"{names if len(parameters) == 1 else f'({names})'} -> {self.text(body)}"
            case Alias(value, name):
                return f"{self.text(value)} AS {self.first(name)}"
            case Call():
                return self._call(node)
        raise TypeError(f"{type(node).__name__} is not a node of an expression")

    def within(self, node: SyntaxNode, floor: int) -> str:
        """Print a node, in parentheses if it binds less tightly than ``floor``."""
        text = self.text(node)
        return f"({text})" if _binding(node) < floor else text

    def _binary(self, node: Binary) -> str:
        """Print operators of a chain one after the other: a long chain is a deep tree."""
        parts: list[str] = []
        while True:
            binding = BINDING[node.operator]
            parts.append(f" {node.operator} {self.within(node.right, binding + 1)}")
            # a = b = c is legal but reads badly, so comparisons get parentheses on both sides.
            left, floor = node.left, binding + (binding == COMPARISON)
            if not isinstance(left, Binary) or BINDING[left.operator] < floor:
                return "".join([self.within(left, floor), *reversed(parts)])
            node = left

    def _predicate(self, node: PredicateCall) -> str:
        subject, operator = self.within(node.subject, COMPARISON + 1), node.operator
        negation = "NOT " if node.negated else ""
        if operator == "IN":
            return f"{subject} {negation}IN ({', '.join(map(self.text, node.others))})"
        others = [self.within(other, COMPARISON + 1) for other in node.others]
        if operator == "BETWEEN":
            return f"{subject} {negation}BETWEEN {others[0]} AND {others[1]}"
        if operator.startswith("IS"):
            return " ".join([subject, operator.replace("IS", "IS NOT" if node.negated else "IS", 1), *others])
        escape = f" ESCAPE {quote_string(node.escape)}" if node.escape else ""
        return f"{subject} {negation}{operator} {others[0]}{escape}"

    def _case(self, node: CaseWhen) -> str:
        words = ["CASE"]
        if node.operand is not None:
            words.append(self.text(node.operand))
        for condition, result in node.branches:
            words += ["WHEN", self.text(condition), "THEN", self.text(result)]
        if node.otherwise is not None:
            words += ["ELSE", self.text(node.otherwise)]
        return " ".join([*words, "END"])

    def _call(self, node: Call) -> str:
        arguments = [self.text(a) for a in node.arguments]
        unit = node.arguments[0] if node.arguments else None
        if node.name in UNIT_FIRST and len(arguments) == 3 and isinstance(unit, Name):
            word = unit.parts[0].lower()
            if len(unit.parts) > 1 or word not in TIME_UNITS:
                what = f"{'.'.join(unit.parts)!r} is not a unit of time"
                raise DataflowError(what, hint="write SECOND, HOUR, DAY, ...")
            arguments[0] = word.upper()
        distinct = "DISTINCT " if node.distinct else ""
        text = f"{self.function(node.name)}({distinct}{', '.join(arguments)})"
        if node.order:
            keys = (f"{self.text(k.value)}{' DESC' if k.descending else ''}" for k in node.order)
            text += f" WITHIN GROUP (ORDER BY {', '.join(keys)})"
        if node.filter is not None:
            text += f" FILTER (WHERE {self.text(node.filter)})"
        return text + (" IGNORE NULLS" if node.ignore_nulls else "")


class _CanonicalPrinter(_Printer):
    """Prints canonical text."""

    index_floor = SUM

    def first(self, name: str) -> str:
        return quote_name(name)

    def part(self, name: str) -> str:
        return quote_name(name, after_dot=True)

    def function(self, name: str) -> str:
        return quote_name(name, after_dot=True)

    def type_text(self, found: DataType) -> str:
        return found.text


def _binding(node: SyntaxNode) -> int:
    match node:
        case Literal():
            return UNARY if node.text.startswith("-") else POSTFIX
        case Binary(operator):
            return BINDING[operator]
        case Unary(operator):
            return NOT if operator == "NOT" else UNARY
        case PredicateCall():
            return PREDICATE
        case Lambda() | Alias():
            return OR
    return POSTFIX
