"""Choose the operators of a unit whose rows its query observes, as their count does not follow from others."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.connectors.sources import can_be_malformed
from headwater.dataflow import operators as ops
from headwater.dataflow import sources
from headwater.dataflow.sinks import JdbcSink
from headwater.plan.content import visited
from headwater.plan.spec import UnitSpec
from headwater.query.counting import points

_COSTLY = (ops.MapBatches, ops.Transform)


def observed_operators(spec: UnitSpec, *, scans: frozenset[str], past: Sequence[ops.Operator] | None) -> frozenset[str]:
    """Return the operators to observe.

    ``scans``: those that one pass serves. ``past``: the operators from a single text source to the root, if malformed
    records are passed around all of them.
    """
    flow, unit = spec.flow, spec.unit
    is_routed = not isinstance(flow[unit.outputs[0]], JdbcSink)
    shown = set(visited(flow, unit))
    if past is not None and not scans and not any(isinstance(o, ops.MapBatches | ops.Explode) for o in past):
        shown = set()  # observations would cost noticeable time
    if not _works_hard(spec):
        shown = {i for i in shown if i not in flow or not isinstance(flow[i], (ops.Where, ops.Explode))}
    known = {i for i in visited(flow, unit) if _tells_rows(spec, i, is_routed=is_routed)}
    known |= scans
    return points(flow, unit.operators, shown, known | set(unit.outputs if is_routed else ()))


def _works_hard(spec: UnitSpec) -> bool:
    """Return whether a row costs the unit some microseconds anyway, so that observations are negligible.

    An observation splits Spark's compiled loop: 0.1 to 0.25 µs a row, as much as a filter costs.
    """
    inside = [spec.flow[i] for i in spec.unit.operators]
    texts = any(isinstance(o, sources.Source) and can_be_malformed(o) for o in inside)
    return texts or any(o.stateful or isinstance(o, _COSTLY) for o in inside)


def _tells_rows(spec: UnitSpec, id_: str, *, is_routed: bool) -> bool:
    """Return whether Spark's count of read rows is the operator's count, apart from malformed ones."""
    if id_ in spec.flow:
        operator = spec.flow[id_]
        return isinstance(operator, sources.Source) and (is_routed or not can_be_malformed(operator))
    return not spec.is_punctuated(id_) and spec.unit.part is None and id_ not in spec.located
