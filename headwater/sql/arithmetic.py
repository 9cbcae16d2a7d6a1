"""Result types of Spark's binary operators, and the errors for undefined combinations."""

from __future__ import annotations

from headwater.core.errors import DataflowError
from headwater.sql.coercion import (
    DATETIME,
    INTEGRAL,
    Typed,
    as_decimal,
    common_of,
    common_type,
    decimal_result,
    is_numeric,
    is_orderable,
)
from headwater.sql.schema import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    IntervalType,
    MapType,
    StructType,
)

_MONTHS, _TIME = IntervalType("year", "month"), IntervalType("day", "second")


def binary_type(operator: str, left: Typed, right: Typed) -> DataType:
    """Return the type of ``left operator right``."""
    if operator in ("AND", "OR"):
        for side in (left, right):
            require_condition(side, operator)
        return BOOLEAN
    if operator in ("=", "<=>", "!=", "<", "<=", ">", ">="):
        require_comparable(operator, left, right)
        return BOOLEAN
    if operator == "||":
        return concat_type((left, right), operator)
    if operator in ("&", "|", "^"):
        found = common_type(left.type, right.type)
        if found in INTEGRAL and found is not None:
            return found
        raise _no_operation(operator, left, right, "bit operators need whole numbers")
    if operator in ("<<", ">>", ">>>"):
        if left.type in (*INTEGRAL, VOID) and is_numeric(right.type):
            return BIGINT if left.type == BIGINT else INT
        raise _no_operation(operator, left, right, "shifts need whole numbers")
    return arithmetic_type(operator, left, right)


def arithmetic_type(operator: str, left: Typed, right: Typed) -> DataType:
    """Return the type of ``+ - * / % DIV``."""
    one, other = left.type, right.type
    if one == VOID and is_numeric(other):
        one = DOUBLE if operator == "/" else other
    if other == VOID and is_numeric(one):
        other = one
    if is_numeric(one) and is_numeric(other):
        return _number_type(operator, (one, left), (other, right))
    found = _time_type(operator, one, other)
    if found is None and operator in ("+", "*"):
        found = _time_type(operator, other, one)
    if found is not None:
        return found
    hint = "use numbers, or times and intervals"
    if STRING in (one, other):
        text = left if one == STRING else right
        hint = f"cast it: CAST({text.text} AS double)" + ("; use || to join strings" if operator == "+" else "")
    elif one in DATETIME and other in INTEGRAL:
        hint = "add an interval: ts + INTERVAL 5 MINUTES; make_dt_interval(0, 0, n) makes one of a number"
    raise _no_operation(operator, left, right, hint)


def _number_type(operator: str, left: tuple[DataType, Typed], right: tuple[DataType, Typed]) -> DataType:
    (one, first), (other, second) = left, right
    if operator == "DIV":
        if FLOAT in (one, other) or DOUBLE in (one, other):
            raise _no_operation(operator, first, second, "write floor(a / b) for numbers with fractions")
        return BIGINT
    if isinstance(one, DecimalType) or isinstance(other, DecimalType):
        if one in (FLOAT, DOUBLE) or other in (FLOAT, DOUBLE):
            return DOUBLE
        return decimal_result(
            operator, as_decimal(one, literal=_whole(first)), as_decimal(other, literal=_whole(second))
        )
    if operator == "/":
        return DOUBLE
    found = common_type(one, other)
    assert found is not None
    return found


def _whole(side: Typed) -> int | None:
    value = side.constant.value if side.constant else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time_type(operator: str, left: DataType, right: DataType) -> DataType | None:
    match operator, left, right:
        case "+" | "-", IntervalType(), IntervalType():
            return common_type(left, right)
        case "*" | "/", IntervalType(), _ if is_numeric(right):
            return _MONTHS if left.of_months else _TIME
        case "+" | "-", _, IntervalType() if left in DATETIME:
            if left == DATE and not right.of_months and right != IntervalType("day", "day"):
                return TIMESTAMP
            return left
        case "+" | "-", _, _ if left == DATE and right in INTEGRAL and right != BIGINT:
            return DATE
        case "-", _, _ if left in DATETIME and right in DATETIME:
            return IntervalType("day", "day") if left == right == DATE else _TIME
    return None


def concat_type(arguments: tuple[Typed, ...], name: str = "concat") -> DataType:
    """Return the type of ``concat(...)`` and ``||``: strings, binaries or arrays."""
    types = [a.type for a in arguments]
    if any(isinstance(t, ArrayType) for t in types):
        found = common_of(types)
        if found is None or VOID in types:
            raise DataflowError(
                f"{name} joins {' and '.join(a.shown for a in arguments)}",
                hint="join arrays whose elements have a common type",
            )
        return found
    for argument in arguments:
        if isinstance(argument.type, MapType | StructType):
            raise DataflowError(
                f"{argument.shown}; {name} joins strings",
                hint=f"write to_json({argument.text}) or a field of it",
            )
    return BINARY if types and all(t == BINARY for t in types) else STRING


def require_condition(side: Typed, place: str) -> None:
    """Refuse an expression that is not a boolean."""
    if side.type not in (BOOLEAN, VOID):
        raise DataflowError(
            f"{side.shown}; {place} needs a condition",
            hint=f"compare it, for example {side.within(6)} = ..."
            if side.type == STRING
            else f"write a comparison, for example {side.within(6)} > 0",
        )


def require_comparable(operator: str, left: Typed, right: Typed) -> None:
    """Refuse to compare types without a common order."""
    found = common_type(left.type, right.type)
    for text, number in ((left, right), (right, left)):
        # Spark would cast the string, and fail on the first row that holds no number.
        if text.type == STRING and (is_numeric(number.type)):
            if text.constant is not None:
                return
            raise DataflowError(
                f"{text.shown}; {operator} compares it with {number.type}",
                hint=f"cast it: CAST({text.text} AS {number.type})",
            )
    if found is None:
        raise DataflowError(
            f"{left.shown}; {operator} compares it with {right.type}",
            hint=f"cast one side, for example CAST({right.text} AS {left.type})",
        )
    if not is_orderable(found):
        raise DataflowError(
            f"{left.shown}; maps do not compare with {operator}",
            hint="compare map_entries(...) or single values",
        )


def _no_operation(operator: str, left: Typed, right: Typed, hint: str) -> DataflowError:
    return DataflowError(f"{left.shown}; {operator} combines it with {right.type}", hint=hint)
