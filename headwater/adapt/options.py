"""What could run in place of what runs: one move away, or as schedulers choose; each foretold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headwater.adapt.keeping import Break, Figures, breaks
from headwater.adapt.model import Facts, HostKey, Predicted, predict
from headwater.adapt.promise import Promise
from headwater.errors import HeadwaterError, PlacementError
from headwater.placement.problem import moved
from headwater.placement.situation import Limits
from headwater.placement.usage import resource_usage
from headwater.plan.build import annotated, build
from headwater.plan.edit import move
from headwater.plan.model import Deployment, DeploymentPlan
from headwater.plan.place import Beside, Setting, Wish, place
from headwater.profile import Known

_EACH_LOCATION = 8
"""Locations up to which moves for each by itself are looked at; schedulers decide on more."""
_SCHEDULER = "tsoo_exact"


@dataclass(frozen=True)
class Option:
    """A deployment that could be, with its plan and what that would do.

    ``moved``: operators, for each location, that are elsewhere than now. ``work``: of each host the share of
    its cores that is taken whatever batches do, see ``Predicted``.
    """

    name: str
    deployment: Deployment
    plan: DeploymentPlan
    predicted: Predicted
    figures: Figures
    work: Mapping[str, float]
    moved: int
    breaks: tuple[Break, ...]
    why_not: str = ""

    @property
    def keeps(self) -> bool:
        """Tell whether it would keep to all limits."""
        return not self.breaks

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data; what would never end is None."""
        return {
            "name": self.name,
            "layers": dict(self.deployment.layers),
            "at": {x: dict(own) for x, own in self.deployment.at.items()},
            "cuts": sorted(list(c) for c in self.deployment.cuts),
            **self.figures.to_data(),
            "moved": self.moved,
            "keeps": self.keeps,
            "breaks": [b.text for b in self.breaks],
            "why_not": self.why_not,
        }


Work = frozenset[tuple[str, str, tuple[str, ...]]]
"""What is computed in which zones for which locations; by key of the unit."""


def work_of(plan: DeploymentPlan) -> Work:
    """Say which zones run what for which locations."""
    return frozenset((u.key, u.zone, u.locations) for u in plan.units)


class Options:
    """All that could run in place of a plan, foretold by ``facts``.

    ``beside``: other dataflows. ``unexplained``: shares of hosts' cores that are taken beside what ``facts``
    foretell. ``within``: the share of each limit that others than what runs may use.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        promise: Promise,
        facts: Facts,
        *,
        beside: tuple[Beside, ...] = (),
        unexplained: Mapping[HostKey, float],
        within: float,
    ) -> None:
        self._plan, self._promise, self._facts = plan, promise, facts
        self._within = within
        self._unexplained = unexplained
        self._setting = Setting(
            plan.dataflow,
            plan.continuum,
            annotated(plan.dataflow, plan.continuum),
            Known(plan.dataflow, facts.profile),
            apart=True,
            beside=beside,
        )

    @cached_property
    def current(self) -> Option:
        """What runs."""
        return self._option("as it is", self._plan.deployment, self._plan)

    def others(self) -> Iterator[Option]:
        """Give all others once each, nearest first."""
        known = [self._plan.deployment]
        for name, deployment in self._deployments():
            if deployment in known or not self._allowed(deployment):
                continue
            known.append(deployment)
            try:
                plan = build(self._plan.dataflow, self._plan.continuum, deployment)
            except HeadwaterError:
                continue
            if work_of(plan) != work_of(self._plan):
                yield self._option(name, deployment, plan)

    def _deployments(self) -> Iterator[tuple[str, Deployment]]:
        locations = self._setting.locations
        layers = [layer.name for layer in self._plan.continuum.layers]
        each: Iterable[str | None] = (None,)
        if 1 < len(locations) <= _EACH_LOCATION:
            each = (None, *locations)
        for location in each:
            for operator in self._movable:
                for layer in layers:
                    at = f" at {location}" if location else ""
                    try:
                        yield (
                            f"{operator} to {layer}{at}",
                            move(self._plan, operator, layer, location=location),
                        )
                    except PlacementError:
                        continue
        try:
            limits = Limits(max_bandwidth=self._promise.max_bandwidth * 8 * self._within)
            wish = Wish(strategy=_SCHEDULER, limits=limits, running=self._plan.deployment)
            yield f"by {_SCHEDULER}", replace(place(self._setting, wish)[0], cuts=self._plan.deployment.cuts)
        except PlacementError:
            return

    @cached_property
    def _movable(self) -> tuple[str, ...]:
        """Name the operators that may be in several places."""
        found = [
            name
            for (name, _), what in zip(
                self._setting.instances, self._setting.problem.application.operators, strict=True
            )
            if what.fixed is None
        ]
        return tuple(dict.fromkeys(found))

    def _allowed(self, deployment: Deployment) -> bool:
        """Tell whether all operators are where they may be."""
        try:
            placement = self._setting.placement(deployment)
        except (KeyError, PlacementError):
            return False
        operators = self._setting.problem.application.operators
        return all(
            what.hosts is None or host in what.hosts for what, host in zip(operators, placement, strict=True)
        )

    def _option(self, name: str, deployment: Deployment, plan: DeploymentPlan) -> Option:
        predicted = predict(plan, self._facts)
        cost, changed = self._cost(deployment)
        figures = Figures(predicted.p95, predicted.bandwidth, cost, self._shares(predicted.load))
        within = 1.0 if plan is self._plan else self._within
        return Option(
            name,
            deployment,
            plan,
            predicted,
            figures,
            self._shares(predicted.work),
            changed,
            breaks(self._promise, figures, within=within),
        )

    def _shares(self, of: Mapping[HostKey, float]) -> dict[str, float]:
        """Name hosts, and add what nothing explains."""
        return {
            f"{host} ({zone})": share + self._unexplained.get((zone, host), 0.0)
            for (zone, host), share in of.items()
        }

    def _cost(self, deployment: Deployment) -> tuple[float, int]:
        """Give RU, and how many operators are elsewhere than now; 0 where they are none of the problem."""
        try:
            now = self._setting.placement(self._plan.deployment)
            then = self._setting.placement(deployment)
        except (KeyError, PlacementError):
            return 0.0, 0
        return resource_usage(self._setting.problem, then).total, moved(now, then)
