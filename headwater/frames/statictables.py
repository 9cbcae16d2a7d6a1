"""Static DataFrames of a job as reference tables: files that ``spark.read`` names, and rows of ``createDataFrame``."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow.lookup import MOST_EMBEDDED, ReferenceTable
from headwater.dataflow.tablereader import TableReader
from headwater.frames.types import source_schema
from headwater.sql.columns import Message
from headwater.sql.schema import STRING, ArrayType, Column, DataType, MapType, Schema, StructType

if TYPE_CHECKING:
    import pyarrow as pa

_WHERE = "spark.createDataFrame"
_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_LONGEST_HEADER = 2**16  # characters
_NAME = "rows.json"
"""The path of a table that has no file of its own."""


def file_table(reader: TableReader, source: Message) -> ReferenceTable:
    """Return the table of ``spark.read...load()``; ``source``: a data source of the protocol that is not streaming."""
    options = dict(source.options)
    where = f"spark.read ({source.format or 'no format'})"
    formats: Mapping[str, Callable[..., ReferenceTable]] = {
        "csv": reader.csv,
        "json": reader.json,
        "parquet": reader.parquet,
        "delta": reader.delta,
    }
    read = formats.get(source.format)
    if read is None:
        raise DataflowError(
            f"format {source.format!r} is no table of a dataflow",
            where=where,
            hint=f"the formats are {', '.join(formats)}; in a dataflow of hw.flow(...), also f.table.jdbc(...)",
        )
    refresh = options.pop("refresh", None)
    paths = [*source.paths, *([options.pop("path")] if "path" in options else [])]
    if len(paths) != 1:
        raise DataflowError(f"{len(paths)} paths", where=where, hint="give one path, which may be a glob")
    if "{location}" in paths[0]:
        raise DataflowError(
            "a static DataFrame has the same rows at all locations",
            where=where,
            hint="leave {location} out of its path, or read a stream: spark.readStream",
        )
    given = source_schema(source.schema) if source.schema else None
    if given is None and source.format != "delta":
        given = _schema_of_file(Path(paths[0]), source.format, options, where=where)
    if source.format not in ("csv", "json"):
        settings = _settings_of_delta(options) if source.format == "delta" else {}
        if unknown := sorted(options):
            raise DataflowError(
                f"the options {cut(', '.join(unknown), 300)}",
                where=where,
                hint="leave them out: they have no effect here",
            )
        return read(paths[0], given, refresh=refresh, **settings)
    _taken(options, "inferschema")  # Spark ignores it where there is a schema
    return read(paths[0], given, refresh=refresh, **options)


def _taken(options: dict[str, str], name: str) -> str | None:
    """Remove an option, whose name is in lower case, and return its value; None if it is not there."""
    found = next((given for given in options if given.lower() == name), None)
    return None if found is None else options.pop(found)


def _settings_of_delta(options: dict[str, str]) -> dict[str, Any]:
    version = _taken(options, "versionasof")
    return {} if version is None else {"version": int(version) if version.isdecimal() else version}


def local_table(part: Message) -> ReferenceTable:
    """Return the table of rows of this process, which become part of the dataflow as lines of JSON."""
    import pyarrow as pa

    rows = pa.ipc.open_stream(part.data).read_all() if part.HasField("data") else pa.table({})
    schema = Schema.parse(source_schema(part.schema)) if part.schema else _schema_of(rows.schema)
    if not schema.columns:
        raise DataflowError("rows without columns", where=_WHERE, hint='give a schema: "machine string, most double"')
    names = schema.names
    lines = (
        json.dumps({n: _value(row[i], c.type) for i, (n, c) in enumerate(zip(names, schema, strict=True))})
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    if len(content) > MOST_EMBEDDED:
        raise DataflowError(
            f"rows of {len(content):,} bytes",
            where=_WHERE,
            hint=f"at most {MOST_EMBEDDED:,} become part of a dataflow; write a file, and read it: spark.read.parquet",
        )
    embedded = base64.b64encode(content).decode()
    return ReferenceTable(format="json", path=_NAME, schema_text=schema.text, embedded=embedded)


def _schema_of(schema: pa.Schema, *, times_without_zone: bool = False) -> Schema:
    from pyspark.sql.pandas.types import from_arrow_schema

    found = from_arrow_schema(schema, prefer_timestamp_ntz=times_without_zone)
    return Schema.parse(source_schema(found.json()))


def _schema_of_file(path: Path, format: str, options: Mapping[str, str], *, where: str) -> str:
    """Return the schema that Spark would read from a file of this machine without a look at its rows."""
    hint = 'give the schema: spark.read.schema("machine string, most double").json("machines.json")'
    named = {name.lower(): value for name, value in options.items()}
    header = format == "csv" and named.get("header", "").lower() == "true"
    if format == "json" or (format == "csv" and not header) or named.get("inferschema", "").lower() == "true":
        raise DataflowError("its types are known from its rows only", where=where, hint=hint)
    try:
        return _columns_of_header(path, named) if header else _columns_of_parquet(path)
    except (OSError, ValueError, TypeError, LookupError, csv.Error, PySparkException, DataflowError) as error:
        reason = error.what if isinstance(error, DataflowError) else str(error).splitlines()[0]
        raise DataflowError(
            f"its columns cannot be read from {cut(str(path), 200)}: {cut(reason, 300)}", where=where, hint=hint
        ) from error


def _columns_of_parquet(path: Path) -> str:
    import pyarrow.parquet as pq

    return _schema_of(pq.read_schema(path), times_without_zone=True).text


def _columns_of_header(path: Path, options: Mapping[str, str]) -> str:
    """Return the columns that the first line names, which are texts."""
    separator, quote = options.get("sep", options.get("delimiter", ",")), options.get("quote", '"')
    with open(path, encoding=options.get("encoding", "utf-8"), newline="") as file:
        names = next(csv.reader([file.readline(_LONGEST_HEADER)], delimiter=separator, quotechar=quote), [])
    if not names or any(name != name.strip() or not name or "\ufeff" in name for name in names):
        raise DataflowError("the first line does not name all columns", hint="give the schema")
    return Schema(tuple(Column(name, STRING) for name in names)).text


def _value(value: Any, kind: DataType) -> Any:
    """Return a value as Spark reads it from JSON."""
    match value, kind:
        case None, _:
            return None
        case dict(), StructType(fields):
            return {f.name: _value(value[f.name], f.type) for f in fields}
        case list(), ArrayType(element):
            return [_value(one, element) for one in value]
        case list(), MapType(key, element) if key.text == "string":
            return {name: _value(one, element) for name, one in value}
        case bytes(), _:
            return base64.b64encode(value).decode()
        case float(), _:
            return value if math.isfinite(value) else _SPECIAL[str(value)]
        case Decimal(), _:
            return str(value)
        case (datetime() | date(), _):
            return value.isoformat()
        case ((bool() | int() | str()), _):
            return value
    raise DataflowError(
        f"a value of type {kind.text}", where=_WHERE, hint="write the rows to a file, and read it: spark.read.parquet"
    )
