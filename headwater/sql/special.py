"""Functions whose result type depends on literals, names or digits, beyond a signature."""

from __future__ import annotations

from collections.abc import Callable

from headwater.core.errors import DataflowError
from headwater.sql.arithmetic import arithmetic_type, concat_type, require_comparable
from headwater.sql.coercion import (
    DATETIME,
    INTEGRAL,
    Typed,
    as_decimal,
    bounded,
    castable,
    common_of,
    common_type,
    is_numeric,
)
from headwater.sql.names import CASTS, OPERATORS, SECONDS, TIME_PARTS
from headwater.sql.schema import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    Column,
    DataType,
    DecimalType,
    IntervalType,
    MapType,
    Schema,
    StructType,
)

Rule = Callable[[str, tuple[Typed, ...]], DataType]


def _arity(name: str, arguments: tuple[Typed, ...], least: int, most: int | None = None) -> None:
    count, most = len(arguments), least if most is None else most
    if not least <= count <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise DataflowError(f"{name} takes {wanted} arguments, not {count}", hint=f"look up {name} in Spark's docs")


def _wrong(name: str, argument: Typed, wanted: str) -> DataflowError:
    hint = "cast it" if argument.type in (STRING, BOOLEAN) or is_numeric(argument.type) else f"give {wanted}"
    return DataflowError(f"{argument.shown}; {name} needs {wanted}", hint=hint)


def _operator(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2)
    return arithmetic_type(OPERATORS[name], *arguments)


def _cast(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    wanted = DataType.parse(CASTS[name])
    if not castable(arguments[0].type, wanted):
        raise _wrong(name, arguments[0], f"a value that can be cast to {wanted}")
    return wanted


def _digits(name: str, arguments: tuple[Typed, ...]) -> int | None:
    if len(arguments) < 2:
        return None
    constant = arguments[1].constant
    if constant is None or not isinstance(constant.value, int):
        raise DataflowError(f"{name} needs a constant number of digits", hint=f"write {name}(value, 2)")
    return constant.value


def _rounded(found: DecimalType, digits: int) -> DecimalType:
    whole = found.precision - found.scale + 1
    if digits < 0:
        return DecimalType(min(max(whole, 1 - digits), 38), 0)
    scale = min(found.scale, digits)
    return DecimalType(min(whole + scale, 38), scale)


def _round(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1, 2)
    found, digits = arguments[0].type, _digits(name, arguments) or 0
    if isinstance(found, DecimalType):
        return _rounded(found, digits)
    if not is_numeric(found):
        raise _wrong(name, arguments[0], "a number")
    return found


def _ceil(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1, 2)
    found, digits = arguments[0].type, _digits(name, arguments)
    if not is_numeric(found):
        raise _wrong(name, arguments[0], "a number")
    if digits is None:
        return _rounded(found, 0) if isinstance(found, DecimalType) else BIGINT
    if found in (FLOAT, DOUBLE):
        found = DecimalType(14, 7) if found == FLOAT else DecimalType(30, 15)
    return _rounded(as_decimal(found), digits)


def _concat(name: str, arguments: tuple[Typed, ...]) -> DataType:
    return concat_type(arguments)


def _array(name: str, arguments: tuple[Typed, ...]) -> DataType:
    found = common_of([a.type for a in arguments])
    if found is None:
        raise DataflowError(
            f"the elements of the array have different types: {', '.join(str(a.type) for a in arguments)}",
            hint="cast them to one type, or use struct(...) for values of several types",
        )
    return ArrayType(found)


def _map(name: str, arguments: tuple[Typed, ...]) -> DataType:
    if len(arguments) % 2:
        raise DataflowError("map needs pairs of key and value", hint="write map('a', 1, 'b', 2)")
    key, value = (_array("map", arguments[i::2]) for i in (0, 1))
    assert isinstance(key, ArrayType) and isinstance(value, ArrayType)
    return MapType(key.element, value.element)


def _struct(name: str, arguments: tuple[Typed, ...]) -> DataType:
    return StructType(tuple(Column(a.name or f"col{i}", a.type) for i, a in enumerate(arguments, 1)))


def _named_struct(name: str, arguments: tuple[Typed, ...]) -> DataType:
    names = [a.constant.value if a.constant else None for a in arguments[::2]]
    if len(arguments) % 2 or not all(isinstance(n, str) for n in names):
        raise DataflowError("named_struct needs 'name', value pairs", hint="write struct(a AS x, b AS y)")
    return StructType(tuple(Column(str(n), a.type) for n, a in zip(names, arguments[1::2], strict=True)))


def _arrays_zip(name: str, arguments: tuple[Typed, ...]) -> DataType:
    fields = []
    for i, argument in enumerate(arguments):
        if not isinstance(argument.type, ArrayType):
            raise _wrong(name, argument, "an array")
        fields.append(Column(argument.name or str(i), argument.type.element))
    return ArrayType(StructType(tuple(fields)))


def _map_from_entries(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    match arguments[0].type:
        case ArrayType(StructType((Column(_, key), Column(_, value)))):
            return MapType(key, value)
    raise _wrong(name, arguments[0], "an array of structs of two fields")


def _map_entries(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    match arguments[0].type:
        case MapType(key, value):
            return ArrayType(StructType((Column("key", key), Column("value", value))))
    raise _wrong(name, arguments[0], "a map")


def _element_at(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2)
    index = arguments[1].type
    match arguments[0].type:
        case ArrayType(element):
            if index in INTEGRAL and index != BIGINT:
                return element
            raise _wrong(name, arguments[1], "an int that counts from 1")
        case MapType(key, value):
            if common_type(key, index) is not None:
                return value
            raise _wrong(name, arguments[1], f"a key of type {key}")
    raise _wrong(name, arguments[0], "an array or a map")


def _sequence(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2, 3)
    found = common_type(arguments[0].type, arguments[1].type)
    step = arguments[2].type if len(arguments) == 3 else None
    if found in INTEGRAL and found is not None and (step is None or step in INTEGRAL):
        both = common_of([a.type for a in arguments])
        return ArrayType(both or found)
    if found in DATETIME and found is not None and (step is None or isinstance(step, IntervalType)):
        return ArrayType(found)
    raise DataflowError(
        f"no sequence from {arguments[0].type} to {arguments[1].type}" + (f" by {step}" if step else ""),
        hint="give whole numbers, or dates and an interval: sequence(a, b, INTERVAL 1 DAY)",
    )


def _from_json(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2, 3)
    if arguments[0].type not in (STRING, VOID):
        raise _wrong(name, arguments[0], "a string")
    constant = arguments[1].constant
    if constant is None or not isinstance(constant.value, str):
        raise DataflowError(f"{name} needs its schema as a constant", hint=f"write {name}(text, 'a int, b string')")
    try:
        found = DataType.parse(constant.value)
    except DataflowError:
        found = Schema.parse(constant.value, internal=True).struct
    if name == "from_json" and not isinstance(found, StructType | ArrayType | MapType):
        raise DataflowError(f"from_json cannot read {found}", hint="give a struct, array or map, then take a part")
    return found


def _to_text(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1, 2)
    allowed = (StructType, ArrayType, MapType) if name == "to_json" else StructType
    if not isinstance(arguments[0].type, allowed):
        raise _wrong(name, arguments[0], "a struct, such as struct(a, b)")
    return STRING


def _decode(name: str, arguments: tuple[Typed, ...]) -> DataType:
    if len(arguments) == 2:
        return STRING
    if len(arguments) < 3:
        _arity(name, arguments, 3)
    for option in arguments[1 : len(arguments) - 1 : 2]:
        require_comparable("decode", arguments[0], option)
    results = [*arguments[2::2], *(arguments[-1:] if len(arguments) % 2 == 0 else ())]
    found = common_of([r.type for r in results])
    if found is None:
        raise DataflowError("the results of decode have no common type", hint="cast them to one type")
    return found


def _date_part(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2)
    constant, found = arguments[0].constant, arguments[1].type
    part = str(constant.value).lower() if constant else ""
    if part not in TIME_PARTS:
        raise DataflowError(
            f"{arguments[0].text} is not a part of a time",
            hint="use year, month, day, hour, minute, second, dow, week, ...",
        )
    if found not in (*DATETIME, STRING, VOID) and not isinstance(found, IntervalType):
        raise _wrong(name, arguments[1], "a date or timestamp")
    return DecimalType(8, 6) if part in SECONDS else INT


def unit_function(name: str, arguments: tuple[Typed, ...]) -> DataType:
    """Return the type of ``timestampadd(HOUR, 1, ts)`` and similar; the unit is not among the arguments."""
    moment = arguments[-1].type
    if len(arguments) != 2 or moment not in (*DATETIME, STRING, VOID):
        raise DataflowError(f"{name} needs a unit and times", hint="write timestampdiff(SECOND, earlier, later)")
    if name in ("timestampdiff", "datediff", "date_diff"):
        if arguments[0].type not in (*DATETIME, STRING, VOID):
            raise _wrong(name, arguments[0], "a timestamp")
        return BIGINT
    if not is_numeric(arguments[0].type):
        raise _wrong(name, arguments[0], "a whole number")
    return TIMESTAMP_NTZ if moment == TIMESTAMP_NTZ else TIMESTAMP


def _nullif(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2)
    require_comparable(name, *arguments)
    return BOOLEAN if name == "equal_null" else arguments[0].type


def _nullifzero(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    found = arguments[0].type
    if not is_numeric(found):
        raise _wrong(name, arguments[0], "a number")
    return found if name == "nullifzero" else common_type(found, INT) or found


def _make_dt_interval(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 0, 4 if name == "make_dt_interval" else 2)
    for argument in arguments:
        if not is_numeric(argument.type):
            raise _wrong(name, argument, "a number")
    return IntervalType("day", "second") if name == "make_dt_interval" else IntervalType("year", "month")


def _window_time(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    found = arguments[0].type
    end = found.field("end") if isinstance(found, StructType) else None
    if end is None or end.type not in DATETIME:
        raise _wrong(name, arguments[0], "the window column of an aggregation")
    return end.type


def _sum(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    found = arguments[0].type
    if isinstance(found, DecimalType):
        return bounded(found.precision + 10, found.scale)
    if isinstance(found, IntervalType):
        return found
    if not is_numeric(found):
        raise _wrong(name, arguments[0], "a number")
    return BIGINT if found in INTEGRAL else DOUBLE


def _avg(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 1)
    found = arguments[0].type
    if isinstance(found, DecimalType):
        return bounded(found.precision + 4, found.scale + 4)
    if isinstance(found, IntervalType):
        return IntervalType("year", "month") if found.of_months else IntervalType("day", "second")
    if not is_numeric(found):
        raise _wrong(name, arguments[0], "a number")
    return DOUBLE


def _count(name: str, arguments: tuple[Typed, ...]) -> DataType:
    if not arguments:
        raise DataflowError("count needs an argument", hint="write count(*) to count rows")
    return BIGINT


def _percentile_approx(name: str, arguments: tuple[Typed, ...]) -> DataType:
    _arity(name, arguments, 2, 3)
    found = arguments[0].type
    if not (is_numeric(found) or found in DATETIME or isinstance(found, IntervalType)):
        raise _wrong(name, arguments[0], "a number, date or timestamp")
    match arguments[1].type:
        case ArrayType(element) if is_numeric(element):
            return ArrayType(found)
        case other if is_numeric(other):
            return found
    raise _wrong(name, arguments[1], "a number from 0 to 1, or an array of them")


RULES: dict[str, Rule] = {
    **dict.fromkeys(OPERATORS, _operator),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(("round", "bround"), _round),
    **dict.fromkeys(("ceil", "ceiling", "floor"), _ceil),
    **dict.fromkeys(("element_at", "try_element_at"), _element_at),
    **dict.fromkeys(("from_json", "from_csv"), _from_json),
    **dict.fromkeys(("to_json", "to_csv"), _to_text),
    **dict.fromkeys(("date_part", "datepart"), _date_part),
    **dict.fromkeys(("nullif", "equal_null"), _nullif),
    **dict.fromkeys(("nullifzero", "zeroifnull"), _nullifzero),
    **dict.fromkeys(("make_dt_interval", "make_ym_interval"), _make_dt_interval),
    "array": _array,
    "arrays_zip": _arrays_zip,
    "concat": _concat,
    "decode": _decode,
    "map": _map,
    "map_entries": _map_entries,
    "map_from_entries": _map_from_entries,
    "named_struct": _named_struct,
    "sequence": _sequence,
    "struct": _struct,
    "window_time": _window_time,
}

AGGREGATE_RULES: dict[str, Rule] = {
    **dict.fromkeys(("sum", "try_sum"), _sum),
    **dict.fromkeys(("avg", "mean", "try_avg"), _avg),
    **dict.fromkeys(("percentile_approx", "approx_percentile"), _percentile_approx),
    "count": _count,
}
ORDERED = dict.fromkeys(("percentile_cont", "percentile_disc"), "percentile")
"""Aggregates that need WITHIN GROUP, and those of the same type without it."""
