"""The predicted cost of a deployment: seconds of its paths, and loads of hosts and links. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import computed_field

from headwater.core.jsonform import Hidden, Unbounded, UnboundedOrNone, named
from headwater.placement import Answer
from headwater.placement.problem import Stream
from headwater.placement.response import Response
from headwater.placement.situation import Limits
from headwater.plan.deployment import layers_of
from headwater.plan.setting import Setting


@dataclass(frozen=True)
class Path:
    """The slowest path from a source's rows at a location to a sink, and its predicted seconds."""

    source: str
    location: str | None
    sink: str
    seconds: Unbounded


MODEL = "TSOO: M/M/1, M/D/1 and D/M/1 queues, cpu shared among a host's operators"
"""The model of an answer by a scheduler, and of the comparison with it (``headwater.placement.response``)."""
AELS_MODEL = "AELS: M/M/1 queues, each operator with its host's cpu"
"""The model of an answer by any other strategy, and of the comparison with it (``headwater.placement.cost``)."""


@dataclass(frozen=True)
class LimitCheck:
    """A placement by ``model``: RU, seconds of the slowest path, B (bytes/s), and whether it is within the limits.

    ``missing``: the limit that no placement meets, in words. ``moved``: operators that change their place.
    ``chance``: the probability that the limits are kept; None: unknown.
    """

    cost: Unbounded
    response: Annotated[Unbounded, named("response_s")]
    bandwidth: Annotated[float, named("bandwidth_bytes_per_s")]
    limits: Annotated[Limits, Hidden]
    kept: bool
    missing: str = ""
    moved: int = 0
    chance: float | None = None
    model: str = MODEL

    @computed_field  # type: ignore[prop-decorator]
    @property
    def max_latency_s(self) -> Unbounded:
        """The limit of T."""
        return self.limits.max_latency

    @computed_field  # type: ignore[prop-decorator]
    @property
    def max_bandwidth_bytes_per_s(self) -> Unbounded:
        """The limit of B."""
        return self.limits.max_bandwidth / 8


@dataclass(frozen=True)
class LinkLoad:
    """Load of a link and its share of the bandwidth; None: the bandwidth is unlimited."""

    bytes_per_s: float
    share: float | None


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of a deployment: seconds, loads (share of a host's cores), bytes/s.

    ``at``: layers of locations that differ. ``latency``: AL, summed over paths; of a scheduler's choice, the sum over
    ``paths``. ``bound``: the least AL of any placement; None: not computed. ``limit_check``: for a scheduler's choice,
    and where strategies are compared. All seconds of an answer are by one model.
    """

    strategy: str
    layers: Mapping[str, str]
    at: Mapping[str, Mapping[str, str]]
    latency: Annotated[Unbounded, named("latency_s")]
    paths: tuple[Path, ...]
    load: Mapping[str, float]
    links: Mapping[str, LinkLoad]
    bound: Annotated[UnboundedOrNone, named("bound_s")]
    notes: tuple[str, ...] = ()
    limit_check: LimitCheck | None = None


def predict(setting: Setting, answer: Answer, timed: Response | None = None) -> Prediction:
    """Predict the cost of an answer's deployment; ``timed``: its times by TSOO's model, in place of AELS's."""
    problem, cost = setting.problem, answer.evaluation
    deployment = setting.deployment(answer.placement)
    hosts, zones = setting.hosts, [zone.name for zone in setting.continuum.zones]
    named_links = {ends: x.name for x in setting.continuum.links for ends in ((x.lower, x.upper), (x.upper, x.lower))}
    links: dict[str, LinkLoad] = {}
    for (lower, upper), bits in sorted(cost.usage.links.items()):
        capacity = problem.network.capacity((lower, upper))
        share = None if capacity == np.inf else bits / capacity
        name = named_links[zones[lower], zones[upper]]
        before = links.get(name, LinkLoad(0.0, None if share is None else 0.0))
        links[name] = LinkLoad(before.bytes_per_s + bits / 8, _more(before.share, share))
    service, transfer = (cost.service, cost.transfer) if timed is None else (timed.latency, timed.delay)
    paths = slowest_paths(setting, service, transfer)
    assumed = setting.known.assumed
    notes = tuple(answer.notes)
    if setting.beside:
        names = [p.dataflow.name + (" (costs assumed)" if of is None else "") for p, of in setting.beside]
        notes += (f"beside {', '.join(names)}",)
    if down := setting.ways_down:
        notes += (f"without the ways down to {', '.join(down)}: latencies begin anew behind them",)
    if assumed:
        some = ", ".join(assumed[:3]) + (", ..." if len(assumed) > 3 else "")
        notes += (f"assumed, not measured: {some}. Measure with headwater profile.",)
    return Prediction(
        answer.strategy,
        *layers_of(deployment.placement, setting.continuum, setting.dataflow.order),
        cost.latency if timed is None else sum(path.seconds for path in paths),
        paths,
        {f"{hosts[h].name} ({hosts[h].zone})": w / problem.hosts.cpu[h] for h, w in cost.usage.work.items()},
        links,
        answer.bound,
        notes,
    )


def _more(one: float | None, other: float | None) -> float | None:
    """Return the greater share of both directions of a link."""
    return None if one is None or other is None else max(one, other)


def slowest_paths(setting: Setting, service: Sequence[float], transfer: Mapping[Stream, float]) -> tuple[Path, ...]:
    """Return the slowest path from each source instance to each sink, given seconds per operator and stream."""
    application = setting.problem.application
    found = []
    for source in application.sources:
        slowest = {source: service[source]}
        for o in application.order:
            ways = [slowest[u] + transfer[u, o] for u in application.upstream[o] if u in slowest]
            if ways:
                slowest[o] = max(ways) + service[o]
        by_sink: dict[str, float] = {}
        for sink in application.sinks:
            if sink in slowest and sink != source:
                name = setting.instances[sink][0]
                by_sink[name] = max(by_sink.get(name, 0.0), slowest[sink])
        name, location = setting.instances[source]
        found += [Path(name, location, sink, seconds) for sink, seconds in by_sink.items()]
    return tuple(found)
