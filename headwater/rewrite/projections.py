"""Projections down: columns that nobody uses later do not cross a link. Pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.core.place import in_words
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sinks import Sink
from headwater.rewrite.editing import apart, edited_flow, fresh_name, reading
from headwater.rewrite.gathering import is_gathering
from headwater.rewrite.liveness import used_columns
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten, RuleResult
from headwater.sql.lexer import quote_name

COLUMNS = "columns"
"""Suffix of the projections made here."""


def select_down(flow: Dataflow, id_: str) -> RuleResult:
    """Compute a projection in the layer of its input: it may be narrower.

    Precondition: it requires no hosts of its own. It computes the same expressions over the same rows.
    """
    select = flow[id_]
    if not isinstance(select, ops.Select) or is_gathering(select):
        return None
    above = flow[select.inputs[0]]
    if above.layer == select.layer or isinstance(above, ops.ToLocations):
        return None
    if select.requires:
        return NotRewritten(reason=f"it requires hosts with {select.requires.text}")
    what = f"projection in {in_words(above.layer or '')}, behind '{above.id}'"
    return Rewritten(dataflow=edited_flow(flow, [replace(select, layer=above.layer)]), what=what)


def prune_columns(flow: Dataflow, id_: str) -> RuleResult:
    """Drop unused columns behind an operator whose rows may cross a link.

    Precondition: every reader behind the link names its columns: sinks, Python functions and unions take rows as they
    are. The event time stays, and where rows go down to locations, so does the column that names the location.
    """
    operator = flow[id_]
    if isinstance(operator, Sink) or id_.endswith(f".{COLUMNS}"):
        return None
    readers = [c for c in flow.consumers[id_] if apart(flow, c, id_) and not isinstance(flow[c], ops.Watermark)]
    if not readers:
        return None
    used = used_columns(flow, id_, readers)
    if used is None:
        return NotRewritten(reason="a sink, a Python function or a union behind it takes all columns")
    type_ = flow.types[id_]
    if any(isinstance(o, ops.ToLocations) for o in flow.operators):
        used |= {c.lower() for c in type_.located_by}
    kept = [n for n in type_.schema.names if n.lower() in used]
    dropped = [n for n in type_.schema.names if n.lower() not in used]
    if not dropped or not kept:
        return None
    name = fresh_name(flow, id_, COLUMNS)
    pruned = ops.Select(id=name, inputs=(id_,), layer=operator.layer, columns=tuple((n, quote_name(n)) for n in kept))
    changed = [reading(flow[c], id_, name) for c in readers]
    what = f"without {', '.join(dropped)}, which nobody behind it uses"
    return Rewritten(dataflow=edited_flow(flow, changed, [pruned]), what=what, origins={name: ""})


SELECT_DOWN = RewriteRule(
    name="select-down", summary="projections move into the layer of their input", apply=select_down
)
PRUNE_COLUMNS = RewriteRule(
    name="prune-columns",
    summary="columns that nobody uses later do not cross a link",
    apply=prune_columns,
    behind=True,
)
