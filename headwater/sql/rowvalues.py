"""Conditions and measures of row patterns: the values that Spark computes for each row, and the rest as data.

Spark evaluates every expression over the columns of one row, among them both sides of a comparison of two rows:
``v > PREV(v) * 2`` needs the values of ``v`` and ``v * 2`` of each row. The automaton only compares and aggregates
such values, so conditions and measures are data: lists of names and numbers of values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.coercion import common_type
from headwater.sql.expressions import check, check_condition
from headwater.sql.parser import parse
from headwater.sql.printer import canonical
from headwater.sql.rewrite import ROW_FUNCTIONS, SAME_FUNCTION, is_aggregate, mapped, row_aggregate_type
from headwater.sql.schema import BOOLEAN, DATE, TIMESTAMP, DataType, Schema
from headwater.sql.syntax import Binary, Call, Cast, Name, PredicateCall, Star, SyntaxNode, Unary

COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "<=>")
_STORED = ("tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "timestamp", "date")
_OVER = "row patterns"
_FUNCTIONS = tuple(f for f in ROW_FUNCTIONS if f != "collect_list")
_TO_NUMBER: dict[DataType, str] = {TIMESTAMP: "unix_micros", DATE: "unix_date"}
_FROM_NUMBER: dict[DataType, str] = {TIMESTAMP: "timestamp_micros", DATE: "date_from_unix_date"}

Condition = list[Any]
"""``["and", c, d]``, ``["or", c, d]``, ``["not", c]``, ``["true", value]`` of this row, ``["<", side, side]`` and the
other comparisons, ``["null", side]``; a side is ``[row, variable, value]``: see ROWS."""
ROWS = ("this", "prev", "first", "last")
"""The row of a side: this one, the one before it, the first or last of a variable ("" for all of the match)."""


@dataclass(frozen=True)
class Measure:
    """One aggregate of a match: a function, a variable ("" for all rows) and the number of a value (None: rows)."""

    function: str
    variable: str
    value: int | None
    type: DataType

    @property
    def stored(self) -> DataType:
        """The type in which the automaton returns it."""
        return _number_type(self.type)


class RowValues:
    """Collects the values of each row that conditions and measures need, each once."""

    def __init__(self, schema: Schema, variables: Collection[str], *, where: str) -> None:
        self.texts: list[str] = []
        self.types: list[DataType] = []
        self.measures: list[Measure] = []
        self._schema = schema
        self._variables = frozenset(variables)
        self._where = where
        clash = sorted(self._variables & {c.lower() for c in schema.names})
        if clash:
            raise self._error(f"'{clash[0]}' is a variable of the pattern and a column", "rename the variable")

    def value(self, text: str) -> int:
        """Return the number of an expression over the columns of one row."""
        found = check(text, self._schema, where=self._where)
        if not found.deterministic:
            raise self._error(f"{found.text} gives a new value in each evaluation", "take the value from the data")
        if found.type.text not in _STORED:
            raise self._error(f"{found.text} is {found.type}, which a row pattern does not keep", "cast it to double")
        function = _TO_NUMBER.get(found.type)
        stored = f"{function}({found.text})" if function else found.text
        if stored not in self.texts:
            self.texts.append(stored)
            self.types.append(_number_type(found.type))
        return self.texts.index(stored)

    # ------------------------------------------------------------ conditions

    def condition(self, variable: str, text: str) -> Condition:
        """Return the condition of a variable, with the numbers of its values."""
        return self._condition(self._own(self._parsed(text), variable))

    def _own(self, node: SyntaxNode, variable: str) -> SyntaxNode:
        """Write this row's columns without the variable: in B's condition ``B.v`` and ``LAST(B.v)`` are ``v``."""

        def change(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            match node:
                case Call("last", (argument,)) if self._owners(argument) <= {"", variable}:
                    return mapped(argument, change, bound)
                case Call("first", (argument,)):
                    return node  # FIRST(B.v) and FIRST(v) are other rows
                case Name((first, *rest)) if rest and first.lower() == variable and first.lower() not in bound:
                    return Name(tuple(rest))
            return None

        return mapped(node, change)

    def _condition(self, node: SyntaxNode) -> Condition:
        if not self._navigates(node):
            return ["true", self.value(check_condition(canonical(node), self._schema, where=self._where).text)]
        match node:
            case Binary("AND" | "OR" as operator, left, right):
                return [operator.lower(), self._condition(left), self._condition(right)]
            case Unary("NOT", operand):
                return ["not", self._condition(operand)]
            case Binary(operator, left, right) if operator in COMPARISONS:
                return self._comparison(operator, left, right)
            case PredicateCall("IS NULL", negated, subject):
                row, variable, inner = self._side(subject)
                found = ["null", [row, variable, self.value(canonical(inner))]]
                return ["not", found] if negated else found
            case PredicateCall("BETWEEN", negated, subject, (low, high)):
                found = self._condition(Binary("AND", Binary(">=", subject, low), Binary("<=", subject, high)))
                return ["not", found] if negated else found
        raise self._error(
            f"{canonical(node)} is no comparison of two rows",
            "compare values: v > PREV(v), v < FIRST(a.v) / 2; and combine comparisons with AND, OR and NOT",
        )

    def _comparison(self, operator: str, left: SyntaxNode, right: SyntaxNode) -> Condition:
        sides = [self._side(left), self._side(right)]
        plain = [inner for _, _, inner in sides]
        check_condition(canonical(Binary(operator, plain[0], plain[1])), self._schema, where=self._where)
        types = [check(canonical(inner), self._schema, where=self._where).type for inner in plain]
        common = common_type(*types)
        if common is None:
            raise self._error(f"{' and '.join(map(canonical, plain))} have no common type", "cast one side")
        cast = [inner if t == common else Cast(inner, common, False) for inner, t in zip(plain, types, strict=True)]
        numbers = [self.value(canonical(node)) for node in cast]
        return [operator, *([row, var, n] for (row, var, _), n in zip(sides, numbers, strict=True))]

    def _side(self, node: SyntaxNode) -> tuple[str, str, SyntaxNode]:
        """Return the row that an expression reads, its variable, and the expression over that row's columns."""
        rows: set[tuple[str, str]] = set()

        def change(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            match node:
                case Call(("prev" | "first" | "last") as row, (argument,)):
                    owner = self._owner(argument)
                    if row == "prev" and owner:
                        raise self._error(
                            f"{canonical(node)} is before a row of another variable", "only PREV of this row is kept"
                        )
                    rows.add((row, owner))
                    return self._bare(argument)
                case Call("prev" | "next" | "first" | "last"):
                    hint = "a row is taken before later ones are known" if node.name == "next" else "leave out offsets"
                    raise self._error(f"{canonical(node)} is not supported in a condition", f"{hint}: PREV(v)")
                case Name((first, *rest)) if first.lower() in self._variables and first.lower() not in bound:
                    rows.add(("last", first.lower()))
                    return Name(tuple(rest))
                case Name((first, *_)) if first.lower() not in bound:
                    rows.add(("this", ""))
            return None

        inner = mapped(node, change)
        if len(rows) > 1:
            raise self._error(
                f"{canonical(node)} computes with values of two rows",
                "keep each row on its own side of the comparison: v > PREV(v) + 5",
            )
        return (*(rows.pop() if rows else ("this", "")), inner)

    def _navigates(self, node: SyntaxNode) -> bool:
        found = False

        def see(node: SyntaxNode, bound: frozenset[str]) -> None:
            nonlocal found
            match node:
                case Call("prev" | "next" | "first" | "last"):
                    found = True
                case Call() if is_aggregate(node):
                    raise self._error(
                        f"{canonical(node)} in a condition",
                        "compare with FIRST(a.v), LAST(a.v) or PREV(v); aggregates are for measures",
                    )
                case Name((first, *rest)) if rest and first.lower() in self._variables - bound:
                    found = True

        mapped(node, see)
        return found

    # ------------------------------------------------------------ measures

    def measure(self, text: str, result: str) -> str:
        """Return the expression of a measure over the aggregates in the struct ``result``: ``g0``, ``g1``, ..."""

        def take(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            if isinstance(node, Call) and is_aggregate(node):
                return self._aggregated(node, result)
            if isinstance(node, Name) and node.parts[0].lower() not in bound:
                return self._aggregated(Call("last", (node,)), result)
            return None

        return canonical(mapped(self._parsed(text), take))

    def _aggregated(self, node: Call, result: str) -> SyntaxNode:
        function = SAME_FUNCTION.get(node.name, node.name)
        plain = node.filter is None and not node.distinct and not node.ignore_nulls and len(node.arguments) == 1
        if function not in _FUNCTIONS or not plain:
            raise self._error(
                f"{canonical(node)} is not supported in a measure",
                f"use {', '.join(_FUNCTIONS)} of one expression, and arithmetic on them",
            )
        (argument,) = node.arguments
        if isinstance(argument, Star):
            owner = argument.parts[0].lower() if argument.parts else ""
            if owner and owner not in self._variables:
                raise self._error(f"no variable '{owner}' in the pattern", f"it has {', '.join(self._variables)}")
            wanted = Measure("count", owner, None, row_aggregate_type("count", BOOLEAN, _OVER, self._where))
        else:
            owner, inner = self._owner(argument), canonical(self._bare(argument))
            type_ = check(inner, self._schema, where=self._where).type
            result_type = row_aggregate_type(function, type_, _OVER, self._where)
            wanted = Measure(function, owner, self.value(inner), result_type)
        if wanted not in self.measures:
            self.measures.append(wanted)
        found = Name((result, f"g{self.measures.index(wanted)}"))
        back = _FROM_NUMBER.get(wanted.type)
        return Call(back, (found,)) if back else found

    # ------------------------------------------------------------ variables of names

    def _owner(self, node: SyntaxNode) -> str:
        """Return the variable whose rows an argument reads; "" for all rows."""
        owners = self._owners(node)
        if len(owners) > 1:
            raise self._error(
                f"{canonical(node)} reads rows of several variables", "name one variable in each argument"
            )
        return owners.pop() if owners else ""

    def _owners(self, node: SyntaxNode) -> set[str]:
        owners: set[str] = set()

        def see(node: SyntaxNode, bound: frozenset[str]) -> None:
            match node:
                case Call("prev" | "next" | "first" | "last"):
                    raise self._error(f"{canonical(node)} inside of another row's expression", "take one row at a time")
                case Name((first, *rest)) if first.lower() not in bound:
                    owners.add(first.lower() if rest and first.lower() in self._variables else "")

        mapped(node, see)
        return owners

    def _bare(self, node: SyntaxNode) -> SyntaxNode:
        """Return an expression with its columns' names alone, without the variable."""

        def change(node: SyntaxNode, bound: frozenset[str]) -> SyntaxNode | None:
            match node:
                case Name((first, *rest)) if rest and first.lower() in self._variables - bound:
                    return Name(tuple(rest))
            return None

        return mapped(node, change)

    def _parsed(self, text: str) -> SyntaxNode:
        try:
            return parse(text)
        except DataflowError as error:
            raise DataflowError(error.what, where=self._where, hint=error.hint) from error

    def _error(self, what: str, hint: str) -> DataflowError:
        return DataflowError(what, where=self._where, hint=hint)


def _number_type(found: DataType) -> DataType:
    """Return the type of a value as the automaton keeps it: times are numbers, so that state is JSON."""
    if found == TIMESTAMP:
        return DataType.parse("bigint")
    return DataType.parse("int") if found == DATE else found
