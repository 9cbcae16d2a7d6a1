"""Print syntax trees as Spark SQL, the only text that Spark is given.

Spark reads the printed text to the tree that was checked, whatever the original text looked like: there are no
comments, every name is in back-quotes, and strings are written anew.
"""

from __future__ import annotations

from headwater.core.errors import DataflowError
from headwater.sql import special
from headwater.sql.functions import AGGREGATES, SCALARS, VOLATILE
from headwater.sql.lexer import quote_name, quote_string, quoted, tokens
from headwater.sql.parser import (
    BINDING,
    COMPARISON,
    NOT,
    OR,
    POSTFIX,
    PREDICATE,
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

_KNOWN = frozenset([*SCALARS, *VOLATILE, *AGGREGATES, *special.RULES, *special.AGGREGATE_RULES, *special.UNIT_FIRST])


def printed_text(text: str) -> str:
    """Read an expression and print it: fit to stand inside other SQL text."""
    try:
        return f"({printed(parse_generated(text))})"
    except RecursionError:
        raise too_deep() from None


def printed(node: SyntaxNode) -> str:
    """Print a tree, with parentheses only where Spark would otherwise read another tree."""
    match node:
        case Literal():
            return node.text
        case Name():
            return ".".join(map(quoted, node.parts))
        case Star():
            return ".".join([*map(quoted, node.parts), "*"])
        case Binary():
            return _binary(node)
        case Unary(operator, operand):
            if operator == "NOT":
                return f"NOT {_within(operand, NOT)}"
            text = _within(operand, UNARY)
            return f"{operator}({text})" if text.startswith("-") else f"{operator}{text}"
        case PredicateCall():
            return _predicate(node)
        case CaseWhen():
            return _case(node)
        case Cast(value, type_, safe):
            return f"{'TRY_CAST' if safe else 'CAST'}({printed(value)} AS {printed_type(type_)})"
        case Field(value, name):
            return f"{_within(value, POSTFIX, field_of=True)}.{quoted(name)}"
        case Subscript(value, index):
            return f"{_within(value, POSTFIX)}[{_within(index, COMPARISON + 1)}]"
        case Lambda(parameters, body):
            names = ", ".join(map(quoted, parameters))
            return f"{names if len(parameters) == 1 else f'({names})'} -> {printed(body)}"
        case Alias(value, name):
            return f"{printed(value)} AS {quoted(name)}"
        case Call():
            return _call(node)
    raise TypeError(f"{type(node).__name__} is not a node of an expression")


def readable(node: SyntaxNode) -> str:
    """Print a tree for people, with back-quotes only where a reader of the text needs them."""
    text = printed(node)
    parts, done = [], 0
    for token in tokens(text, longest=len(text)):
        plain = token.kind == "quoted" and quote_name(token.text) == token.text
        if plain and text[token.end : token.end + 1] != "(":
            parts += [text[done : token.at], token.text]
            done = token.end
    return "".join([*parts, text[done:]])


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


def _within(node: SyntaxNode, floor: int, *, field_of: bool = False) -> str:
    """Print a node, in parentheses if it binds less tightly than ``floor``."""
    text = printed(node)
    # (a).b is a field of a column; a.b may be a column of a table a.
    enclosed = _binding(node) < floor or (field_of and isinstance(node, Name))
    return f"({text})" if enclosed else text


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


def _binary(node: Binary) -> str:
    """Print operators of a chain one after the other: a long chain is a deep tree."""
    parts: list[str] = []
    while True:
        binding = BINDING[node.operator]
        parts.append(f" {node.operator} {_within(node.right, binding + 1)}")
        left, floor = node.left, binding + (binding == COMPARISON)
        if not isinstance(left, Binary) or BINDING[left.operator] < floor:
            return "".join([_within(left, floor), *reversed(parts)])
        node = left


def _predicate(node: PredicateCall) -> str:
    subject, operator = _within(node.subject, COMPARISON + 1), node.operator
    negation = "NOT " if node.negated else ""
    if operator == "IN":
        return f"{subject} {negation}IN ({', '.join(map(printed, node.others))})"
    others = [_within(other, COMPARISON + 1) for other in node.others]
    if operator == "BETWEEN":
        return f"{subject} {negation}BETWEEN {others[0]} AND {others[1]}"
    if operator.startswith("IS"):
        return " ".join([subject, operator.replace("IS", "IS NOT" if node.negated else "IS", 1), *others])
    escape = f" ESCAPE {quote_string(node.escape)}" if node.escape else ""
    return f"{subject} {negation}{operator} {others[0]}{escape}"


def _case(node: CaseWhen) -> str:
    words = ["CASE"]
    if node.operand is not None:
        words.append(printed(node.operand))
    for condition, result in node.branches:
        words += ["WHEN", printed(condition), "THEN", printed(result)]
    if node.otherwise is not None:
        words += ["ELSE", printed(node.otherwise)]
    return " ".join([*words, "END"])


def _call(node: Call) -> str:
    arguments = [printed(a) for a in node.arguments]
    unit = node.arguments[0] if node.arguments else None
    if node.name in special.UNIT_FIRST and len(arguments) == 3 and isinstance(unit, Name):
        word = unit.parts[0].lower()
        if len(unit.parts) > 1 or word not in special.TIME_UNITS:
            raise DataflowError(f"{'.'.join(unit.parts)!r} is not a unit of time", hint="write SECOND, HOUR, DAY, ...")
        arguments[0] = word.upper()
    # Spark's grammar has forms of its own for some bare names; none of them is among the known functions.
    name = node.name if node.name in _KNOWN else quoted(node.name)
    distinct = "DISTINCT " if node.distinct else ""
    text = f"{name}({distinct}{', '.join(arguments)})"
    if node.filter is not None:
        text += f" FILTER (WHERE {printed(node.filter)})"
    return text + (" IGNORE NULLS" if node.ignore_nulls else "")
