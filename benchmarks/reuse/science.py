"""Scientific workflows as dataflows: each task computes pi for each event, as in the paper's evaluation.

Only the shape of the workflows is used, with the tasks' types and configurations: equal tasks over equal streams are
equal operators. Several inputs of a task are merged.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.reuse.city import LOCATION
from benchmarks.reuse.feed import Feed
from benchmarks.reuse.workloads import Graph
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream

SCHEMA = "id bigint, ts timestamp, v double"
TERMS = 400
"""Terms of the series for pi that a task adds up for each event: about 20 microseconds of Python."""
KEYS = 8


class PiTask:
    """Compute pi by the series of Leibniz for each event; ``kind``: the task's type and configuration."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, state: None, row: dict[str, Any]) -> tuple[None, dict[str, Any]]:
        """Return the row with pi as its value."""
        total, sign = 0.0, 4.0
        for n in range(TERMS):
            total += sign / (2 * n + 1)
            sign = -sign
        return None, {"id": row["id"], "ts": row["ts"], "v": total}


def source_of(graph: Graph, task: str) -> str:
    """Return the name of a source's directory."""
    return hashlib.sha256(graph.tasks[task][0].encode()).hexdigest()[:12]


def dataflow(graph: Graph, place: Path) -> Dataflow:
    """Build the dataflow of a workflow; events are read from, and results written below, a directory."""
    builder = hw.flow(graph.name, locations=[LOCATION])
    streams: dict[str, Stream] = {}
    read = {parent for parent, _ in graph.edges}
    for task in graph.order:
        if not (parents := [streams[p] for p in graph.inputs(task)]):
            rows = builder.read.json(str(place / "in" / source_of(graph, task)), SCHEMA)
            streams[task] = rows.with_watermark("ts", "2 seconds")
        else:
            given = parents[0].union(*parents[1:]) if len(parents) > 1 else parents[0]
            kind = json.dumps(graph.tasks[task], sort_keys=True)
            streams[task] = given.scan(PiTask(kind), SCHEMA, keys="id", order_by="ts", keeps_keys=True)
        if task not in read:
            streams[task].write.json(str(place / "out" / graph.name / task)).named(f"{task}-results")
    return builder.build()


class EventFeed(Feed):
    """Events of each source of some workflows."""

    def __init__(self, place: Path, graphs: Iterable[Graph], rate: float) -> None:
        super().__init__(place, sorted({source_of(g, t) for g in graphs for t in g.tasks if not g.inputs(t)}), rate)

    def row(self, name: str, at: float) -> dict[str, Any]:
        """Draw an event."""
        ts = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        return {"id": self._drawn.randrange(KEYS), "ts": ts, "v": self._drawn.random()}
