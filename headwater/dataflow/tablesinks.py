"""Sinks that are tables with a log of their own: Delta, Iceberg, PostgreSQL. Each gets every row exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from headwater.core.errors import DataflowError
from headwater.core.rules import Whole
from headwater.dataflow.jdbcurl import DatabaseAddress, parse_jdbc_url
from headwater.dataflow.partitions import resolved_partitions
from headwater.dataflow.settings import Place
from headwater.dataflow.sinks import Sink
from headwater.dataflow.stateful import ROWS
from headwater.dataflow.types import StreamType
from headwater.sql.lexer import quoted
from headwater.sql.schema import ArrayType, AtomicType, DataType, DecimalType, MapType, Schema, StructType

SmallFiles = Annotated[int, Whole(0, 1_000_000)]
"""The number of small files from which on a table is compacted; 0: never."""

_NOT_IN_DELTA = re.compile(r"[ ,;{}()\n\t=]")
_ARTICLE = {"array": "an", "struct": "a", "map": "a"}
_LONGEST_NAME = 63  # bytes of a name in PostgreSQL


@dataclass(frozen=True, kw_only=True)
class TableSink(Sink):
    """A table whose own log, or a table beside it, records which batches it holds."""


def key_columns(sink: TableSink, names: tuple[str, ...], setting: str, schema: Schema) -> tuple[str, ...]:
    """Return a sink's key columns as the schema spells them; raise DataflowError for others."""
    there = {c.name.lower(): c for c in schema.columns}
    found = []
    for name in names:
        column = there.get(name.lower())
        if column is None:
            raise sink.error(f"{setting} names '{name}', which is no column", f"there are {', '.join(there)}")
        if column.name in found:
            raise sink.error(f"{setting} names '{column.name}' twice", "name it once")
        if isinstance(column.type, ArrayType | StructType | MapType):
            kind = column.type.text.partition("<")[0]
            raise sink.error(
                f"{setting} names '{column.name}', {_ARTICLE[kind]} {kind}", "name a column of a plain type"
            )
        found.append(column.name)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class DeltaSink(TableSink):
    """A Delta table in the directory ``path`` ('{zone}' is replaced).

    A batch is one commit, with its number as an application transaction. Where at least ``compact_after`` files of
    similar size are small, they become larger files in a commit of their own, which changes no row.
    With ``keys``, for results that are output as they change, a later result replaces that of the same keys.
    """

    kind: ClassVar[str] = "write_delta"
    shown: ClassVar[tuple[str, ...]] = ("path", "keys")
    newer: ClassVar[frozenset[str]] = frozenset({"keys"})
    path: Place
    partition_by: tuple[str, ...] = ()
    compact_after: SmallFiles = 32
    keys: tuple[str, ...] | None = None

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.path.rstrip("/")

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        schema = inputs[0].schema
        resolved_partitions(self.partition_by, schema, where=self.where)
        if "://" in self.path and not self.path.lower().startswith("file:"):
            raise self.error(f"'{self.path}' is not a directory", "give a local directory, or one of a shared disk")
        for name in _names(schema):
            if _NOT_IN_DELTA.search(name):
                raise self.error(
                    f"a Delta table takes no column '{name}': spaces and ,;{{}}()= are not allowed",
                    f".select('{quoted(name)} AS {_NOT_IN_DELTA.sub('_', name)}') renames it",
                )
        if self.keys is not None:
            self._check_keys(schema)
        return inputs[0]

    def _check_keys(self, schema: Schema) -> None:
        key_columns(self, self.keys or (), "keys", schema)
        if schema.find(ROWS) is None:
            raise self.error(
                "rows replace each other in a Delta table only as results of a group that change",
                ".write.output_mode('update').delta(path, keys=...), or write.postgres(url, 'table', keys=...)",
            )


@dataclass(frozen=True, kw_only=True)
class IcebergSink(TableSink):
    """An Iceberg table ``namespace.name`` of a SQL catalog; its files are below the directory ``warehouse``.

    ``catalog`` is the catalog's database: ``sqlite:////dir/catalog.db`` or ``postgresql://host/db``. A batch is one
    commit of a snapshot and of the batch's number as a property of the table. ``compact_after``: see DeltaSink.
    """

    kind: ClassVar[str] = "write_iceberg"
    shown: ClassVar[tuple[str, ...]] = ("table",)
    table: Place
    catalog: Place
    warehouse: Place
    catalog_name: Place = "default"
    partition_by: tuple[str, ...] = ()
    compact_after: SmallFiles = 32
    user_env: Place | None = None
    password_env: Place | None = None

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.catalog, self.catalog_name, self.table

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        resolved_partitions(self.partition_by, inputs[0].schema, where=self.where)
        for column in inputs[0].schema.columns:
            if has_structs_in_lists(column.type):
                raise self.error(
                    f"'{column.name}' of type {column.type.text} has structs in an array or a map, and the library for "
                    "Iceberg makes empty ones of those that are NULL",
                    f".explode('{column.name}', 'item') before, or .with_columns({column.name}='to_json(...)')",
                )
        check_iceberg(self.table, self.catalog, self.warehouse, where=self.where)
        return inputs[0]


def has_structs_in_lists(type_: DataType) -> bool:
    """Return whether structs are elements of an array, or keys or values of a map.

    >>> has_structs_in_lists(DataType.parse("struct<a:array<struct<b:int>>>"))
    True
    """
    match type_:
        case StructType(fields):
            return any(has_structs_in_lists(field.type) for field in fields)
        case ArrayType(element):
            return isinstance(element, StructType) or has_structs_in_lists(element)
        case MapType(key, value):
            return any(isinstance(t, StructType) or has_structs_in_lists(t) for t in (key, value))
    return False


def check_iceberg(table: str, catalog: str, warehouse: str, *, where: str) -> DatabaseAddress:
    """Return the database of an Iceberg catalog; raise DataflowError for a table, catalog or warehouse not possible."""
    if not re.fullmatch(r"[^.\s/]+(\.[^.\s/]+)+", table):
        raise DataflowError(f"'{table}' is no name of a table", where=where, hint="write it as 'namespace.table'")
    if "://" in warehouse and not warehouse.lower().startswith("file:"):
        raise DataflowError(
            f"the warehouse '{warehouse}' is not a directory",
            where=where,
            hint="give a local directory, or one of a shared disk",
        )
    kind = catalog.partition(":")[0]
    if kind not in ("sqlite", "postgresql"):
        raise DataflowError(
            f"a catalog behind '{kind[:40]}:' is not supported",
            where=where,
            hint="give the database of a SQL catalog: sqlite:////dir/catalog.db or postgresql://host:5432/database",
        )
    if kind == "postgresql":
        return check_postgres_url(catalog, where=where)
    # SQLAlchemy has one slash more than JDBC in front of an absolute path.
    return parse_jdbc_url(f"jdbc:{catalog.replace('sqlite:///', 'sqlite:', 1)}", where=where)


def check_postgres_url(url: str, *, where: str) -> DatabaseAddress:
    """Return the database of a PostgreSQL URL; raise DataflowError for one that is not accepted.

    >>> check_postgres_url("postgresql://db:5433/plant?sslmode=require", where="x").hosts
    (('db', 5433),)
    """
    found = parse_jdbc_url(f"jdbc:{url.removeprefix('jdbc:')}", where=where)
    if found.kind != "postgresql":
        raise DataflowError(
            f"'{found.kind}' is not PostgreSQL", where=where, hint="write postgresql://host:5432/database"
        )
    if (query := url.partition("?")[2]) and not re.fullmatch(r"sslmode=[a-z-]+", query):
        raise DataflowError(f"the URL has '{query}'", where=where, hint="the only parameter is sslmode=...")
    return found


@dataclass(frozen=True, kw_only=True)
class PostgresSink(TableSink):
    """A table of PostgreSQL, ``[schema.]name``; a batch is one transaction.

    With ``keys`` a row replaces the row of the same keys, unless that one is newer by ``order_by`` (None: by the event
    time, if the table has it); without, rows are added. The table ``headwater_batches`` in the same schema holds the
    numbers of the batches.
    """

    kind: ClassVar[str] = "postgres"
    shown: ClassVar[tuple[str, ...]] = ("table", "keys")
    url: Place
    table: Place
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] | None = None
    user_env: Place | None = None
    password_env: Place | None = None

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.url, self.table

    @property
    def address(self) -> DatabaseAddress:
        """The database; raise DataflowError for a URL that is not accepted."""
        return check_postgres_url(self.url, where=self.where)

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        _ = self.address
        schema = inputs[0].schema
        if len(parts := self.table.split(".")) > 2 or not all(parts):
            raise self.error(f"'{self.table}' is no name of a table", "write it as 'table' or 'schema.table'")
        for name in (*self.table.split("."), *(c.name for c in schema.columns)):
            if len(name.encode()) > _LONGEST_NAME or "\0" in name:
                raise self.error(f"PostgreSQL takes no name '{name}'", f"use at most {_LONGEST_NAME} bytes")
        for column in schema.columns:
            if postgres_type(column.type) is None:
                raise self.error(
                    f"PostgreSQL has no type for '{column.name}' of type {column.type.text}",
                    f".with_columns({column.name}='to_json({column.name})') makes text of it, or select its parts",
                )
        self.columns(self.keys, "keys", schema)
        self.columns(self.order_by or (), "order_by", schema)
        if self.order_by and not self.keys:
            raise self.error("order_by says which row of a key is the newest, and there are no keys", "give keys=")
        return inputs[0]

    def columns(self, names: tuple[str, ...], setting: str, schema: Schema) -> tuple[str, ...]:
        """Return columns as the schema spells them; raise DataflowError for others."""
        return key_columns(self, names, setting, schema)

    def newest_by(self, type_: StreamType) -> tuple[str, ...]:
        """Return the columns that say which row of a key is the newest; none: the one that came last."""
        if self.order_by is not None:
            return self.columns(self.order_by, "order_by", type_.schema)
        time = type_.event_time.column if type_.event_time is not None else None
        kinds = {c.name: c.type.text for c in type_.schema.columns}
        return (time,) if time is not None and kinds.get(time) == "timestamp" else ()


_POSTGRES = {
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "boolean": "boolean",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def postgres_type(type_: DataType) -> str | None:
    """Return PostgreSQL's type for a column; None where it has none."""
    match type_:
        case AtomicType(name):
            return _POSTGRES.get(name)
        case DecimalType(precision, scale):
            return f"numeric({precision},{scale})"
        case ArrayType(AtomicType() | DecimalType() as element):
            inner = postgres_type(element)
            return f"{inner}[]" if inner is not None else None
    return None


def _names(schema: Schema) -> Iterator[str]:
    """Yield the names of all columns and of the fields in them."""
    for column in schema.columns:
        yield column.name
        yield from _names_in(column.type)


def _names_in(type_: DataType) -> Iterator[str]:
    match type_:
        case StructType(fields):
            for field in fields:
                yield field.name
                yield from _names_in(field.type)
        case ArrayType(element):
            yield from _names_in(element)
        case MapType(key, value):
            yield from _names_in(key)
            yield from _names_in(value)
