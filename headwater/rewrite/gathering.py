"""Streams gathered: the rows of several zones cross the next link as one stream. Pure."""

from __future__ import annotations

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sinks import Sink
from headwater.rewrite.editing import apart, edited_flow, fresh_name, reading
from headwater.rewrite.rule import RewriteRule, Rewritten, RuleResult
from headwater.sql.lexer import quote_name

GATHERED = "gathered"
"""Suffix of the projections made here."""


def gather_streams(flow: Dataflow, id_: str) -> RuleResult:
    """Put a projection of all columns behind an operator, for a zone between it and its readers.

    There the streams of the zones below become one, in which a row can repeat the words of any other.

    Precondition: no event time is declared behind it, since rows of a slow zone would be late beside those of others.
    """
    operator = flow[id_]
    if isinstance(operator, Sink | ops.ToLocations) or is_gathering(operator):
        return None
    readers = [c for c in flow.consumers[id_] if apart(flow, c, id_) and not is_gathering(flow[c])]
    if not readers or any(isinstance(flow[c], ops.ToLocations) or _declares_time(flow, c) for c in readers):
        return None
    name = fresh_name(flow, id_, GATHERED)
    columns = tuple((n, quote_name(n)) for n in flow.types[id_].schema.names)
    gathered = ops.Select(id=name, inputs=(id_,), columns=columns)
    changed = [reading(flow[c], id_, name) for c in readers]
    what = f"one stream for the rows of all zones below, before {', '.join(map(repr, readers))}"
    return Rewritten(dataflow=edited_flow(flow, changed, [gathered]), what=what, origins={name: ""})


def is_gathering(operator: ops.Operator) -> bool:
    """Return whether an operator was made by ``gather_streams``."""
    return isinstance(operator, ops.Select) and f".{GATHERED}" in operator.id


def _declares_time(flow: Dataflow, id_: str) -> bool:
    """Return whether an operator, or one behind it, declares an event time."""
    todo, seen = [id_], {id_}
    while todo:
        at = todo.pop()
        if isinstance(flow[at], ops.Watermark):
            return True
        todo += [c for c in flow.consumers[at] if c not in seen]
        seen.update(flow.consumers[at])
    return False


GATHER_STREAMS = RewriteRule(
    name="gather-streams",
    summary="the rows of several zones cross the next link as one stream",
    apply=gather_streams,
    behind=True,
    gathers=True,
)
