"""The file through which a unit that is to take over repeats the batches of the unit that it replaces.

It holds the end offsets of the other unit's batches. The new unit's sources end its batches there, and its sink
discards their output: the other unit has published it. The batches after ``until`` are the new unit's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headwater.disk.checkpoint import newest_batch
from headwater.disk.durable import read_note, write_atomically
from headwater.disk.notefile import NoteFile


@dataclass(frozen=True, kw_only=True)
class CatchUpRecord:
    """The batches of a unit that another one repeats.

    ``source`` names the state that the unit began with: that after the batch ``begun``. ``batches`` has the end
    offsets of each batch by the name of the source, as Spark writes them. ``until`` is the last batch that is repeated,
    once it is known. ``released``: the unit goes on by itself. ``ending``: its query is about to be stopped, and waits
    for nothing.
    """

    source: str
    begun: int = -1
    batches: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    until: int | None = None
    released: bool = False
    ending: bool = False

    def publishes(self, batch: int) -> bool:
        """Return whether the output of a batch is the unit's own."""
        return self.released and self.until is not None and batch > self.until


def read_catch_up(file: Path) -> CatchUpRecord | None:
    """Read the file; None where there is none."""
    note = read_note(file)
    if not note:
        return None
    batches = {int(number): dict(ends) for number, ends in note["batches"].items()}
    return CatchUpRecord(**{**note, "batches": batches})


def write_catch_up(file: Path, record: CatchUpRecord) -> None:
    """Replace the file. It outlasts a power cut: without it, the checkpoint of repeated batches would seem loaded."""
    write_atomically(file, json.dumps(asdict(record)))


def end_catch_up(file: Path) -> None:
    """Let a query that waits for the next batch to repeat be stopped at once."""
    found = read_catch_up(file)
    if found is not None and not found.ending:
        write_catch_up(file, replace(found, ending=True))


class CatchUpBatches:
    """The batches that one query repeats, as its sources see them."""

    def __init__(self, file: Path, checkpoint: Path) -> None:
        self._file = NoteFile(file, read_catch_up)
        self._checkpoint = checkpoint

    def now(self) -> CatchUpRecord | None:
        """Return the present content of the file."""
        return self._file.now()

    @property
    def next_batch(self) -> int:
        """The number of the batch that the query plans next."""
        return newest_batch(self._checkpoint / "offsets") + 1
