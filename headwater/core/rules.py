"""Rules for values from outside: which ones are accepted, and the words for the others.

A signature or a dataclass states the rule of a value in its annotation: ``Annotated[int, Whole(1, 100)]``. Annotations
without one have the rule of their type (:func:`rule_of`), so every argument and every setting is checked.
"""

from __future__ import annotations

import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from headwater.core.errors import HeadwaterError
from headwater.core.quantity import (
    MOST_SECONDS,
    QuantityError,
    format_duration,
    format_size,
    parse_duration,
    parse_interval,
    parse_size,
)
from headwater.core.text import cut, shown_value

MICROSECOND = 1e-6
"""Spark's times are whole microseconds: shorter spans are no time at all."""
MILLISECOND = 1e-3
MOST_TEXT = 65_536
"""Characters of a text: those of the longest SQL expression that is read."""
MOST_LINE = 4_096
"""Characters of a name, path or address: those of the longest path of Linux."""
MOST_ITEMS = 5_000
"""Items of a list, such as columns: Spark's planner takes minutes for wider rows."""
_MOST_64_BITS = 2**63 - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FEW = 3  # values that are listed one by one


class Refused(HeadwaterError):
    """A value that its rule does not accept; the caller adds the place."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The values that are accepted in one place."""

    def check(self, value: Any, name: str) -> Any:
        """Return the value, in the form that code may rely on; raise Refused. ``name`` is the value's in messages."""
        return value

    def takes(self, value: Any) -> bool:
        """Return whether a value is accepted."""
        try:
            self.check(value, "value")
        except Refused:
            return False
        return True


@dataclass(frozen=True)
class Whole(Rule):
    """Whole numbers from ``least`` to ``most``; True is none."""

    least: int = -_MOST_64_BITS - 1
    most: int = _MOST_64_BITS

    def check(self, value: Any, name: str) -> int:
        try:
            # numpy's whole numbers are no int, and become one.
            found = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            found = None
        if found is None or not self.least <= found <= self.most:
            raise Refused(f"{name} is {shown_value(value)}", hint=self._hint)
        return found

    @property
    def _hint(self) -> str:
        if self.most - self.least < _FEW:
            *rest, last = map(str, range(self.least, self.most + 1))
            return f"use {', '.join(rest)} or {last}" if rest else f"use {last}"
        return f"give a whole number of at least {self.least} and at most {self.most}"


@dataclass(frozen=True)
class Number(Rule):
    """Finite numbers from ``least`` to ``most``; True is none."""

    least: float = -math.inf
    most: float = math.inf

    def check(self, value: Any, name: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                finite = math.isfinite(value)  # an int may be no float at all
            except OverflowError:
                finite = False
            if finite and self.least <= value <= self.most:
                return value
        low = f" of at least {self.least:.15g}" if math.isfinite(self.least) else ""
        high = f" of at most {self.most:.15g}" if math.isfinite(self.most) else ""
        both = f"{low} and{high.removeprefix(' of')}" if low and high else low or high
        raise Refused(f"{name} is {shown_value(value)}", hint=f"give a finite number{both}")


@dataclass(frozen=True)
class Text(Rule):
    """Texts of at most ``most`` characters that can be stored as UTF-8. ``example``: a call with one, for the hint."""

    most: int = MOST_TEXT
    example: str | None = None

    def check(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            wanted = f"write SQL as text: {self.example}" if self.example else "write it as text, in quotes"
            raise Refused(f"{name} is {a_type(value)} where text is wanted", hint=wanted)
        if len(value) > self.most:
            raise Refused(f"{name} has {len(value)} characters", hint=f"write at most {self.most}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused(
                    f"{name} has half a character: {shown_value(value)}", hint="write text that is valid UTF-8"
                ) from None
        return value


@dataclass(frozen=True)
class OneLine(Text):
    """Names, paths and addresses: texts without control characters that are not blank."""

    most: int = MOST_LINE

    def check(self, value: Any, name: str) -> str:
        found = super().check(value, name)
        if not found.strip():
            raise Refused(f"{name} is empty", hint="write at least one letter, or leave the argument out")
        # Line ends and escapes of terminals would change every message, plan and log that shows the name.
        if control := _CONTROL.search(found):
            raise Refused(
                f"{name} has a control character at position {control.start()}: {shown_value(found)}",
                hint="write it without line ends, tabs and escapes",
            )
        return found


@dataclass(frozen=True)
class FileName(OneLine):
    """Names that become names of files."""

    most: int = 100

    def check(self, value: Any, name: str) -> str:
        if isinstance(value, str) and not _NAME.match(value):
            raise Refused(
                f"{name} {shown_value(value)} cannot be used",
                hint="use letters, digits, '_', '-' and '.', at most 100 of them (it becomes a file name)",
            )
        return super().check(value, name)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")


@dataclass(frozen=True)
class Span(Rule):
    """Durations as text, of ``least`` to ``most`` seconds; those below ``unit`` are only accepted if they are zero."""

    least: float = MICROSECOND
    most: float = MOST_SECONDS
    unit: float = MICROSECOND

    def seconds(self, value: Any, name: str) -> float:
        """Return a duration in seconds; raise Refused."""
        try:
            found = parse_duration(value)
        except (QuantityError, TypeError) as error:
            raise Refused(f"{name} is not a duration: {shown_value(value)}", hint=_hint_of(error)) from error
        if found < self.least or 0 < found < self.unit:
            zero = ", or '0 seconds'" if self.least < self.unit else ""
            least = format_duration(max(self.least, self.unit)).replace("1us", "a microsecond")
            raise Refused(
                f"{name} is too short: {shown_value(value)}",
                hint=f"write it as '5 minutes': at least {least}{zero}",
            )
        if found > self.most:
            raise Refused(
                f"{name} is too long: {shown_value(value)}", hint=f"write at most {format_duration(self.most)}"
            )
        return found

    def check(self, value: Any, name: str) -> str:
        self.seconds(value, name)
        return str(value)


@dataclass(frozen=True)
class Size(Rule):
    """Sizes as text, of at least ``least`` bytes."""

    least: int = 0

    def check(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise Refused(f"{name} is {a_type(value)}", hint="write it as text: '16GiB'")
        try:
            found = parse_size(value)
        except QuantityError as error:
            raise Refused(f"{name}: {error.what}", hint=error.hint) from error
        if found < self.least:
            raise Refused(
                f"{name} is too small: {shown_value(value)}", hint=f"write at least {format_size(self.least)}"
            )
        return str(value)


@dataclass(frozen=True)
class Interval(Rule):
    """Intervals of Spark SQL as text, in either direction."""

    def check(self, value: Any, name: str) -> str:
        text = Text().check(value, name)
        try:
            _, seconds = parse_interval(text)
        except QuantityError as error:
            raise Refused(f"{name}: {error.what}", hint=error.hint) from error
        if 0 < abs(seconds) < MICROSECOND:
            raise Refused(f"{name} is too short: {shown_value(value)}", hint="write at least a microsecond, or 0")
        return text


@dataclass(frozen=True)
class OneOf(Rule):
    """One of a few values."""

    of: tuple[Any, ...]

    def check(self, value: Any, name: str) -> Any:
        for one in self.of:
            if type(value) is type(one) and value == one:
                return value
        *rest, last = map(repr, self.of)
        raise Refused(f"{name} is {shown_value(value)}", hint=f"use {', '.join(rest)} or {last}" if rest else last)


@dataclass(frozen=True)
class Kind(Rule):
    """Values of a class."""

    of: type

    def check(self, value: Any, name: str) -> Any:
        if not isinstance(value, self.of):
            hint = "use True or False" if self.of is bool else f"give {_with_article(self.of.__name__)}"
            raise Refused(f"{name} is {shown_value(value)}, {a_type(value)}", hint=hint)
        return value


@dataclass(frozen=True)
class Function(Rule):
    """Functions, and other objects that can be called."""

    def check(self, value: Any, name: str) -> Any:
        if not callable(value):
            raise Refused(f"{name} is {shown_value(value)}, {a_type(value)}", hint="pass a function")
        return value


@dataclass(frozen=True)
class ListOf(Rule):
    """Lists of at most ``most`` values that have one rule; a single text is not taken for its letters."""

    item: Rule
    most: int = MOST_ITEMS
    least: int = 0

    def check(self, value: Any, name: str) -> tuple[Any, ...]:
        if isinstance(value, str):
            raise Refused(f"{name} are a text", hint=f"write {name}=[{cut(json_text(value), 60)}]")
        if not isinstance(value, Iterable):
            raise Refused(f"{name} is {shown_value(value)}, {a_type(value)}", hint="give a list")
        found = tuple(islice(value, self.most + 1))
        if len(found) > self.most:
            raise Refused(f"{name}: more than {self.most} items", hint=f"give at most {self.most}")
        if len(found) < self.least:
            raise Refused(f"{name}: {len(found)} items", hint=f"give {self.least}")
        return tuple(self.item.check(one, f"item {n} of {name}") for n, one in enumerate(found, start=1))


@dataclass(frozen=True)
class AnyOf(Rule):
    """Values that one of several rules accepts."""

    rules: tuple[Rule, ...]

    def check(self, value: Any, name: str) -> Any:
        # A text is text, and a list is a list: the rule for its form has the words for it.
        fitting = [r for r in self.rules if _is_for(r, value)]
        for rule in fitting[:-1]:
            if rule.takes(value):
                return rule.check(value, name)
        if fitting:
            return fitting[-1].check(value, name)
        hints: list[str] = []
        for rule in self.rules:
            try:
                return rule.check(value, name)
            except Refused as error:
                refused = error
                hints += [error.hint] if error.hint and not isinstance(rule, OneOf) else []
        raise Refused(refused.what, hint=", or ".join(dict.fromkeys(hints)) or refused.hint)


@dataclass(frozen=True)
class Each(Rule):
    """Lists of a fixed length, with a rule for each item."""

    rules: tuple[Rule, ...]

    def check(self, value: Any, name: str) -> tuple[Any, ...]:
        count = len(self.rules)
        found = ListOf(Rule(), most=count, least=count).check(value, name)
        return tuple(
            rule.check(one, f"item {n} of {name}")
            for n, (rule, one) in enumerate(zip(self.rules, found, strict=True), 1)
        )


ANYTHING = Rule()
_BY_TYPE: dict[Any, Rule] = {int: Whole(), float: Number(), str: Text(), bool: Kind(bool), type(None): OneOf((None,))}
_LISTS = (tuple, list, Sequence, Iterable)


@cache
def rule_of(annotation: Any) -> Rule:
    """Return the rule of an evaluated annotation: the one in ``Annotated``, or that of the type."""
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    if annotation in (Any, object):
        return ANYTHING
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return next((x for x in arguments[1:] if isinstance(x, Rule)), rule_of(arguments[0]))
    if origin in (Union, types.UnionType):
        # None first: the words for a wrong value are those of the other rules.
        return AnyOf(tuple(rule_of(a) for a in sorted(arguments, key=lambda a: a is not type(None))))
    if origin is Callable:
        return Function()
    if origin is Literal:
        return OneOf(arguments)
    if origin is tuple and Ellipsis not in arguments:
        return Each(tuple(rule_of(a) for a in arguments))
    if origin in _LISTS or origin in (Sequence, Iterable):
        return ListOf(rule_of(arguments[0]))
    return Kind(annotation) if isinstance(annotation, type) else ANYTHING


def a_type(value: Any) -> str:
    """Return the words for a value's type: ``an int``."""
    return "a PySpark Column" if type(value).__name__ == "Column" else _with_article(cut(type(value).__name__, 60))


def json_text(value: str) -> str:
    """Return a text in double quotes."""
    return f'"{value}"'


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _is_for(rule: Rule, value: Any) -> bool:
    match rule:
        case Text() | Span() | Interval():
            return isinstance(value, str)
        case ListOf() | Each():
            return isinstance(value, Iterable) and not isinstance(value, str)
        case Kind(of):
            return isinstance(value, of)
        case OneOf(of):
            return any(type(value) is type(one) for one in of)
        case _:
            return True


def _hint_of(error: Exception) -> str:
    too_large = isinstance(error, QuantityError) and "too large" in error.what
    return (error.hint or "") if too_large and isinstance(error, QuantityError) else "write it as '30 seconds'"
