"""Settings of Kafka's two clients for a topic of a dataflow: the Java client, inside Spark, and librdkafka.

They hold the values of secrets: not to be shown or stored.
"""

from __future__ import annotations

from headwater.channels.kafkaclient import credentials
from headwater.core.errors import DeploymentError
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sinks import RealTimeKafkaSink
from headwater.disk.credentials import read_secret
from headwater.disk.layout import full_path

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_ALIKE = (
    "client.id",
    "sasl.mechanism",
    "security.protocol",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)
"""Settings with one meaning in Kafka's consumer, which reads a topic, and in librdkafka, which writes and asks."""


def java_setting(option: str, value: str) -> dict[str, str]:
    """Return a setting of Kafka's Java client as options of Spark's connector."""
    if option == "ssl.ca.location":
        return {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": full_path(value)}
    return {f"kafka.{option}": value}


def librdkafka_settings(source: KafkaSource, location: str) -> dict[str, str]:
    """Return the settings by which librdkafka reaches a location's broker. They hold the values of secrets."""
    given = dict(source.options)
    found = {name: given[name] for name in _ALIKE if name in given}
    if "ssl.ca.location" in given:
        found["ssl.ca.location"] = full_path(given["ssl.ca.location"])
    secrets = credentials(source.user_env, source.password_env, where=source.where)
    if secrets:
        found = {"sasl.mechanism": "PLAIN", **found, **secrets}
    return {**found, "bootstrap.servers": servers_at(source, location)}


def servers_at(source: KafkaSource, location: str) -> str:
    """Return the servers that a location's topic is read from."""
    return source.bootstrap_servers.replace("{location}", location)


def topic_at(source: KafkaSource, location: str) -> str:
    """Return the topic that is read for a location."""
    return source.topic.replace("{location}", location)


def java_login(source: KafkaSource | RealTimeKafkaSink) -> dict[str, str]:
    """Return the settings of Kafka's Java client that log in. They hold the values of secrets."""
    user = read_secret(source.user_env, where=source.where)
    password = read_secret(source.password_env, where=source.where)
    if user is None and password is None:
        return {}
    mechanism = dict(source.options).get("sasl.mechanism", "PLAIN")
    if "\n" in f"{user}{password}":
        raise DeploymentError(
            "a user or password with a line break", where=source.where, hint="correct the value of the secret"
        )
    # Spark and Kafka hide this setting in their logs and plans.
    words = " ".join(f'{key}="{_escaped(value or "")}"' for key, value in (("username", user), ("password", password)))
    return {
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"{_MODULES[mechanism]} required {words};",
    }


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
