"""The bridge from the nodes of an OPC UA server to a spool: a subscription whose values are acknowledged when durable.

Guarantees:

- While a connection lasts, each change that the server has sampled is stored once, in the order of its node: the server
  has it in the queue of the node (``queue`` values) until it is sent, and for retransmission until it is acknowledged,
  which it is when it is durable. While the log is full, nothing is acknowledged or asked for, and the queues fill up.
- From a queue that is full the server discards the oldest values, and marks the next one: ``gap``.
- Each connection makes a new subscription, which begins with the present value of each node. If the server has the
  history of a node, what has changed since this bridge last received a value of it is read from there first. Else, and
  when the bridge starts, the present value is marked as ``gap``: what has changed while the bridge was down, its unit
  moved, the network was cut or the server restarted is lost, except for the newest value, and so is what was sent and
  not yet durable. The value of a node that has not changed is stored again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import STOP_SECONDS, Bridge
from headwater.connectors.opcuaclient import (
    OpcuaAddress,
    connected,
    has_overflown,
    node_id,
    plain,
    quality_of,
    require_library,
    status_name,
    time_text,
)
from headwater.connectors.opcuahistory import Seen, hole, seen
from headwater.connectors.spoolwriter import Received
from headwater.core.errors import HeadwaterError
from headwater.core.quantity import parse_duration
from headwater.dataflow.opcua import OpcuaSource

if TYPE_CHECKING:
    from asyncua import Client, ua

_LOG = logging.getLogger(__name__)
_PAUSES = (1.0, 30.0)  # seconds between attempts to connect: the first pause, and the longest
_AT_ONCE = 500  # nodes of a request
_KEEP_ALIVE = 10.0  # seconds without changes after which the server says that the subscription lives
_LIFETIME = 600.0  # seconds without a request after which it ends the subscription
_REFUSALS = ("BadUserAccessDenied", "BadIdentityToken", "BadSecurity", "BadCertificate")


class _Ended(Exception):
    """The server has ended the subscription, or is silent."""


class OpcuaBridge(Bridge["Future[None]"]):
    """Store the changes of the nodes of one source at one location in ``log``."""

    def __init__(
        self,
        source: OpcuaSource,
        *,
        location: str,
        log: FileLog,
        epoch: int,
        flush_seconds: float = 0.0,
        flush_rows: int = 10_000,
    ) -> None:
        self._address = OpcuaAddress.of(source, where=source.where, location=location)
        self._nodes = [node.replace("{location}", location) for node in source.nodes]
        self._queue = source.queue
        self._interval, self._sampling = (1000 * parse_duration(d) for d in (source.interval, source.sampling))
        super().__init__(
            log=log,
            epoch=epoch,
            name=f"opcua-{source.id}",
            address=self._address.url,
            flush_seconds=flush_seconds,
            flush_rows=flush_rows,
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stops = asyncio.Event()
        self._ends = asyncio.Event()  # of the present subscription
        self._keeps = False  # whether it stores a notification, and asks for no other
        self._heard = 0.0  # when the server has sent the last one
        self._begins: set[int] = set()  # nodes of which the present subscription has sent nothing yet
        self._ids: dict[int, ua.NodeId] = {}
        self._client: Client | None = None
        self._last: dict[int, Seen | None] = {}  # the newest value of each node that is stored, or about to be

    # -- the bridge ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        require_library(self._address.where)
        self._address.secrets()

    def _connect(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=self.address, daemon=True)
        self._thread.start()

    def _disconnect(self) -> None:
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stops.set)
        if self._spool.stopping:  # else this is the storing thread: it need not wait
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def _acknowledge(self, items: list[Received[Future[None]]]) -> None:
        for item in items:
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                item.token.set_result(None)

    # -- the server's side: a thread with a loop of its own ------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep_connected())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    async def _keep_connected(self) -> None:
        """Subscribe, again after each loss, until the bridge stops."""
        stops = asyncio.ensure_future(self._stops.wait())
        pause = _PAUSES[0]
        while not self._stops.is_set():
            before = self._counts.connections
            session = asyncio.ensure_future(self._subscribed())
            await asyncio.wait([session, stops], return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                session.cancel()
            try:
                await session
            except asyncio.CancelledError:
                return
            except Exception as error:
                self._lost(error)
            pause = _PAUSES[0] if self._counts.connections > before else min(2 * pause, _PAUSES[1])
            await asyncio.wait([stops], timeout=pause)

    def _lost(self, error: Exception) -> None:
        """Report why there is no connection."""
        from asyncua.ua.uaerrors import UaStatusCodeError

        if isinstance(error, HeadwaterError):
            self._set("refused", str(error))
            return
        if isinstance(error, UaStatusCodeError) and status_name(error.code).startswith(_REFUSALS):
            self._set("refused", f"the OPC UA server {self.address} refuses: {status_name(error.code)}")
            return
        why = status_name(error.code) if isinstance(error, UaStatusCodeError) else str(error) or "no answer"
        self._set("connecting", f"no OPC UA server at {self.address}: {why}")

    async def _subscribed(self) -> None:
        """Connect, subscribe, and wait for the end of the subscription."""
        async with connected(self._address) as client:
            self._ends.clear()
            self._keeps = False
            client.connection_lost_callback = self._notice
            missing = await self._subscribe(client)
            self._counts.connections += 1
            self._set("connected", f"these nodes are not read: {'; '.join(missing[:5])}" if missing else None)
            await self._lives()

    async def _lives(self) -> None:
        """Wait for the end of the subscription, which the server may also forget without a word."""
        silence = 3 * max(_KEEP_ALIVE, 3 * self._interval / 1000)
        self._heard = self._loop.time()
        while not self._ends.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), _KEEP_ALIVE)
            if not self._keeps and self._loop.time() - self._heard > silence:
                raise _Ended("it has forgotten the subscription")
        raise _Ended("the connection was lost")

    async def _notice(self, _error: Exception) -> None:
        self._ends.set()

    async def _subscribe(self, client: Client) -> list[str]:
        """Subscribe to all nodes; return why some cannot be read."""
        from asyncua import ua

        rate = max(self._interval, 1.0)
        asked = ua.CreateSubscriptionParameters(
            RequestedPublishingInterval=rate,
            RequestedLifetimeCount=int(max(30, 1000 * _LIFETIME / rate)),
            RequestedMaxKeepAliveCount=int(max(3, 1000 * _KEEP_ALIVE / rate)),
            PublishingEnabled=True,
        )
        ids: dict[int, ua.NodeId] = {}
        missing: list[str] = []
        for number, text in enumerate(self._nodes):
            try:
                ids[number] = await node_id(client, text)
            except ValueError as error:
                missing.append(str(error))
        self._begins, self._ids, self._client = set(ids), ids, client
        made = await client.uaclient.create_subscription(asked, callback=self._keep)
        numbers = list(ids)
        for first in range(0, len(numbers), _AT_ONCE):
            some = numbers[first : first + _AT_ONCE]
            wanted = ua.CreateMonitoredItemsParameters(
                SubscriptionId=made.SubscriptionId,
                TimestampsToReturn=ua.TimestampsToReturn.Both,
                ItemsToCreate=[self._item(n, ids[n]) for n in some],
            )
            for number, result in zip(some, await client.uaclient.create_monitored_items(wanted), strict=True):
                if not result.StatusCode.is_good():
                    missing.append(f"{self._nodes[number]} ({status_name(result.StatusCode.value)})")
        return missing

    def _item(self, number: int, node: ua.NodeId) -> ua.MonitoredItemCreateRequest:
        from asyncua import ua

        return ua.MonitoredItemCreateRequest(
            ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=ua.AttributeIds.Value),
            MonitoringMode=ua.MonitoringMode.Reporting,
            RequestedParameters=ua.MonitoringParameters(
                ClientHandle=number, SamplingInterval=self._sampling, QueueSize=self._queue, DiscardOldest=True
            ),
        )

    async def _keep(self, result: ua.PublishResult) -> None:
        """Store the values of a notification; the library acknowledges it when this returns."""
        rows: list[str] = []
        newest: dict[int, Seen | None] = {}
        for data in result.NotificationMessage.NotificationData or ():
            for change in getattr(data, "MonitoredItems", None) or ():
                rows += await self._missed(change.ClientHandle, change.Value)
                rows.append(self._row(change))
                newest[change.ClientHandle] = seen(change.Value)
            if (status := getattr(data, "Status", None)) is not None and not status.is_good():
                self._ends.set()  # the server ends the subscription
        self._heard = self._loop.time()
        if not rows:
            return
        self._keeps = True
        if self._spool.ends:
            await asyncio.Event().wait()  # for the end of the connection: these must not be acknowledged
        item: Received[Future[None]] = Received(rows, self.address, sum(map(len, rows)), Future())
        await asyncio.to_thread(self._hand_over, item, newest)
        await asyncio.wrap_future(item.token)
        self._keeps, self._heard = False, self._loop.time()

    def _hand_over(self, item: Received[Future[None]], newest: dict[int, Seen | None]) -> None:
        """Let rows be stored; only then their values count as received, also if the connection ends meanwhile."""
        self._spool.put(item)
        self._last |= newest

    async def _missed(self, number: int, value: ua.DataValue) -> list[str]:
        """Return the changes of a node before its first value of a connection, as far as the server has them."""
        present, last, client = seen(value), self._last.get(number), self._client
        if number not in self._begins or last is None or present is None or client is None:
            return []
        self._keeps = True  # the server is not silent: it is asked for the history
        try:
            found = await hole(client, self._ids[number], last, present)
        except Exception as error:  # most servers have none
            _LOG.info("%s: no history of %s: %s", self.address, self._nodes[number], error)
            return []
        finally:
            self._keeps, self._heard = False, self._loop.time()
        if found.ends and (found.begins or found.values):
            self._begins.discard(number)  # the present value follows what was read
        return [self._text(number, one, gap=place == 0 and not found.begins) for place, one in enumerate(found.values)]

    def _row(self, item: ua.MonitoredItemNotification) -> str:
        """Return a change as the text of a row. It raises nothing: else the value would be acknowledged and lost."""
        number, value = item.ClientHandle, item.Value
        code = 0 if value.StatusCode is None else value.StatusCode.value
        lost = has_overflown(code)
        with self._changed:
            self._counts.missed += lost
        if lost:
            _LOG.warning("%s: the server has discarded values of %s", self.address, self._nodes[number])
        gap = lost or number in self._begins
        self._begins.discard(number)
        return self._text(number, value, gap=gap)

    def _text(self, number: int, value: ua.DataValue, *, gap: bool) -> str:
        code = 0 if value.StatusCode is None else value.StatusCode.value
        row: dict[str, Any] = {
            "node": self._nodes[number],
            "value": plain(value.Value.Value) if value.Value is not None else None,
            "source_time": time_text(value.SourceTimestamp),
            "server_time": time_text(value.ServerTimestamp),
            "status": status_name(code),
            "quality": quality_of(code),
            "gap": gap,
        }
        return json.dumps(row, default=str)
