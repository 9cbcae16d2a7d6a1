"""Read PySpark's Columns as syntax trees, from the messages of the Spark Connect protocol.

A Column gives its message itself, so nothing of PySpark is imported here: who makes Columns has imported it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown
from headwater.sql import literals
from headwater.sql.names import UNIT_FIRST
from headwater.sql.parser import parse_item
from headwater.sql.printer import canonical
from headwater.sql.schema import ArrayType, AtomicType, Column, DataType, DecimalType, IntervalType, MapType, StructType
from headwater.sql.syntax import (
    MAX_DEPTH,
    Alias,
    Binary,
    Call,
    CaseWhen,
    Cast,
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

Message = Any
"""A message of Spark Connect's protocol: ``spark.connect.Expression`` or a part of it."""

CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable by which PySpark makes Columns without a session."""
_SAME = ("=", "!=", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "%", "&", "|", "^")
_BINARY = {"==": "=", "and": "AND", "or": "OR"} | {operator: operator for operator in _SAME}
_MATCHES = {"like": "LIKE", "ilike": "ILIKE", "rlike": "RLIKE"}
_SIGNS = {"negative": "-", "~": "~"}
_BATCHES = 'compute the column in a function over batches: .map_batches(function, "id int, v double")'
_NAMED_ARGUMENTS = ("struct", "arrays_zip")
"""Functions that take the names of fields from their arguments."""
_REFUSED = {
    "common_inline_user_defined_function": (
        "a Python UDF is no expression of Spark SQL",
        _BATCHES,
    ),
    "window": (
        "a window function over a stream would need all its rows",
        "group by F.window(...) and aggregate, or write .scan(...), .count_window(...) or .top_k(...)",
    ),
    "sort_order": ("a stream has no order", 'leave out asc() and desc(); write .top_k(10, "n") for the highest rows'),
    "update_fields": (
        "withField and dropFields need the fields of the struct",
        'write all fields: F.struct(F.col("st.x"), F.lit(1).alias("y"))',
    ),
    "subquery_expression": ("subqueries do not run on streams", "join the other stream with .join(...)"),
    "unresolved_regex": ("columns are not found by regular expressions", "name the columns"),
    "named_argument_expression": ("arguments of functions have no names here", "give them by position"),
}
_MOMENT = "'yyyy-MM-dd HH:mm:ss'"
_DEFAULTS = {
    "approx_percentile": (2, ("10000",)), "first": (1, ("FALSE",)), "from_unixtime": (1, (_MOMENT,)),
    "last": (1, ("FALSE",)), "locate": (2, ("1",)), "mask": (1, ("'X'", "'x'", "'n'", "NULL")), "mode": (1, ("FALSE",)),
    "months_between": (2, ("TRUE",)), "overlay": (3, ("-1",)), "percentile": (2, ("1",)),
    "percentile_approx": (2, ("10000",)), "sort_array": (1, ("TRUE",)), "split": (2, ("-1",)),
    "str_to_map": (1, ("','", "':'")), "unix_timestamp": (1, (_MOMENT,)),
}  # fmt: skip
"""Arguments that PySpark writes where the user gave none: those before them, and their texts."""
_ATTRIBUTE = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))(?:\.(?=.)|\Z)")
_VARIABLES = "xyz"
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)


class SparkColumn(Protocol):
    """PySpark's Column, as far as it is needed here."""

    def alias(self, *alias: str, **kwargs: Any) -> Any:
        """Return the Column with a name."""

    def cast(self, dataType: Any) -> Any:  # noqa: N803
        """Return the Column as another type."""


def is_column(value: object) -> bool:
    """Return whether a value is a Column of PySpark, by the names of its classes."""
    return _is_of_pyspark(value, "Column")


@contextlib.contextmanager
def columns_allowed() -> Iterator[None]:
    """Let ``pyspark.sql.functions`` make Columns without a session: those of Spark Connect need none."""
    before = os.environ.get(CONNECT_MODE)
    os.environ.setdefault(CONNECT_MODE, "1")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CONNECT_MODE, None)


def is_frame(value: object) -> bool:
    """Return whether a value is a DataFrame of PySpark, by the names of its classes."""
    return _is_of_pyspark(value, "DataFrame")


def _is_of_pyspark(value: object, name: str) -> bool:
    return any(c.__name__ == name and c.__module__.startswith("pyspark.sql.") for c in type(value).__mro__)


def column_text(column: Any, *, alias: bool = True) -> str:
    """Return a Column as Spark SQL text; ``alias``: with its name, where it has one."""
    node = column_tree(column)
    return canonical(node.value if isinstance(node, Alias) and not alias else node)


def column_tree(column: Any) -> SyntaxNode:
    """Return the syntax tree of a Column: an expression, its alias included."""
    to_plan: Callable[[None], Message] | None = getattr(type(column), "to_plan", None) and column.to_plan
    if to_plan is None:
        raise DataflowError(
            "a Column of a Spark session in this process",
            hint=f"start no session, and set {CONNECT_MODE}=1 before functions of PySpark are called",
        )
    try:
        message = to_plan(None)
    except RecursionError:
        raise too_deep() from None
    except AttributeError:  # a part that a session has to register first
        raise DataflowError("a Column that needs a Spark session", hint="write the expression as text") from None
    return expression_tree(message)


def expression_tree(message: Message, place: Place | None = None) -> SyntaxNode:
    """Return the syntax tree of an expression of the protocol; ``place`` is asked first for each part of it."""
    try:
        node = ExpressionMessages(_lambda_names(message), place).item(message)
    except RecursionError:
        raise too_deep() from None
    if node.depth > MAX_DEPTH:
        raise too_deep()
    return node


@dataclass(frozen=True)
class ExpressionMessages:
    """Reads messages; ``variables`` has the name of each lambda variable."""

    variables: Mapping[str, str]
    place: Place | None = None

    def item(self, message: Message) -> SyntaxNode:
        """Read an expression that may have an alias."""
        if message.WhichOneof("expr_type") != "alias":
            return self.read(message)
        names = list(message.alias.name)
        if len(names) != 1:
            raise DataflowError(
                f"one column with {len(names)} names: {cut(', '.join(names), 200)}",
                hint="give one name; explode the entries of a map as structs with F.map_entries(...)",
            )
        inner = self.item(message.alias.expr)
        return Alias(inner.value if isinstance(inner, Alias) else inner, names[0])

    def value(self, message: Message) -> SyntaxNode:
        """Read an argument: an alias in it has no meaning."""
        node = self.item(message)
        return node.value if isinstance(node, Alias) else node

    def read(self, message: Message) -> SyntaxNode:
        """Read an expression without an alias."""
        placed = self.place(message, self) if self.place is not None else None
        if placed is not None:
            return placed
        kind, part = _chosen(message, "expr_type")
        match kind:
            case "literal":
                return _literal(part)
            case "unresolved_attribute":
                return Name(attribute_parts(part.unparsed_identifier))
            case "unresolved_star":
                target = part.unparsed_target.removesuffix(".*")
                return Star(attribute_parts(target) if target else ())
            case "expression_string":
                return parse_item(part.expression)
            case "unresolved_function":
                if part.is_user_defined_function:
                    raise DataflowError(
                        f"{shown(part.function_name)} is a function that a session would have registered",
                        hint=_BATCHES,
                    )
                return self._function(part.function_name, part.arguments, distinct=part.is_distinct)
            case "call_function":
                return self._function(part.function_name, part.arguments)
            case "cast":
                return self._cast(part)
            case "unresolved_extract_value":
                return Subscript(self.value(part.child), self.value(part.extraction))
            case "unresolved_named_lambda_variable":
                return Name(tuple(self.variables.get(p, p) for p in part.name_parts))
            case "lambda_function":
                parameters = tuple(self.variables[a.name_parts[0]] for a in part.arguments)
                return Lambda(parameters, self.value(part.function))
        what, hint = _REFUSED.get(kind, (f"a Column of kind {kind}", "write the expression as text"))
        raise DataflowError(what, hint=hint)

    def _function(self, called: str, messages: Any, *, distinct: bool = False) -> SyntaxNode:
        name = called.lower()
        if name in _NAMED_ARGUMENTS:
            arguments = tuple(self.item(m) for m in messages)
            if name != "struct" and any(isinstance(a, Alias) for a in arguments):
                raise DataflowError(
                    f"names of the arguments of {name}",
                    hint="leave out alias(), and cast the result to rename its fields",
                )
            return Call(name, arguments)
        arguments = tuple(self.value(m) for m in messages)
        match name, arguments:
            case (operator, (left, right)) if operator in _BINARY:
                return Binary(_BINARY[operator], left, right)
            case (operator, (operand,)) if operator in _SIGNS:
                return Unary(_SIGNS[operator], operand)
            case ("not", (operand,)):
                return _negated(operand)
            case (("isnull" | "isnotnull"), (subject,)) if called[2] == "N":
                return PredicateCall("IS NULL", name == "isnotnull", subject)
            case ("in", (subject, *others)) if others:
                return PredicateCall("IN", False, subject, tuple(others))
            case ("in", _):
                raise DataflowError("isin() without values is never true", hint="give at least one value")
            case (operator, (subject, pattern)) if operator in _MATCHES:
                return PredicateCall(_MATCHES[operator], False, subject, (pattern,))
            case (("like" | "ilike"), (subject, pattern, Literal(value=str() as escape))):
                return PredicateCall(_MATCHES[name], False, subject, (pattern,), escape)
            case ("count", (Literal(value=int()),)):
                return Call("count", (Star(),))  # PySpark's own spelling of count(*)
            case ("when", _):
                branches = tuple(zip(arguments[0::2], arguments[1::2], strict=False))
                return CaseWhen(None, branches, arguments[-1] if len(arguments) % 2 else None)
            case (unit_first, (Literal(value=str() as unit), *rest)) if unit_first in UNIT_FIRST and len(rest) == 2:
                return Call(name, (Name((unit,)), *rest))
        return Call(name, _given(name, arguments), distinct)

    def _cast(self, message: Message) -> SyntaxNode:
        known = message.WhichOneof("cast_to_type") == "type"
        wanted = _type(message.type) if known else DataType.parse(message.type_str)
        return Cast(self.value(message.expr), wanted, message.eval_mode == 3)


Place: TypeAlias = Callable[[Message, ExpressionMessages], SyntaxNode | None]
"""Returns the tree of a part of an expression, or None for those that are read as usual."""


def _given(name: str, arguments: tuple[SyntaxNode, ...]) -> tuple[SyntaxNode, ...]:
    """Leave out arguments at the end that are Spark's defaults: the text form has none."""
    least, defaults = _DEFAULTS.get(name, (len(arguments), ()))
    while len(arguments) > least:
        last = arguments[-1]
        if not isinstance(last, Literal) or last.text != defaults[len(arguments) - least - 1]:
            break
        arguments = arguments[:-1]
    return arguments


def _negated(node: SyntaxNode) -> SyntaxNode:
    """Return NOT of a node, in the form that the text has: ``a != 1``, ``a IS NOT NULL``, ``a NOT IN (1)``."""
    match node:
        case Binary("=", left, right):
            return Binary("!=", left, right)
        case PredicateCall(operator, False, subject, others, escape):
            return PredicateCall(operator, True, subject, others, escape)
    return Unary("NOT", node)


def attribute_parts(identifier: str) -> tuple[str, ...]:
    """Split a column's name at its dots, as Spark does: ``window.start``, and `` `a.b` `` in back-quotes."""
    parts, at = [], 0
    while at < len(identifier):
        found = _ATTRIBUTE.match(identifier, at)
        if found is None:
            break
        parts.append(found.group(1).replace("``", "`") if found.group(1) else found.group(2))
        at = found.end()
    if at < len(identifier) or not parts:
        raise DataflowError(
            f"{shown(identifier)} is no name of a column", hint="write F.col('v'), or F.expr('v * 2') for an expression"
        )
    return tuple(parts)


def _chosen(message: Message, group: str) -> tuple[str, Any]:
    """Return the name and value of the field that is set, of a group of fields that exclude each other."""
    name = message.WhichOneof(group) or ""
    return name, getattr(message, name, None)


# ---------------------------------------------------------------- lambda variables


def _lambda_names(message: Message) -> dict[str, str]:
    """Name the variables of lambdas: PySpark numbers them anew in each process, and keys must not change."""
    taken = {word.lower() for word in _column_words(message)}
    names: dict[str, str] = {}

    def name(node: Message, around: tuple[str, ...]) -> None:
        if _is_message(node, "LambdaFunction"):
            for argument in node.arguments:
                names[argument.name_parts[0]] = free = _free(taken.union(around))
                around = (*around, free)
        for child in _inside(node):
            name(child, around)

    name(message, ())
    return names


def _free(taken: set[str]) -> str:
    names = (letter + (str(n) if n else "") for n in range(len(taken) + 1) for letter in _VARIABLES)
    return next(n for n in names if n not in taken)


def _column_words(node: Message) -> list[str]:
    """Return the words in names of columns and in expressions as text: a variable of that name would hide them."""
    own = ""
    if _is_message(node, "UnresolvedAttribute"):
        own = node.unparsed_identifier
    elif _is_message(node, "ExpressionString"):
        own = node.expression
    return re.findall(r"\w+", own) + [word for child in _inside(node) for word in _column_words(child)]


def _inside(node: Message) -> list[Message]:
    """Return the messages in a message, from the first field to the last."""
    found: list[Message] = []
    for field, value in node.ListFields():
        if field.message_type is not None and field.name != "common":
            found += [value] if hasattr(value, "ListFields") else list(value)
    return found


def _is_message(node: Message, name: str) -> bool:
    return bool(node.DESCRIPTOR.name == name)


# ---------------------------------------------------------------- constants and types


def _literal(message: Message) -> SyntaxNode:
    kind, value = _chosen(message, "literal_type")
    match kind:
        case "null":
            found = _type(value)
            return literals.null() if found == AtomicType("void") else Cast(literals.null(), found, False)
        case "boolean":
            return literals.boolean(value)
        case "byte" | "short" | "integer" | "long":
            return _number(value, {"byte": "Y", "short": "S", "long": "L"}.get(kind, ""))
        case "float" | "double":
            suffix = "F" if kind == "float" else "D"
            if math.isfinite(value):
                return _number(value, suffix)
            return Cast(literals.string(str(value)), AtomicType(kind), False)
        case "decimal":
            plain = _number(value.value, "BD")
            assert isinstance(plain.type, DecimalType)
            scale = max(plain.type.scale, value.scale)
            return Cast(plain, DecimalType(max(plain.type.precision, value.precision, scale), scale), False)
        case "string":
            return literals.string(value)
        case "binary":
            return literals.typed("X", value.hex())
        case "date":
            return literals.typed("DATE", (_EPOCH_DAY + timedelta(days=value)).isoformat())
        case "timestamp" | "timestamp_ntz":
            moment = (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat(" ")
            return literals.typed(kind.upper(), moment + ("Z" if kind == "timestamp" else ""))
        case "day_time_interval":
            return _day_time(value)
        case "array":
            return Call("array", tuple(map(_literal, value.elements)))
        case "map":
            pairs = zip(value.keys, value.values, strict=True)
            return Call("map", tuple(_literal(part) for pair in pairs for part in pair))
    raise DataflowError(f"a constant of kind {kind}", hint="write it as text: F.expr(\"INTERVAL '5' MINUTE\")")


def _number(value: Any, suffix: str) -> Literal:
    text = str(value)
    return literals.number(text.removeprefix("-") + suffix, negative=text.startswith("-"))


def _day_time(microseconds: int) -> Literal:
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    fraction = f".{rest:06d}" if rest else ""
    text = f"{days} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
    return literals.interval_range(("-" if microseconds < 0 else "") + text, "day", "second")


_ATOMS = {
    "null": "void", "boolean": "boolean", "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint",
    "float": "float", "double": "double", "string": "string", "binary": "binary", "date": "date",
    "timestamp": "timestamp", "timestamp_ntz": "timestamp_ntz",
}  # fmt: skip
_MONTHS, _TIMES = ("year", "month"), ("day", "hour", "minute", "second")


def _type(message: Message) -> DataType:
    kind, part = _chosen(message, "kind")
    match kind:
        case "decimal":
            return DecimalType(part.precision, part.scale)
        case "array":
            return ArrayType(_type(part.element_type))
        case "map":
            return MapType(_type(part.key_type), _type(part.value_type))
        case "struct":
            return StructType(tuple(Column(f.name, _type(f.data_type)) for f in part.fields))
        case "year_month_interval":
            return IntervalType(_MONTHS[part.start_field], _MONTHS[part.end_field])
        case "day_time_interval":
            return IntervalType(_TIMES[part.start_field], _TIMES[part.end_field])
        case "unparsed":
            return DataType.parse(part.data_type_string)
    if kind not in _ATOMS:
        raise DataflowError(
            f"a cast to {kind}, a type that Headwater does not know", hint="cast it to string or double"
        )
    return AtomicType(_ATOMS[kind])
