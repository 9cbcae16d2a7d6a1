"""The bridge of each kind of source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import Bridge
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.httpsource import HttpSource
from headwater.dataflow.opcua import OpcuaSource
from headwater.dataflow.sources import BridgedSource, MqttSource
from headwater.dataflow.sparkplug import SparkplugSource


def open_bridge(source: BridgedSource, location: str, *, log: FileLog, epoch: int, home: Path) -> Bridge[Any]:
    """Make the bridge of a source at a location; ``home``: the directory of the deployment on this node."""
    # Each kind imports its module when it is opened: a process without MQTT does not load its client.
    match source:
        case SparkplugSource():
            from headwater.connectors.sparkplug import SparkplugBridge

            return SparkplugBridge(source, location=location, log=log, epoch=epoch)
        case MqttSource():
            from headwater.connectors.mqtt import MqttBridge

            return MqttBridge(source, location=location, log=log, epoch=epoch)
        case HttpSource():
            from headwater.connectors.httpbridge import HttpBridge

            return HttpBridge(source, location=location, log=log, epoch=epoch, home=home)
        case OpcuaSource():
            from headwater.connectors.opcuabridge import OpcuaBridge

            return OpcuaBridge(source, location=location, log=log, epoch=epoch)
    raise RuntimeFailure(f"no bridge for {source.kind}", where=source.where, hint="report this as a defect")
