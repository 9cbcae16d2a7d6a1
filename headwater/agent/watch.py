"""Measure units and channels for ``headwater.core.metrics``, and predict when buffers are full."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headwater.agent.units import Units
from headwater.agent.work import Work
from headwater.channels.base import ChannelStats
from headwater.channels.filelog import FileLog
from headwater.channels.kafkaclient import looking
from headwater.channels.log import Log
from headwater.connectors.filewriter import committed_rows
from headwater.core.errors import BrokerAway, RuntimeFailure, SparkStumbled, WaitsForBroker
from headwater.core.metrics import (
    ChannelProgress,
    LinkProgress,
    Progress,
    Status,
    UnitProgress,
    forecast,
    growth,
)
from headwater.core.quantity import parse_duration
from headwater.dataflow.customs import CustomSink
from headwater.dataflow.opcua import OpcuaSink
from headwater.dataflow.sinks import CallbackSink, FileSink, KafkaSink, MqttSink, Sink
from headwater.dataflow.tablesinks import TableSink
from headwater.disk.layout import sink_directory, writer_name
from headwater.plan.model import Channel
from headwater.query.latency import first_came
from headwater.query.unit import tracking_of

WINDOW = 60.0
"""Seconds over which the growth of a buffer is measured."""


class Meters:
    """Keeps the unread size of each channel over the last minute."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[float, int]]] = {}
        self._written: dict[str, deque[tuple[float, int]]] = {}

    def note(self, channel: str, stats: ChannelStats, now: float) -> None:
        """Take a sample; ``now`` in seconds of any monotonic clock."""
        for kept, count in ((self._waiting, unread_bytes(stats)), (self._written, stats.bytes)):
            samples = kept.setdefault(channel, deque())
            samples.append((now, count))
            while now - samples[0][0] > WINDOW:
                samples.popleft()

    def lasts(self, channel: str, limit: int) -> float | None:
        """Predict in how many seconds a channel is full."""
        return forecast(tuple(self._waiting.get(channel, ())), limit)

    def rate(self, channel: str) -> float | None:
        """Return the bytes per second written to a channel."""
        return growth(tuple(self._written.get(channel, ())))


def unread_bytes(stats: ChannelStats) -> int:
    """Return the unread bytes of a channel's slowest reader."""
    return max((b.bytes for b in stats.unread.values()), default=0)


def progress_of(
    works: Sequence[tuple[Units, Work]],
    *,
    seconds: float = 0.0,
    stopped: bool = False,
    meters: Meters | None = None,
    limit: int | None = None,
    last: Progress | None = None,
    share: Callable[[str], float | None] = lambda channel: None,
) -> Progress:
    """Return the state of units and of the channels they write.

    Where no broker answers, their counters are those of the ``last`` progress. ``share``: the bytes of a channel's
    streams to other zones for each stored one.
    """
    units_before = {u.unit: u for u in last.units} if last else {}
    channels_before = {c.channel: c for c in last.channels} if last else {}

    known: dict[str, ChannelStats | BrokerAway] = {}
    seen = []
    links: dict[str, LinkProgress] = {}
    channels: dict[str, ChannelProgress] = {}
    # Positions first: rows that a unit has read are then in the counters of its inputs, and no lag is negative.
    reached = [_observed(units, work, stopped=stopped) for units, work in works]
    active = {units: () if stopped else units.active_runs() for units in {units for units, _ in works}}
    for (units, work), at in zip(works, reached, strict=True):

        def stats(channel: Channel, units: Units = units, work: Work = work) -> ChannelStats:
            if channel.id not in known:
                try:
                    known[channel.id] = units.channels.log(work.spec, channel).stats()
                except BrokerAway as error:
                    known[channel.id] = error
            if isinstance(found := known[channel.id], BrokerAway):
                raise found
            return found

        with units.asking_spark(), looking():
            state = _state(units, work, active[units], stopped=stopped)
            try:
                seen.append(_unit(units, work, at, stats, state))
            except BrokerAway as error:
                before = units_before.get(work.unit.id) or _unseen(work)
                seen.append(_waiting(before, state, None if stopped else error.what))
        for channel in work.spec.outputs:
            with looking():
                try:
                    found = _channel(channel.id, stats(channel), meters, limit, share(channel.id))
                    if channel.links and found.unread:
                        found = replace(found, oldest_s=_oldest(units.channels.log(work.spec, channel), time.time()))
                except BrokerAway:
                    found = channels_before.get(channel.id) or ChannelProgress(channel=channel.id)
                    found = replace(found, bytes_per_s=None, lasts_s=None, oldest_s=None)
            channels[channel.id] = found
            for link in channel.links:  # once, however many units read it on the other node
                own = LinkProgress(link=link, rows=found.rows, bytes=found.bytes, sent_share=found.sent_share)
                links[link] = links[link].joined(own) if link in links else own
    return Progress(
        seconds=seconds,
        units=tuple(seen),
        links=tuple(links.values()),
        channels=tuple(channels.values()),
    )


def _oldest(log: Log, now: float) -> float | None:
    """Return the age of the oldest unread row."""
    came = first_came(log, min(log.readers().values(), default=log.latest()), log.latest())
    return max(0.0, now - came[0]) if came else None


def _channel(
    id_: str, stats: ChannelStats, meters: Meters | None, limit: int | None, share: float | None
) -> ChannelProgress:
    return ChannelProgress(
        channel=id_,
        rows=stats.rows,
        bytes=stats.bytes,
        unread=max((b.rows for b in stats.unread.values()), default=0),
        dropped=stats.dropped_rows,
        lost=stats.lost_rows,
        unread_bytes=unread_bytes(stats),
        limit_bytes=limit,
        bytes_per_s=meters.rate(id_) if meters else None,
        lasts_s=meters.lasts(id_, limit) if meters and limit else None,
        sent_share=share,
    )


def _observed(units: Units, work: Work, *, stopped: bool) -> Mapping[str, int]:
    """Add a unit's newest batches to its totals; return the position in each channel that they have reached."""
    running = work.running
    if running is None:
        return {}
    if not stopped and not work.finished and units.endpoint.alive:
        with units.asking_spark():
            running.observe()
    return running.positions


@dataclass(frozen=True)
class _State:
    """A unit's state that does not depend on its channels."""

    status: Status
    error: str | None = None
    waits: str | None = None
    unproven: bool = False


def _state(units: Units, work: Work, active: Collection[str], *, stopped: bool) -> _State:
    """Return a unit's state; ``active``: see `Running.failure`, ``stopped``: all was stopped."""
    running = work.running
    if work.refused is not None:
        return _State("failed", error=str(work.refused))
    if work.finished:
        return _State("finished")
    failure: RuntimeFailure | None = None
    if running is not None and units.endpoint.alive:
        failure = running.failure(work.unit.id, active)
        if isinstance(failure, WaitsForBroker):
            return _State("starting", waits=failure.what, unproven=True)
        if failure is not None:
            return _State("failed", error=str(failure), unproven=isinstance(failure, SparkStumbled))
    if stopped or running is None:
        return _State("stopped")
    return _State("running", unproven=units.endpoint.alive and running.begins)


def _unseen(work: Work) -> UnitProgress:
    """Return the progress of a unit that has not been observed yet."""
    return UnitProgress(unit=work.unit.id, zone=work.unit.zone, layer=work.unit.layer, status="stopped")


def _waiting(before: UnitProgress, now: _State, what: str | None) -> UnitProgress:
    """Return a unit's progress while no broker answers: former totals, and nothing that may have changed."""
    return replace(
        before,
        status=now.status,
        error=now.error,
        waits=None if now.status in ("finished", "failed") else now.waits or what,
        unproven=now.unproven,
        batch_ms=None,
        rows_per_s=None,
        latency=None,
        oldest_s=None,
    )


def _unit(
    units: Units, work: Work, at: Mapping[str, int], stats: Callable[[Channel], ChannelStats], state: _State
) -> UnitProgress:
    """Return a unit's progress, with its positions ``at``."""
    unit, running = work.unit, work.running
    inputs = work.spec.inputs
    tracking, now = tracking_of(work.spec, units.layout), time.time()
    read = sum(_rows_read(units, work, c, at.get(c.id), stats(c)) for c in inputs)
    lag = sum(stats(c).rows for c in inputs) - read if inputs else None
    return UnitProgress(
        unit=unit.id,
        zone=unit.zone,
        layer=unit.layer,
        status=state.status,
        rows_in=work.rows_in + read,
        rows_out=_rows_out(units, work, stats),
        dead_letters=_dead_letters(units, work),
        late_rows=work.late_rows,
        lag=lag,
        behind=running.behind if running else None,
        batch=running.last_batch if running else -1,
        batch_ms=running.batch_ms if running else None,
        rows_per_s=running.rows_per_s if running else None,
        watermark=running.watermark if running else None,
        idle=work.idle.locations if state.status == "running" else (),
        error=state.error,
        waits=state.waits or (units.bridges.problem(unit.id) if state.status == "running" else None),
        run=str(running.query.runId) if running else None,
        latency=running.latency if running and running.real_time else tracking.latency(now),
        oldest_s=None if work.finished else tracking.oldest_s(unit.checkpoint, now),
        trigger_s=parse_duration(units.settings.trigger),
        began=running.began if running else None,
        unproven=state.unproven,
        operators=running.tally.operators(work.spec.flow, unit.operators) if running else (),
        batches=running.done if running else 0,
        busy_s=running.busy_s if running else 0.0,
        cpu_s=running.cpu_s if running else 0.0,
        state_rows=running.state_rows if running else 0,
        state_bytes=running.state_bytes if running else 0,
    )


def _dead_letters(units: Units, work: Work) -> int:
    """Count a unit's malformed records: those in files, and those that a running query has written to a topic."""
    running = work.running
    written = running.tally.rejected if running and running.real_time else 0
    return committed_rows(units.layout.dead_letters(work.unit)) + written


def _rows_read(units: Units, work: Work, channel: Channel, at: int | None, stats: ChannelStats) -> int:
    """Count the rows of a channel that a unit's batches have read."""
    if work.finished:
        return stats.rows
    if at is None:
        waiting = stats.unread.get(work.unit.checkpoint)
        return stats.rows - waiting.rows if waiting else 0
    return units.channels.log(work.spec, channel).totals(at)[0]


_UNCOUNTED = (CallbackSink, KafkaSink, MqttSink, OpcuaSink, TableSink, CustomSink)
"""Sinks whose rows are counted where they are, not here."""


def _rows_out(units: Units, work: Work, stats: Callable[[Channel], ChannelStats]) -> int:
    unit, tags = work.unit, work.spec.tags
    rows = sum(stats(c).rows for c in work.spec.outputs)
    for id_ in unit.outputs:
        sink = work.spec.flow[id_]
        if isinstance(sink, FileSink):
            path = Path(sink_directory(sink.path, unit))
            rows += committed_rows(path, writer_name(tags[id_], unit))
        elif isinstance(sink, Sink) and not isinstance(sink, _UNCOUNTED):
            rows += FileLog(units.layout.sink(id_, tags[id_], unit)).stats().rows
    return rows
