"""Types and schemas, without Spark.

The spelling is Spark's own: ``DataType.text`` equals ``DataType.simpleString``, and ``StructType.fromDDL`` reads
``Schema.text``. There is no nullability: every column may be NULL, as in any stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from headwater.core.errors import DataflowError
from headwater.core.jsonform import custom_schema
from headwater.core.rules import MOST_ITEMS
from headwater.core.text import cut, shown
from headwater.sql.lexer import Token, TokenReader, quote_name, tokens

MAX_TYPE_DEPTH = 40

_SPELLINGS = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "bool": "boolean", "timestamp_ltz": "timestamp", "null": "void", "dec": "decimal", "numeric": "decimal",
}  # fmt: skip
_ATOM_NAMES = "tinyint smallint int bigint float double string boolean binary date timestamp timestamp_ntz void"
_ATOMS = frozenset(_ATOM_NAMES.split())
_INTERVAL_FIELDS = ("year", "month", "day", "hour", "minute", "second")


@dataclass(frozen=True)
class DataType:
    """A Spark SQL type. Create one with :meth:`parse` or with a subclass."""

    @property
    def text(self) -> str:
        """Return Spark's spelling, for example ``array<struct<a:int,b:string>>``."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text

    @property
    def storable(self) -> bool:
        """Return whether a column may have this type (void and intervals only occur inside expressions)."""
        return True

    @staticmethod
    def parse(text: str) -> DataType:
        """Read a type in any spelling that Spark's DDL accepts."""
        reader = TypeReader(tokens(text), text=text)
        found = reader.data_type()
        reader.expect_end()
        return found


@dataclass(frozen=True)
class AtomicType(DataType):
    """A type without parts, by its Spark name."""

    name: str

    @property
    def text(self) -> str:
        return self.name

    @property
    def storable(self) -> bool:
        return self.name != "void"


@dataclass(frozen=True)
class DecimalType(DataType):
    """A number of ``precision`` digits, ``scale`` of them after the point."""

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
            raise DataflowError(
                f"decimal({self.precision},{self.scale}) is not a type",
                hint="the precision is 1 to 38, the scale 0 to the precision",
            )

    @property
    def text(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class IntervalType(DataType):
    """The type of an interval: inside expressions only, never of a column."""

    start: str
    end: str

    @property
    def text(self) -> str:
        return f"interval {self.start}" + (f" to {self.end}" if self.end != self.start else "")

    @property
    def storable(self) -> bool:
        return False

    @property
    def of_months(self) -> bool:
        """Return whether it counts months rather than microseconds."""
        return self.start in ("year", "month")


@dataclass(frozen=True)
class ArrayType(DataType):
    """A list of elements of one type."""

    element: DataType

    @property
    def text(self) -> str:
        return f"array<{self.element.text}>"

    @property
    def storable(self) -> bool:
        return self.element.storable


@dataclass(frozen=True)
class MapType(DataType):
    """Keys of one type to values of one type."""

    key: DataType
    value: DataType

    @property
    def text(self) -> str:
        return f"map<{self.key.text},{self.value.text}>"

    @property
    def storable(self) -> bool:
        return self.key.storable and self.value.storable


@dataclass(frozen=True)
class StructType(DataType):
    """Named fields in order."""

    fields: tuple[Column, ...]

    @property
    def text(self) -> str:
        return f"struct<{','.join(f'{quote_name(f.name, after_dot=True)}:{f.type.text}' for f in self.fields)}>"

    @property
    def storable(self) -> bool:
        return all(f.type.storable for f in self.fields)

    def field(self, name: str) -> Column | None:
        """Return a field by name, ignoring case; None if there is none."""
        return next((f for f in self.fields if f.name.lower() == name.lower()), None)


def has_part(found: DataType, wanted: Callable[[DataType], bool]) -> bool:
    """Return whether a type, or a type inside of it, is a wanted one."""
    if wanted(found):
        return True
    match found:
        case ArrayType(element):
            return has_part(element, wanted)
        case MapType(key, value):
            return has_part(key, wanted) or has_part(value, wanted)
        case StructType(fields):
            return any(has_part(f.type, wanted) for f in fields)
    return False


@dataclass(frozen=True)
class Column:
    """A name and its type: a column of a schema or a field of a struct."""

    name: str
    type: DataType

    @property
    def text(self) -> str:
        return f"{quote_name(self.name)} {self.type.text}"


TINYINT, SMALLINT, INT, BIGINT = (AtomicType(n) for n in ("tinyint", "smallint", "int", "bigint"))
FLOAT, DOUBLE, STRING, BOOLEAN = (AtomicType(n) for n in ("float", "double", "string", "boolean"))
BINARY, DATE, VOID = (AtomicType(n) for n in ("binary", "date", "void"))
TIMESTAMP, TIMESTAMP_NTZ = AtomicType("timestamp"), AtomicType("timestamp_ntz")


@dataclass(frozen=True)
class Schema:
    """Ordered, named, typed columns; names are unique ignoring case, as in Spark.

    Names that begin with ``__`` are reserved; ``internal=True`` allows them for Headwater's own code.
    """

    columns: tuple[Column, ...]
    internal: bool = field(default=False, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        if len(self.columns) > MOST_ITEMS:
            raise DataflowError(
                f"{len(self.columns)} columns", hint=f"keep at most {MOST_ITEMS}, or use arrays and maps"
            )
        for column in self.columns:
            name = column.name
            if not name.strip():
                raise DataflowError("a column has an empty name", hint="give every column a name")
            if name.startswith("__") and not self.internal:
                raise DataflowError(
                    f"column name {name!r} is reserved: names beginning with '__' belong to Headwater",
                    hint=f"call it {name.lstrip('_') or 'value'!r}",
                )
            if name.lower() in seen:
                raise DataflowError(
                    f"two columns are called {seen[name.lower()]!r} and {name!r}; case makes no difference",
                    hint="rename or drop one of them",
                )
            if not column.type.storable:
                raise DataflowError(
                    f"column {name!r} has type {column.type}, which is not allowed for a column",
                    hint="cast it, for example CAST(... AS string)",
                )
            seen[name.lower()] = name

    @classmethod
    def parse(cls, text: str, *, internal: bool = False) -> Schema:
        """Read ``"id bigint, ts timestamp, w struct<start: timestamp, end: timestamp>"``."""
        return cls(_columns_of(text), internal=internal)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, lambda text: cls.parse(str(text)), lambda schema: schema.text)

    @property
    def text(self) -> str:
        """Return the schema as DDL that Spark's ``StructType.fromDDL`` reads."""
        return ", ".join(c.text for c in self.columns)

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in order."""
        return tuple(c.name for c in self.columns)

    @property
    def struct(self) -> StructType:
        """Return the type of a whole row."""
        return StructType(self.columns)

    def find(self, name: str) -> Column | None:
        """Return a column by name, ignoring case; None if there is none."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)

    def column(self, name: str) -> Column:
        """Return a column by name, ignoring case, or raise an error that lists all columns."""
        found = self.find(name)
        if found is None:
            raise DataflowError(f"there is no column {shown(name)}", hint=suggest(name, self.names))
        return found


def suggest(name: str, names: tuple[str, ...], *, kind: str = "columns") -> str:
    """Return a hint with similar names and all names."""
    by_lower = {n.lower(): n for n in names}
    close = [by_lower[n] for n in get_close_matches(name.lower()[:200], by_lower, n=3, cutoff=0.6)]
    first = cut(", ".join(names[:30]), 600) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    listed = f"the {kind} are {first}" if names else f"there are no {kind}"
    return f"did you mean {cut(' or '.join(close), 200)}? {listed}" if close else listed


@lru_cache(1024)
def _columns_of(text: str) -> tuple[Column, ...]:
    reader = TypeReader(tokens(text), text=text)
    columns = reader.columns(close="")
    reader.expect_end()
    return columns


class TypeReader(TokenReader):
    """Reads types; also used by the expression parser for CAST."""

    hint = 'write types as in Spark, for example "id bigint, readings array<double>"'

    def __init__(self, found: tuple[Token, ...], *, text: str, position: int = 0) -> None:
        super().__init__(found, text=text, position=position)
        self._depth = 0

    def data_type(self) -> DataType:
        """Read one type."""
        self._depth += 1
        if self._depth > MAX_TYPE_DEPTH:
            raise DataflowError(f"the type is nested more than {MAX_TYPE_DEPTH} deep", hint="flatten it")
        try:
            return self._data_type()
        finally:
            self._depth -= 1

    def _data_type(self) -> DataType:
        token = self._next()
        if token.kind != "word":
            raise self._unexpected(token, "a type")
        name = token.text.lower()
        name = _SPELLINGS.get(name, name)
        if name == "array":
            self._expect("<")
            element = self.data_type()
            self._expect(">")
            return ArrayType(element)
        if name == "map":
            self._expect("<")
            key = self.data_type()
            self._expect(",")
            value = self.data_type()
            self._expect(">")
            return MapType(key, value)
        if name == "struct":
            if self._take("<>"):
                return StructType(())
            self._expect("<")
            fields = self.columns(close=">")
            self._expect(">")
            return StructType(fields)
        if name == "decimal":
            return self._decimal()
        if name == "interval":
            return self._interval()
        if name in _ATOMS:
            return AtomicType(name)
        known = (*sorted(_ATOMS - {"void"}), "decimal(p,s)", "array<T>", "map<K,V>", "struct<name:T>")
        raise DataflowError(f"{cut(token.text, 200)!r} is not a type", hint=suggest(name, known, kind="types"))

    def columns(self, *, close: str) -> tuple[Column, ...]:
        """Read ``name type`` or ``name: type`` pairs up to ``close`` (or the end)."""
        found: list[Column] = []
        if self._peek().text == close and self._peek().kind in ("symbol", "end"):
            return ()
        while True:
            token = self._next()
            if token.kind not in ("word", "quoted"):
                raise self._unexpected(token, "a column name")
            self._take(":")
            found.append(Column(token.text, self.data_type()))
            if self._peek().upper == "NOT":
                self.position += 1
                if self._next().upper != "NULL":
                    raise self._unexpected(self._tokens[self.position - 1], "NULL")
            if self._peek().upper == "COMMENT":
                self.position += 2
            if not self._take(","):
                return tuple(found)

    def _decimal(self) -> DataType:
        if not self._take("("):
            return DecimalType()
        precision, scale = self._integer(), 0
        if self._take(","):
            scale = self._integer()
        self._expect(")")
        return DecimalType(precision, scale)

    def _interval(self) -> DataType:
        start = self._next().text.lower()
        end = start
        if self._peek().upper == "TO":
            self.position += 1
            end = self._next().text.lower()
        if start not in _INTERVAL_FIELDS or end not in _INTERVAL_FIELDS:
            raise DataflowError("the interval type is incomplete: write 'interval day to second'")
        return IntervalType(start, end)

    def _integer(self) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 4:
            raise self._unexpected(token, "a number of digits")
        return int(token.text)

    def expect_end(self) -> None:
        """Refuse remaining text."""
        if self._peek().kind != "end":
            raise self._unexpected(self._peek(), "the end")
