"""Aggregates in two steps: partial results near the sources, merged behind the link. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from headwater.core.errors import HeadwaterError
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.rewrite.editing import apart, edited_flow, fresh_name
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten, RuleResult
from headwater.sql.lexer import quote_name
from headwater.sql.mergeable import merged, value_column
from headwater.sql.schema import Column

PARTIAL = "partial"
"""Suffix of the operators made here."""
_WINDOW = "window"
_ROWS = (("partial", "count(*)"),)
"""Aggregates of groups that are sent for their keys alone."""


def split_aggregate(flow: Dataflow, id_: str) -> RuleResult:
    """Aggregate in each zone, and merge the results of all zones behind the link.

    The partial results of a window leave a zone when its watermark has passed the window's end, so they hold all of its
    rows; their event time is the window, and the merge waits for the slowest zone. Of sliding windows the partial
    results are those of *panes*, the parts into which all windows divide: a row is in one pane.

    Preconditions: all aggregates merge, the window is one of time (a session of one zone may join two of another), and
    its result is output once (partial results would have to be taken back).
    """
    return _in_two_steps(flow, id_)


def group_values(flow: Dataflow, id_: str) -> RuleResult:
    """Send each value of a column once per zone and group, with partial results of its rows, and aggregate these.

    Distinct values, percentiles and HyperLogLog++ follow from the values and the number of rows of each.

    Preconditions: those of ``split_aggregate``, and the aggregates that need all values need those of one column.
    """
    whole = flow[id_]
    if not isinstance(whole, stateful.Aggregate) or whole.partial or not apart(flow, id_, whole.inputs[0]):
        return None
    try:
        value = value_column(whole.aggregates, flow.types[whole.inputs[0]].schema)
    except HeadwaterError as error:
        return NotRewritten(reason=error.what)
    if value is None or value.name.lower() in {key.lower().strip("`") for key in whole.keys}:
        return None
    return _in_two_steps(flow, id_, value)


def _in_two_steps(flow: Dataflow, id_: str, value: Column | None = None) -> RuleResult:
    """Aggregate in each zone, with a column more among the keys, and merge the results."""
    whole = flow[id_]
    if not isinstance(whole, stateful.Aggregate) or whole.partial or not apart(flow, id_, whole.inputs[0]):
        return None
    (above,) = whole.inputs
    if isinstance(flow[above], stateful.Aggregate) and flow[above].id.endswith(f".{PARTIAL}"):
        return None  # it merges already
    if whole.mode is not None:
        return NotRewritten(reason="its results are output as they change")
    if isinstance(whole.window, stateful.SessionWindow):
        return NotRewritten(reason="sessions of one zone may be parts of one session")
    source = flow.types[above]
    keys = [source.schema.column(ops.column_named(whole, key, source.schema)) for key in whole.keys]
    try:
        parts = merged(whole.aggregates, source.schema, keys, value=value)
        partial = replace(
            whole,
            id=fresh_name(flow, id_, PARTIAL),
            layer=flow[above].layer,
            requires=flow[above].requires,
            window=_panes(whole),
            keys=(*whole.keys, *([] if value is None else [quote_name(value.name)])),
            aggregates=parts.partial or _ROWS,
            partial=True,
        )
        window = whole.window if whole.window is None else replace(whole.window, column=_WINDOW)
        final = replace(whole, inputs=(partial.id,), window=window, aggregates=parts.final)
        found = edited_flow(flow, [final], [partial])
    except HeadwaterError as error:
        return NotRewritten(reason=error.what)
    if found.types[id_] != flow.types[id_]:
        return NotRewritten(reason="the merged results would have other types")
    what = f"partial results per {_described(partial)} in each zone, merged in '{id_}'"
    return Rewritten(dataflow=found, what=what)


def _panes(whole: stateful.Aggregate) -> stateful.TimeWindow | None:
    """Return the windows of the partial results: the longest that divide size and slide."""
    if not isinstance(whole.window, stateful.TimeWindow):
        return None
    spans = [text for text in (whole.window.size, whole.window.slide) if text]
    micros = math.gcd(*(round(whole.duration(text, "window") * 1_000_000) for text in spans))
    seconds, rest = divmod(micros, 1_000_000)
    return stateful.TimeWindow(whole.window.column, f"{micros} microseconds" if rest else f"{seconds} seconds")


def _described(partial: stateful.Aggregate) -> str:
    window = [f"{partial.window.size}"] if isinstance(partial.window, stateful.TimeWindow) else []
    return ", ".join([*window, *partial.keys])


def drop_early(flow: Dataflow, id_: str) -> RuleResult:
    """Drop duplicates in each zone, and those of several zones behind the link.

    Precondition: none beyond that of dropping duplicates itself, where any row of equal keys may stay.
    """
    dedup = flow[id_]
    if not isinstance(dedup, stateful.Dedup) or dedup.partial or not apart(flow, id_, dedup.inputs[0]):
        return None
    (above,) = dedup.inputs
    before = flow[above]
    if isinstance(before, stateful.Dedup) and before.partial:
        return None
    early = replace(
        dedup, id=fresh_name(flow, id_, PARTIAL), layer=before.layer, requires=before.requires, partial=True
    )
    found = edited_flow(flow, [replace(dedup, inputs=(early.id,))], [early])
    return Rewritten(dataflow=found, what=f"duplicates by {', '.join(dedup.keys)} are dropped in each zone first")


SPLIT_AGGREGATE = RewriteRule(
    name="split-aggregate",
    summary="each zone aggregates its rows, and the results are merged behind the link",
    apply=split_aggregate,
    makes_state=True,
)
GROUP_VALUES = RewriteRule(
    name="group-values",
    summary="each zone sends each value of a column once, for distinct values and percentiles",
    apply=group_values,
    makes_state=True,
)
DROP_EARLY = RewriteRule(
    name="drop-early", summary="each zone drops its own duplicates first", apply=drop_early, makes_state=True
)
