"""Idle inputs of a unit: which of them no longer hold back its event time, and up to when.

An input is a location that the unit reads, or a channel. It is idle if it has had no rows, and no progress of event
time, for the duration that the dataflow states (``idle_after``), and the unit has read all that there is. The agent
then *lifts* it: it raises the input's event time to the least of the inputs that are not idle. Query and channels
treat a lift like input: it is in the checkpoint, so a repeated batch has it too. Rows that come later count as usual;
those before the lift are late.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headwater.channels.base import END
from headwater.channels.log import Log
from headwater.plan.model import Channel
from headwater.query.counting import WatermarkInput
from headwater.query.query import Running

END_OF_HISTORY = END - 1_000_000
"""The event time of an input that is history, after its end; microseconds."""
_NO_ROW = END // 2  # microseconds: only the end of an input, or of history, is so late, less the bounds of joins
_STEPS = 10  # lifts of an idle input within the duration after which it is idle
_LEAST = 1.0  # seconds between two lifts


@dataclass(frozen=True, kw_only=True)
class InputSeen:
    """An input: its event time (microseconds; None: it has had none), and for how many seconds it has been quiet."""

    name: str
    location: str
    time: int | None
    quiet: float
    idle_after: float | None

    @property
    def idle(self) -> bool:
        return self.idle_after is not None and self.quiet >= self.idle_after


def lift_of(inputs: Sequence[InputSeen]) -> int | None:
    """Return the event time to which idle inputs are lifted; None where nothing is known.

    It is the least of the inputs that are not idle. If all are, the one that is ahead counts.

    >>> a = InputSeen(name="a", location="A", time=5, quiet=70, idle_after=60)
    >>> b = InputSeen(name="b", location="B", time=9, quiet=0, idle_after=60)
    >>> lift_of([a, b])
    9
    """
    # An ended input has no event time that others could reach.
    active = [i.time for i in inputs if not i.idle and i.time != END]
    known = [t for t in (active or [i.time for i in inputs if i.time != END]) if t is not None]
    if not active:
        return max(known, default=None)
    return min(known) if len(known) == len(active) else None


class IdleInputs:
    """An agent's observations of a unit's inputs since it began to watch the query.

    All times are of the monotonic clock: a step of the machine's clock must not make an input idle.
    """

    def __init__(self) -> None:
        self._begun = self._looked = time.monotonic()
        self._latest: dict[str, tuple[int, float]] = {}
        self._lifted: dict[str, int] = {}
        self.locations: tuple[str, ...] = ()
        """Locations, and nodes of channels, that are left out of the unit's event time."""

    def is_due(self, spans: Iterable[float | None]) -> bool:
        """Return whether it is time to look again, given after how many seconds each input is idle."""
        known = [span for span in spans if span is not None]
        return bool(known) and time.monotonic() - self._looked >= max(_LEAST, min(known) / _STEPS)

    def of_reads(self, running: Running, trigger: float, ended: Collection[str]) -> Iterator[InputSeen]:
        """Yield the inputs without channels; ``trigger``: seconds in which the query looks for rows at least once.

        ``ended``: those that are history, and were read to their end.

        No batch must be running: it may contain rows of any input.
        """
        asked = time.monotonic() - trigger
        for one in running.tally.counting.inputs:
            heard = max(running.tally.heard.get(read, self._begun) for read in one.reads)
            newest = running.tally.times.get(one.name)
            at = None if newest is None else newest - _delay(one)
            if one.source is not None:
                at = END if one.name in ended else None
            yield InputSeen(
                name=one.name, location=one.location, time=at, quiet=asked - heard, idle_after=one.idle_after
            )

    def of_channel(self, channel: Channel, log: Log, *, read: bool) -> InputSeen | None:
        """Return a channel as an input; ``read``: the unit has read all of it. None without event time."""
        if channel.event_time is None:
            return None
        latest, now = log.latest(), time.monotonic()
        before, since = self._latest.get(channel.id, (latest, self._begun))
        if latest != before or not read:
            since = now
        self._latest[channel.id] = (latest, since)
        return InputSeen(
            name=channel.id,
            location=channel.node,
            time=END if (frontier := log.frontier(latest)) is not None and frontier > _NO_ROW else frontier,
            quiet=now - since,
            idle_after=channel.event_time.idle_after,
        )

    def lifts(self, inputs: Sequence[InputSeen]) -> dict[str, int]:
        """Return the new lifts of idle inputs, by name, and note which inputs are left out."""
        self._looked = time.monotonic()
        lift = lift_of(inputs)
        idle = [i for i in inputs if i.idle]
        self.locations = tuple(sorted({i.location for i in idle})) if len(inputs) > 1 else ()
        found = {}
        for one in idle:
            known = [t for t in (one.time, self._lifted.get(one.name)) if t is not None]
            if lift is not None and (not known or max(known) < lift):
                found[one.name] = self._lifted[one.name] = lift
        return found


def row_time(input_: WatermarkInput, lift: int) -> int:
    """Return the event time of a row that advances an input's watermark to its lift."""
    return lift + _delay(input_)


def _delay(input_: WatermarkInput) -> int:
    return round(input_.delay * 1_000_000)
