"""Sources as DataFrames, streaming and batch, with malformed records marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.channels.channel_spark import ChannelSource
from headwater.connectors.customs import custom_frame
from headwater.connectors.delta_source import DeltaDataSource
from headwater.connectors.globs import MARK, is_glob, literal
from headwater.connectors.iceberg_source import IcebergDataSource
from headwater.connectors.icebergtable import IcebergAddress
from headwater.connectors.kafkasource import kafka_frame
from headwater.connectors.marks import CORRUPT, ORIGIN, REASON
from headwater.connectors.sensor_source import SensorDataSource
from headwater.connectors.sparkformats import own_format
from headwater.connectors.sparksql import column_of, expression, items
from headwater.connectors.spoolwriter import MESSAGE_SCHEMA
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.customs import CustomSource
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sources import BridgedSource, FileSource, RateSource, SensorSource, Source
from headwater.dataflow.tablesources import DeltaSource, IcebergSource
from headwater.disk.layout import REPLAYED, full_path
from headwater.sql.lexer import quote_string, quoted
from headwater.sql.schema import Schema

_STREAM_ONLY = {
    "maxfilespertrigger",
    "maxbytespertrigger",
    "latestfirst",
    "maxfileage",
    "cleansource",
    "sourcearchivedir",
}
_OWN = frozenset({"cleansource", "sourcearchivedir", "basepath"})
"""Options that do not apply to Headwater's own directory."""


def can_be_malformed(source: Source) -> bool:
    """Return whether records of the source are text that may not fit its schema."""
    return source.record_format is not None


_FILE_OF = f"^file:/+(?:.*?/{REPLAYED}/[^/]+/(?=.*{MARK}))?"
"""Regular expression for the beginning of a file's URI, and of the directory of replayed records."""


def source_frame(
    spark: SparkSession,
    source: Source,
    location: str,
    *,
    name: str | None,
    spool: Path | None = None,
    synced: Path | None = None,
    replayed: Path | None = None,
    limit: int | None = None,
    lag: str | None = None,
) -> DataFrame:
    """Read a source at a location: a stream of that name, or in one batch when ``name`` is None.

    ``replayed``: the directory of a file source's replayed records; a second stream reads them.
    Where records can be malformed, ``__corrupt`` holds the text of malformed ones and ``__origin``
    their file or topic. ``synced``: the checkpoint to sync before stored messages of a broker are deleted.
    ``limit``: about the most records of a batch of a Kafka topic. ``lag``: the name of the observation of its delay.
    """
    match source:
        case FileSource():
            frame = _files(spark, source, location, name)
            if name is not None and replayed is not None:
                frame = frame.unionByName(_files(spark, source, location, name_of_replayed(name), below=replayed))
        case RateSource():
            frame = _rate(spark, source, name)
        case SensorSource():
            frame = _sensors(spark, source, location, name)
        case DeltaSource():
            frame = _delta(spark, source, location, name)
        case IcebergSource():
            frame = _iceberg(spark, source, name)
        case BridgedSource():
            frame = _bridged(spark, source, name, spool, synced)
        case CustomSource():
            frame = custom_frame(spark, source, location, name)
        case KafkaSource():
            frame = kafka_frame(spark, source, location, name=name, limit=limit, lag=lag)
        case _:
            raise RuntimeFailure(f"no reader for {source.kind}", where=source.where, hint="report this as a defect")
    if source.location_as is not None:
        frame = frame.withColumn(source.location_as, F.lit(location))
    return frame


def name_of_replayed(name: str) -> str:
    """Name the stream of a source's replayed records by that of the source."""
    return f"replayed_{name}"


def well_formed(frame: DataFrame, schema: Schema) -> DataFrame:
    """Keep the well-formed records, whichever columns are used later."""
    return frame.where(expression(f"{CORRUPT} IS NULL AND {every_field_parsed(schema)}")).drop(CORRUPT, ORIGIN, REASON)


def every_field_parsed(schema: Schema) -> str:
    """Return a condition that always holds and makes Spark parse all fields of a record.

    Spark parses only columns that the query uses, so a malformed unused one would go unnoticed,
    or not, depending on the cuts. The part after OR is never evaluated, but names all columns.
    """
    used = " OR ".join(f"to_json(struct({quoted(n)})) IS NULL" for n in schema.names)
    return f"(spark_partition_id() >= 0 OR {used})"


DEAD_LETTER = ("operator", "format", "schema", "record", "source", "location", "reason")
"""The columns of a dead letter; all of them are texts."""


def dead_letter_columns(source: Source, location: str) -> list[str]:
    """Return the SQL projection that turns a malformed record into a dead letter."""
    reason = REASON if isinstance(source, KafkaSource) else "CAST(NULL AS string)"
    values = (
        *map(quote_string, (source.id, source.record_format or "", source.schema().text)),
        *(CORRUPT, ORIGIN, quote_string(location), reason),
    )
    return [f"{value} AS {name}" for name, value in zip(DEAD_LETTER, values, strict=True)]


def _files(
    spark: SparkSession, source: FileSource, location: str, name: str | None, *, below: Path | None = None
) -> DataFrame:
    """Read files; ``below``: those of a directory in which each file has the path that it has in the root otherwise."""
    path = full_path(source.path.replace("{location}", location))
    unread = _STREAM_ONLY if name is None else frozenset[str]()
    if below is not None:
        if not is_glob(path):
            Path(f"{below}{path}").mkdir(parents=True, exist_ok=True)
        path, unread = literal(str(below)) + path, _OWN
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    schema = source.schema().text
    if name is not None:
        if below is None:
            _make_directory(path)
        # Without this, Spark silently skips files a week older than the newest.
        reader = reader.option("maxFileAge", "36500d")
    if can_be_malformed(source):
        schema = f"{schema}, {quoted(CORRUPT)} string"
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
    for key, value in source.options:
        if key.lower() not in unread:
            reader = reader.option(key, value)
    frame: DataFrame = reader.schema(schema).format(source.format).load(path)
    added = [f"_metadata.file_path AS {quoted(ORIGIN)}"] if can_be_malformed(source) else []
    if source.file_as is not None:
        # A replayed record keeps the file that it came from; Spark writes one or three slashes.
        path = f"regexp_replace(_metadata.file_path, {quote_string(_FILE_OF)}, 'file:///')"
        added.append(f"regexp_replace({path}, {quote_string(MARK)}, '') AS {quoted(source.file_as)}")
    return frame.select(*items("*", *added)) if added else frame


def _make_directory(path: str) -> None:
    """Create a missing local input directory: files may come later."""
    if "://" not in path and not any(c in path for c in "*?[{"):
        Path(path).mkdir(parents=True, exist_ok=True)


def _rate(spark: SparkSession, source: RateSource, name: str | None) -> DataFrame:
    if name is None:
        raise RuntimeFailure("a rate source has no end", where=source.where, hint="a batch run needs bounded sources")
    return spark.readStream.name(name).format("rate").option("rowsPerSecond", source.rows_per_second).load()


def _sensors(spark: SparkSession, source: SensorSource, location: str, name: str | None) -> DataFrame:
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    reader = reader.format(own_format(spark, SensorDataSource)).option("location", location)
    settings = {
        "seed": source.seed,
        "machines": source.machines,
        "interval": source.duration(source.interval, "interval"),
    }
    settings["rows_per_second"] = source.rows_per_second
    if source.rows is not None:
        settings["rows"] = source.rows
    for key, value in settings.items():
        reader = reader.option(key, str(value))
    frame: DataFrame = reader.load()
    return frame


def _delta(spark: SparkSession, source: DeltaSource, location: str, name: str | None) -> DataFrame:
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    reader = reader.format(own_format(spark, DeltaDataSource)).option("schema", source.schema().text)
    reader = reader.option("path", full_path(source.path.replace("{location}", location)))
    if source.version is not None:
        reader = reader.option("version", str(source.version))
    if source.timestamp is not None:
        reader = reader.option("timestamp", source.instant(source.timestamp).isoformat())
    for option in ("follow", "ignore_changes", "max_files_per_batch"):
        reader = reader.option(option, str(getattr(source, option)))
    frame: DataFrame = reader.load()
    return frame


def _iceberg(spark: SparkSession, source: IcebergSource, name: str | None) -> DataFrame:
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    reader = reader.format(own_format(spark, IcebergDataSource)).option("schema", source.schema().text)
    reader = reader.option("address", json.dumps(IcebergAddress.of(source).to_data()))
    if source.snapshot is not None:
        reader = reader.option("snapshot", str(source.snapshot))
    frame: DataFrame = reader.option("max_files_per_batch", str(source.max_files_per_batch)).load()
    return frame


def _bridged(
    spark: SparkSession, source: BridgedSource, name: str | None, spool: Path | None, synced: Path | None
) -> DataFrame:
    if name is None or spool is None:
        raise RuntimeFailure("the source has no end", where=source.where, hint="a batch run needs bounded sources")
    reader: Any = spark.readStream.name(name).format(own_format(spark, ChannelSource))
    if synced is not None:
        reader = reader.option("checkpoint", str(synced))
    messages = reader.option("members", str(spool)).option("reader", name).option("schema", MESSAGE_SCHEMA).load()
    text = quote_string(f"{source.schema().text}, {CORRUPT} string")
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}')"
    read = f"from_json(value, {text}, {options}) AS r"
    parsed = messages.select(*items(read, f"concat({quote_string(source.kind + ':')}, topic) AS o", "value"))
    # A payload that is no object at all gives NULL, not a corrupt record.
    result: DataFrame = parsed.select(
        *(column_of("r", n).alias(n) for n in source.schema().names),
        *items(
            f"CASE WHEN r IS NULL THEN coalesce(value, '') ELSE r.{CORRUPT} END AS {CORRUPT}",
            f"o AS {ORIGIN}",
        ),
    )
    return result
