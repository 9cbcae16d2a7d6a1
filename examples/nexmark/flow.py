"""The Nexmark queries as dataflows over the files that ``examples.nexmark.generate`` writes beside this file.

Queries 10 and 12 are missing: docs/guides/nexmark.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import headwater as hw
from examples.nexmark import joins, reports, rows, windows, winners
from examples.nexmark.streams import LOCATIONS, Bounds, Streams, streams
from headwater.dataflow.stream import Stream

HERE = Path(__file__).resolve().parent
DATA, RESULTS = str(HERE / "data"), str(HERE / "results")

QUERIES: Mapping[str, Callable[[Streams], Stream]] = {
    "q0": rows.q0,
    "q1": rows.q1,
    "q2": rows.q2,
    "q3": joins.q3,
    "q4": winners.q4,
    "q5": windows.q5,
    "q6": winners.q6,
    "q7": windows.q7,
    "q8": joins.q8,
    "q9": winners.q9,
    "q11": windows.q11,
    "q13": rows.q13,
    "q14": rows.q14,
    "q15": reports.q15,
    "q16": reports.q16,
    "q17": reports.q17,
    "q18": reports.q18,
    "q19": reports.q19,
    "q20": joins.q20,
    "q21": rows.q21,
    "q22": rows.q22,
    "q23": joins.q23,
}


def nexmark(
    data: str,
    queries: Sequence[str] = tuple(QUERIES),
    *,
    write: Callable[[Stream, str], object] = lambda stream, name: stream.write.memory(name),
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    files_per_batch: int | None = None,
    name: str = "nexmark",
) -> hw.Dataflow:
    """Build a dataflow of some queries over the files below ``data``; results are written in the cloud."""
    f = hw.flow(name, locations=LOCATIONS)
    read = streams(f, data, bounds, files_per_batch=files_per_batch)
    for query in queries:
        write(QUERIES[query](read).to_layer("cloud"), query)
    return f.build()


def to_files(stream: Stream, name: str) -> None:
    """Write a result as JSON lines."""
    stream.write.json(f"{RESULTS}/{name}").named(name)


def _one(query: str) -> hw.Dataflow:
    return nexmark(DATA, [query], write=to_files, name=f"nexmark-{query}")


suggestions, hot_items, winning_bids, sessions = map(_one, ("q3", "q5", "q9", "q11"))
