"""Spans of a unit's traced batches, from the records of its committed batches."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headwater.disk.layout import Layout
from headwater.plan.spec import UnitSpec
from headwater.query.batchtrace import BatchTrace
from headwater.query.latency import Passed
from headwater.query.unit import tracking_of
from headwater.tracing.spans import Attributes, TraceSpan, is_tracing, send


class BatchSpans:
    """Sends the spans of batches that were committed since the agent began, each once."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """Commit time up to which the batches of a unit were sent, by the file of their records."""
        self._began = time.time()

    def look(self, spec: UnitSpec, layout: Layout) -> None:
        """Send the spans of a unit's batches that are new."""
        if not is_tracing():
            return
        tracking = tracking_of(spec, layout)
        file = str(tracking.file)
        for passed in sorted(tracking.passed(self._since.get(file, self._began)), key=lambda one: one.at):
            self._since[file] = passed.at
            for span in spans_of(spec, passed):
                send(span)


def spans_of(spec: UnitSpec, passed: Passed) -> Iterator[TraceSpan]:
    """Yield the spans of a batch: the wait of rows from outside for it, itself, and the publication of its output."""
    if passed.trace is None:
        return
    try:
        trace = BatchTrace.from_data(passed.trace)
    except (ValueError, KeyError, TypeError):  # cut off by a full disk
        return
    about: Attributes = {
        "headwater.deployment": spec.deployment,
        "headwater.unit": spec.id,
        "headwater.zone": spec.unit.zone,
        "headwater.batch": passed.batch,
    }
    parent = trace.parents[0]
    if trace.first:
        yield TraceSpan(
            name=f"read {spec.id}", context=parent, begun=passed.oldest, ended=trace.planned, attributes=about
        )
    yield TraceSpan(
        name=f"batch {spec.id}",
        context=trace.own,
        parent=parent,
        begun=trace.planned,
        ended=passed.at,
        kind="CONSUMER",
        attributes={**about, "headwater.rows": passed.rows, "headwater.oldest_age_s": passed.at - passed.oldest},
        links=trace.parents[1:],
    )
    yield TraceSpan(
        name=f"publish {spec.id}",
        context=trace.publish,
        parent=trace.own,
        begun=trace.publishing,
        ended=passed.at,
        kind="PRODUCER",
        attributes={**about, "headwater.channels": ", ".join(channel.id for channel in spec.outputs)},
    )
