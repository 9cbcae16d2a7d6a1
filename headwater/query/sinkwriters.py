"""Descriptions of sink writers: where a unit's outputs go, as settings that its Spark opens them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.channels.channelspec import channel_spec, lineage_of
from headwater.channels.open import LOG_KINDS
from headwater.channels.segments import FOR_LINK
from headwater.connectors import tablewriters
from headwater.connectors.kafkawriter import sink_writer_id
from headwater.core.quantity import parse_duration, parse_size
from headwater.dataflow.customs import CustomSink
from headwater.dataflow.opcua import OpcuaSink
from headwater.dataflow.sinks import CallbackSink, FileSink, KafkaSink, MqttSink, Sink
from headwater.dataflow.tablesinks import TableSink
from headwater.disk.checkpoint import checkpoint_number
from headwater.disk.layout import Layout, sink_directory, writer_name
from headwater.plan.content import holds_back
from headwater.plan.spec import UnitSpec

_TARGET, _AGE = "128MiB", "10 minutes"
"""The size that files are to have, and the time for which smaller ones wait, where a sink states one of both."""


def _waiting(sink: FileSink) -> dict[str, Any]:
    """Describe which files wait to be put together."""
    if not sink.holds_back:
        return {}
    target, age = sink.target_file_size or _TARGET, sink.max_file_age or _AGE
    return {"target_bytes": parse_size(target), "max_age": parse_duration(age)}


def described(spec: UnitSpec, output: str, layout: Layout, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the sink writer of a unit's output: a sink, or a channel, for which ``settings`` are.

    Raises DeploymentError where the number of the unit's checkpoint is damaged.
    """
    flow, unit = spec.flow, spec.unit
    operator, stored, checkpoint = flow[output], spec.tags[output], layout.checkpoint(unit)
    lineage, fsync = lineage_of(checkpoint), settings.get("fsync", True)
    scratch = str(layout.sink(output, stored, unit))
    match operator:
        case FileSink():
            return {
                **_waiting(operator),
                "kind": "files",
                "format": operator.format,
                "partition_by": operator.partitions(flow.types[operator.inputs[0]]),
                "path": sink_directory(operator.path, unit),
                "name": writer_name(stored, unit),
                "lineage": lineage,
            }
        case CallbackSink():
            called = {"function": operator.function.pickled, "as_dataframe": bool(operator.as_dataframe)}
            return {"kind": "callback", **called, "operator": output, "path": scratch}
        case KafkaSink():
            number = checkpoint_number(str(checkpoint), where=operator.where)
            return {
                "kind": "kafka",
                "path": scratch,
                "operator": output,
                "topic": operator.topic,
                "settings": {**dict(operator.options), "bootstrap.servers": operator.bootstrap_servers},
                "id": sink_writer_id(number, stored),
                "delivery": operator.delivery,
                "user_env": operator.user_env,
                "password_env": operator.password_env,
            }
        case MqttSink():
            return {
                "kind": "mqtt",
                "path": scratch,
                "operator": output,
                "lineage": lineage,
                **operator.config(),
                "topic": None if operator.topic is None else operator.topic.replace("{zone}", unit.zone),
            }
        case OpcuaSink():
            return {
                "kind": "opcua",
                "path": scratch,
                "operator": output,
                "lineage": lineage,
                **operator.config(),
                "node": None if operator.node is None else operator.node.replace("{zone}", unit.zone),
            }
        case CustomSink():
            return {
                "kind": "custom",
                "path": scratch,
                "operator": output,
                "provider": operator.provider.pickled,
                "options": {k: v.replace("{zone}", unit.zone) for k, v in operator.options},
                "schema": flow.types[operator.inputs[0]].schema.text,
            }
        case TableSink():
            table = tablewriters.described(operator, flow.types[operator.inputs[0]], unit, stored, checkpoint)
            return {"path": scratch, "fsync": fsync, **table}
        case Sink():
            return {"kind": "filelog", "path": scratch, "fsync": fsync, "lineage": lineage}
    channel = next(c for c in spec.outputs if c.operator == output)
    log = channel_spec(spec, channel, layout)
    sink_writer = {**log, **settings, "kind": LOG_KINDS[log["kind"]].sink_writer, "lineage": lineage}
    if channel.links:
        bandwidth = spec.slowest_link(channel)
        sink_writer |= {"compression": FOR_LINK, "bytes_per_s": None if bandwidth is None else bandwidth / 8}
    if channel.event_time is not None:
        if spec.direct_time:
            sink_writer |= {"event_time": channel.event_time.column, "delay": channel.event_time.delay}
        else:
            sink_writer |= {"offsets": str(checkpoint / "offsets"), "delay": holds_back(flow, unit, output)}
    return sink_writer
