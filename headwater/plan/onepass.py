"""Filters and projections on the way from one operator to another, written as one expression. Pure."""

from __future__ import annotations

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.rewrite import repeats, substitute
from headwater.dataflow.sinks import Sink


def melted(flow: Dataflow, root: str, output: str) -> tuple[str, list[tuple[str, str]]]:
    """Write filters and projections from a root to an output as one condition and columns of the root."""
    schema = flow.types[root].schema
    columns = {n: f"`{n}`" for n in schema.names}
    conditions = ["true"]
    for step in _steps(flow, root, output):
        if isinstance(step, ops.Where):
            conditions.append(f"({substitute(step.condition, columns, schema)})")
        elif isinstance(step, ops.Select):
            columns = {name: substitute(text, columns, schema) for name, text in step.columns}
    return " AND ".join(conditions), list(columns.items())


def can_melt(flow: Dataflow, root: str, output: str) -> bool:
    """Tell whether only filters and projections lie between, of which one expression repeats no loop.

    Loops over arrays that several steps look at are done once where steps are Spark's own projections.
    """
    current = output
    while current != root:
        operator = flow[current]
        if len(operator.inputs) != 1 or not isinstance(operator, (*ops.STATELESS_SQL, ops.Watermark, Sink)):
            return False
        current = operator.inputs[0]
    columns: dict[str, str] = {}
    for step in _steps(flow, root, output):
        texts = [step.condition] if isinstance(step, ops.Where) else []
        if isinstance(step, ops.Select):
            texts = [text for _, text in step.columns]
        if any(repeats(text, columns) for text in texts):
            return False
        if isinstance(step, ops.Select):
            columns = dict(step.columns)
    return True


def _steps(flow: Dataflow, root: str, output: str) -> list[ops.Operator]:
    """Give the operators from root to output, the first one next to the root."""
    steps: list[ops.Operator] = []
    current = output
    while current != root:
        steps.append(flow[current])
        current = flow[current].inputs[0]
    return steps[::-1]
