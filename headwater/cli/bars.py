"""Progress bars on a terminal's standard error; nothing in pipes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from headwater.cli.out import say

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """Shows the current work and, where known, its progress; disappears when the work ends."""

    def __init__(self, what: str, *, total: float | None = None, shown: bool = True) -> None:
        self._what = what
        self._total = total
        self._wanted = shown
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if self._wanted and is_screen():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = [TextColumn("{task.description}", markup=False), BarColumn()]
            known = [] if self._total is None else [MofNCompleteColumn()]
            console = Console(stderr=True, highlight=False)
            self._progress = Progress(
                *columns, *known, TimeElapsedColumn(), console=console, transient=True, refresh_per_second=4
            )
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the bar, if it is shown."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def at(self, done: float, *, total: float | None = None, what: str | None = None) -> None:
        """Show the progress; ``total`` and ``what`` where they have changed."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, description=what)

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._progress is None:
            say(text)
        else:
            self._progress.console.print(text, markup=False, soft_wrap=True)


def is_screen() -> bool:
    """Return whether standard error is a terminal that can draw."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
