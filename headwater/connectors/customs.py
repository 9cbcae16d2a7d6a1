"""Python data sources of the user's: read as Spark reads them, written batch by batch with the batch's number.

A batch is written by one process, the driver's sink: a data source's ``streamWriter`` gets all its rows, then
``commit(messages, batch)``. After a failure the batch is repeated with the same number and the same rows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment
from headwater.connectors.sparkformats import own_format
from headwater.connectors.sparktypes import spark_schema
from headwater.connectors.staged import StagedSinkWriter
from headwater.core.errors import RuntimeFailure, UserCodeError
from headwater.dataflow.function import raised
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headwater.dataflow.customs import CustomSource


def custom_frame(spark: SparkSession, source: CustomSource, location: str, name: str | None) -> DataFrame:
    """Read a data source at a location: a stream of that name, or in one batch when ``name`` is None."""
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    # Under a name of this read: two dataflows may have different data sources of one name.
    provider: Any = source.provider.load()
    reader = reader.format(own_format(spark, provider, "headwater_custom")).schema(source.schema().text)
    for key, value in source.options:
        reader = reader.option(key, value.replace("{location}", location))
    try:
        frame: DataFrame = reader.load()
    except Exception as error:
        raise RuntimeFailure(
            f"the data source was not opened: {str(error).splitlines()[0]}",
            where=source.where,
            hint="correct its class or its options",
        ) from error
    return frame


class CustomSinkWriter(StagedSinkWriter):
    """Write to a data source: ``provider`` (cloudpickle, base64), ``options``, ``schema``, ``operator``."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._provider: str = spec["provider"]
        self._options: dict[str, str] = dict(spec["options"])
        self._schema: str = spec["schema"]
        self._operator: str = spec.get("operator", "custom")

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Give the whole batch to the data source's writer, then let it commit. A batch without rows is no call."""
        import cloudpickle
        from pyspark.sql.datasource import DataSourceStreamArrowWriter

        files = [p for p in segments if p.file]
        if not files:
            return
        try:
            source = cloudpickle.loads(base64.b64decode(self._provider))(self._options)
            writer: Any = source.streamWriter(spark_schema(Schema.parse(self._schema).columns), False)
            tables = self.batches(files)
            rows: Iterable[Any] = tables if isinstance(writer, DataSourceStreamArrowWriter) else _rows(tables)
            messages: list[Any] = []
            try:
                messages.append(writer.write(iter(rows)))
                writer.commit(messages, batch)
            except Exception:
                writer.abort(messages, batch)
                raise
        except Exception as error:
            raise UserCodeError(
                f"the data source raised {raised(error)}",
                where=f"operator {self._operator!r}, batch {batch}",
                hint="correct it and restart the unit: it gets the batch again, with the same number",
            ) from error
        self.abort(files)

    def newest(self) -> int | None:
        """Return None: the writer may see a batch again."""
        return None


def _rows(tables: Sequence[pa.RecordBatch]) -> Iterator[Any]:
    from pyspark.sql import Row

    for table in tables:
        for row in table.to_pylist():
            yield Row(**row)
