"""Locations of a plan's channels: for each, the description that opens its log."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headwater.channels.log import Log
from headwater.channels.open import LogSpec, remove_log
from headwater.disk.checkpoint import checkpoint_number, is_unnumbered
from headwater.disk.layout import Layout
from headwater.plan.model import Channel, Unit
from headwater.plan.spec import ChannelConsumer, UnitSpec

_LONGEST = 200  # characters of a topic's name; Kafka takes 249, and a table's name is longer


def topic_of(deployment: str, channel: Channel) -> str:
    """Name a channel's topic; it depends on the channel's id alone, so that all nodes find it."""
    name = f"headwater.{deployment}.{channel.id}"
    legal = re.sub(r"[^A-Za-z0-9._-]", ".", name)
    if legal == name.replace("@", ".") and len(legal) <= _LONGEST:
        return legal
    return f"{legal[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def channel_spec(spec: UnitSpec, channel: Channel, layout: Layout) -> dict[str, Any]:
    """Describe a channel's log, for ``open_log``; the kind of its sink writer is in ``LOG_KINDS``."""
    if channel.broker is None:
        return {"kind": "filelog", "path": str(layout.channel(channel))}
    broker = spec.brokers[channel.broker]
    named = {"user_env": broker.user_env, "password_env": broker.password_env}
    return {
        "kind": "kafka",
        "servers": broker.servers,
        "topic": topic_of(spec.deployment, channel),
        "staging": str(layout.channel(channel) / "staging"),
        "settings": dict(broker.settings),
        **{k: v for k, v in named.items() if v is not None},
        **({} if broker.replication is None else {"replication": broker.replication}),
    }


def member_spec(spec: UnitSpec, channel: Channel, layout: Layout) -> LogSpec:
    """Describe a channel's log in a members file: a filelog is its path."""
    described = channel_spec(spec, channel, layout)
    return str(described["path"]) if channel.broker is None else described


def drop_topics(specs: Iterable[UnitSpec], layout: Layout) -> None:
    """Delete the topics of units' channels at their brokers; files below the layout's root stay."""
    for spec in specs:
        for channel in spec.outputs:
            if channel.broker is not None:
                remove_log(channel_spec(spec, channel, layout))


def lineage_of(checkpoint: Path) -> str | None:
    """Return the lineage of a unit's batch numbers: its checkpoint's own number, which stays when that is moved.

    None for a checkpoint that was begun before checkpoints had a number. Raise DeploymentError for a damaged number:
    without it, batches in the output are not recognised, and new ones could be taken for them.
    """
    return None if is_unnumbered(checkpoint) else str(checkpoint_number(str(checkpoint)))


def is_copied(channel: Channel, reader: Unit | ChannelConsumer) -> bool:
    """Return whether a unit reads a replica of a channel: the original is on another node or another zone's broker."""
    return channel.node != reader.node if channel.broker is None else channel.broker != reader.zone


def register(log: Log, readers: Iterable[str], *, at_end: bool = False) -> None:
    """Register new readers at the earliest position; known ones keep theirs. ``at_end``: move all to the end."""
    known = log.readers()
    for reader in readers:
        if reader not in known:
            log.register(reader)
        if at_end:
            log.advance(reader, log.latest())
