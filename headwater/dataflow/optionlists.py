"""The options that a dataflow may give to connectors: allow-lists, for a zone's agent runs connectors with its rights.

An option that names a class, a library, a command or a file of credentials lets a dataflow run code or read files of
the agent's, so options that are not listed here are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headwater.core.errors import DataflowError, HeadwaterError, suggestion
from headwater.dataflow.jdbcurl import DRIVERS, parse_jdbc_url
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import JdbcSink, KafkaSink, RealTimeKafkaSink
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
_OF_CSV = [
    "charToEscapeQuoteEscaping",
    "comment",
    "delimiter",
    "emptyValue",
    "escape",
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
]
_OF_JSON = [
    "allowBackslashEscapingAnyCharacter",
    "allowComments",
    "allowNonNumericNumbers",
    "allowNumericLeadingZeros",
    "allowSingleQuotes",
    "allowUnquotedControlChars",
    "allowUnquotedFieldNames",
    "primitivesAsString",
]
_TIMES = ["dateFormat", "enableDateTimeParsingFallback", "locale", "timeZone", "timestampFormat", "timestampNTZFormat"]
_TEXT = ["charset", "encoding", "lineSep", "mode", "multiLine"]
FILE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": (
        *_FILES,
        *_TIMES,
        *_TEXT,
        *_OF_CSV,
        "enforceSchema",
        "header",
    ),
    "json": (
        *_FILES,
        *_TIMES,
        *_TEXT,
        *_OF_JSON,
        "dropFieldIfAllNull",
        "prefersDecimal",
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

PARSER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": (*_TIMES, *_OF_CSV),
    "json": (*_TIMES, *_OF_JSON),
}
"""Spark's options of `from_csv` and `from_json`, by format."""

TOPIC_OPTIONS: Final = (
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
)
"""Options of Spark's Kafka source."""

_JAVA_CLIENT = (
    "client.dns.lookup",
    "client.id",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.mechanism",
    "security.protocol",
    "send.buffer.bytes",
    "ssl.ca.location",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.protocol",
)
"""Settings of both of Kafka's clients in Java, and `ssl.ca.location`: a PEM file, which a zone must let it read."""

CONSUMER_OPTIONS: Final = tuple(
    sorted(
        [
            *_JAVA_CLIENT,
            "check.crcs",
            "client.rack",
            "default.api.timeout.ms",
            "exclude.internal.topics",
            "fetch.max.bytes",
            "fetch.max.wait.ms",
            "fetch.min.bytes",
            "heartbeat.interval.ms",
            "isolation.level",
            "max.partition.fetch.bytes",
            "max.poll.interval.ms",
            "max.poll.records",
            "session.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
            "socket.connection.setup.timeout.ms",
        ]
    )
)
"""Settings of Kafka's consumer, and `ssl.ca.location`: a PEM file, which a zone must let the dataflow read."""

PRODUCER_OPTIONS: Final = tuple(
    sorted(
        [
            *_JAVA_CLIENT,
            "batch.size",
            "buffer.memory",
            "compression.type",
            "delivery.timeout.ms",
            "linger.ms",
            "max.block.ms",
            "max.request.size",
        ]
    )
)
"""Settings of Kafka's producer, by which real-time mode writes, and `ssl.ca.location` as of a source."""

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

JDBC_TABLE_OPTIONS: Final = ["fetchsize", "queryTimeout"]
"""Those for reading a reference table: by one statement, whose rows are of one moment."""

_OF_BROKERS = ("ssl.certificate.location", "ssl.key.location")
"""Further settings of a zone's broker, which the continuum names, not the dataflow."""
_FILES_OF_SECRETS = "secrets are named, not read from files: user_env=, password_env="


_CONSUMER_NAMES = {name.lower(): name for name in CONSUMER_OPTIONS}
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Mechanisms of SASL by which a Kafka source may authenticate."""


def option_name(name: str) -> str:
    """Return the name of a Kafka source's option: of ``security_protocol``, ``kafka.security.protocol`` and the like.

    >>> option_name("security_protocol"), option_name("kafka.client.id"), option_name("maxOffsetsPerTrigger")
    ('security.protocol', 'client.id', 'maxOffsetsPerTrigger')
    """
    dotted = name.removeprefix("kafka.").replace("_", ".")
    known = _CONSUMER_NAMES | {one.lower(): one for one in TOPIC_OPTIONS}
    return known.get(dotted.lower(), dotted if "." in dotted else name)


def check_options(operator: Operator) -> None:
    """Raise DataflowError for an option that an operator's connector does not take from dataflows."""
    match operator:
        case FileSource():
            given = [name for name, _ in operator.options]
            _check(operator, given, FILE_OPTIONS.get(operator.format, ()), f"a source of {operator.format} files")
        case Lookup(format="jdbc"):
            _check(operator, [name for name, _ in operator.options], JDBC_TABLE_OPTIONS, "a table of a database")
        case Lookup():
            given = [name for name, _ in operator.options]
            allowed = [n for n in FILE_OPTIONS.get(operator.format, ()) if n not in (*PLACES, *_OF_STREAMS)]
            _check(operator, given, allowed, f"a table of {operator.format} files")
        case KafkaSource():
            # Kafka's own names as they are: those that name files are recognized by them.
            of_spark = (*TOPIC_OPTIONS, *PARSER_OPTIONS.get(operator.format, ()))
            given = [name for name, _ in operator.options if name not in CONSUMER_OPTIONS]
            _check(operator, given, of_spark, "a Kafka source", also=CONSUMER_OPTIONS)
            _check_mechanism(operator, operator.options)
        case RealTimeKafkaSink():
            _check(operator, [name for name, _ in operator.options], PRODUCER_OPTIONS, "a Kafka sink in real-time mode")
            _check_mechanism(operator, operator.options)
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


def _check_mechanism(operator: Operator, options: Iterable[tuple[str, str]]) -> None:
    mechanism = dict(options).get("sasl.mechanism", "PLAIN")
    if mechanism not in SASL_MECHANISMS:
        raise _refused(
            operator,
            f"the SASL mechanism {mechanism} takes more than a user and a password",
            f"use one of {', '.join(SASL_MECHANISMS)}",
        )


def check_kafka_settings(settings: Mapping[str, str], *, where: str) -> None:
    """Raise DataflowError for a setting of a zone's broker that is not allowed."""
    for name in settings:
        if name not in KAFKA_OPTIONS and name not in _OF_BROKERS:
            raise DataflowError(
                f"the setting {name} of a broker is not allowed", where=where, hint=_hint(name, KAFKA_OPTIONS)
            )


def _check(
    operator: Operator,
    given: list[str],
    allowed: tuple[str, ...] | list[str],
    what: str,
    *,
    also: tuple[str, ...] = (),
) -> None:
    """Refuse an option that is not allowed in any case of its letters; ``also``: others, for the hint."""
    known = {name.lower() for name in allowed}
    for name in given:
        if name.lower() not in known:
            raise _refused(operator, f"{what} takes no option '{name}'", _hint(name, (*allowed, *also)))


def _hint(name: str, allowed: tuple[str, ...] | list[str]) -> str:
    if any(part in name.lower() for part in ("location", "keystore", "truststore", "keytab", "jaas", "password")):
        return _FILES_OF_SECRETS
    return suggestion(name, allowed, "leave it out; the options are")


def _refused(operator: Operator, what: str, hint: str) -> HeadwaterError:
    return DataflowError(what, where=operator.where, hint=hint)
