"""Alternatives to the running deployment: edits, schedulers' choices, other rewritings; with predictions. Pure.

Edits are moves to another layer, cuts and fusions inside a zone, and units on more, fewer or other hosts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from headwater.adapt.compliance import Break, Figures, breaks
from headwater.adapt.evaluate import (
    BATCH,
    BatchModel,
    Estimate,
    Evaluator,
    QueueNetwork,
    SharedHosts,
    disagreement,
)
from headwater.adapt.model import Facts, HostKey, Predicted
from headwater.adapt.reoptimise import Saved, other_rewritings, saves
from headwater.adapt.slo import SLO
from headwater.continuum.model import Host
from headwater.core.errors import HeadwaterError, PlacementError
from headwater.core.jsonform import UnboundedOrNone
from headwater.placement.problem import moved
from headwater.placement.situation import Limits
from headwater.placement.usage import resource_usage
from headwater.plan.build import build
from headwater.plan.deployment import Deployment, Edge
from headwater.plan.edit import Edit, Fuse, Move, Split, Spread, edited
from headwater.plan.model import DeploymentPlan
from headwater.plan.place import PlacementRequest, place
from headwater.plan.profile import Known, Profile
from headwater.plan.setting import Beside, Setting

_EACH_LOCATION = 8
"""Number of locations up to which moves of single locations are tried; beyond, only schedulers choose."""
_MOST_CUTS = 24
"""Maximum number of splits, and of fusions, to try."""
_SCHEDULER = "tsoo_exact"
_NO_FACTS = Facts(profile=Profile())


def name_of(plan: DeploymentPlan) -> str:
    """Return the id of a plan's decisions: a hash of its cuts and its placement, and of what rewriting chose."""
    decided: list[object] = [sorted(plan.deployment.cuts), plan.deployment.placement.to_data()]
    if plan.written is not None:
        decided.append(plan.dataflow.to_data())
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


def capability(host: Host, name: str) -> float:
    """Return a numeric capability of a host; 0 if it is not declared."""
    value = host.capabilities.get(name, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """An option as recorded with decisions. ``decided`` is the id of its cuts, its placement and its rewriting.

    ``rules``: in words, those that another rewriting applies in addition, or no longer; ``saves``: bytes over links or
    load of rows, where it saves enough of them. ``links_bytes_per_s``: over all links. ``row_cores``: used by rows.
    """

    name: str
    layers: Mapping[str, str]
    at: Mapping[str, Mapping[str, str]]
    cuts: tuple[Edge, ...]
    decided: str
    models: tuple[Estimate, ...]
    disagreement: str
    latency_s: UnboundedOrNone
    bandwidth_bytes_per_s: float
    cost: float
    load: Mapping[str, float]
    moved: int
    keeps: bool
    breaks: tuple[str, ...]
    why_not: str
    rules: tuple[str, ...]
    saves: Saved | None
    links_bytes_per_s: float
    row_cores: float


@dataclass(frozen=True)
class Option:
    """A possible deployment, with its plan and its prediction.

    ``moved``: number of operators, per location, that change their place. ``work``: for each host the used share of
    its cores without the fixed cost of batches, see ``Predicted``. ``rules`` and ``saves``: see ``Alternative``.
    """

    name: str
    plan: DeploymentPlan
    predicted: Predicted
    figures: Figures
    work: Mapping[str, float]
    moved: int
    breaks: tuple[Break, ...]
    estimates: tuple[Estimate, ...]
    why_not: str = ""
    rules: tuple[str, ...] = ()
    saves: Saved | None = None

    @property
    def deployment(self) -> Deployment:
        return self.plan.deployment

    @property
    def keeps(self) -> bool:
        """Return whether it would meet all limits."""
        return not self.breaks

    def shown(self) -> Alternative:
        """Return the option as recorded with decisions."""
        return Alternative(
            name=self.name,
            layers=self.plan.layers,
            at=self.plan.layers_at,
            cuts=tuple(sorted(self.deployment.cuts)),
            decided=name_of(self.plan),
            models=self.estimates,
            disagreement=disagreement(self.estimates, BatchModel(_NO_FACTS)),
            latency_s=self.figures.latency,
            bandwidth_bytes_per_s=self.figures.bandwidth,
            cost=self.figures.cost,
            load=self.figures.load,
            moved=self.moved,
            keeps=self.keeps,
            breaks=tuple(b.text for b in self.breaks),
            why_not=self.why_not,
            rules=self.rules,
            saves=self.saves,
            links_bytes_per_s=sum(self.predicted.links.values()),
            row_cores=self.predicted.cores,
        )


Work = frozenset[tuple[str, str, tuple[str, ...]]]
"""Computations by zones and locations; by key of the unit."""


def work_of(plan: DeploymentPlan) -> Work:
    """Return the computation of each zone and its locations."""
    return frozenset((u.key, u.zone, u.locations) for u in plan.units)


class Options:
    """All alternatives to a plan, predicted from ``facts``.

    ``beside``: other dataflows. ``unexplained``: shares of hosts' cores used in addition to the prediction.
    ``within``: the share of each limit that alternatives may use.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        slo: SLO,
        facts: Facts,
        *,
        beside: tuple[Beside, ...] = (),
        unexplained: Mapping[HostKey, float],
        within: float,
    ) -> None:
        self._plan, self._slo = plan, slo
        self._facts, self._beside = facts, beside
        self._model = BatchModel(facts)
        self._within = within
        self._unexplained = unexplained
        self._setting = Setting(
            plan.dataflow,
            plan.continuum,
            plan.layers,
            Known(plan.dataflow, facts.profile),
            decided=plan.deployment,
            apart=True,
            beside=beside,
        )
        self._models: tuple[Evaluator, ...] = (QueueNetwork(self._setting), SharedHosts(self._setting))

    @cached_property
    def current(self) -> Option:
        """The running deployment."""
        return self._option("as it is", self._plan, 0)

    def others(self) -> Iterator[Option]:
        """Yield each alternative once: moves, nearest first, other cuts and hosts, a scheduler's, other rewritings."""
        known = [self._plan.deployment]
        work = work_of(self._plan)
        for name, deployment, touched in self._deployments():
            if deployment in known or not self._allowed(deployment):
                continue
            known.append(deployment)
            try:
                plan = build(self._plan.dataflow, self._plan.continuum, deployment, pooled=self._plan.pooled)
            except HeadwaterError:
                continue
            if work_of(plan) != work:
                yield self._option(name, replace(plan, written=self._plan.written), touched)
        yield from self._rewritings(work)

    def _rewritings(self, work: Work) -> Iterator[Option]:
        """Yield other rewritings of the dataflow; the operators of units that they restart count as moved."""
        for other in other_rewritings(self._plan, self._facts):
            new = [u for u in other.plan.units if (u.key, u.zone, u.locations) not in work]
            moved = sum(len(u.operators) for u in new)
            apart = Options(
                other.plan, self._slo, other.facts(self._facts), beside=self._beside,
                unexplained=self._unexplained, within=self._within,
            )  # fmt: skip
            if not apart.fits:
                continue
            found, now = apart.rewritten(moved), self.current.predicted
            yield replace(
                found,
                name=other.name,
                rules=other.rules,
                why_not=other.why_not,
                saves=saves(now, found.predicted, gain=self._slo.gain, moved=moved),
            )

    @property
    def fits(self) -> bool:
        """Return whether the plan's placement fits the placement problem, so that it has a cost."""
        try:
            self._setting.placement(self._plan.deployment)
        except (KeyError, PlacementError):
            return False
        return True

    def rewritten(self, moved: int) -> Option:
        """Return the plan itself as an alternative to one of another rewriting."""
        found = self._option("", self._plan, moved)
        return replace(found, breaks=breaks(self._slo, found.figures, within=self._within))

    def _deployments(self) -> Iterator[tuple[str, Deployment, int]]:
        """Yield deployments by name, each with the number of operators that its edit touches in place."""
        for name, edit, touched in chain(self._moves(), self._cuts(), self._spreads()):
            try:
                yield name, edited(self._plan, edit), touched
            except HeadwaterError:
                continue
        try:
            limits = Limits(max_bandwidth=self._slo.max_bandwidth * 8 * self._within)
            request = PlacementRequest(strategy=_SCHEDULER, limits=limits, running=self._plan.deployment)
            found = replace(place(self._setting, request)[0], cuts=self._plan.deployment.cuts)
            yield f"by {_SCHEDULER}", found, 0
        except PlacementError:
            return

    def _moves(self) -> Iterator[tuple[str, Edit, int]]:
        locations = self._setting.locations
        each: Iterable[str | None] = (None,)
        if 1 < len(locations) <= _EACH_LOCATION:
            each = (None, *locations)
        for location in each:
            for operator in self._movable:
                for layer in self._plan.continuum.layers:
                    at = f" at {location}" if location else ""
                    name = f"{operator} to {layer.name}{at}"
                    yield name, Move(operator=operator, to=layer.name, at=location), 0

    def _cuts(self) -> Iterator[tuple[str, Edit, int]]:
        """Yield the units to split and the pairs of neighbours to fuse, by name: a cut applies everywhere."""
        units = {u.name: u for u in self._plan.units}
        splits = [
            (f"{u.name} split behind {o}", Split(unit=u.id, after=o), len(u.operators))
            for u in units.values()
            for o in u.operators
            if any(c in u.operators for c in self._plan.dataflow.consumers[o])
        ]
        yield from splits[:_MOST_CUTS]
        pairs = {
            (self._plan.unit(c.producer).name, self._plan.unit(r).name): (c.producer, r)
            for c in self._plan.channels
            for r, links in c.routes.items()
            if not links
        }
        for (first, second), (one, other) in list(pairs.items())[:_MOST_CUTS]:
            touched = len(units[first].operators) + len(units[second].operators)
            yield f"{first} and {second} fused", Fuse(first=one, second=other), touched

    def _spreads(self) -> Iterator[tuple[str, Edit, int]]:
        """Yield the units of zones with several nodes, on another host, one host more, or one less."""
        placement = self._plan.deployment.placement
        for unit in {(u.name, u.zone): u for u in self._plan.units}.values():
            zone = self._plan.continuum.zone(unit.zone)
            if len(zone.nodes) < 2:
                continue
            now = placement[unit.operators[0], unit.locations[0]]
            ranked = sorted(
                (h for h in zone.hosts if all(self._meets(o, h) for o in unit.operators)),
                key=lambda h: [-capability(h, name) for name in ("n_cpu", "memory")],
            )
            others = [h.name for h in ranked if h.name not in now]
            wanted: list[tuple[str, ...]] = [(host,) for host in others] if len(now) == 1 else []
            wanted += [(*now, others[0])] if others else []
            weakest = next((h.name for h in reversed(ranked) if h.name in now), None)
            wanted += [tuple(h for h in now if h != weakest)] if len(now) > 1 else []
            for hosts in wanted:
                name = f"{unit.name} on {', '.join(hosts)}"
                yield name, Spread(unit=unit.id, over=hosts), len(unit.operators)

    def _meets(self, operator: str, host: Host) -> bool:
        return self._plan.dataflow[operator].requires.holds(host.capabilities)

    @cached_property
    def _movable(self) -> tuple[str, ...]:
        """Return the operators that may be placed in several places."""
        found = [
            name
            for (name, _), what in zip(
                self._setting.instances, self._setting.problem.application.operators, strict=True
            )
            if what.fixed is None
        ]
        return tuple(dict.fromkeys(found))

    def _allowed(self, deployment: Deployment) -> bool:
        """Return whether all operators are in allowed places."""
        try:
            placement = self._setting.placement(deployment)
        except (KeyError, PlacementError):
            return False
        operators, nodes = self._setting.problem.application.operators, self._setting.nodes
        return all(
            what.hosts is None or nodes[host].zone in {nodes[h].zone for h in what.hosts}
            for what, host in zip(operators, placement, strict=True)
        )

    def _option(self, name: str, plan: DeploymentPlan, touched: int) -> Option:
        predicted = self._model.predict(plan)
        cost, changed = self._cost(plan.deployment)
        figures = Figures(predicted.p95, predicted.bandwidth, cost, self._shares(predicted.load))
        within = 1.0 if plan is self._plan else self._within
        return Option(
            name,
            plan,
            predicted,
            figures,
            self._shares(predicted.work),
            max(changed, touched),
            breaks(self._slo, figures, within=within),
            (Estimate(BATCH, predicted.p95), *(model.estimate(plan) for model in self._models)),
        )

    def _shares(self, of: Mapping[HostKey, float]) -> dict[str, float]:
        """Return loads by host name, including the unexplained part."""
        return {
            f"{host} ({zone})": share + self._unexplained.get((zone, host), 0.0) for (zone, host), share in of.items()
        }

    def _cost(self, deployment: Deployment) -> tuple[float, int]:
        """Return RU and the number of moved operators; 0 if the placement does not fit the problem."""
        try:
            now = self._setting.placement(self._plan.deployment)
            then = self._setting.placement(deployment)
        except (KeyError, PlacementError):
            return 0.0, 0
        return resource_usage(self._setting.problem, then).total, moved(now, then)
