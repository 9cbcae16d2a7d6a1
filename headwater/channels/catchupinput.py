"""One input of a unit that repeats the batches of the unit that it replaces; see ``disk.catchup``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from headwater.channels.base import Offset
from headwater.core.errors import ChannelError
from headwater.disk.catchup import CatchUpBatches

_LOOK = 0.01  # seconds between two looks for the next batch
_SILENT = 300.0  # seconds after which a batch to repeat is not awaited any longer


class CatchUpInput:
    """The end offsets of one input in the repeated batches."""

    def __init__(self, batches: CatchUpBatches, name: str) -> None:
        self._batches = batches
        self._name = name

    @staticmethod
    def option(file: Path, checkpoint: Path, name: str) -> str:
        """Return the option that describes an input to ``of``."""
        return json.dumps({"file": str(file), "checkpoint": str(checkpoint), "name": name})

    @classmethod
    def of(cls, option: str) -> CatchUpInput:
        """Make the input that an option describes."""
        found = json.loads(option)
        return cls(CatchUpBatches(Path(found["file"]), Path(found["checkpoint"])), str(found["name"]))

    def next_end(self, has_come: Callable[[Offset], bool]) -> Offset | None:
        """Wait for the end of the next batch to repeat and for its entries.

        Return None for a query that goes on by itself. Raise ChannelError for a query that is to end, so that it plans
        no batch of its own.
        """
        deadline, batch = time.monotonic() + _SILENT, self._batches.next_batch
        while True:
            now = self._batches.now()
            if now is None:
                return None
            if now.publishes(batch):
                return None
            if now.ending or time.monotonic() > deadline:
                raise ChannelError(
                    f"batch {batch} is not repeated: the unit is not to take over any longer",
                    where=self._name,
                    hint="let this query end",
                )
            if batch in now.batches:
                end: Offset = json.loads(now.batches[batch][self._name])
                if has_come(end):
                    return end
            time.sleep(_LOOK)
