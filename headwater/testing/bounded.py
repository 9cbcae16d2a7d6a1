"""Bounded sources with injected failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pause:
    """In a bounded source: wait until all earlier rows are processed."""


@dataclass(frozen=True)
class Kill:
    """In a bounded source: SIGKILL the zone's Spark during work, and continue from its files on disk."""


@dataclass(frozen=True)
class StopAfter:
    """In a bounded source: stop at a batch boundary, and start again."""


PAUSE = Pause()
"""The single instance."""
KILL = Kill()
"""The single instance."""
STOP = StopAfter()
"""The single instance."""
Item = Mapping[str, Any] | Pause | Kill | StopAfter
"""A row, or an event between two rows."""


class BoundedSource:
    """Rows of a test, by location, read by the dataflow as JSON files, one file between two events."""

    def __init__(self, directory: Path, rows: Mapping[str, Sequence[Item]], *, rows_per_file: int = 50) -> None:
        self.directory = directory
        self._steps = {location: _steps(items, rows_per_file) for location, items in rows.items()}
        for location in rows:
            (directory / location).mkdir(parents=True, exist_ok=True)

    @property
    def path(self) -> str:
        """The path to read, with ``{location}``."""
        return str(self.directory / "{location}")

    def release(self) -> Iterable[Pause | Kill | StopAfter | None]:
        """Write the files one after another over all locations; yield the events between them."""
        longest = max((len(s) for s in self._steps.values()), default=0)
        for number in range(longest):
            events: list[Pause | Kill | StopAfter] = []
            for location, steps in self._steps.items():
                if number < len(steps):
                    step = steps[number]
                    if isinstance(step, list):
                        self._write(location, number, step)
                    else:
                        events.append(step)
            yield from events or (None,)

    def release_all(self) -> None:
        """Write all files at once."""
        for _ in self.release():
            pass

    def _write(self, location: str, number: int, rows: list[Mapping[str, Any]]) -> None:
        scratch = self.directory / location / f".{number:06d}"
        scratch.write_text("".join(json.dumps(dict(r), default=str) + "\n" for r in rows))
        scratch.rename(self.directory / location / f"{number:06d}.json")


def _steps(items: Sequence[Item], size: int) -> list[list[Mapping[str, Any]] | Pause | Kill | StopAfter]:
    steps: list[list[Mapping[str, Any]] | Pause | Kill | StopAfter] = []
    for item in items:
        if isinstance(item, (Pause, Kill, StopAfter)):
            steps.append(item)
        elif steps and isinstance(steps[-1], list) and len(steps[-1]) < size:
            steps[-1].append(item)
        else:
            steps.append([item])
    return steps
