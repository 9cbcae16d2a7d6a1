"""Cost or saving of other cuts, in channels and queries, from measurements of the running ones. Pure.

Fused operators are one query without a channel. A channel costs writing, reading and perhaps sending its rows
over links; a query costs processor time even when idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.core.metrics import ChannelProgress, Progress
from headwater.core.quantity import format_size
from headwater.dataflow import operators as ops
from headwater.dataflow.sources import Source
from headwater.plan.model import Channel, DeploymentPlan

_DROPS_ONLY = (ops.Where, ops.Select, ops.Watermark)
"""Operators that return at most as many rows as they take."""


@dataclass(frozen=True, kw_only=True)
class ChannelFlow:
    """Flow through a channel, per second; None if not measured.

    ``at_most``: no such channel runs; the figure is an upper bound, the input of the unit before it.
    """

    channel: str
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    at_most: bool = False
    links: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.rows_per_s is None:
            amount = "not measured yet"
        else:
            amount = f"{'at most ' if self.at_most else ''}{_count(self.rows_per_s)} rows/s"
            if self.bytes_per_s is not None:
                amount += f", {format_size(self.bytes_per_s)}/s"
        over = f", over {', '.join(self.links)}" if self.links else ""
        return f"{self.channel}: {amount}{over}"


@dataclass(frozen=True, kw_only=True)
class CutCost:
    """Difference between the channels and queries of another plan and the running ones."""

    removed: tuple[ChannelFlow, ...]
    added: tuple[ChannelFlow, ...]
    queries: tuple[int, int]
    """Before and after."""

    def words(self) -> list[str]:
        """Return one line per difference."""
        lines = [f"saves the channel {flow}" for flow in self.removed]
        lines += [f"costs a channel {flow}" for flow in self.added]
        before, after = self.queries
        if before != after:
            lines.append(f"{before} queries become {after}")
        return lines


def cut_cost(running: DeploymentPlan, wanted: DeploymentPlan, seen: Progress) -> CutCost:
    """Compare the channels of two plans by measurements of the running one."""
    measured = {c.channel: c for c in seen.channels}
    rates = {u.unit: u.rows_per_s for u in seen.units}
    old = {_place(running, c): c for c in running.channels}
    new = {_place(wanted, c): c for c in wanted.channels}
    return CutCost(
        removed=tuple(_flow(k, c, [measured.get(c.id)]) for k, c in old.items() if k not in new),
        added=tuple(_added(running, wanted, k, c, measured, rates) for k, c in new.items() if k not in old),
        queries=(len(running.units), len(wanted.units)),
    )


def _place(plan: DeploymentPlan, channel: Channel) -> str:
    """Name a channel by its operator, zone and readers."""
    readers = sorted({plan.unit(u).zone for u in channel.consumers})
    part = "" if channel.part is None else f".{channel.part}"
    return f"{channel.operator}{part}@{channel.zone} -> {', '.join(readers)}"


def _flow(place: str, channel: Channel, seen: Iterable[ChannelProgress | None]) -> ChannelFlow:
    known = [c for c in seen if c is not None and c.bytes_per_s is not None]
    bytes_ = sum(c.bytes_per_s or 0.0 for c in known) if known else None
    rows = sum((c.bytes_per_s or 0.0) * c.rows / c.bytes for c in known if c.bytes) if known else None
    links = channel.links
    return ChannelFlow(channel=place, rows_per_s=rows, bytes_per_s=bytes_, links=links)


def _added(
    running: DeploymentPlan,
    wanted: DeploymentPlan,
    place: str,
    channel: Channel,
    measured: Mapping[str, ChannelProgress],
    rates: Mapping[str, float | None],
) -> ChannelFlow:
    """Predict the flow of a new channel: the current flow of its operator's rows, or of the unit's input."""
    near = running.serving(wanted.unit(channel.producer).locations)
    now = [c for u in near if channel.operator in u.outputs for c in running.outputs(u)]
    if now := [c for c in now if c.operator == channel.operator]:
        return _flow(place, channel, [measured.get(c.id) for c in now])
    links = channel.links
    source = _source_of(wanted, channel.operator)  # None: the operator may be new
    if source is None:
        return ChannelFlow(channel=place, links=links)
    known = [r for u in near if source in u.operators and (r := rates.get(u.id)) is not None]
    return ChannelFlow(channel=place, rows_per_s=sum(known) if known else None, at_most=True, links=links)


def _source_of(plan: DeploymentPlan, operator: str) -> str | None:
    """Return the source that bounds an operator's rows; None if the operator may return more rows, or others."""
    current = plan.dataflow[operator]
    while not isinstance(current, Source):
        if not isinstance(current, _DROPS_ONLY) or len(current.inputs) != 1:
            return None
        current = plan.dataflow[current.inputs[0]]
    return current.id


def _count(rows: float) -> str:
    return f"{rows:,.0f}" if rows >= 10 else f"{rows:.2g}"
