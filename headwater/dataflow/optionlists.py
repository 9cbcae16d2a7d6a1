"""The options that a dataflow may give to connectors: allow-lists, for a zone's agent runs connectors with its rights.

An option that names a class, a library, a command or a file of credentials lets a dataflow run code or read files of
the agent's, so options that are not listed here are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.core.errors import DataflowError, HeadwaterError, suggestion
from headwater.dataflow.jdbcurl import DRIVERS, parse_jdbc_url
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import JdbcSink, KafkaSink
from headwater.dataflow.sources import FileSource

PLACES: Final = ("sourceArchiveDir", "basePath")
"""Options of a file source that name directories: `cleanSource` moves files to the first."""

_FILES = [
    "cleanSource",
    "discardCachedInputRatio",
    "fileNameOnly",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
    "latestFirst",
    "maxBytesPerTrigger",
    "maxCachedFiles",
    "maxFileAge",
    "maxFilesPerTrigger",
    "modifiedAfter",
    "modifiedBefore",
    "pathGlobFilter",
    "recursiveFileLookup",
    *PLACES,
]
_OF_STREAMS = (
    "cleanSource",
    "discardCachedInputRatio",
    "fileNameOnly",
    "latestFirst",
    "maxBytesPerTrigger",
    "maxCachedFiles",
    "maxFileAge",
    "maxFilesPerTrigger",
    "mode",
)
"""Options that a table's files do not have; a malformed row of a table is an error."""
_TIMES = ["dateFormat", "enableDateTimeParsingFallback", "locale", "timeZone", "timestampFormat", "timestampNTZFormat"]
_TEXT = ["charset", "encoding", "lineSep", "mode", "multiLine"]
FILE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": (
        *_FILES,
        *_TIMES,
        *_TEXT,
        *[
            "charToEscapeQuoteEscaping",
            "comment",
            "delimiter",
            "emptyValue",
            "enforceSchema",
            "escape",
            "header",
            "ignoreLeadingWhiteSpace",
            "ignoreTrailingWhiteSpace",
            "maxCharsPerColumn",
            "maxColumns",
            "nanValue",
            "negativeInf",
            "nullValue",
            "positiveInf",
            "preferDate",
            "quote",
            "sep",
            "unescapedQuoteHandling",
        ],
    ),
    "json": (
        *_FILES,
        *_TIMES,
        *_TEXT,
        *[
            "allowBackslashEscapingAnyCharacter",
            "allowComments",
            "allowNonNumericNumbers",
            "allowNumericLeadingZeros",
            "allowSingleQuotes",
            "allowUnquotedControlChars",
            "allowUnquotedFieldNames",
            "dropFieldIfAllNull",
            "prefersDecimal",
            "primitivesAsString",
        ],
    ),
    "parquet": (*_FILES, "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
}
"""Spark's options of file sources, by format."""

KAFKA_OPTIONS: Final = tuple(
    [
        "acks",
        "batch.num.messages",
        "batch.size",
        "broker.address.family",
        "broker.address.ttl",
        "client.id",
        "compression.codec",
        "compression.level",
        "compression.type",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.ssl.certificate.verification",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.max.age.ms",
        "partitioner",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "security.protocol",
        "session.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "sticky.partitioning.linger.ms",
        "topic.metadata.refresh.interval.ms",
        "transaction.timeout.ms",
    ]
)
"""librdkafka's settings; `ssl.ca.location` names a file, which a zone must let the dataflow read."""

JDBC_OPTIONS: Final = [
    "batchsize",
    "cascadeTruncate",
    "createTableColumnTypes",
    "createTableOptions",
    "fetchsize",
    "isolationLevel",
    "numPartitions",
    "queryTimeout",
    "truncate",
]
"""Spark's options of JDBC."""

_OF_BROKERS = ("ssl.certificate.location", "ssl.key.location")
"""Further settings of a zone's broker, which the continuum names, not the dataflow."""
_FILES_OF_SECRETS = "secrets are named, not read from files: user_env=, password_env="


def check_options(operator: Operator) -> None:
    """Raise DataflowError for an option that an operator's connector does not take from dataflows."""
    match operator:
        case FileSource():
            given = [name for name, _ in operator.options]
            _check(operator, given, FILE_OPTIONS.get(operator.format, ()), f"a source of {operator.format} files")
        case Lookup():
            given = [name for name, _ in operator.options]
            allowed = [n for n in FILE_OPTIONS.get(operator.format, ()) if n not in (*PLACES, *_OF_STREAMS)]
            _check(operator, given, allowed, f"a table of {operator.format} files")
        case KafkaSink():
            _check(operator, [name for name, _ in operator.options], KAFKA_OPTIONS, "a Kafka sink")
        case JdbcSink():
            _check(operator, [name for name, _ in operator.options], JDBC_OPTIONS, "a JDBC sink")
            found = parse_jdbc_url(operator.url, where=operator.where)
            if operator.driver not in (None, DRIVERS[found.kind].driver):
                raise _refused(
                    operator,
                    f"the driver {operator.driver} is not that of {found.kind}",
                    "leave driver= out: Headwater knows the driver by the URL",
                )


def check_kafka_settings(settings: Mapping[str, str], *, where: str) -> None:
    """Raise DataflowError for a setting of a zone's broker that is not allowed."""
    for name in settings:
        if name not in KAFKA_OPTIONS and name not in _OF_BROKERS:
            raise DataflowError(
                f"the setting {name} of a broker is not allowed", where=where, hint=_hint(name, KAFKA_OPTIONS)
            )


def _check(operator: Operator, given: list[str], allowed: tuple[str, ...] | list[str], what: str) -> None:
    known = {name.lower() for name in allowed}
    for name in given:
        if name.lower() not in known:
            raise _refused(operator, f"{what} takes no option '{name}'", _hint(name, allowed))


def _hint(name: str, allowed: tuple[str, ...] | list[str]) -> str:
    if any(part in name.lower() for part in ("location", "keystore", "truststore", "keytab", "jaas", "password")):
        return _FILES_OF_SECRETS
    return suggestion(name, allowed, "leave it out; the options are")


def _refused(operator: Operator, what: str, hint: str) -> HeadwaterError:
    return DataflowError(what, where=operator.where, hint=hint)
