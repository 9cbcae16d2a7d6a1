"""Containment: serve a filter, projection or aggregate from a running one, with the remainder on top. Pure.

``v > 10`` is served by ``v > 5``, and columns a, b by a, b, c or by the same columns under other names. The
remainder is again a filter or a projection, so streams are equal if their expressions are. For aggregates, see
``regroup``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from headwater.dataflow import operators as ops
from headwater.dataflow.fragment import Fragment
from headwater.dataflow.graph import Dataflow
from headwater.reuse.regroup import regrouped
from headwater.reuse.remainder import columns_over, rest_of
from headwater.sql.conditions import parts_of

Contained = Literal["nothing", "rows", "groups", "windows"]
"""Operators that running ones may serve: none, filters and projections, aggregates of coarser groups as well, or
aggregates of longer windows, too."""


def served(new: Dataflow, running: Dataflow | Fragment, contained: Contained = "windows") -> Dataflow:
    """Rewrite a dataflow so that its operators read running ones that contain them."""
    if contained in ("groups", "windows"):
        for id_ in new.order:
            new = regrouped(new, id_, running, shorter=contained == "windows")
    return new if contained == "nothing" else _served_rows(new, running)


def _served_rows(new: Dataflow, running: Dataflow | Fragment) -> Dataflow:
    """Let filters and projections read running ones that contain them."""
    known = {key: id_ for id_, key in running.keys.items()}
    while True:
        keys = new.keys
        for id_ in new.order:
            operator = new[id_]
            if keys[id_] in known or not isinstance(operator, ops.STATELESS_SQL):
                continue
            parent = known.get(keys[operator.inputs[0]])
            if parent is None:
                continue
            found = _better(new, id_, running, parent)
            if found is not None:
                new = found
                break
        else:
            return new


def _better(new: Dataflow, id_: str, running: Dataflow | Fragment, parent: str) -> Dataflow | None:
    """Put a filter or projection on top of a running one over the same stream; None if none contains it."""
    operator = new[id_]
    schema = running.types[parent].schema
    others = [running[c] for c in running.consumers[parent]]
    if isinstance(operator, ops.Where):
        filters = [o for o in others if isinstance(o, ops.Where)]
        mine = parts_of(operator.condition, schema)
        fitting = {o.id: rest for o in filters if (rest := rest_of(mine, parts_of(o.condition, schema))) is not None}
        if not fitting:
            return None
        best = min(fitting, key=lambda o: (len(fitting[o]), -len(parts_of(_condition(running, o), schema)), o))
        text = " AND ".join(f"({p.text})" for p in fitting[best])
        on_top: ops.Operator | None = replace(operator, condition=text) if text else None
        return _put(new, id_, running[best], on_top)
    if isinstance(operator, ops.Select):
        for other in sorted((o for o in others if isinstance(o, ops.Select)), key=lambda o: o.id):
            columns = columns_over(operator.columns, other.columns, schema)
            if columns is not None:
                return _put(new, id_, other, replace(operator, columns=columns))
    return None


def _condition(flow: Dataflow | Fragment, id_: str) -> str:
    operator = flow[id_]
    assert isinstance(operator, ops.Where)
    return operator.condition


def _put(new: Dataflow, id_: str, below: ops.Operator, on_top: ops.Operator | None) -> Dataflow:
    """Let an operator read a copy of ``below`` in place of its input; without ``on_top``, replace it by the copy."""
    operator = new[id_]
    if on_top is None:
        same = replace(below, id=id_, inputs=operator.inputs, layer=operator.layer, requires=operator.requires)
        return new.with_operators([same])
    name, number = f"{id_}.of", 2
    while name in new:
        name, number = f"{id_}.of.{number}", number + 1
    copy = replace(below, id=name, inputs=operator.inputs, layer=operator.layer, requires=operator.requires)
    changed = replace(on_top, inputs=(name,))
    return replace(new, operators=(*(changed if o.id == id_ else o for o in new.operators), copy))
