"""The end of history: a unit has read all of it, and it no longer holds back event time.

History has been read to its end when a batch was planned, after another one, in which its source had nothing new. The
agent then lifts the input's event time to the end of all history, as it lifts idle inputs: the query takes the lift as
input, so a repeated batch has it too. Spark forgets the event time of single inputs when a query ends, so every run of
a query is told again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from headwater.agent.idleness import END_OF_HISTORY, row_time
from headwater.channels.base import AGAIN_AFTER
from headwater.disk.checkpoint import newest_batch
from headwater.disk.durable import is_fresh
from headwater.query.ingest import has_nothing_new
from headwater.query.names import lift_file
from headwater.query.query import Running
from headwater.query.unit import BEGINNING_OF_TIME


class Signal(NamedTuple):
    """A row for a query's control directory: the pattern of older ones of its kind, its name and its event time."""

    like: str
    name: str
    event_time: str


@dataclass
class HistoryRead:
    """The inputs that are history, and were read to their end, of the newest run of a unit's query."""

    run: str = ""
    ended: set[str] = field(default_factory=set)
    asked: int = -1
    """The batch after which the query was asked for one more."""

    def signals(self, running: Running, checkpoint: Path) -> Iterator[Signal]:
        """Yield the signals for a query: for each history that has ended, and for one more batch to see an end."""
        own = [i for i in running.tally.counting.inputs if i.source is not None]
        if not own:
            return
        if self.run != (run := str(running.query.runId)):
            self.run, self.ended, self.asked = run, set(), -1
        newest = newest_batch(checkpoint / "commits")
        if len(self.ended) == len(own) or newest < max(newest_batch(checkpoint / "offsets"), 0):
            return
        for one in own:
            assert one.source is not None
            if one.name not in self.ended and has_nothing_new(checkpoint, newest, one.source):
                self.ended.add(one.name)
                at = datetime.fromtimestamp(row_time(one, END_OF_HISTORY) / 1_000_000, UTC).isoformat()
                yield Signal(lift_file(one, "*"), lift_file(one, newest), at)
        if len(self.ended) == len(own) or self.asked == newest:
            return
        if not is_fresh(checkpoint / "commits" / str(newest), AGAIN_AFTER):
            self.asked = newest
            yield Signal("again-*", f"again-{newest}", BEGINNING_OF_TIME)
