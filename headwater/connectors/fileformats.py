"""The formats of files that a sink writes: Parquet, CSV and JSON lines."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwater.core.errors import ChannelError
from headwater.core.jsonform import time_text

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 100_000


class FileFormat(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class ParquetFormat:
    """Write Parquet; gather rows into groups worth compressing."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(str(path), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROW_GROUP:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0


class CsvFormat:
    """Write CSV with a header; times in the form that Spark's reader accepts."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import csv

        nested = [f.name for f in schema if pa.types.is_nested(f.type)]
        if nested:
            raise ChannelError(
                f"CSV cannot hold the nested columns {', '.join(nested)}",
                where=str(path.parent.parent.parent),
                hint="select their fields, or use json or parquet",
            )
        self._writer = csv.CSVWriter(str(path), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class JsonFormat:
    """Write one JSON object per line, values in the forms that Spark's reader accepts."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._out = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def write(self, batch: pa.RecordBatch) -> None:
        self._out.writelines(_json_lines(batch))

    def close(self) -> None:
        self._out.close()


def _json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        yield json.dumps(row, default=_json_value, ensure_ascii=False) + "\n"


def _json_value(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return time_text(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return str(value)


FORMATS: dict[str, Any] = {"parquet": ParquetFormat, "csv": CsvFormat, "json": JsonFormat}
"""By the name of a format, which is also the extension of its files."""
