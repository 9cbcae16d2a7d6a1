"""Where a plan's channels are: each as the description by which anyone opens its log."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headwater.errors import DeploymentError
from headwater.plan.model import Channel, DeploymentPlan
from headwater.runtime.channels.log import Log
from headwater.runtime.channels.open import LogSpec, remove_log
from headwater.runtime.checkpoint import checkpoint_number
from headwater.runtime.layout import Layout

_LONGEST = 200  # characters of a topic's name; Kafka takes 249, and a table's name is longer


def topic_of(plan: DeploymentPlan, channel: Channel) -> str:
    """Name a channel's topic; it follows from the plan alone, so that all zones find it."""
    name = f"headwater.{plan.dataflow.name}.{channel.id}"
    legal = re.sub(r"[^A-Za-z0-9._-]", ".", name)
    if legal == name.replace("@", ".") and len(legal) <= _LONGEST:
        return legal
    return f"{legal[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def channel_spec(plan: DeploymentPlan, channel: Channel, layout: Layout) -> dict[str, Any]:
    """Describe a channel's log, for ``open_log``; an outlet has kind "kafkalog" instead of "kafka"."""
    if channel.broker is None:
        return {"kind": "filelog", "path": str(layout.channel(channel))}
    broker = plan.continuum.zone(channel.broker).broker
    assert broker is not None, channel.broker
    named = {"user_env": broker.user_env, "password_env": broker.password_env}
    return {
        "kind": "kafka",
        "servers": broker.servers,
        "topic": topic_of(plan, channel),
        "staging": str(layout.channel(channel) / "staging"),
        "settings": dict(broker.settings),
        **{k: v for k, v in named.items() if v is not None},
        **({} if broker.replication is None else {"replication": broker.replication}),
    }


def member_spec(plan: DeploymentPlan, channel: Channel, layout: Layout) -> LogSpec:
    """Describe a channel's log in a members file: a filelog is its path."""
    spec = channel_spec(plan, channel, layout)
    return str(spec["path"]) if channel.broker is None else spec


def drop_topics(plan: DeploymentPlan, layout: Layout) -> None:
    """Delete what brokers hold of a plan's channels; what is below the layout's root is not touched."""
    for channel in plan.channels:
        if channel.broker is not None:
            remove_log(channel_spec(plan, channel, layout))


def lineage_of(checkpoint: Path) -> str | None:
    """Name what numbers a unit's batches: its checkpoint, wherever that is moved.

    None for one that was begun before checkpoints had a number.
    """
    try:
        return str(checkpoint_number(str(checkpoint)))
    except DeploymentError:
        return None


def is_copied(channel: Channel, zone: str) -> bool:
    """Tell whether a zone reads a copy of a channel: what it holds is in another zone."""
    return (channel.broker or channel.zone) != zone


def register(log: Log, readers: Iterable[str], *, at_end: bool = False) -> None:
    """Register readers where what is kept begins, known ones where they stand; or all at the end."""
    known = log.readers()
    for reader in readers:
        if reader not in known:
            log.register(reader)
        if at_end:
            log.advance(reader, log.latest())
