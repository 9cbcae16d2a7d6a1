"""Errors of Spark's Kafka source in the user's terms."""

from __future__ import annotations

import re

from headwater.connectors.packages import KAFKA
from headwater.core.errors import RuntimeFailure, WaitsForBroker

_LONGEST = 400  # characters of what Kafka says
_ERRORS = r"org\.apache\.kafka\.common\.errors\."
_SAYS = r"(?:: (?P<text>[^\n]*))?"
_REFUSED = re.compile(
    rf"{_ERRORS}(?:SaslAuthentication|SslAuthentication|TopicAuthorization|GroupAuthorization|ClusterAuthorization|"
    rf"UnsupportedSaslMechanism)Exception{_SAYS}"
)
# The broker is away, or it starts: Kafka's client has tried for its own time limits already.
_AWAY = re.compile(
    rf"{_ERRORS}(?:Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable|CoordinatorNotAvailable|"
    rf"NotLeaderOrFollower)Exception{_SAYS}|No resolvable bootstrap urls[^\n]*"
)
_MISSING = re.compile(r"Topic (\S+) not present in metadata")
_OTHERS = (
    (
        re.compile(_ERRORS + "UnknownTopicOrPartitionException"),
        "the broker has no such topic",
        "correct the topic's name, or create it",
    ),
    (
        re.compile(r"Some data may have been lost because they are not available in Kafka any more"),
        "the topic has deleted records that were not read yet, or has fewer partitions than before",
        "keep records for longer; failOnDataLoss='false' goes on without them",
    ),
    (
        re.compile(r"must specify all TopicPartitions"),
        "starting names other partitions than the topic has",
        "give the offset of every partition: -2 is the earliest, -1 the latest",
    ),
    (
        re.compile(r"Failed to find (?:the )?data source: `?kafka`?"),
        "Spark has no Kafka connector",
        f"give its zone in the continuum spark: {{packages: ['{KAFKA}']}}, or its agent --packages {KAFKA}",
    ),
)


def kafka_failure(text: str, *, where: str) -> RuntimeFailure | None:
    """Return the error of Kafka that a text of Spark's holds; None where it holds none."""
    if (refused := _REFUSED.search(text)) is not None:
        return RuntimeFailure(
            f"Kafka refuses the request: {(refused['text'] or refused[0])[:_LONGEST]}",
            where=where,
            hint="check security.protocol, the secrets named by user_env and password_env, and the user's rights",
        )
    for pattern, what, hint in _OTHERS:
        if pattern.search(text):
            return RuntimeFailure(what, where=where, hint=hint)
    if (missing := _MISSING.search(text)) is not None:
        return RuntimeFailure(
            f"the broker has no topic {missing[1]}",
            where=where,
            hint="create it, or correct its name: also real-time mode's topic of dead letters has to be there",
        )
    if (away := _AWAY.search(text)) is not None:
        return WaitsForBroker(
            f"no Kafka broker answers: {(away['text'] or away[0])[:_LONGEST]}",
            where=where,
            hint="check that the broker runs and that this machine reaches it",
        )
    return None
