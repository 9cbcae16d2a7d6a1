"""Expressions as a user of PySpark writes them: syntax trees as Columns, where ``pyspark.sql.functions`` has them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headwater.sql.lexer import quoted
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
)


class NotInPySpark(Exception):
    """``pyspark.sql.functions`` and ``Column`` have no form of this node."""


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "%": lambda a, b: a % b, "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "AND": lambda a, b: a & b,
    "OR": lambda a, b: a | b, "<=>": lambda a, b: a.eqNullSafe(b), "&": lambda a, b: a.bitwiseAND(b),
    "|": lambda a, b: a.bitwiseOR(b), "^": lambda a, b: a.bitwiseXOR(b),
}  # fmt: skip
_SPELLINGS = {"map": "create_map", "timestampadd": "timestamp_add", "timestampdiff": "timestamp_diff"}
_UNITS = ("timestamp_add", "timestamp_diff")
_PLAIN = (*_UNITS, "percentile", "percentile_approx", "approx_percentile", "approx_count_distinct")
_FUNCTIONS = {"<<": "shiftleft", ">>": "shiftright", ">>>": "shiftrightunsigned", "||": "concat"}


def column_of(node: SyntaxNode) -> Any:
    """Return the Column of a tree; raise NotInPySpark."""
    return _column(node, {})


def _column(node: SyntaxNode, variables: dict[str, Any]) -> Any:
    from pyspark.sql import functions as F

    def inner(child: SyntaxNode) -> Any:
        return _column(child, variables)

    match node:
        case Literal():
            return _literal(node)
        case Name((first, *rest)) if first.lower() in variables:
            found = variables[first.lower()]
            for part in rest:
                found = found[part]
            return found
        case Name(parts):
            return F.col(".".join(map(quoted, parts)))
        case Star():
            return F.col("*")
        case Alias(value, name):
            return inner(value).alias(name)
        case Binary(operator, left, right) if operator in _OPERATORS:
            return _OPERATORS[operator](inner(left), inner(right))
        case Binary(operator, left, right) if operator in _FUNCTIONS:
            return _call(_FUNCTIONS[operator], (left, right), variables)
        case Unary("-", operand):
            return -inner(operand)
        case Unary("+", operand):
            return F.positive(inner(operand))
        case Unary("~", operand):
            return F.bitwise_not(inner(operand))
        case Unary("NOT", operand):
            return ~inner(operand)
        case PredicateCall():
            found = _predicate(node, inner)
            return ~found if node.negated and node.operator != "IS DISTINCT FROM" else found
        case CaseWhen(operand, branches, otherwise):
            found = F
            for condition, value in branches:
                test = inner(condition) if operand is None else inner(operand) == inner(condition)
                found = found.when(test, inner(value))
            return found if otherwise is None else found.otherwise(inner(otherwise))  # type: ignore[attr-defined]
        case Cast(value, found_type, safe):
            return inner(value).try_cast(found_type.text) if safe else inner(value).cast(found_type.text)
        case Field(value, name):
            return inner(value).getField(name)
        case Subscript(value, Literal(value=int() | str() as key)):
            return inner(value)[key]
        case Subscript(value, index):
            return inner(value)[inner(index)]
        case Call(name, arguments, distinct, None, ignore_nulls):
            if distinct and name == "count":
                return F.count_distinct(*map(inner, arguments))
            if not distinct:
                return _call(name, arguments, variables, ignore_nulls=ignore_nulls)
    raise NotInPySpark(repr(node))


def _literal(node: Literal) -> Any:
    from pyspark.sql import functions as F

    found = node.type.text
    if found.startswith("interval"):
        return F.expr(node.text)
    if found in ("date", "timestamp", "timestamp_ntz"):
        return F.lit(node.text.split("'")[1]).cast(found)
    if found == "binary":
        return F.lit(bytes.fromhex(node.text[2:-1]))
    if found in ("string", "boolean", "int", "void"):
        return F.lit(node.value)
    digits = node.text.rstrip("BDFLSYbdflsy")
    if found == "double":
        return F.lit(float(digits))
    value = Decimal(digits) if found.startswith("decimal") else float(digits) if found == "float" else int(digits)
    whole = found == "bigint" and not -(2**31) <= int(value) < 2**31
    return F.lit(value) if whole else F.lit(value).cast(found)


def _predicate(node: PredicateCall, inner: Callable[[SyntaxNode], Any]) -> Any:
    subject, others = inner(node.subject), node.others
    match node.operator:
        case "IN":
            return subject.isin(*map(inner, others))
        case "BETWEEN":
            return subject.between(*map(inner, others))
        case "IS NULL":
            return subject.isNull()
        case "IS DISTINCT FROM":
            same = subject.eqNullSafe(inner(others[0]))
            return same if node.negated else ~same
        case "LIKE" | "ILIKE" | "RLIKE" if isinstance(others[0], Literal) and not node.escape:
            return getattr(subject, node.operator.lower())(others[0].value)
        case "LIKE" | "ILIKE":
            from pyspark.sql import functions as F

            escape = F.lit(node.escape) if node.escape else None
            return getattr(F, node.operator.lower())(subject, inner(others[0]), escape)
    raise NotInPySpark(node.operator)


def _call(
    name: str, arguments: tuple[SyntaxNode, ...], variables: dict[str, Any], *, ignore_nulls: bool = False
) -> Any:
    """Call the function with Columns, or with Python's values for constants where it wants those."""
    from pyspark.sql import functions as F

    name = _SPELLINGS.get(name, name)
    function = getattr(F, name, None)
    if function is None or not callable(function):
        raise NotInPySpark(name)
    if name == "count" and isinstance(arguments[0], Star):
        return F.count("*")

    def column(node: SyntaxNode) -> Any:
        return _lambda(node, variables) if isinstance(node, Lambda) else _column(node, variables)

    def plain(node: SyntaxNode) -> Any:
        match node:
            case Literal(value=str() | int() | bool() as value):
                return value
            case Literal(type=found) if found.text in ("double",) or found.text.startswith("decimal"):
                return float(node.text.rstrip("BDbd"))
            case Call("array", elements):
                return [plain(e) for e in elements]
            case Name((word,)) if word.upper() in ("HOUR", "MINUTE", "SECOND", "DAY"):
                return word
        return column(node)

    if name in ("trim", "ltrim", "rtrim") and len(arguments) == 2:
        arguments = arguments[::-1]  # SQL has the characters first, PySpark the text
    keywords = {"ignorenulls": True} if ignore_nulls else {}
    errors = []
    attempts = [[column(a) for a in arguments], [column(a) if i == 0 else plain(a) for i, a in enumerate(arguments)]]
    attempts += [[plain(a) if i == 0 else column(a) for i, a in enumerate(arguments)], [plain(a) for a in arguments]]
    if name in _PLAIN:
        attempts = attempts[1:] if name not in _UNITS else attempts[2:]
    for given in attempts:
        try:
            found = function(*given, **keywords)
            found.to_plan(None)
            return found
        except (TypeError, ValueError, AssertionError, AttributeError) as error:
            errors.append(str(error))
        except Exception as error:
            if not type(error).__module__.startswith("pyspark"):
                raise
            errors.append(str(error))
    raise NotInPySpark(f"{name}: {errors[0]}")


def _lambda(node: Lambda, variables: dict[str, Any]) -> Any:
    names = [p.lower() for p in node.parameters]

    def body(*given: Any) -> Any:
        return _column(node.body, {**variables, **dict(zip(names, given, strict=True))})

    forms: list[Callable[..., Any]] = [lambda x: body(x), lambda x, y: body(x, y), lambda x, y, z: body(x, y, z)]
    return forms[len(names) - 1]
