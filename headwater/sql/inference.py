"""Walk a parsed expression: resolve its names, infer its type."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal as Choice

from headwater.core.errors import DataflowError
from headwater.core.text import shown
from headwater.sql import special
from headwater.sql.arithmetic import binary_type, require_comparable, require_condition
from headwater.sql.coercion import (
    INTEGRAL,
    Typed,
    castable,
    common_of,
    common_type,
    converts,
    is_numeric,
    is_orderable,
)
from headwater.sql.functions import (
    AGGREGATES,
    BARE,
    GENERATORS,
    GROUPINGS,
    SCALARS,
    VOLATILE,
    WINDOW_FUNCTIONS,
)
from headwater.sql.lexer import quote_name, quoted
from headwater.sql.matching import match
from headwater.sql.names import TIME_UNITS, UNIT_FIRST
from headwater.sql.schema import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    STRING,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    IntervalType,
    MapType,
    Schema,
    StructType,
    has_part,
    suggest,
)
from headwater.sql.syntax import (
    MAX_DEPTH,
    Alias,
    Binary,
    Call,
    CaseWhen,
    Cast,
    Field,
    Lambda,
    Literal,
    Name,
    OrderKey,
    PredicateCall,
    Star,
    Subscript,
    SyntaxNode,
    Unary,
    too_deep,
)

# Whether aggregates are allowed here: not in a scalar expression, around one, or already inside one.
Place = Choice["scalar", "outside", "inside"]
_KEEPS_NULLS = frozenset(["first", "first_value", "last", "last_value", "any_value"])
DISTINCT = ("count", "sum", "avg", "mean", "min", "max")
"""Aggregates that take DISTINCT."""
_LISTS = ("listagg", "string_agg")
_KNOWN = (*SCALARS, *VOLATILE, *special.RULES)
_KNOWN_AGGREGATES = (*AGGREGATES, *special.AGGREGATE_RULES, *special.ORDERED)


class Inference:
    """One walk over one expression; collects ``columns`` and ``volatile``."""

    def __init__(self, schema: Schema, *, place: Place) -> None:
        self.columns: set[str] = set()
        self.volatile: set[str] = set()
        self.aggregates: set[str] = set()
        self._schema = schema
        self._place: Place = place
        self._scopes: list[dict[str, tuple[str, DataType]]] = []

    def walk(self, node: SyntaxNode) -> Typed:
        """Infer the type of a node and everything below it."""
        if node.depth > MAX_DEPTH:
            raise too_deep()
        match node:
            case Literal():
                return Typed(node, node.type)
            case Name():
                return self._name(node)
            case Binary():
                return self._binary(node)
            case Unary():
                return self._unary(node)
            case PredicateCall():
                return self._predicate(node)
            case Call():
                return self._call(node)
            case Cast():
                return self._cast(node)
            case CaseWhen():
                return self._case(node)
            case Field():
                return self._field(self.walk(node.value), node.name)
            case Subscript():
                return self._subscript(node)
            case Lambda():
                raise DataflowError(
                    "a lambda outside of a function call", hint="lambdas are arguments: transform(readings, x -> x * 2)"
                )
        raise DataflowError("'*' means all columns, not a value", hint="write count(*), or name a column")

    def _name(self, node: Name) -> Typed:
        first, *rest = node.parts
        typed = self._variable(first) or self._column(first)
        if typed is None:
            raise self._unknown_column(node)
        for part in rest:
            typed = self._field(typed, part)
        return typed

    def _variable(self, name: str) -> Typed | None:
        for scope in reversed(self._scopes):
            if name.lower() in scope:
                declared, found = scope[name.lower()]
                return Typed(Name((declared,)), found, name=declared)
        return None

    def _column(self, name: str) -> Typed | None:
        column = self._schema.find(name)
        if column is None:
            if name.lower() in BARE:
                return self._call(Call(name.lower(), ()))
            return None
        if self._place == "outside":
            raise DataflowError(
                f"column {column.name!r} is not aggregated: a group has many values of it",
                hint=f"write max({quote_name(column.name)}) or first(...), or add it to the grouping keys",
            )
        self.columns.add(column.name)
        return Typed(Name((column.name,)), column.type, name=column.name)

    def _unknown_column(self, node: Name) -> DataflowError:
        name = ".".join(node.parts)
        dotted = self._schema.find(name)
        if dotted is not None:
            return DataflowError(
                f"there is no column {shown(node.parts[0])}",
                hint=f"the dot is part of the name: write {quoted(dotted.name)}",
            )
        variables = tuple(declared for scope in self._scopes for declared, _ in scope.values())
        hint = suggest(node.parts[0], (*variables, *self._schema.names))
        return DataflowError(f"there is no column {shown(node.parts[0])}", hint=f"{hint}; text goes in single quotes")

    def _field(self, value: Typed, name: str) -> Typed:
        """Take a struct's field, under its declared name, an array of structs' field or a map's value."""
        found, declared = self._field_type(value, name)
        node = value.node
        taken = Name((*node.parts, declared)) if isinstance(node, Name) else Field(node, declared)
        return Typed(taken, found, name=declared)

    def _field_type(self, value: Typed, name: str) -> tuple[DataType, str]:
        found = value.type
        inner = found.element if isinstance(found, ArrayType) else found
        if isinstance(inner, StructType):
            field = inner.field(name)
            if field is None:
                hint = suggest(name, tuple(f.name for f in inner.fields), kind="fields")
                raise DataflowError(f"{value.text} has no field {name!r}", hint=hint)
            return (ArrayType(field.type) if inner is not found else field.type), field.name
        if isinstance(found, MapType) and found.key == STRING:
            return found.value, name
        raise DataflowError(f"{value.shown} and has no fields", hint=f"write {value.text} without .{name}")

    def _binary(self, node: Binary) -> Typed:
        left, right = self.walk(node.left), self.walk(node.right)
        return Typed(Binary(node.operator, left.node, right.node), binary_type(node.operator, left, right))

    def _unary(self, node: Unary) -> Typed:
        operand = self.walk(node.operand)
        found = operand.type
        if node.operator == "NOT":
            require_condition(operand, "NOT")
            return Typed(Unary("NOT", operand.node), BOOLEAN)
        if node.operator == "~":
            if found not in (*INTEGRAL, VOID):
                raise DataflowError(f"{operand.shown}; ~ works on whole numbers", hint="cast it to bigint")
        elif not (is_numeric(found) or isinstance(found, IntervalType) or found == VOID):
            raise DataflowError(f"{operand.shown}; {node.operator} works on numbers", hint="cast it to double")
        return Typed(Unary(node.operator, operand.node), found)

    def _predicate(self, node: PredicateCall) -> Typed:
        subject = self.walk(node.subject)
        others = [self.walk(o) for o in node.others]
        operator = node.operator
        if operator in ("IN", "BETWEEN", "IS DISTINCT FROM"):
            for other in others:
                require_comparable(operator, subject, other)
        elif operator.startswith("IS"):
            if operator != "IS NULL":
                require_condition(subject, operator)
        else:
            for side in (subject, others[0]):
                if not converts(side.type, STRING):
                    raise DataflowError(f"{side.shown}; {operator} matches strings", hint="cast it to string")
        return Typed(replace(node, subject=subject.node, others=tuple(o.node for o in others)), BOOLEAN)

    def _subscript(self, node: Subscript) -> Typed:
        value, index = self.walk(node.value), self.walk(node.index)
        if _holds_structs(value.type) and index.constant is not None and isinstance(index.constant.value, str):
            return self._field(value, index.constant.value)
        taken = Subscript(value.node, index.node)
        match value.type:
            case ArrayType(element) if index.type in INTEGRAL:
                return Typed(taken, element)
            case MapType(key, found) if common_type(key, index.type) or converts(index.type, key):
                return Typed(taken, found)
            case ArrayType() | MapType():
                raise DataflowError(
                    f"{value.shown}, and {index.shown}",
                    hint="an array takes a whole number, a map one of its keys",
                )
        raise DataflowError(f"{value.shown}; [...] takes from arrays and maps", hint="use substring for text")

    def _case(self, node: CaseWhen) -> Typed:
        operand = self.walk(node.operand) if node.operand is not None else None
        branches, results = [], []
        for condition_node, result_node in node.branches:
            condition, result = self.walk(condition_node), self.walk(result_node)
            if operand is None:
                require_condition(condition, "WHEN")
            else:
                require_comparable("WHEN", operand, condition)
            branches.append((condition.node, result.node))
            results.append(result)
        otherwise = self.walk(node.otherwise) if node.otherwise is not None else None
        results += [otherwise] if otherwise is not None else []
        found = common_of([r.type for r in results])
        if found is None:
            shown = ", ".join(r.shown for r in results)
            raise DataflowError(f"the branches of CASE have no common type: {shown}", hint="cast them to one type")
        subject, rest = (one.node if one is not None else None for one in (operand, otherwise))
        return Typed(CaseWhen(subject, tuple(branches), rest), found)

    def _cast(self, node: Cast) -> Typed:
        if isinstance(node.value, Call) and self._is_unknown(node.value.name):
            return Typed(replace(node, value=self._unknown_call(node.value)), node.type)
        typed = self.walk(node.value)
        if not castable(typed.type, node.type):
            what = f"{typed.shown}; it cannot be cast to {node.type}"
            raise DataflowError(what, hint=_cast_hint(typed, node.type))
        return Typed(replace(node, value=typed.node), node.type)

    def _is_unknown(self, name: str) -> bool:
        reserved = (GENERATORS, WINDOW_FUNCTIONS, GROUPINGS)
        return not (name in _KNOWN or name in _KNOWN_AGGREGATES or any(name in r for r in reserved))

    def _unknown_call(self, node: Call) -> Call:
        """Return a call whose type the user declares by a cast; an aggregate if aggregates are allowed."""
        if node.distinct or node.filter is not None or node.ignore_nulls or node.order:
            raise DataflowError(
                f"there is no DISTINCT, FILTER, IGNORE NULLS or WITHIN GROUP for {node.name}, an unknown function",
                hint="use CASE WHEN in its argument, or aggregate collect_set(v) and compute over the array",
            )
        nested = any(isinstance(n, Call) and n.name in _KNOWN_AGGREGATES for n in _below(node))
        before = self._place
        if before == "outside" and not nested:
            self._place = "inside"
            self.aggregates.add(node.name)
        try:
            return Call(node.name, tuple(self.walk(a).node for a in node.arguments))
        finally:
            self._place = before

    def _call(self, node: Call) -> Typed:
        name = node.name
        if name in GENERATORS:
            raise DataflowError(
                f"{name} returns rows, not a value",
                hint="use .explode(...) on the stream, then name the new column",
            )
        if name in WINDOW_FUNCTIONS:
            raise DataflowError(
                f"{name} is a window function; a stream never has all rows",
                hint="group by a window and aggregate",
            )
        if name in GROUPINGS:
            hint = f'group by it: .group_by(hw.{name}("ts", "1 minute"))'
            raise DataflowError(f"{name} groups rows and is not a value", hint=hint)
        if name in UNIT_FIRST and len(node.arguments) == 3:
            return self._unit_call(node)
        if name == "aggregate" and len(node.arguments) < 3:
            raise DataflowError("aggregate needs an array", hint="write aggregate(readings, 0D, (acc, x) -> acc + x)")
        if name in _KNOWN_AGGREGATES:
            return self._aggregate(node)
        if self._is_unknown(name):
            known = (*_KNOWN, *(_KNOWN_AGGREGATES if self._place == "outside" else ()))
            near = suggest(name, known, kind="functions").split("? ")[0]
            near = f"{near}? " if near.startswith("did") else ""
            hint = f"{near}for any other function of Spark, cast its result: CAST({name}(...) AS double)"
            raise DataflowError(f"{name!r} is a function that Headwater does not know", hint=hint)
        if node.distinct or node.filter is not None or node.ignore_nulls or node.order:
            raise DataflowError(
                f"{name} is not an aggregate: it takes no DISTINCT, FILTER, IGNORE NULLS or WITHIN GROUP",
                hint="use CASE WHEN",
            )
        if name in VOLATILE and not (name in SCALARS and node.arguments):
            self.volatile.add(name)
        return self._typed_call(node)

    def _typed_call(self, node: Call) -> Typed:
        name = node.name
        rule = special.RULES.get(name) or special.AGGREGATE_RULES.get(name)
        if rule is None:
            signatures = (*SCALARS.get(name, ()), *VOLATILE.get(name, ()), *AGGREGATES.get(name, ()))
            arguments = tuple(a if isinstance(a, Lambda) else self.walk(a) for a in node.arguments)
            found, typed = match(signatures, arguments, type_lambda=self._lambda)
        else:
            typed = tuple(self._argument(a) for a in node.arguments)
            found = rule(name, typed)
        return Typed(Call(name, tuple(a.node for a in typed)), found)

    def _argument(self, node: SyntaxNode) -> Typed:
        if isinstance(node, Alias):
            value = self.walk(node.value)
            return Typed(Alias(value.node, node.name), value.type, name=node.name)
        if isinstance(node, Star):
            return Typed(Star(), STRING)
        return self.walk(node)

    def _unit_call(self, node: Call) -> Typed:
        unit = node.arguments[0]
        word = unit.parts[0].lower() if isinstance(unit, Name) and len(unit.parts) == 1 else ""
        if word not in TIME_UNITS:
            raise DataflowError(
                f"the first argument of {node.name} is a unit of time",
                hint="write timestampdiff(SECOND, a, b)",
            )
        arguments = tuple(self.walk(a) for a in node.arguments[1:])
        found = special.unit_function(node.name, arguments)
        return Typed(Call(node.name, (unit, *(a.node for a in arguments))), found)

    def _lambda(self, node: Lambda, types: tuple[DataType, ...]) -> Typed:
        names = [p.lower() for p in node.parameters]
        if len(set(names)) != len(names):
            raise DataflowError(f"a lambda names {node.parameters[0]!r} twice", hint="give each its own name")
        self._scopes.append(dict(zip(names, zip(node.parameters, types, strict=True), strict=True)))
        try:
            body = self.walk(node.body)
        finally:
            self._scopes.pop()
        return Typed(Lambda(node.parameters, body.node), body.type)

    def _check_distinct(self, node: Call) -> None:
        """Refuse DISTINCT where the distinct values cannot be kept, and aggregated, exactly."""
        if node.name not in DISTINCT:
            raise DataflowError(
                f"{node.name}(DISTINCT ...) does not run on a stream",
                hint=f"aggregate collect_set(v), then compute {node.name} over the array in .select(...)",
            )
        for argument in node.arguments:
            if isinstance(argument, Star):
                raise DataflowError(
                    "count(DISTINCT *) counts whole rows", hint="name the columns: count(DISTINCT a, b)"
                )
            self._place = "inside"
            try:
                value = self.walk(argument)
            finally:
                self._place = "outside"
            nested = isinstance(value.type, ArrayType | StructType)
            simple = not (nested and has_part(value.type, lambda part: part in (FLOAT, DOUBLE)))
            if not is_orderable(value.type) or not simple:
                raise DataflowError(
                    f"{value.shown}, whose distinct values are not kept", hint="take its parts: count(DISTINCT a, b)"
                )
            if node.name in ("sum", "avg", "mean") and isinstance(value.type, IntervalType):
                raise DataflowError(f"{value.shown}; DISTINCT needs numbers", hint="cast it to bigint")
            if node.name in ("avg", "mean") and isinstance(value.type, DecimalType):
                raise DataflowError(f"{value.shown}; its average is rounded otherwise", hint="cast it to double")

    def _ordered(self, node: Call) -> Typed:
        """Return the call of an aggregate with WITHIN GROUP."""
        name = node.name
        if name in _LISTS:
            typed = self._typed_call(replace(node, order=()))
            called = typed.node
            assert isinstance(called, Call)
            keys = [OrderKey(self._order_key(k), k.descending) for k in node.order]
            if all(key.value != called.arguments[0] for key in keys):  # else the order of equal keys is that of arrival
                keys.append(OrderKey(called.arguments[0], False))
            return Typed(replace(called, order=tuple(keys)), typed.type)
        plain = special.ORDERED.get(name)
        if plain is None:
            raise DataflowError(
                f"{name} takes no WITHIN GROUP", hint="those that do: " + ", ".join((*_LISTS, *special.ORDERED))
            )
        if len(node.order) != 1:
            raise DataflowError(
                f"{name} needs one value in WITHIN GROUP",
                hint=f"write {name}(0.5) WITHIN GROUP (ORDER BY v)",
            )
        (key,) = node.order
        typed = self._typed_call(Call(plain, (key.value, *node.arguments)))
        called = typed.node
        assert isinstance(called, Call)
        value, *arguments = called.arguments
        return Typed(Call(name, tuple(arguments), order=(OrderKey(value, key.descending),)), typed.type)

    def _order_key(self, key: OrderKey) -> SyntaxNode:
        value = self.walk(key.value)
        if not is_orderable(value.type):
            raise DataflowError(f"{value.shown}, which has no order", hint="order by a number, text or time")
        return value.node

    def _aggregate(self, node: Call) -> Typed:
        name = node.name
        if self._place == "scalar":
            raise DataflowError(
                f"{name} is an aggregate: it needs many rows",
                hint="use it in .agg(...) after .group_by(...) or .count_window(...)",
            )
        if self._place == "inside" or self._scopes:
            raise DataflowError(f"{name} is inside another aggregate", hint="aggregate in two steps")
        if node.distinct:
            self._check_distinct(node)
        if node.ignore_nulls and name not in _KEEPS_NULLS:
            raise DataflowError(f"{name} takes no IGNORE NULLS", hint="leave it out: NULLs are ignored anyway")
        self._place = "inside"
        try:
            typed = self._ordered(node) if node.order or name in special.ORDERED else self._typed_call(node)
            condition = self.walk(node.filter) if node.filter is not None else None
        finally:
            self._place = "outside"
        self.aggregates.add(name)
        if condition is not None:
            require_condition(condition, "FILTER")
        called = typed.node
        assert isinstance(called, Call)
        resolved = replace(
            node, arguments=called.arguments, order=called.order, filter=condition.node if condition else None
        )
        return Typed(resolved, typed.type)


def _below(node: SyntaxNode) -> list[SyntaxNode]:
    found = list(node.children)
    for child in found:
        found.extend(child.children)
    return found


def _holds_structs(found: DataType) -> bool:
    return isinstance(found.element if isinstance(found, ArrayType) else found, StructType)


def _cast_hint(value: Typed, wanted: DataType) -> str:
    if isinstance(value.type, StructType | ArrayType | MapType):
        return "take a part of it, or write to_json(...)"
    if wanted.text == "date" and is_numeric(value.type):
        return f"write date_from_unix_date({value.text}) or timestamp_seconds({value.text})"
    if is_numeric(wanted):
        return "write unix_date, unix_seconds, hex or the like, which define the meaning of the number"
    return f"go through string or timestamp: CAST(CAST({value.text} AS string) AS {wanted})"
