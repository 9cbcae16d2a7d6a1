"""Sparkplug B as a source: metrics of edge nodes and devices, from the messages of an MQTT broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwater.dataflow.sources import MqttSource
from headwater.dataflow.types import StreamType

NAMESPACE = "spBv1.0"


def sparkplug_columns(type_: str) -> str:
    """Return the columns of metrics whose values have a type.

    ``metric`` is NULL where a message names its alias only and no birth has told its name, and in a death, after which
    all metrics are stale. ``gap``: messages of the edge node before this one may be missing.
    """
    of = "group_id string, edge_node string, device string, message string, metric string, alias bigint"
    return f"{of}, value {type_}, time timestamp, seq int, quality string, historical boolean, gap boolean"


@dataclass(frozen=True, kw_only=True)
class SparkplugSource(MqttSource):
    """Metrics of a Sparkplug group ('{location}' is replaced), each one row."""

    kind: ClassVar[str] = "sparkplug"
    rebirth: bool = True

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        if not self.topic.startswith(f"{NAMESPACE}/"):
            raise self.error(f"'{self.topic}' is not of Sparkplug B", "name the group: read.sparkplug(broker, 'G')")
        return super().output(inputs)
