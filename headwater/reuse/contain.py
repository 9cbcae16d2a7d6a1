"""Containment: serve a filter or projection from a running one, with the remainder on top. Pure.

``v > 10`` is served by ``v > 5``, and columns a, b by a, b, c or by the same columns under other names. The
remainder is again a filter or a projection, so streams are equal if their expressions are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.sql.conditions import Conjunct, implied, parts_of
from headwater.sql.expressions import check
from headwater.sql.lexer import quote_name
from headwater.sql.rewrite import substitute
from headwater.sql.schema import Schema


def served(new: Dataflow, running: Dataflow) -> Dataflow:
    """Rewrite a dataflow so that its filters and projections read running ones that contain them."""
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


def _better(new: Dataflow, id_: str, running: Dataflow, parent: str) -> Dataflow | None:
    """Put a filter or projection on top of a running one over the same stream; None if none contains it."""
    operator = new[id_]
    schema = running.types[parent].schema
    others = [running[c] for c in running.consumers[parent]]
    if isinstance(operator, ops.Where):
        filters = [o for o in others if isinstance(o, ops.Where)]
        mine = parts_of(operator.condition, schema)
        fitting = {o.id: rest for o in filters if (rest := _rest(mine, parts_of(o.condition, schema))) is not None}
        if not fitting:
            return None
        best = min(fitting, key=lambda o: (len(fitting[o]), -len(parts_of(_condition(running, o), schema)), o))
        text = " AND ".join(f"({p.text})" for p in fitting[best])
        on_top: ops.Operator | None = replace(operator, condition=text) if text else None
        return _put(new, id_, running[best], on_top)
    if isinstance(operator, ops.Select):
        for other in sorted((o for o in others if isinstance(o, ops.Select)), key=lambda o: o.id):
            columns = _columns(operator, other, schema)
            if columns is not None:
                return _put(new, id_, other, replace(operator, columns=columns))
    return None


def _rest(mine: tuple[Conjunct, ...], other: tuple[Conjunct, ...]) -> tuple[Conjunct, ...] | None:
    """Return the remaining conditions for rows that pass another filter; None if that filter drops some."""
    if not all(implied(part, mine) for part in other):
        return None
    texts = {part.text for part in other}
    return tuple(part for part in mine if part.text not in texts and not implied(part, other))


def _columns(mine: ops.Select, other: ops.Select, schema: Schema) -> tuple[tuple[str, str], ...] | None:
    """Return a projection's columns in terms of another one's; None if a column is missing."""
    given: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, text in other.columns:
        given.setdefault(check(text, schema).text, name)
        column = ops.plain_column(text)
        if column is not None:
            plain.setdefault(column.lower(), name)
    found = []
    for name, text in mine.columns:
        expression = check(text, schema)
        if expression.text in given:
            found.append((name, quote_name(given[expression.text])))
        elif {c.lower() for c in expression.columns} <= plain.keys():
            found.append((name, _over(expression.text, plain, other, schema)))
        else:
            return None
    return tuple(found)


def _over(text: str, plain: Mapping[str, str], other: ops.Select, schema: Schema) -> str:
    """Return an expression over the output names of another projection."""
    types = [replace(schema.column(column), name=name) for column, name in plain.items()]
    names = {schema.column(column).name: quote_name(name) for column, name in plain.items()}
    return substitute(text, names, Schema(tuple(types), internal=True))


def _condition(flow: Dataflow, id_: str) -> str:
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
