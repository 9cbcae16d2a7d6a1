"""Kafka clients: construction, credentials, and the classification of errors."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from headwater.core.errors import BrokerAway, HeadwaterError, RuntimeFailure, Unavailable
from headwater.disk.credentials import read_secret

SECONDS = 60.0
"""Seconds that a broker may take to answer, or to come back."""

LOOK_SECONDS = 3.0
"""Seconds that a broker may take to answer a request for a report."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)

_AWAY = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MSG_TIMED_OUT")
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")

# Not always called retriable by librdkafka: a broker that starts, or a partition that moves.
_PASSING = (
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "BROKER_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "KAFKA_STORAGE_ERROR",
    "OFFSET_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_CONTROLLER",
    "_WAIT_COORD",
    "_DESTROY",
    "_DESTROY_BROKER",
)


def client(kind: str, where: str, settings: Mapping[str, str]) -> Any:
    """Make a client of confluent-kafka: Producer, Consumer or admin.AdminClient."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise Unavailable(
            "confluent-kafka is not installed", where=where, hint="pip install headwater[kafka]"
        ) from None
    try:
        servers = settings.get("bootstrap.servers", "")
        listening = {**settings, "error_cb": lambda error: _note_refusal(servers, error)}
        module = confluent_kafka.admin if kind == "AdminClient" else confluent_kafka
        return getattr(module, kind)(listening)
    except confluent_kafka.KafkaException as error:
        raise RuntimeFailure(
            f"invalid Kafka setting: {error.args[0].str()}",
            where=where,
            hint="correct it in the broker's settings; librdkafka's documentation lists them",
        ) from None


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Let requests of this thread give up soon where no broker answers: they serve a report, and no batch."""
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


def only_looks() -> bool:
    """Return whether this thread is ``looking``."""
    return _looking.get()


def patience() -> float:
    """Return the seconds after which a request of this thread gives up."""
    return min(SECONDS, LOOK_SECONDS) if only_looks() else SECONDS


_refusals: dict[str, str] = {}
"""Reasons of brokers that refused a client's credentials; its requests then fail as if no broker answered."""


def _note_refusal(servers: str, error: Any) -> None:
    if _is(error, ("_AUTHENTICATION", "_SSL")):
        _refusals[servers] = error.str()


def credentials(user_env: str | None, password_env: str | None, *, where: str) -> dict[str, str]:
    """Read user and password from the named environment variables, as settings."""
    named = (("sasl.username", user_env), ("sasl.password", password_env))
    values = {setting: read_secret(name, where=where) for setting, name in named}
    return {setting: value for setting, value in values.items() if value is not None}


def _is(error: Any, names: Iterable[str]) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in {getattr(KafkaError, name) for name in names if hasattr(KafkaError, name)}


def away(error: Any) -> bool:
    """Return whether an error says that no broker answers."""
    return _is(error, _AWAY)


def fenced(error: Any) -> bool:
    """Return whether an error says that another writer has taken over."""
    return _is(error, _FENCED)


def no_topic(error: Any) -> bool:
    """Return whether an error says that there is no such topic."""
    return _is(error, _NO_TOPIC)


def gone(error: Any) -> bool:
    """Return whether an error says that an offset is deleted, or not there yet."""
    return _is(error, _GONE)


def passing(error: Any) -> bool:
    """Return whether a retry may succeed."""
    return bool(away(error) or _is(error, _PASSING) or error.retriable() or error.txn_requires_abort())


@contextlib.contextmanager
def fatal_as_error() -> Iterator[None]:
    """Raise a client's fatal error as its KafkaException.

    The client raises it before it runs the callbacks of messages, and these then fail with SystemError.
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except SystemError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, KafkaException):
            raise cause from None
        raise


def lasting(error: Any) -> bool:
    """Return whether a transaction's error is permanent: a retry fails alike."""
    return any(word in error.name() for word in ("AUTH", "TOO_LARGE", "INVALID_RECORD", "UNSUPPORTED"))


def failure(error: Any, servers: str, *, where: str, hint: str) -> HeadwaterError:
    """Turn an error of Kafka into one of Headwater."""
    if away(error) and servers in _refusals:
        return RuntimeFailure(
            f"Kafka at {servers} refuses the connection: {_refusals.pop(servers)}",
            where=where,
            hint="check the broker's settings in the continuum, and the variables named by user_env and password_env",
        )
    if away(error):
        return no_broker(f"no Kafka broker at {servers}: {error.str()}", where=where)
    return RuntimeFailure(f"Kafka refuses the request: {error.str()}", where=where, hint=hint)


def no_broker(what: str, *, where: str) -> BrokerAway:
    """Make the error of a request that no broker has answered."""
    return BrokerAway(what, where=where, hint="check that the broker runs and that this machine reaches it")


def reach(servers: str, *, where: str) -> None:
    """Raise BrokerAway where none of the servers accepts a connection."""
    why = "no server"
    for server in servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS):
                return
        except (OSError, ValueError) as error:
            why = str(error)
    raise no_broker(f"no Kafka broker at {servers}: {why}", where=where)
