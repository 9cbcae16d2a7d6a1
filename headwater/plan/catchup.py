"""Units that catch up with the running unit that they replace before they take over. Pure.

Such a unit repeats the other one's batches while that one runs. This needs equal operators and inputs, inputs that
can be read again up to any position (channels), and results that depend on these alone.
"""

from __future__ import annotations

from headwater.core.metrics import Progress
from headwater.core.quantity import format_size
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.operators import Watermark
from headwater.dataflow.sinks import JdbcSink, RealTimeKafkaSink
from headwater.dataflow.stateful import updates
from headwater.plan.content import own_sources
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.transfer import StateTransfer

_SPARE = 256 * 2**20
"""Bytes of memory that a host must have free beside the state of a unit that catches up."""
_OTHERWISE = (Watermark, Lookup, JdbcSink, RealTimeKafkaSink)
"""Operators with inputs of their own (signals of event time, versions of a table), or sinks that Spark writes."""


def can_catch_up(transfer: StateTransfer, running: DeploymentPlan, wanted: DeploymentPlan) -> bool:
    """Return whether a unit of a wanted plan can repeat the batches of the running unit whose state it takes over."""
    if len(transfer.source_units) != 1 or transfer.fresh:
        return False
    unit, old = wanted.unit(transfer.unit), running.unit(transfer.source_units[0])
    if not _is_same(unit, old) or not _reads_channels(wanted, unit):
        return False
    if {c.id for c in wanted.inputs(unit)} != {c.id for c in running.inputs(old)}:
        return False
    if any(s.by is not None or s.part is not None or s.number != s.source_units[0].number for s in transfer.shares):
        return False
    return all(r.source_units == (old.id,) and not (r.joined or r.level or r.prompt) for r in transfer.readings)


def lacks_room(unit: Unit, source: str, seen: Progress) -> bool:
    """Return whether a host of a unit has no memory free for it beside the running ``source``, as last reported."""
    state = max((u.state_bytes for u in seen.units if u.unit == source), default=0)
    return any(h.memory_free is not None and h.memory_free < state + _SPARE for h in seen.hosts if h.host in unit.hosts)


def price_of(source: str, seen: Progress) -> str:
    """Describe what a unit needs meanwhile: as much as the running one; '' where that is not measured."""
    for unit in seen.units:
        if unit.unit == source and unit.batches and unit.trigger_s:
            cores = unit.cpu_s / (unit.batches * max(unit.trigger_s, unit.busy_s / unit.batches))
            return f"about {cores:.2f} cores, and {format_size(unit.state_bytes)} of state"
    return ""


def _is_same(unit: Unit, old: Unit) -> bool:
    return (unit.key, unit.operators, unit.locations, unit.part) == (old.key, old.operators, old.locations, old.part)


def _reads_channels(plan: DeploymentPlan, unit: Unit) -> bool:
    inside = [plan.dataflow[i] for i in unit.operators]
    if own_sources(plan.dataflow, unit) or not plan.inputs(unit):
        return False
    return not any(isinstance(o, _OTHERWISE) or updates(o) for o in inside)
