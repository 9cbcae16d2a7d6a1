"""Edit the graph of a dataflow: insert, replace and move operators under stable names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow

_LONGEST = 90  # characters of a name, so that a suffix and a number fit


def fresh_name(flow: Dataflow, id_: str, suffix: str) -> str:
    """Return the name of a new operator: that of the one it serves, with a suffix."""
    name = f"{id_[:_LONGEST]}.{suffix}"
    found, number = name, 2
    while found in flow:
        found, number = f"{name}-{number}", number + 1
    return found


def edited_flow(flow: Dataflow, changed: Iterable[ops.Operator], added: Iterable[ops.Operator] = ()) -> Dataflow:
    """Return the dataflow with some operators replaced by those of their names, and others added.

    Raises HeadwaterError if the result is not valid.
    """
    by_id = {o.id: o for o in changed}
    return replace(flow, operators=(*(by_id.get(o.id, o) for o in flow.operators), *added))


def reading(operator: ops.Operator, instead_of: str, new: str) -> ops.Operator:
    """Return an operator that reads ``new`` in place of another one."""
    return replace(operator, inputs=tuple(new if i == instead_of else i for i in operator.inputs))


def apart(flow: Dataflow, one: str, other: str) -> bool:
    """Return whether rows may cross a link between two operators: their layers differ, or are not decided."""
    return flow[one].layer is None or flow[one].layer != flow[other].layer
