"""The channels of a node's units: their logs here, with their readers, and the logs that each unit reads."""

from __future__ import annotations

import json

from headwater.channels.channelspec import is_copied, member_spec, register
from headwater.channels.kafkaclient import looking, reach
from headwater.channels.log import Log
from headwater.channels.open import LogSpec, open_log
from headwater.channels.relay import relay_reader
from headwater.connectors.kafkasettings import servers_at
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.disk.checkpoint import positions
from headwater.disk.durable import read_note, write_atomically
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.disk.syncing import sync_checkpoint
from headwater.plan.content import source_locations
from headwater.plan.model import Channel, Unit
from headwater.plan.spec import UnitSpec


class UnitChannels:
    """Create, open and register channels in one node's directory.

    Other nodes read them through their own relays, unless all nodes ``share`` the directory.
    """

    def __init__(self, layout: Layout, settings: UnitSettings, *, share: bool) -> None:
        self.layout = layout
        self.settings = settings
        self._share = share

    def prepare_outputs(self, spec: UnitSpec, joining: frozenset[str] = frozenset()) -> None:
        """Make a unit's output channels and register their readers; registered ones stay.

        Readers that are ``joining`` begin at the channel's current end.
        """
        for channel in spec.outputs:
            log = self.log(spec, channel)
            log.create()
            readers = self._readers(spec, channel)
            late = {r for r, units in readers.items() if units <= joining}
            register(log, [r for r in readers if r not in late])
            register(log, sorted(late), at_end=True)

    def begin_where(self, spec: UnitSpec, stood: Unit) -> None:
        """Let a unit begin at the position of another unit, or at its own last one."""
        checkpoint = self.layout.checkpoint(stood)
        if self.settings.channel.fsync:  # entries that it has read may be deleted
            sync_checkpoint(checkpoint)
        at = positions(checkpoint)
        for channel in spec.inputs:
            log = self.log(spec, channel)
            log.create()
            if channel.id in at:
                for reader in spec.own_readers[channel.operator]:
                    log.register(reader)
                    log.advance(reader, min(at[channel.id], log.latest()))

    def _readers(self, spec: UnitSpec, channel: Channel) -> dict[str, set[str]]:
        """Name the readers of a channel here, units and relays of nodes, each with the unit it reads for."""
        found: dict[str, set[str]] = {}
        for reader in spec.readers[channel.id]:
            copied = not self._share and is_copied(channel, reader)
            for name in [relay_reader(reader.node)] if copied else reader.names:
                found.setdefault(name, set()).add(reader.unit)
        return found

    def set_inputs(self, spec: UnitSpec, *, joins: bool = False) -> None:
        """Set the logs of each input of a unit; removed logs are read to their end.

        ``joins``: it begins at their current end.
        """
        inputs: dict[str, dict[str, LogSpec]] = {}
        for channel in spec.inputs:
            log = self.log(spec, channel)
            log.create()
            register(log, spec.own_readers[channel.operator], at_end=joins)
            inputs.setdefault(channel.operator, {})[channel.id] = self._log_spec(spec, channel)
        for operator, writers in inputs.items():
            file = self.layout.members(spec.unit, operator)
            before = read_note(file)
            known = {**before.get("retired", {}), **before.get("writers", {})}
            retired = {id_: spec for id_, spec in known.items() if id_ not in writers}
            write_atomically(file, json.dumps({"writers": writers, "retired": retired}))

    def leave(self, unit: Unit, channels: set[str]) -> None:
        """Remove channels that a unit has read to their end from its pending ones."""
        if self.settings.channel.fsync:  # a batch that reads them is not repeated
            sync_checkpoint(self.layout.checkpoint(unit))
        for file in self.layout.members(unit, "x").parent.glob("*.members.json"):
            found = read_note(file)
            retired = found.get("retired", {})
            if retired.keys() & channels:
                found["retired"] = {k: v for k, v in retired.items() if k not in channels}
                write_atomically(file, json.dumps(found))

    def log(self, spec: UnitSpec, channel: Channel) -> Log:
        """Open a channel as this node has it: its own, a copy of another node's, or one on a broker."""
        return open_log(self._log_spec(spec, channel))

    def _log_spec(self, spec: UnitSpec, channel: Channel) -> LogSpec:
        written = any(c.id == channel.id for c in spec.outputs)  # where it is, also at another zone's broker
        copied = not self._share and not written and is_copied(channel, spec.unit)
        return str(self.layout.channel(channel)) if copied else member_spec(spec, channel, self.layout)

    def reach_brokers(self, spec: UnitSpec) -> None:
        """Raise BrokerAway where the broker of a unit's channel, or of a topic that it reads, does not answer."""
        for id_, locations in source_locations(spec.flow, spec.unit).items():
            if isinstance(source := spec.flow[id_], KafkaSource):
                for servers in dict.fromkeys(servers_at(source, location) for location in locations):
                    reach(servers, where=source.where)
        with looking():
            for channel in (*spec.inputs, *spec.outputs):
                if channel.broker is not None:
                    self.log(spec, channel).latest()

    def retired(self, unit: Unit) -> dict[str, Log]:
        """Return the logs that a unit still reads although they are no longer its inputs."""
        logs: dict[str, Log] = {}
        for file in self.layout.members(unit, "x").parent.glob("*.members.json"):
            logs |= {id_: open_log(spec) for id_, spec in read_note(file).get("retired", {}).items()}
        return logs

    def give_up(self, unit: Unit) -> None:
        """Unregister a unit as reader of its removed inputs."""
        for log in self.retired(unit).values():
            for reader in log.stats().unread:
                if reader == unit.checkpoint or reader.startswith(f"{unit.checkpoint}_"):
                    log.unregister(reader)
