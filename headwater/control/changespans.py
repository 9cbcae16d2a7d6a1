"""The trace of a change: ids derived from the store and the change, spans from its records.

A controller that takes over a change goes on with its trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.control.records import Change, JournalEntry
from headwater.plan.steps import Step, Watch
from headwater.tracing.context import TraceContext
from headwater.tracing.spans import TraceSpan

_GOOD = ("done", "superseded")


def change_context(store: str, change: int) -> TraceContext:
    """Return the first span of a change's trace; ``store`` is the id of its store."""
    return TraceContext.derived("change", store, change)


def step_context(store: str, change: int, number: int) -> TraceContext:
    """Return the span of a step, the parent of its calls to nodes."""
    return change_context(store, change).child("step", number)


def plan_span(store: str, change: int, begun: float, ended: float, steps: Sequence[Step]) -> TraceSpan:
    """Return the span of the computation of a change's steps."""
    root = change_context(store, change)
    about = {"headwater.steps": len(steps)}
    return TraceSpan(name="plan", context=root.child("plan"), parent=root, begun=begun, ended=ended, attributes=about)


def change_spans(store: str, change: Change, journal: Iterable[JournalEntry]) -> Iterator[TraceSpan]:
    """Yield the spans of a change that has ended, and of its steps that were begun."""
    root, end = change_context(store, change.id), change.ended or change.begun
    failed = None if change.outcome in _GOOD else f"{change.outcome}: {change.message}".partition("\n")[0]
    yield TraceSpan(
        name=f"change {change.deployment}",
        context=root,
        begun=change.begun,
        ended=end,
        attributes={
            "headwater.deployment": change.deployment,
            "headwater.version": change.version,
            "headwater.goal": change.goal,
            "headwater.outcome": change.outcome or "",
        },
        error=failed,
    )
    for entry in journal:
        if entry.begun is None:
            continue
        step = entry.step
        units = ", ".join(step.units) if isinstance(step, Watch) else step.unit
        about: dict[str, str | int | float | bool] = {
            "headwater.deployment": change.deployment,
            "headwater.step": entry.number,
            "headwater.unit": units,
            "headwater.node": step.node,
            "headwater.state": entry.state,
        }
        yield TraceSpan(
            name=f"{type(step).__name__.lower()} {units}",
            context=step_context(store, change.id, entry.number),
            parent=root,
            begun=entry.begun,
            ended=entry.ended or end,
            attributes={**about, **({"headwater.note": entry.note} if entry.note else {})},
            error=None if entry.state == "done" else entry.note or entry.state,
        )
