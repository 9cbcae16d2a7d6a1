"""The bridges of units: a spool for each bridged source and location, and what stores received records in it."""

from __future__ import annotations

import json
from typing import Any

from headwater.channels.base import ChannelLimits
from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import Bridge
from headwater.connectors.bridges import open_bridge
from headwater.dataflow.sources import BridgedSource
from headwater.disk.durable import write_atomically
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.content import source_locations
from headwater.plan.spec import UnitSpec


class UnitBridges:
    """Start and stop the bridges of units. Without ``receives`` the spools are made and nothing is received."""

    def __init__(self, layout: Layout, settings: UnitSettings, *, receives: bool) -> None:
        self._layout, self._settings, self._receives = layout, settings, receives
        self._bridges: dict[str, list[Bridge[Any]]] = {}

    def start(self, spec: UnitSpec) -> None:
        """Make a unit's spools, and start its bridges; raise the error of one that cannot start."""
        self.stop(spec.id)  # a unit also starts again when its Spark has ended, beside its bridges
        channel, epoch = self._settings.channel, spec.unit.epoch
        # Acknowledged records must not be dropped, whatever a full channel does.
        limits = ChannelLimits(max_bytes=channel.max_bytes, max_age=channel.max_age)
        for id_, locations in source_locations(spec.flow, spec.unit).items():
            source = spec.flow[id_]
            if not isinstance(source, BridgedSource):
                continue
            for location in locations:
                spool = self._layout.spool(source.id, spec.tags[source.id], location)
                members = {"writers": {spool.name: str(spool / "log")}}
                write_atomically(spool / "members.json", json.dumps(members))
                log = FileLog(spool / "log", limits=limits, fsync=channel.fsync)
                log.create()
                if not self._receives:
                    continue
                bridge = open_bridge(source, location, log=log, epoch=epoch, home=self._layout.root)
                bridge.start()
                self._bridges.setdefault(spec.id, []).append(bridge)

    def stop(self, unit: str) -> None:
        """Stop a unit's bridges; what they have received is stored."""
        for bridge in self._bridges.pop(unit, []):
            bridge.stop()

    def problem(self, unit: str) -> str | None:
        """Return why a unit's bridges receive nothing, or cannot store it; None where all is well."""
        return next((error for b in self._bridges.get(unit, ()) if (error := b.status().error) is not None), None)
