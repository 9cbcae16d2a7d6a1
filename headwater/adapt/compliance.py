"""Figures of a deployment for an SLO, and the limits that they violate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from headwater.adapt.slo import SLO
from headwater.adapt.window import Window
from headwater.continuum.model import Continuum
from headwater.core.jsonform import Unbounded, named
from headwater.dataflow.sinks import Sink
from headwater.plan.model import DeploymentPlan


@dataclass(frozen=True)
class Figures:
    """Figures of an SLO: latency (p95, s), bytes/s into the top layer, RU, load of each host."""

    latency: Annotated[Unbounded, named("latency_s")]
    bandwidth: Annotated[float, named("bandwidth_bytes_per_s")]
    cost: float
    load: Mapping[str, float]


@dataclass(frozen=True)
class Break:
    """A violated limit; ``share``: the factor by which it is exceeded."""

    limit: str
    share: float
    text: str


def breaks(slo: SLO, figures: Figures, *, within: float = 1.0) -> tuple[Break, ...]:
    """Return the limits that the figures violate, if only the share ``within`` of each may be used."""
    full = max((share, host) for host, share in figures.load.items()) if figures.load else (0.0, "")
    room = math.inf if slo.headroom is None else 1.0 - slo.headroom
    checks = (
        (
            "max_latency",
            figures.latency,
            slo.max_latency,
            f"{_span(figures.latency)} > {_span(slo.max_latency)}",
        ),
        (
            "max_bandwidth",
            figures.bandwidth,
            slo.max_bandwidth,
            f"{figures.bandwidth:,.0f} bytes/s > {slo.max_bandwidth:,.0f} bytes/s",
        ),
        ("max_cost", figures.cost, slo.max_cost, f"{figures.cost:.3g} > {slo.max_cost:.3g}"),
        ("headroom", full[0], room, f"{full[1]} is {full[0]:.0%} full, {room:.0%} are allowed"),
    )
    return tuple(
        Break(name, value / most, f"{name}: {text}") for name, value, most, text in checks if value > most * within
    )


def _span(seconds: float) -> str:
    """Return a latency as text; the model gives infinity if a queue grows without limit."""
    return "rising without end" if math.isinf(seconds) else f"{seconds:.3g} s"


def strain(slo: SLO, found: Figures) -> float:
    """Return the largest used share of any limit."""
    return max((b.share for b in breaks(slo, found, within=0.0)), default=0.0)


def sink_units(plan: DeploymentPlan) -> tuple[str, ...]:
    """Return the units that feed sinks."""
    flow = plan.dataflow
    return tuple(u.id for u in plan.units if any(isinstance(flow[o], Sink) for o in u.outputs))


def links_into_top(continuum: Continuum) -> tuple[str, ...]:
    """Return the links into the top layer."""
    top, zone = continuum.layers[-1].name, continuum.zone
    return tuple(x.name for x in continuum.links if zone(x.upper).layer == top != zone(x.lower).layer)


def measured(plan: DeploymentPlan, seen: Window, newest: Window) -> Figures:
    """Return the measured figures of a plan in ``seen``; ``newest`` is the last part of it."""
    return figures_of(sink_units(plan), links_into_top(plan.continuum), seen, newest)


def figures_of(sinks: Iterable[str], into_top: Iterable[str], seen: Window, newest: Window) -> Figures:
    """Return the measured figures; the age of rows waiting in ``newest`` is a lower bound of the latency."""
    _, p95 = seen.latency(sinks)
    return Figures(
        latency=max(p95 or 0.0, newest.oldest()),
        bandwidth=sum(seen.links[name].bytes for name in into_top if name in seen.links),
        cost=0.0,
        load={f"{host} ({zone_})": h.load for (zone_, host), h in seen.hosts.items()},
    )
