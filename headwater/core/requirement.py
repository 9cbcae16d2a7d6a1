"""Capabilities of a host, and requirements of an operator on them.

A requirement is a conjunction of comparisons, as in section III of the FlowUnits
paper: ``gpu = true and n_cpu >= 4 and memory >= 16GiB``.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from headwater.core.errors import DataflowError
from headwater.core.jsonform import custom_schema
from headwater.core.quantity import MOST_BYTES, QuantityError, format_size, parse_size

Value = bool | int | float | str
"""A capability or a literal. Sizes are whole numbers of bytes."""

ATTRIBUTE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Pattern of an attribute name."""

_COMPARE: Mapping[str, Callable[[Value, Value], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_BARE = r"[A-Za-z0-9_][A-Za-z0-9_.:/+-]*"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<joint>,|&&)
    | (?P<operator>==|!=|<=|>=|=|<|>)
    | (?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')
    | (?P<size>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(?:[kKmMgGtTpP][iI]?[bB]|B))(?![A-Za-z0-9_.:/+-])
    | (?P<number>{_NUMBER})(?![A-Za-z0-9_.:/+-])
    | (?P<bare>{_BARE})
    )""",
    re.VERBOSE,
)
_EXAMPLE = "write requirements like: gpu = true and n_cpu >= 4 and memory >= 16GiB"
MOST_CORES = 65_536
"""Highest ``n_cpu`` of a host."""
_SIZE_FORM = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?\s*(?:[kKMGTP]i?)?B")
# Doubles hold whole numbers up to here exactly.
_EXACT_FLOAT = 2**53


def capability(value: object) -> Value:
    """Return `value` as a capability: text in the form of a size becomes bytes, 4.0 becomes 4.

    Quoted or not, `16GiB` is a size, so that a file and its JSON form mean the
    same. Raises TypeError for a value that is no capability (a list, null, NaN).
    """
    if isinstance(value, str):
        size = _size(value)
        return value if size is None else size
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is not a capability")
        return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT else value
    if isinstance(value, bool | int):
        return value
    raise TypeError(f"a capability cannot be of type {type(value).__name__}")


def offered(name: str, value: object) -> Value:
    """Return a capability of a host; raise QuantityError where the number makes no sense.

    `n_cpu` is above 0, `memory` at least a byte, and every number fits into 64 bits.
    """
    found = capability(value)
    number = None if isinstance(found, bool | str) else found
    if name == "n_cpu" and (number is None or not 0 < number <= MOST_CORES):
        raise QuantityError("not a number of cores", hint=f"write a number above 0, at most {MOST_CORES}")
    if name == "memory" and (number is None or not 1 <= number <= MOST_BYTES):
        raise QuantityError("not a size of memory", hint="write a size such as 16GiB, at most 8191PiB")
    if number is not None and abs(number) > MOST_BYTES:
        raise QuantityError("beyond 64 bits", hint=f"write a number from -{MOST_BYTES} to {MOST_BYTES}")
    if isinstance(found, str) and _SIZE_FORM.fullmatch(found):
        raise QuantityError("not a size", hint="write a size such as 16GiB, at most 8191PiB; or another text")
    return found


class Capabilities(Mapping[str, Value]):
    """Capabilities of a host: an immutable, hashable mapping of attributes to values.

    Unlike in a dict, `true` and `1` are different values. `offered` checks them.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values = {name: capability(value) for name, value in (values or {}).items()}

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Capabilities) and self._typed() == other._typed()

    def __hash__(self) -> int:
        return hash(self._typed())

    def __repr__(self) -> str:
        return f"Capabilities({self._values!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, cls, dict)

    def _typed(self) -> frozenset[tuple[str, bool, Value]]:
        return frozenset((name, isinstance(value, bool), value) for name, value in self._values.items())


@dataclass(frozen=True)
class Predicate:
    """One comparison of an attribute with a literal. `size` literals are shown as 16GiB."""

    attribute: str
    operator: str
    # Compared through the text, because Python holds True == 1.
    value: Value = field(compare=False)
    size: bool = field(default=False, compare=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        size = self.size
        if isinstance(self.value, str) and _size(self.value) is not None:
            size = True
        value = capability(self.value)
        if not ATTRIBUTE.fullmatch(self.attribute) or self.attribute.lower() in ("and", "or"):
            raise DataflowError(f"{self.attribute!r} is not an attribute name", hint=_EXAMPLE)
        if self.operator not in _COMPARE:
            raise DataflowError(f"unknown operator {self.operator!r}", hint="use one of = != < <= > >=")
        shown = _literal(value, size=size)
        if self.operator not in ("=", "!=") and _kind(value) != "number":
            raise DataflowError(
                f"{self.attribute} {self.operator} {shown}: {self.operator} needs a number or a size, "
                f"{shown} is a {_kind(value)}",
                hint="sizes are written 16GiB or 16GB; compare booleans and texts with = or !=",
            )
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "text", f"{self.attribute} {self.operator} {shown}")

    def unmet(self, capabilities: Mapping[str, Value]) -> str | None:
        """Return why the capabilities do not satisfy this predicate, or None if they do.

        A missing attribute satisfies nothing, `!=` included: an attribute
        that is not declared is unknown, not different.
        """
        if self.attribute not in capabilities:
            return f"{self.text}: host has no attribute {self.attribute}"
        offered = capabilities[self.attribute]
        shown = _literal(offered, size=self.size)
        if _kind(offered) != _kind(self.value):
            return f"{self.text}: host has {shown}, a {_kind(offered)}, not a {_kind(self.value)}"
        return None if _COMPARE[self.operator](offered, self.value) else f"{self.text}: host has {shown}"


@dataclass(frozen=True)
class Requirement:
    """A conjunction of predicates, without duplicates and in canonical order.

    The empty requirement holds everywhere. `text` is the JSON form: parsing it
    gives an equal requirement.
    """

    predicates: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        unique = {predicate.text: predicate for predicate in self.predicates}
        object.__setattr__(self, "predicates", tuple(unique[text] for text in sorted(unique)))

    @classmethod
    def parse(cls, text: str, *, where: str | None = None) -> Requirement:
        """Read predicates joined by `and`, `,` or `&&`; raise DataflowError at `where`.

        >>> Requirement.parse("n_cpu>=4, gpu = yes").text
        'gpu = true and n_cpu >= 4'
        """
        try:
            return cls(tuple(_predicates(text)))
        except DataflowError as error:
            shown = text if len(text) <= 200 else text[:197] + "..."
            raise DataflowError(
                f"requirement {shown!r}: {error.what}", where=where, hint=error.hint or _EXAMPLE
            ) from None

    @property
    def text(self) -> str:
        """Return the canonical text."""
        return " and ".join(predicate.text for predicate in self.predicates)

    def unmet(self, capabilities: Mapping[str, Value]) -> tuple[str, ...]:
        """Return one reason for each predicate that the capabilities do not satisfy."""
        reasons = (predicate.unmet(capabilities) for predicate in self.predicates)
        return tuple(reason for reason in reasons if reason is not None)

    def holds(self, capabilities: Mapping[str, Value]) -> bool:
        """Return whether the capabilities satisfy every predicate."""
        return not self.unmet(capabilities)

    def __and__(self, other: Requirement) -> Requirement:
        return Requirement(self.predicates + other.predicates)

    def __bool__(self) -> bool:
        return bool(self.predicates)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def all_of(cls, requirements: Iterable[Requirement]) -> Requirement:
        """Return the requirement that holds where all of `requirements` hold."""
        return functools.reduce(operator.and_, requirements, cls())


def _predicates(text: str) -> Iterator[Predicate]:
    tokens = _tokens(text)
    position = 0
    while position < len(tokens):
        if position:
            kind, shown = tokens[position]
            if kind == "bare" and shown.lower() == "or":
                raise DataflowError("`or` is not supported", hint="all predicates of a requirement must hold")
            if kind != "joint":
                raise DataflowError(f"expected `and` before {shown!r}", hint=_EXAMPLE)
            position += 1
        if position >= len(tokens) or tokens[position][0] != "bare":
            raise DataflowError(f"expected an attribute {_place(tokens, position)}")
        attribute = tokens[position][1]
        if position + 1 >= len(tokens) or tokens[position + 1][0] != "operator":
            raise DataflowError(
                f"expected one of = != < <= > >= after {attribute!r}",
                hint=f"for a boolean write {attribute} = true",
            )
        if position + 2 >= len(tokens) or tokens[position + 2][0] in ("joint", "operator"):
            raise DataflowError(f"expected a value {_place(tokens, position + 2)}")
        sign = tokens[position + 1][1]
        value, size = _value(*tokens[position + 2])
        yield Predicate(attribute, "=" if sign == "==" else sign, value, size=size)
        position += 3


def _place(tokens: list[tuple[str, str]], position: int) -> str:
    return f"instead of {tokens[position][1]!r}" if position < len(tokens) else "at the end"


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position, end)
        if found is None or found.lastgroup is None:
            raise DataflowError(f"cannot read {text[position:].strip()[:20]!r}", hint=_EXAMPLE)
        kind, token = found.lastgroup, found[found.lastgroup]
        # Only a bare `and` joins; after an operator it would be a missing value.
        tokens.append(("joint", token) if kind == "bare" and token.lower() == "and" else (kind, token))
        position = found.end()
    return tokens


def _value(kind: str, token: str) -> tuple[Value, bool]:
    try:
        if kind == "size":
            return parse_size(token), True
        if kind == "number":
            number = float(token) if re.search(r"[.eE]", token) else int(token)
            return capability(number), False
        if kind == "quoted":
            return (json.loads(token, strict=False) if token[0] == '"' else token[1:-1]), False
    except QuantityError as error:
        raise DataflowError(error.what, hint=error.hint) from None
    except (ValueError, TypeError):
        shown = token if len(token) <= 40 else token[:37] + "..."
        raise DataflowError(f"cannot read the value {shown}") from None
    return _WORDS.get(token.lower(), token), False


def _size(text: str) -> int | None:
    try:
        return parse_size(text)
    except QuantityError:
        return None


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "truth value"
    return "text" if isinstance(value, str) else "number"


def _literal(value: Value, *, size: bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        token = _TOKEN.fullmatch(value)
        plain = token is not None and token.lastgroup == "bare" and token["bare"] == value
        reserved = value.lower() in _WORDS or value.lower() in ("and", "or")
        return value if plain and not reserved else json.dumps(value, ensure_ascii=False)
    if size and isinstance(value, int) and 0 <= value <= MOST_BYTES:
        return format_size(value, exact=True)
    return repr(value)
