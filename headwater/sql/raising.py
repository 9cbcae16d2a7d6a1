"""Tell expressions that may fail on a value from those that never do. Pure.

Spark in ANSI mode fails on overflow, division by zero and casts of unfit text. An expression that may fail must not see
rows that an operator before it drops. What is not known to be safe counts as one that may fail.
"""

from __future__ import annotations

from headwater.sql.coercion import is_numeric
from headwater.sql.inference import Inference
from headwater.sql.literals import null
from headwater.sql.parser import parse
from headwater.sql.schema import BOOLEAN, DOUBLE, FLOAT, STRING, DataType, DecimalType, Schema
from headwater.sql.syntax import Binary, Call, CaseWhen, Cast, Field, Literal, Name, PredicateCall, SyntaxNode, Unary

_COMPARISONS = frozenset(["=", "<=>", "!=", "<", "<=", ">", ">="])
_REAL = (DOUBLE, FLOAT)
_TEXT = frozenset(
    [
        *("upper", "lower", "ucase", "lcase", "trim", "ltrim", "rtrim", "btrim", "length", "char_length", "initcap"),
        *("concat", "startswith", "endswith", "contains", "instr", "substring", "substr", "left", "right"),
    ]
)
"""Functions of text that never fail."""
_OF_DOUBLES = frozenset(["abs", "sqrt", "exp", "ln", "log", "log10", "sin", "cos", "tan", "isnan", "signum", "floor"])
"""Functions of doubles that never fail; ``floor`` of a double too large for a bigint gives the largest one."""
_OF_EQUAL_TYPES = frozenset(["coalesce", "nvl", "ifnull", "nullif", "greatest", "least", "equal_null"])
_OF_ANY = frozenset(["isnull", "isnotnull", "if", "nvl2"])


def may_raise(text: str, schema: Schema) -> bool:
    """Return whether an expression over columns of ``schema`` may fail on some row."""
    return not _safe(parse(text), schema)


def _safe(node: SyntaxNode, schema: Schema) -> bool:
    if not all(_safe(child, schema) for child in node.children):
        return False
    match node:
        case Literal() | Name() | Field():
            return True
        case Binary(("AND" | "OR"), left, right):
            return _type(left, schema) == _type(right, schema) == BOOLEAN
        case Binary(sign, left, right) if sign in _COMPARISONS:
            return _alike(left, right, schema)
        case Binary(("+" | "-" | "*"), left, right):
            types = _type(left, schema), _type(right, schema)
            return any(t in _REAL for t in types) and all(is_numeric(t) for t in types)
        case Binary(("/" | "%"), left, Literal() as by):
            kind = _type(left, schema)
            return is_numeric(kind) and not isinstance(kind, DecimalType) and _is_not_zero(by)
        case Unary("NOT", operand):
            return _type(operand, schema) == BOOLEAN
        case Unary(("-" | "+"), operand):
            return isinstance(operand, Literal) or _type(operand, schema) in _REAL
        case PredicateCall(operator, _, subject, others):
            if operator in ("LIKE", "ILIKE", "RLIKE"):
                return False  # a pattern may be malformed
            return all(_alike(subject, other, schema) for other in others)
        case Cast(_, _, True):
            return True
        case Cast(value, wanted, False):
            return wanted == STRING or (wanted == DOUBLE and is_numeric(_type(value, schema)))
        case CaseWhen(None, branches, _):
            return all(_type(condition, schema) == BOOLEAN for condition, _ in branches)
        case Call(name, arguments, False, None):
            return _safe_call(name.lower(), arguments, schema)
    return False


def _safe_call(name: str, arguments: tuple[SyntaxNode, ...], schema: Schema) -> bool:
    types = [_type(argument, schema) for argument in arguments]
    if name in _TEXT:
        return all(
            t == STRING or (isinstance(a, Literal) and is_numeric(t)) for t, a in zip(types, arguments, strict=True)
        )
    if name in _OF_DOUBLES:
        return all(t in _REAL for t in types)
    if name in _OF_EQUAL_TYPES:
        return len({t.text for t in types}) == 1
    return name in _OF_ANY and (name not in ("if",) or types[0] == BOOLEAN)


def _alike(one: SyntaxNode, other: SyntaxNode, schema: Schema) -> bool:
    """Return whether two values are compared without a conversion that may fail."""
    types = _type(one, schema), _type(other, schema)
    return types[0] == types[1] or null() in (one, other) or all(is_numeric(t) for t in types)


def _type(node: SyntaxNode, schema: Schema) -> DataType:
    return Inference(schema, place="scalar").walk(node).type


def _is_not_zero(literal: Literal) -> bool:
    digits = literal.text.rstrip("LlDdFfSsYyBb")
    try:
        return float(digits) != 0
    except ValueError:
        return False
