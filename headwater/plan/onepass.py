"""Filters and projections on the way from one operator to another, and these as one expression. Pure."""

from __future__ import annotations

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.rewrite import substitute
from headwater.dataflow.sinks import Sink


def steps(
    flow: Dataflow, root: str, output: str, *, beside: tuple[type[ops.Operator], ...] = ()
) -> list[ops.Operator] | None:
    """Give the operators from root to output, the one next to the root first.

    None where others than filters, projections and those of kinds ``beside`` lie between.
    """
    kinds = (*ops.STATELESS_SQL, ops.Watermark, Sink, *beside)
    found: list[ops.Operator] = []
    current = output
    while current != root:
        operator = flow[current]
        if len(operator.inputs) != 1 or not isinstance(operator, kinds):
            return None
        found.append(operator)
        current = operator.inputs[0]
    return found[::-1]


def melted(flow: Dataflow, root: str, output: str) -> tuple[str, list[tuple[str, str]]]:
    """Write filters and projections from a root to an output as one condition and columns of the root."""
    schema = flow.types[root].schema
    columns = {n: f"`{n}`" for n in schema.names}
    conditions = ["true"]
    for step in steps(flow, root, output) or ():
        if isinstance(step, ops.Where):
            conditions.append(f"({substitute(step.condition, columns, schema)})")
        elif isinstance(step, ops.Select):
            columns = {name: substitute(text, columns, schema) for name, text in step.columns}
    return " AND ".join(conditions), list(columns.items())
