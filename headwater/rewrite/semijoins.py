"""Semi-joins down: rows without a partner in a reference table do not cross a link. Pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.core.place import in_words
from headwater.core.requirement import Requirement
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.rewrite.editing import apart, edited_flow, fresh_name, reading
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten, RuleResult

PARTNERS = "partners"
"""Suffix of the semi-joins made here."""


def semi_join(flow: Dataflow, id_: str) -> RuleResult:
    """Drop rows without a partner in the layer of a join's input; the join behind the link adds the columns.

    Precondition: an inner join with a table that is part of the dataflow. Others are read in each zone by itself, and a
    row that has no partner in one version of a table may have one in the next.
    """
    lookup = flow[id_]
    if not isinstance(lookup, Lookup) or lookup.how != "inner":
        return None
    above = flow[lookup.inputs[0]]
    if not apart(flow, id_, above.id) or isinstance(above, ops.ToLocations) or is_semi_join(above):
        return None
    if lookup.embedded is None:
        return NotRewritten(reason="its table is no part of the dataflow: zones may have other versions of it")
    name = fresh_name(flow, id_, PARTNERS)
    semi = replace(lookup, id=name, how="left_semi", layer=above.layer, requires=Requirement())
    what = f"rows with a partner only, {in_words(above.layer)}" if above.layer else "rows with a partner only"
    changed = [reading(lookup, above.id, name)]
    return Rewritten(dataflow=edited_flow(flow, changed, [semi]), what=what, origins={name: id_, id_: ""})


def is_semi_join(operator: ops.Operator) -> bool:
    """Return whether an operator was made by ``semi_join``."""
    return isinstance(operator, Lookup) and operator.how == "left_semi" and f".{PARTNERS}" in operator.id


SEMI_JOIN = RewriteRule(
    name="semi-join", summary="rows without a partner in a reference table do not cross a link", apply=semi_join
)
