"""The bridge of Sparkplug B: the MQTT bridge, with each metric of a message as a row.

Births tell the names and types behind the aliases of later messages, and are asked for (``Node Control/Rebirth``) where
one is missing: after the bridge has started, or when the numbers of an edge node's messages show that some are lost.
Edge nodes send at QoS 0, so what they send while the bridge is down is lost; ``gap`` marks the first message after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.channels.filelog import FileLog
from headwater.connectors.mqtt import MqttBridge
from headwater.connectors.sparkplugpayload import (
    Metric,
    payload_class,
    read_payload,
    require_protobuf,
    time_of,
    value_of,
)
from headwater.connectors.spoolwriter import text_of
from headwater.dataflow.sparkplug import NAMESPACE, SparkplugSource

_DATA = ("NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH")
_ASK_SECONDS = 10.0  # between two requests for the birth of an edge node
_BOOLEAN = 11  # the data type
_NUMBERS = 256  # of messages, after which they begin again
_SESSION = "bdSeq"


@dataclass
class EdgeNode:
    """What messages of an edge node have told: its last number, its session, names and types by alias and by name."""

    seq: int | None = None
    session: Any = None
    aliases: dict[int, tuple[str | None, int | None]] = field(default_factory=dict)
    types: dict[tuple[str | None, str | None], int | None] = field(default_factory=dict)
    asked: float = -_ASK_SECONDS


class SparkplugBridge(MqttBridge):
    """Store the metrics of one source at one location in ``log``."""

    def __init__(self, source: SparkplugSource, *, location: str, log: FileLog, epoch: int, **settings: Any) -> None:
        super().__init__(source, location=location, log=log, epoch=epoch, **settings)
        self._rebirth = source.rebirth
        self._nodes: dict[tuple[str, str], EdgeNode] = {}

    def _prepare(self) -> None:
        require_protobuf(self._where)
        super()._prepare()

    def _records(self, topic: str, payload: bytes) -> tuple[Sequence[str], int]:
        parts = topic.split("/")
        if parts[0] != NAMESPACE or len(parts) not in (4, 5) or parts[2] not in _DATA:
            return (), 0  # a command, or the state of a host
        _, group, kind, node, *device = parts
        try:
            seq, metrics = read_payload(payload)
        except ValueError:
            text, clean = text_of(payload)
            return (text,), not clean
        known = self._nodes.setdefault((group, node), EdgeNode())
        session = next((m.value for m in metrics if m.name == _SESSION), None)
        if kind == "NDEATH":
            if None not in (session, known.session) and session != known.session:
                return (), 0  # of a former session, after the birth of this one
            known.seq, metrics = None, []
        gap = self._counted(known, kind, seq)
        at = device[0] if device else None
        if kind == "NBIRTH":
            known.session, known.aliases, known.types = session, {}, {}
        if kind.endswith("BIRTH"):
            known.aliases |= {m.alias: (m.name, m.type) for m in metrics if m.alias is not None}
            known.types |= {(at, m.name): m.type for m in metrics}
        base = {"group_id": group, "edge_node": node, "device": at, "message": kind, "seq": seq, "gap": gap}
        if kind.endswith("DEATH"):
            return (json.dumps({**base, "quality": "stale", "time": time_of(round(1000 * time.time()))}),), 0
        rows = [self._row(base, known, metric) for metric in metrics]
        if gap or any(row["metric"] is None for row in rows):
            self._ask_for_birth(group, node, known)
        return [json.dumps(row) for row in rows], 0

    def _counted(self, known: EdgeNode, kind: str, seq: int | None) -> bool:
        """Take the number of a message; return whether some before it may be missing."""
        if seq is None:
            return False
        before, known.seq = known.seq, seq
        if kind == "NBIRTH" or seq == before:  # one that the broker sends again
            return False
        if before is None:
            return True
        lost = (seq - before - 1) % _NUMBERS
        self._counts.missed += lost
        return lost > 0

    def _row(self, base: dict[str, Any], known: EdgeNode, metric: Metric) -> dict[str, Any]:
        name, type_ = metric.name, None
        if name is None and metric.alias is not None:
            name, type_ = known.aliases.get(metric.alias, (None, None))
        elif name is not None:
            type_ = known.types.get((base["device"], name))
        return {
            **base,
            "metric": name,
            "alias": metric.alias,
            "value": value_of(metric, type_),
            "time": time_of(metric.time),
            "quality": metric.quality,
            "historical": metric.historical,
        }

    def _ask_for_birth(self, group: str, node: str, known: EdgeNode) -> None:
        if not self._rebirth or time.monotonic() - known.asked < _ASK_SECONDS:
            return
        known.asked = time.monotonic()
        asked = payload_class()(timestamp=round(1000 * time.time()))
        asked.metrics.add(name="Node Control/Rebirth", datatype=_BOOLEAN, boolean_value=True)
        self._client.publish(f"{NAMESPACE}/{group}/NCMD/{node}", asked.SerializeToString(), qos=0)
