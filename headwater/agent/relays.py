"""The relays of one deployment on one node: pull channels from other nodes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from headwater.channels.channelspec import channel_spec, is_copied
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.linkmeter import LinkMeter
from headwater.channels.linkstream import description
from headwater.channels.open import open_log
from headwater.channels.relay import PolledLog, Relay, Remote, relay_reader, unregister
from headwater.channels.segments import normal_type
from headwater.channels.streamhistory import ReceivedHistory
from headwater.channels.wire import Credentials, Wire, ca_file
from headwater.connectors.pythonvalues import arrow_type
from headwater.core.errors import ChannelError, NoSuchLog, Unavailable
from headwater.core.metrics import LinkProgress
from headwater.dataflow.graph import Graph
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.model import Channel
from headwater.plan.spec import UnitSpec


def described_columns(flow: Graph, operator: str) -> bytes:
    """Return the description of the columns of an operator's channel (``linkstream.description``)."""
    import pyarrow as pa

    columns = flow.types[operator].schema.columns
    return description(pa.schema([pa.field(c.name, normal_type(arrow_type(c.type))) for c in columns]))


class Relays:
    """Pulls the inputs of the node's units from other nodes; ``peers`` are the addresses of their agents.

    ``grants`` are the tokens for their channels, by log.
    """

    def __init__(
        self,
        deployment: str,
        node: str,
        layout: Layout,
        settings: UnitSettings,
        peers: Mapping[str, str],
        grants: Mapping[str, str],
    ) -> None:
        self._deployment = deployment
        self._node = node
        self._layout = layout
        self._settings = settings
        self._peers = peers
        self._grants = grants
        self._relays: dict[str, Relay] = {}
        self._meters: dict[str, LinkMeter] = {}
        self._ends: dict[str, int] = {}
        """The end of each channel to be released, when that was first asked."""

    def pull(self, spec: UnitSpec) -> None:
        """Pull a unit's inputs from other nodes."""
        for channel in spec.inputs:
            if not is_copied(channel, spec.unit) or channel.id in self._relays:
                continue
            link = channel.links[0] if channel.links else channel.node
            self._relays[channel.id] = relay = Relay(
                partial(self.connect, spec, channel, ReceivedHistory(described_columns(spec.flow, channel.operator))),
                f"{self._deployment}/{channel.id}",
                FileLog(self._layout.channel(channel), fsync=self._settings.channel.fsync),
                reader=relay_reader(self._node),
                max_bytes=self._settings.channel.max_bytes,
                link=link,
                meter=self._meters.setdefault(link, LinkMeter()),
            )
            relay.start()

    def connect(self, spec: UnitSpec, channel: Channel, history: ReceivedHistory | None = None) -> Remote:
        """Open a channel of another node, through that node's agent or a broker; ``history``: see `FlightLog`."""
        if channel.broker is not None:
            from headwater.channels.kafkalog import KafkaLog

            log = open_log(channel_spec(spec, channel, self._layout))
            assert isinstance(log, KafkaLog)
            return PolledLog(log)
        address = self._peers.get(channel.node)
        if address is None:
            raise ChannelError(
                f"the address of {channel.node} is not known",
                where=self._node,
                hint="give it `at: host:port` in the continuum",
            )
        name = f"{self._deployment}/{channel.id}"
        token = self._grants.get(name)
        if token is None:
            raise ChannelError(
                f"there is no grant to read {name} yet",
                where=self._node,
                hint="wait until the controller (`headwater up`) reaches this agent: it sends one",
            )
        return FlightLog(Wire(address, Credentials(token, ca_file()), channel.node), name, history)

    def latest(self, spec: UnitSpec, channel: Channel) -> int:
        """Return the current end of another node's channel."""
        remote = self.connect(spec, channel)
        try:
            return remote.latest()
        finally:
            remote.close()

    def check_whole(self, spec: UnitSpec, channels: Sequence[Channel]) -> None:
        """Raise Unavailable while a copy lacks entries that its original held at the first call.

        A copy without entries is whole where the writer was never prepared.
        """
        for channel in channels:
            relay = self._relays.get(channel.id)
            if relay is None:
                continue
            if channel.id not in self._ends:
                try:
                    self._ends[channel.id] = self.latest(spec, channel)
                except NoSuchLog:
                    if relay.replica.latest():
                        raise
                    self._ends[channel.id] = 0
            if missing := max(0, self._ends[channel.id] - relay.replica.latest()):
                raise Unavailable(
                    f"{missing} entries of {channel.id} are still to arrive over link {relay.link}",
                    where=self._node,
                    hint="wait, or repair the link",
                )
        for channel in channels:
            self._ends.pop(channel.id, None)

    def keep_only(self, used: AbstractSet[str], leaving: UnitSpec | None = None) -> None:
        """End the relays of all other channels, and delete their copies.

        Channels of a unit that is ``leaving`` may have no relay: it was registered as reader, and never prepared.
        """
        ended = set()
        for id_ in [i for i in self._relays if i not in used]:
            relay = self._relays.pop(id_)
            relay.stop()
            relay.leave()
            shutil.rmtree(relay.replica.path, ignore_errors=True)
            ended.add(id_)
        if leaving is None:
            return
        for channel in leaving.inputs:
            if is_copied(channel, leaving.unit) and channel.id not in used | ended:
                unregister(partial(self.connect, leaving, channel), relay_reader(self._node))
                shutil.rmtree(self._layout.channel(channel), ignore_errors=True)

    def links(self) -> tuple[LinkProgress, ...]:
        """Return the state and traffic of the links to this node."""
        now = time.monotonic()
        seen = {
            relay.link: LinkProgress(
                link=relay.link,
                up=relay.state.up,
                since_s=now - relay.state.since,
                delay_s=relay.meter.delay_s,
                bytes_per_s=relay.meter.bytes_per_s,
                capacity=relay.meter.capacity,
            )
            for relay in self._relays.values()
        }
        return tuple(seen.values())

    def stop(self) -> None:
        """End all relays; later ones continue at their positions."""
        for relay in self._relays.values():
            relay.stop()
        self._relays.clear()
