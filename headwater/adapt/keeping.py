"""Whether a promise is kept at the moment, by what its deployment says of itself. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.adapt.promise import Promise
from headwater.metrics import Progress
from headwater.plan.model import DeploymentPlan
from headwater.quantity import format_duration, format_size


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is measured of what is promised; None where nothing is known yet.

    ``latency_s``: for 95 of 100, at the slowest unit with a sink. ``bandwidth``: bytes/s into the top layer.
    """

    latency_s: float | None = None
    latency_p50_s: float | None = None
    bandwidth: float | None = None


def sink_units(plan: DeploymentPlan) -> frozenset[str]:
    """Give the units that write to a sink."""
    sinks = {sink.id for sink in plan.dataflow.sinks}
    return frozenset(u.id for u in plan.units if not sinks.isdisjoint(u.operators))


def measured(plan: DeploymentPlan, progress: Progress) -> Measured:
    """Give the newest figures of a deployment."""
    ends, top = sink_units(plan), plan.continuum.root.layer
    known = [u.latency for u in progress.units if u.unit in ends and u.latency]
    into = {
        zone.link.name
        for zone in plan.continuum.zones
        if zone.link and zone.layer != top and plan.continuum.zone(zone.link.upper).layer == top
    }
    rates = [x.bytes_per_s for x in progress.links if x.link in into and x.bytes_per_s is not None]
    return Measured(
        latency_s=max((x.p95 for x in known), default=None),
        latency_p50_s=max((x.p50 for x in known), default=None),
        bandwidth=sum(rates) if rates else None,
    )


def broken(promise: Promise, found: Measured) -> tuple[str, ...]:
    """Say which limits of latency and bandwidth are broken."""
    said = []
    if found.latency_s is not None and found.latency_s > promise.max_latency:
        most = format_duration(promise.max_latency)
        said.append(f"latency is {format_duration(found.latency_s)}, more than {most}")
    if found.bandwidth is not None and found.bandwidth > promise.max_bandwidth:
        most = format_size(promise.max_bandwidth)
        said.append(f"{format_size(found.bandwidth)}/s go into the top layer, more than {most}/s")
    return tuple(said)


def kept(promise: Promise, found: Measured) -> bool | None:
    """Tell whether latency and bandwidth keep to their limits; None while one of these is not known."""
    if broken(promise, found):
        return False
    unknown = (found.latency_s is None and math.isfinite(promise.max_latency)) or (
        found.bandwidth is None and math.isfinite(promise.max_bandwidth)
    )
    return None if unknown else True
