"""Event time of idle units: signals through the control directory that let watermarks advance without rows."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

from headwater.agent.idleness import InputSeen, row_time
from headwater.agent.unitchannels import UnitChannels
from headwater.agent.work import Work
from headwater.channels.base import AGAIN_AFTER
from headwater.channels.lifts import write_lifts
from headwater.core.quantity import parse_duration
from headwater.disk.checkpoint import advances_watermark, newest_batch
from headwater.disk.durable import is_fresh, write_atomically
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.content import is_stateful
from headwater.plan.model import Unit
from headwater.query.names import lift_file
from headwater.query.query import Running
from headwater.query.unit import BEGINNING_OF_TIME, WATERMARK

_AGAIN_KEPT = 4  # files that ask for one more batch, kept because Spark may repeat it


class TimeSignals:
    """Let the event time of a node's running units advance where no rows do it."""

    def __init__(self, layout: Layout, channels: UnitChannels, settings: UnitSettings) -> None:
        self._layout = layout
        self._channels = channels
        self._settings = settings

    def publish_watermark(self, work: Work) -> None:
        """Let an idle unit without state run one more batch, if its last rows have advanced its watermark.

        A batch writes the watermark it was planned with to the channels, so without further input the one that the last
        rows led to would stay here, and windows downstream open. Units with state run that batch by themselves.
        """
        spec = work.spec
        if not work.controlled or spec.direct_time or is_stateful(spec.flow, spec.unit):
            return
        checkpoint = self._layout.checkpoint(spec.unit)
        newest = newest_batch(checkpoint / "commits")
        if newest == work.last_batch or newest < newest_batch(checkpoint / "offsets"):
            return
        with contextlib.suppress(FileNotFoundError):  # Spark removes old files
            if is_fresh(checkpoint / "commits" / str(newest), AGAIN_AFTER):
                return
            work.last_batch = newest
            if advances_watermark(checkpoint, newest):
                self.signal(work.unit, "again-*", f"again-{newest}", BEGINNING_OF_TIME)

    def end_history(self, work: Work) -> None:
        """Let history that was read to its end no longer hold back a unit's event time; see ``histories``."""
        for given in work.history.signals(_running(work), self._layout.checkpoint(work.spec.unit)):
            self.signal(work.unit, *given)

    def lift_idle(self, work: Work) -> None:
        """Let idle inputs no longer hold back a unit's event time; see ``idleness``."""
        spec, running = work.spec, _running(work)
        own = {i.name: i for i in running.tally.counting.inputs}
        spans = [i.idle_after for i in own.values()]
        spans += [c.event_time.idle_after for c in spec.inputs if c.event_time is not None]
        if not spec.needs_watermark or not work.idle.is_due(spans):
            return
        checkpoint = self._layout.checkpoint(spec.unit)
        newest = newest_batch(checkpoint / "commits")
        if newest < newest_batch(checkpoint / "offsets"):
            return
        running.observe()
        if running.last_batch < newest and running.done:
            return  # the newest batch may have brought rows
        trigger = parse_duration(self._settings.trigger)
        inputs: list[InputSeen] = list(work.idle.of_reads(running, trigger, work.history.ended))
        for channel in spec.inputs:
            log = self._channels.log(spec, channel)
            read = work.has_read(channel, log, log.latest())
            if (seen := work.idle.of_channel(channel, log, read=read)) is not None:
                inputs.append(seen)
        lifts = work.idle.lifts(inputs)
        for name, lift in lifts.items():
            if name in own:
                at = datetime.fromtimestamp(row_time(own[name], lift) / 1_000_000, UTC).isoformat()
                self.signal(work.unit, lift_file(own[name], "*"), lift_file(own[name], lift), at)
        for operator in {c.operator for c in spec.inputs}:
            of = {c.id: lifts[c.id] for c in spec.inputs if c.operator == operator and c.id in lifts}
            if of:
                write_lifts(self._layout.members(spec.unit, operator), of)

    def signal(self, unit: Unit, like: str, name: str, event_time: str) -> None:
        """Give a unit's query a row with an event time in its control directory; delete old rows of the same kind."""
        control = self._layout.control(unit)
        for old in sorted(control.glob(f"{like}.json"), key=lambda f: f.stat().st_mtime)[:-_AGAIN_KEPT]:
            old.unlink()
        write_atomically(control / f"{name}.json", json.dumps({WATERMARK: event_time}))


def _running(work: Work) -> Running:
    assert work.running is not None
    return work.running
