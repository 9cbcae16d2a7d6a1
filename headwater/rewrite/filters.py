"""Filters down: drop rows as early as possible. Pure.

A filter moves past one operator at a time. It never passes a declaration of event time, whose rows advance the clock,
nor a Python function, whose output rows nobody can trace. An expression that may fail never sees rows that it did not
see before: an earlier filter or an inner join may be there to guard it. Where several dataflows of one operator read
it, it stays: the others want all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headwater.core.errors import HeadwaterError
from headwater.core.place import in_words
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.sources import Source
from headwater.rewrite.editing import edited_flow, fresh_name, reading
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten, RuleResult
from headwater.sql.conditions import parts_of
from headwater.sql.expressions import check
from headwater.sql.raising import may_raise
from headwater.sql.rewrite import substitute

_OPAQUE = (ops.MapBatches, ops.Transform, stateful.Scan)


def filter_down(flow: Dataflow, id_: str) -> RuleResult:
    """Move a filter one operator towards the sources."""
    where = flow[id_]
    if not isinstance(where, ops.Where):
        return None
    (above,) = where.inputs
    before = flow[above]
    if where.requires:
        return NotRewritten(reason=f"it requires hosts with {where.requires.text}")
    if before.layer != where.layer and not isinstance(before, ops.ToLocations):
        moved = replace(where, layer=before.layer)
        what = f"filter in {in_words(before.layer or '')}, behind '{above}'"
        return Rewritten(dataflow=edited_flow(flow, [moved]), what=what, moved=(id_,))
    if isinstance(before, Source):
        return None
    if isinstance(before, ops.Watermark):
        return NotRewritten(reason=f"the rows that it drops advance the event time of '{above}'")
    if isinstance(before, _OPAQUE):
        return NotRewritten(reason=f"nobody can trace its columns through the Python function of '{above}'")
    if len(flow.consumers[above]) > 1:
        return NotRewritten(reason=f"{_others(flow, above, id_)} read all rows of '{above}'")
    try:
        return _past(flow, where, before)
    except HeadwaterError as error:
        return NotRewritten(reason=f"its condition cannot be written over the input of '{above}': {error.what}")


def _past(flow: Dataflow, where: ops.Where, before: ops.Operator) -> RuleResult:
    match before:
        case ops.Select():
            return _past_select(flow, where, before)
        case ops.Union():
            return _past_union(flow, where, before)
        case stateful.Join():
            return _past_join(flow, where, before)
        case ops.Where():
            return _past_some(flow, where, before, flow.types[before.id].schema.names)
        case stateful.Aggregate(mode=None) | stateful.CountWindow() | stateful.Dedup():
            return _past_some(flow, where, before, before.keys)
        case ops.Explode() | Lookup():
            return _past_some(flow, where, before, flow.types[before.inputs[0]].schema.names)
    return NotRewritten(reason=f"a filter does not pass '{before.id}' ({before.kind})")


def _past_select(flow: Dataflow, where: ops.Where, before: ops.Select) -> RuleResult:
    """Substitute the projection's expressions for its columns. Precondition: none, the same rows are tested."""
    (source,) = before.inputs
    text = substitute(where.condition, dict(before.columns), flow.types[source].schema)
    lower = replace(where, inputs=(source,), layer=flow[source].layer, condition=text)
    readers = [reading(flow[c], where.id, before.id) for c in flow.consumers[where.id]]
    changed = [lower, replace(before, inputs=(where.id,)), *readers]
    what = f"filter by {text} before the projection '{before.id}'"
    return Rewritten(dataflow=edited_flow(flow, changed), what=what, moved=(where.id,))


def _past_union(flow: Dataflow, where: ops.Where, before: ops.Union) -> RuleResult:
    """Filter each input. Precondition: none, a row of the union is a row of one input."""
    copies = {}
    for number, source in enumerate(dict.fromkeys(before.inputs), start=1):
        name = fresh_name(flow, where.id, str(number))
        copies[source] = replace(where, id=name, inputs=(source,), layer=flow[source].layer)
    united = replace(before, inputs=tuple(copies[i].id for i in before.inputs))
    readers = [reading(flow[c], where.id, before.id) for c in flow.consumers[where.id]]
    left = tuple(o for o in flow.operators if o.id != where.id)
    by_id = {o.id: o for o in (united, *readers)}
    found = replace(flow, operators=(*(by_id.get(o.id, o) for o in left), *copies.values()))
    names = tuple(copy.id for copy in copies.values())
    return Rewritten(
        dataflow=found,
        what=f"filter each input of the union '{before.id}'",
        origins=dict.fromkeys(names, where.id),
        moved=names,
    )


def _past_join(flow: Dataflow, where: ops.Where, before: stateful.Join) -> RuleResult:
    """Filter the sides of a join by conditions on their columns.

    Precondition: the condition cannot fail, as it sees rows without a partner; of a left join only conditions on keys
    and on columns of the left side move: a row whose partner is dropped would get NULLs.
    """
    left, right = before.inputs
    keys = {k.lower() for k in before.on}
    sides: dict[str, Collection[str]] = {left: {n.lower() for n in flow.types[left].schema.names}}
    mine = {n.lower() for n in flow.types[right].schema.names}
    sides[right] = mine if before.how == "inner" else keys
    if left == right:
        return NotRewritten(reason=f"'{before.id}' joins a stream with itself")
    return _split(flow, where, before, sides)


def _past_some(flow: Dataflow, where: ops.Where, before: ops.Operator, columns: Collection[str]) -> RuleResult:
    """Filter before an operator that keeps these columns of every row.

    Precondition: the condition cannot fail, as it sees rows that the operator drops. Behind groups only conditions on
    keys move, since these drop whole groups.
    """
    (source,) = before.inputs
    return _split(flow, where, before, {source: {c.lower() for c in columns}})


def _split(flow: Dataflow, where: ops.Where, before: ops.Operator, inputs: Mapping[str, Collection[str]]) -> RuleResult:
    """Move the parts of a condition to the inputs that have their columns; keep the rest behind the operator."""
    schema = flow.types[before.id].schema
    lower: dict[str, list[str]] = {source: [] for source in inputs}
    rest: list[str] = []
    for part in parts_of(where.condition, schema):
        used = {c.lower() for c in check(part.text, schema).columns}
        places = [source for source, columns in inputs.items() if used and used <= set(columns)]
        if not places or may_raise(part.text, schema):
            rest.append(part.text)
        for source in places if part.text not in rest else ():
            lower[source].append(part.text)
    moving = {source: " AND ".join(f"({t})" for t in texts) for source, texts in lower.items() if texts}
    if not moving:
        return NotRewritten(
            reason=f"its condition may fail on rows that '{before.id}' drops, or is not on columns that it keeps"
        )
    whole = not rest and len(moving) == 1
    made: list[ops.Operator] = []
    for source, text in moving.items():
        name = where.id if whole else fresh_name(flow, where.id, f"of.{source}")
        made.append(replace(where, id=name, inputs=(source,), layer=flow[source].layer, condition=text))
    names = {source: filter_.id for source, filter_ in zip(moving, made, strict=True)}
    behind = replace(before, inputs=tuple(names.get(i, i) for i in before.inputs))
    changed: list[ops.Operator] = [behind]
    removed: set[str] = set() if whole else {where.id}
    if rest:
        removed = set()
        changed.append(replace(where, condition=" AND ".join(f"({t})" for t in rest)))
    else:
        changed += [reading(flow[c], where.id, before.id) for c in flow.consumers[where.id]]
    by_id = {o.id: o for o in (*changed, *(made if whole else ()))}
    kept = tuple(by_id.get(o.id, o) for o in flow.operators if o.id not in removed)
    found = replace(flow, operators=(*kept, *(() if whole else made)))
    origins = {} if whole else {filter_.id: where.id if n == 0 else "" for n, filter_ in enumerate(made)}
    if rest:
        origins[where.id] = ""
    texts = "; ".join(f"{text} before '{before.id}'" for text in dict.fromkeys(moving.values()))
    return Rewritten(
        dataflow=found, what=f"filter by {texts}", origins=origins, moved=tuple(filter_.id for filter_ in made)
    )


def filter_order(flow: Dataflow, id_: str) -> RuleResult:
    """Swap a filter with the one before it.

    Preconditions: both are in one layer and for the same hosts, nobody else reads the first one's rows, and the second
    condition cannot fail, since the first one may guard it. Whether it is worth it is a matter of their costs and
    selectivities: of independent filters, those with the greatest (1 - selectivity) / cost go first (Hellerstein and
    Stonebraker: "Predicate Migration", SIGMOD 1993, section 3).
    """
    second = flow[id_]
    first = flow[second.inputs[0]] if isinstance(second, ops.Where) else None
    if not isinstance(second, ops.Where) or not isinstance(first, ops.Where):
        return None
    if (first.layer, first.requires) != (second.layer, second.requires):
        return None
    if len(flow.consumers[first.id]) > 1:
        return NotRewritten(reason=f"{_others(flow, first.id, id_)} read all rows of '{first.id}'")
    if may_raise(second.condition, flow.types[first.id].schema):
        return NotRewritten(reason=f"its condition may fail on rows that '{first.id}' drops")
    changed: list[ops.Operator] = [replace(second, inputs=first.inputs), replace(first, inputs=(id_,))]
    changed += [reading(flow[c], id_, first.id) for c in flow.consumers[id_]]
    return Rewritten(dataflow=edited_flow(flow, changed), what=f"filter before '{first.id}'", moved=(id_,))


def _others(flow: Dataflow, above: str, id_: str) -> str:
    return ", ".join(f"'{c}'" for c in flow.consumers[above] if c != id_)


FILTER_DOWN = RewriteRule(
    name="filter-down",
    summary="filters move past projections, unions, joins and groups, towards the sources",
    apply=filter_down,
)
FILTER_ORDER = RewriteRule(
    name="filter-order",
    summary="of neighbouring filters, those that drop most rows for their cost come first",
    apply=filter_order,
    saves="load",
)
