"""A Kafka topic as a DataFrame, read by Spark's own connector, and by ``kafkarange`` as a stream that ends.

Spark writes the offsets of a batch ahead into the checkpoint, so a batch that is repeated has the same records. Only
records of committed transactions are read. A batch run reads from the start position to the end, or the newest records.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.connectors import kafkarange
from headwater.connectors.kafkasettings import java_login, java_setting, servers_at, topic_at
from headwater.connectors.kafkavalues import BASE64, FAULT, NO_HEADER, VALUE, ValueDecoder
from headwater.connectors.marks import CORRUPT, ORIGIN, REASON
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.registry import HEADER
from headwater.connectors.sparkformats import own_format
from headwater.connectors.sparksql import column_of, expression, items
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.kafkatopic import KafkaSource, start_millis
from headwater.dataflow.optionlists import PARSER_OPTIONS, TOPIC_OPTIONS, check_options
from headwater.sql.lexer import quote_string, quoted

_STREAM_ONLY = frozenset({"maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"})
_KEY_FAULT = "the key is not UTF-8 text"
_TEXT, _ROW, _AGE = "__text", "__row", "__age"


def kafka_frame(
    spark: SparkSession,
    source: KafkaSource,
    location: str,
    *,
    name: str | None,
    limit: int | None = None,
    lag: str | None = None,
) -> DataFrame:
    """Read a topic at a location: a stream of that name, or in one batch when ``name`` is None.

    ``limit``: about the most records of a batch, where the source states none. ``lag``: the name under which the query
    observes how many milliseconds after its time a record is read: the median and the 95th percentile, and the number.
    """
    check_options(source)
    reader: Any = spark.read if name is None else spark.readStream.name(name)
    if name is not None and source.ending is not None:
        format_ = own_format(spark, kafkarange.KafkaRangeDataSource)
        options = kafkarange.range_options(source, location, limit)
    else:
        format_, options = "kafka", options_of(source, location, is_stream=name is not None, limit=limit)
    reader = reader.format(format_)
    for option, value in options.items():
        reader = reader.option(option, value)
    records: DataFrame = reader.load()
    if lag is not None:
        # Spark's own functions give the time of the batch's start.
        now = F.java_method(F.lit("java.lang.System"), F.lit("currentTimeMillis")).cast("bigint")
        quantiles = F.percentile_approx(_AGE, [0.5, 0.95]).alias("quantiles")
        # Inside the observation Spark would not prepare a call of Java.
        aged = records.withColumn(_AGE, now - F.unix_millis("timestamp"))
        records = aged.observe(lag, quantiles, F.count(F.lit(1)).alias("records")).drop(_AGE)
    if source.tombstones == "drop":
        records = records.where(expression("value IS NOT NULL"))
    if source.format == "raw":
        added = [f"headers AS {quoted(source.headers_as)}"] if source.headers_as is not None else []
        return records.select(*items(*(quoted(n) for n in source.schema().names), *added))
    return _decoded(records, source) if source.is_binary else _parsed(records, source)


def options_of(
    source: KafkaSource, location: str, *, is_stream: bool = True, limit: int | None = None
) -> dict[str, str]:
    """Return the options of Spark's reader. They hold the values of secrets: not to be shown or stored."""
    topic = topic_at(source, location)
    found = {
        "kafka.bootstrap.servers": servers_at(source, location),
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "includeHeaders": str(source.headers_as is not None).lower(),
        **_start(source, topic, is_stream=is_stream),
        **_end(source, topic),
    }
    if limit is not None and is_stream:
        found["maxOffsetsPerTrigger"] = str(limit)
    parsers = {name.lower() for name in PARSER_OPTIONS.get(source.format, ())}
    own = {name.lower() for name in TOPIC_OPTIONS}
    for option, value in source.options:
        if option.lower() in own:
            if is_stream or option.lower() not in _STREAM_ONLY:
                found[option] = value
        elif option.lower() not in parsers:
            found |= java_setting(option, value)
    return found | java_login(source)


def _start(source: KafkaSource, topic: str, *, is_stream: bool) -> dict[str, str]:
    if source.offsets:
        return {"startingOffsets": json.dumps({topic: {str(p): o for p, o in source.offsets}})}
    if source.starting == "latest" and not is_stream:
        raise RuntimeFailure(
            "a batch run from the latest record on reads nothing", where=source.where, hint="give another start"
        )
    if source.starting in ("earliest", "latest"):
        return {"startingOffsets": source.starting}
    # A partition without a record since then begins with the next one.
    return {
        "startingTimestamp": str(start_millis(source.starting)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _end(source: KafkaSource, topic: str) -> dict[str, str]:
    """Return the end of a batch run."""
    if source.ending is None:
        return {}
    if source.end_offsets:
        return {"endingOffsets": json.dumps({topic: {str(p): o for p, o in source.end_offsets}})}
    if source.ending == "latest":
        return {"endingOffsets": "latest"}
    return {"endingTimestamp": str(start_millis(source.ending))}


# ---------------------------------------------------------------- values


def _added(source: KafkaSource) -> list[str]:
    """Return the columns added to those of the value, in order; the caller adds that of the location."""
    made = {
        "key_as": "CAST(key AS string)",
        "headers_as": "headers",
        "timestamp_as": "timestamp",
        "partition_as": "partition",
        "offset_as": "offset",
    }
    return [f"{made[setting]} AS {quoted(name)}" for setting, name, _ in source.added() if setting in made]


def _fault(source: KafkaSource) -> str:
    """Return the expression of a reason why a record is malformed whatever its value."""
    if source.key_as is None:
        return "CAST(NULL AS string)"
    return f"CASE WHEN key IS NOT NULL AND NOT is_valid_utf8(CAST(key AS string)) THEN '{_KEY_FAULT}' END"


_ORIGIN = f"concat('kafka:', topic, '/', CAST(partition AS string), '@', CAST(offset AS string)) AS {ORIGIN}"


def _parsed(records: DataFrame, source: KafkaSource) -> DataFrame:
    """Parse values of text; the malformed ones have their text in ``CORRUPT``."""
    value, fault = "value", _fault(source)
    if source.registry is not None:
        framed = f"length(value) >= {HEADER} AND substring(hex(value), 1, 2) = '00'"
        fault = f"CASE WHEN value IS NOT NULL AND NOT ({framed}) THEN '{NO_HEADER}' ELSE {fault} END"
        value = f"CASE WHEN {framed} THEN substring(value, {HEADER + 1}) END"
    fault = f"CASE WHEN value IS NULL THEN 'no value (a tombstone)' ELSE {fault} END"
    names = [name for _, name, _ in source.added() if name != source.location_as]
    kept = [ORIGIN, REASON, *names]
    read = records.select(
        *items(f"{value} AS {VALUE}", f"value AS {_ROW}", f"{fault} AS {REASON}", _ORIGIN, *_added(source))
    )
    valid = f"is_valid_utf8(CAST({VALUE} AS string))"
    text = (
        f"CASE WHEN {VALUE} IS NULL AND {_ROW} IS NOT NULL THEN concat('{BASE64}', base64({_ROW})) "
        f"WHEN {VALUE} IS NULL THEN '' WHEN {valid} THEN CAST({VALUE} AS string) "
        f"ELSE concat('{NOT_UTF8}', base64({VALUE})) END"
    )
    read = read.select(*items(f"{text} AS {_TEXT}", f"{VALUE} IS NOT NULL AND {valid} AS {VALUE}", *map(quoted, kept)))
    columns = quote_string(f"{source.schema().text}, {CORRUPT} string")
    known = {name.lower() for name in PARSER_OPTIONS[source.format]}
    options = {k: v for k, v in source.options if k.lower() in known}
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    pairs = ", ".join(f"{quote_string(k)}, {quote_string(v)}" for k, v in options.items())
    # A last line break ends the record; behind it Spark would expect another one.
    line = f"regexp_replace({_TEXT}, '[\\\\r\\\\n]+$', '')" if source.format == "csv" else _TEXT
    # The condition that always holds keeps Spark from parsing a value again in every filter behind.
    once = f"{VALUE} AND spark_partition_id() >= 0"
    parse = f"CASE WHEN {once} THEN from_{source.format}({line}, {columns}, map({pairs})) END AS {_ROW}"
    rows = read.select(*items(parse, _TEXT, *map(quoted, kept)))
    # A value that is no object at all gives NULL, not a corrupt record; a blank one, for CSV, a row of NULLs.
    blank = f" OR trim({_TEXT}) = ''" if source.format == "csv" else ""
    bad = f"CASE WHEN {_ROW} IS NULL OR {REASON} IS NOT NULL{blank} THEN {_TEXT} ELSE {_ROW}.{CORRUPT} END AS {CORRUPT}"
    return rows.select(
        *(column_of(_ROW, n).alias(n) for n in source.schema().names),
        *items(*map(quoted, names), bad, ORIGIN, REASON),
    )


def _decoded(records: DataFrame, source: KafkaSource) -> DataFrame:
    """Decode values of bytes in Python; the malformed ones have them as text in ``CORRUPT``."""
    added = [(name, type_) for _, name, type_ in source.added() if name != source.location_as]
    read = records.select(*items(f"value AS {VALUE}", f"{_fault(source)} AS {FAULT}", *_added(source), _ORIGIN))
    decoder = ValueDecoder(source)

    def decode(batches: Any) -> Any:
        return decoder.columns(batches, (CORRUPT, REASON))

    columns = [source.schema().text, *(f"{quoted(n)} {t}" for n, t in added)]
    types = ", ".join([*columns, *(f"{mark} string" for mark in (ORIGIN, CORRUPT, REASON))])
    return read.mapInArrow(decode, types)
