"""The ``broker:`` and ``channels:`` of a zone in a continuum file: a Kafka broker, and the kind of channels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headwater.continuum.yamltree import Fields, Leaf, Problems, YamlNode
from headwater.core.text import shown

ChannelKind: TypeAlias = Literal["filelog", "kafka"]

_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETTING = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)+")
_KEYS = ("servers", "user_env", "password_env", "replication")
_HINT = "write broker: host:9092, or broker: {servers: host:9092, user_env: NAME, password_env: NAME}"
# Settings that are refused here: secrets belong into the environment, the others are Headwater's.
_ELSEWHERE: Mapping[str, str] = {
    "bootstrap.servers": "write servers: host:9092",
    "sasl.username": "write user_env: with the name of an environment variable",
    "sasl.password": "write password_env: with the name of an environment variable",
    "ssl.key.password": "use a key file that only the zone's user can read",
    "ssl.keystore.password": "use a key file that only the zone's user can read",
    "sasl.oauthbearer.client.secret": "a continuum file holds no secrets: use user_env and password_env",
} | dict.fromkeys(
    ("group.id", "transactional.id", "isolation.level", "enable.idempotence", "enable.auto.commit", "acks"),
    "leave it out: exactly-once needs it as Headwater sets it",
)


@dataclass(frozen=True)
class Broker:
    """A zone's Kafka: its addresses, librdkafka's settings, and the environment variables of user and password.

    ``replication`` is that of created topics; None leaves it to the broker.
    """

    servers: str
    settings: tuple[tuple[str, str], ...] = ()
    user_env: str | None = None
    password_env: str | None = None
    replication: int | None = None

    def to_data(self) -> str | dict[str, object]:
        """Return it in the form of the YAML file."""
        named = {
            "user_env": self.user_env,
            "password_env": self.password_env,
            "replication": self.replication,
        }
        data = {k: v for k, v in named.items() if v is not None} | dict(self.settings)
        return {"servers": self.servers, **data} if data else self.servers


def broker_of(node: YamlNode | None, *, of: str, problems: Problems) -> Broker | None:
    """Read ``broker:`` of a zone; errors are added to ``problems``."""
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    if isinstance(node, Leaf):
        servers = _servers(node, of, problems)
        return None if servers is None else Broker(servers)
    if not isinstance(node, Fields):
        problems.add(f"the broker of {of} must be an address or a mapping", where=node.where, hint=_HINT)
        return None
    servers, settings, named = None, [], {}
    replication = None
    for key, value in node.entries:
        name = key.text
        if name == "servers":
            servers = _servers(value, of, problems)
        elif name in ("user_env", "password_env"):
            named[name] = _variable(value, name, of, problems)
        elif name == "replication":
            replication = _replication(value, of, problems)
        elif name in _ELSEWHERE:
            problems.add(f"the broker of {of} cannot have the setting {name}", where=key.where, hint=_ELSEWHERE[name])
        elif _SETTING.fullmatch(name) and isinstance(value, Leaf) and value.value is not None:
            settings.append((name, value.text))
        elif _SETTING.fullmatch(name):
            problems.add(f"{name} of the broker of {of} has no value", where=value.where, hint="write one")
        else:
            problems.add(
                f"unknown key {key} in the broker of {of}",
                where=key.where,
                hint=f"the keys are {', '.join(_KEYS)}, and librdkafka's settings such as security.protocol",
            )
    if servers is None:
        if not any(key.text == "servers" for key, _ in node.entries):
            problems.add(f"the broker of {of} has no servers", where=node.where, hint=_HINT)
        return None
    return Broker(
        servers,
        tuple(sorted(settings)),
        named.get("user_env"),
        named.get("password_env"),
        replication,
    )


def channels_of(node: YamlNode | None, *, of: str, problems: Problems) -> ChannelKind | None:
    """Read ``channels:`` of a zone."""
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    if isinstance(node, Leaf) and node.value in ("filelog", "kafka"):
        return "kafka" if node.value == "kafka" else "filelog"
    problems.add(f"channels of {of} cannot be {node}", where=node.where, hint="write filelog or kafka")
    return None


def check_reach(
    chain: Callable[[str], list[tuple[str, Broker | None]]],
    wanted: Mapping[str, tuple[ChannelKind | None, str]],
    problems: Problems,
) -> None:
    """Report the zones that want Kafka where neither they nor a zone above has a broker."""
    for zone, (kind, where) in wanted.items():
        if kind == "kafka" and not any(broker for _, broker in chain(zone)):
            problems.add(
                f"zone {zone} wants its channels on Kafka, but neither it nor a zone above it has a broker",
                where=where,
                hint=f"give zone {zone} or one above it a broker: host:9092, or write channels: filelog",
            )


def _servers(node: YamlNode, of: str, problems: Problems) -> str | None:
    text = node.value if isinstance(node, Leaf) else None
    if isinstance(text, str) and text.strip():
        parts = [part.strip() for part in text.split(",")]
        wrong = [p for p in parts if not (m := _SERVER.fullmatch(p)) or not 0 < int(m[1]) < 65536]
        if not wrong:
            return ",".join(parts)
        problems.add(
            f"the broker of {of} cannot be at {shown(wrong[0])}",
            where=node.where,
            hint="write host:port, several with commas between",
        )
        return None
    problems.add(f"the address of the broker of {of} must be text, not {node}", where=node.where, hint=_HINT)
    return None


def _variable(node: YamlNode, name: str, of: str, problems: Problems) -> str | None:
    if isinstance(node, Leaf) and isinstance(node.value, str) and _VARIABLE.fullmatch(node.value):
        return node.value
    problems.add(
        # The value may be the password itself: it is not shown.
        f"{name} of the broker of {of} is not the name of an environment variable",
        where=node.where,
        hint=f"write {name}: KAFKA_PASSWORD, and set that variable where the zone's units run",
    )
    return None


def _replication(node: YamlNode, of: str, problems: Problems) -> int | None:
    value = node.value if isinstance(node, Leaf) else None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 32767:
        return value
    problems.add(
        f"replication of the broker of {of} cannot be {node}",
        where=node.where,
        hint="write a number from 1 on",
    )
    return None
