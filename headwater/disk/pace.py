"""The file that tells the source of a running query when its next batch may begin.

Spark begins the batches of such a query one after another, and its source waits: see ``channels.batchpace``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headwater.disk.durable import read_note, write_atomically


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When batches begin.

    ``seconds``: least time from the begin of a batch to that of the next. ``on_arrival``: a batch begins when there is
    input, else at multiples of that time, as with Spark's trigger. ``ending``: the query is about to be stopped, and
    begins no batch. ``draining``: other units stand still until it has read its input, so it waits for nothing.
    ``finishing``: all its input is there, so it does not wait for more either.
    """

    seconds: float
    on_arrival: bool
    ending: bool = False
    draining: bool = False
    finishing: bool = False


def read_pace(file: Path) -> Pace | None:
    """Read the file; None where Spark's own trigger is in use."""
    note = read_note(file)
    return Pace(**note) if note else None


def write_pace(file: Path, pace: Pace) -> None:
    """Replace the file. It is written at each start of a query, so it need not survive a power cut."""
    write_atomically(file, json.dumps(asdict(pace)), fsync=False)


def change_pace(
    file: Path, *, ending: bool | None = None, draining: bool | None = None, finishing: bool | None = None
) -> None:
    """Change the given fields, where there is a file."""
    if (found := read_pace(file)) is None:
        return
    changes = {"ending": ending, "draining": draining, "finishing": finishing}
    changed = replace(found, **{name: value for name, value in changes.items() if value is not None})
    if changed != found:
        write_pace(file, changed)
