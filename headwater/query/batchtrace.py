"""The trace of a batch: the spans of the batches whose rows it has read, and its own.

It begins with a sampled batch that reads rows from outside, and goes on with each batch that reads an entry of a
channel which a traced batch has written. The committing process only notes it; the agent sends the spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.query.ingest import IngestTimes
from headwater.tracing.context import TraceContext


@dataclass(frozen=True, kw_only=True)
class BatchTrace:
    """``parents``: contexts of what the batch has read, of which the first goes on; ``first``: it stands for rows from
    outside.

    Times in seconds since 1970: when the batch was ``planned``, and when its output began to be published.
    """

    own: TraceContext
    parents: tuple[TraceContext, ...]
    first: bool
    planned: float
    publishing: float

    @property
    def publish(self) -> TraceContext:
        """The span of the publication of its output, which entries of channels carry on."""
        return self.own.child("publish")

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        texts = {"own": self.own.text, "parents": [p.text for p in self.parents]}
        return {**texts, "first": self.first, "planned": self.planned, "publishing": self.publishing}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BatchTrace:
        """Rebuild it from its JSON form; raise ValueError where it is damaged."""
        own, parents = TraceContext.parse(data["own"]), [TraceContext.parse(text) for text in data["parents"]]
        known = tuple(parent for parent in parents if parent is not None)
        if own is None or not known:
            raise ValueError("no trace")
        times = {name: float(data[name]) for name in ("planned", "publishing")}
        return cls(own=own, parents=known, first=bool(data["first"]), **times)


def traced(
    unit: str, batch: int, ingested: IngestTimes | None, *, share: float, planned: float, publishing: float
) -> BatchTrace | None:
    """Return the trace of a batch; None where it is not sampled. ``share``: of batches with which a trace begins."""
    if ingested is None:
        return None
    parents = tuple(p for text in ingested.traces if (p := TraceContext.parse(text)) is not None)
    first = not parents
    if first:
        parents = (TraceContext.derived(unit, batch, ingested.oldest, ingested.newest),)
        if not ingested.fresh or not parents[0].is_sampled(share):
            return None
    own = parents[0].child("batch", unit, batch)
    return BatchTrace(own=own, parents=parents, first=first, planned=planned, publishing=publishing)
