"""The runs of queries that Spark reports as active, asked less often while no query moves.

A request costs some milliseconds of a core on both sides. A query that begins no batch seldom fails, so while none
does, and none has been started, the last answer counts for some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headwater.disk.checkpoint import newest_batch
from headwater.query.query import Running

_CALM = 10.0
"""Seconds without a batch or a start after which Spark is asked less often."""
_SELDOM = 5.0
"""Seconds between two requests then."""

Stages: TypeAlias = Mapping[str, tuple[int, int]]
"""The newest planned and the newest committed batch of each run."""


def stages_of(running: Iterable[Running]) -> Stages | None:
    """Read how far queries have come; None where a query's checkpoint does not tell."""
    found = {}
    for one in running:
        if one.checkpoint is None or one.real_time:
            return None
        logs = (one.checkpoint / "offsets", one.checkpoint / "commits")
        found[str(one.query.runId)] = (newest_batch(logs[0]), newest_batch(logs[1]))
    return found


@dataclass(frozen=True)
class _Seen:
    stages: Stages | None
    since: float
    asked: float
    runs: Collection[str]


class ActiveRuns:
    """The answer to the last request; any thread may ask."""

    def __init__(self) -> None:
        self._seen: _Seen | None = None

    def now(self, ask: Callable[[], Collection[str]], stages: Stages | None) -> Collection[str]:
        """Return the active runs: the last answer, or that of ``ask``, whose errors are raised.

        ``stages``: those of the queries that are to be active.
        """
        now, seen = time.monotonic(), self._seen
        is_same = seen is not None and stages is not None and seen.stages == stages
        since = seen.since if seen is not None and is_same else now
        rests = stages is not None and all(planned <= committed for planned, committed in stages.values())
        if seen is not None and rests and now - since >= _CALM and now - seen.asked < _SELDOM:
            return seen.runs
        self._seen = None  # an error leaves no answer
        runs = ask()
        self._seen = _Seen(stages, since, now, runs)
        return runs
