"""Performance models of a plan behind one protocol; the leading model, and disagreements. Pure.

There are three. The *batch* model (``headwater.adapt.model``) covers queries, cuts and batches, and is fitted to
measurements. The *network of queues* (AELS, eq. 7, 8 and 18) and *D/M/1-M/D/1* (TSOO, eq. 15 to 23) cover hosts,
links and operators, without cuts. The batch model leads; the others are shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from headwater.adapt.model import Facts, Predicted, predict
from headwater.core.errors import PlacementError
from headwater.core.jsonform import UnboundedOrNone, named
from headwater.core.quantity import format_duration
from headwater.placement.cost import evaluate
from headwater.placement.response import response
from headwater.plan.model import DeploymentPlan
from headwater.plan.setting import Setting

BATCH = "batch"
APART = 2.0
"""Factor up to which latencies of two models agree."""


@dataclass(frozen=True)
class Estimate:
    """A model's estimate for a plan: seconds from source to sink, ∞ if a part does not keep up.

    The batch model gives the 95th percentile, the others means; None if the model does not apply.
    """

    model: str
    latency: Annotated[UnboundedOrNone, named("latency_s")]


class Evaluator(Protocol):
    """A performance model. ``why``: the reason, in words, why it leads or not."""

    @property
    def name(self) -> str: ...

    @property
    def why(self) -> str: ...

    def estimate(self, plan: DeploymentPlan) -> Estimate:
        """Estimate the latency of a plan."""
        ...


@dataclass(frozen=True)
class BatchModel:
    """Queries that process rows in batches, on hosts that they share."""

    facts: Facts
    name = BATCH
    why = "it covers queries, cuts and batches, and is fitted to measurements"

    def predict(self, plan: DeploymentPlan) -> Predicted:
        """Return the full prediction for a plan."""
        return predict(plan, self.facts)

    def estimate(self, plan: DeploymentPlan) -> Estimate:
        return Estimate(self.name, self.predict(plan).p95)


@dataclass(frozen=True)
class QueueNetwork:
    """Operators as M/M/1 queues on whole hosts, joined by links (AELS, eq. 7, 8 and 18)."""

    setting: Setting
    name = "network of queues"
    why = "it covers neither queries nor batches"

    def estimate(self, plan: DeploymentPlan) -> Estimate:
        try:
            placement = self.setting.placement(plan.deployment)
            evaluation = evaluate(self.setting.problem, placement)
        except (KeyError, PlacementError):
            return Estimate(self.name, None)
        paths = max(1, len(self.setting.problem.application.sources))
        return Estimate(self.name, evaluation.total / paths)


@dataclass(frozen=True)
class SharedHosts:
    """Processes that share a host's cpu equally, with windows at equal intervals (TSOO, eq. 15 to 23)."""

    setting: Setting
    name = "D/M/1-M/D/1"
    why = "it covers batches as windows, but neither queries nor cuts"

    def estimate(self, plan: DeploymentPlan) -> Estimate:
        try:
            placement = self.setting.placement(plan.deployment)
            return Estimate(self.name, response(self.setting.problem, placement).worst)
        except (KeyError, PlacementError):
            return Estimate(self.name, None)


def disagreement(estimates: Sequence[Estimate], counting: Evaluator) -> str:
    """Return the models that differ markedly from the leading one, and why it leads; '' if they agree."""
    mine = next(e for e in estimates if e.model == counting.name)
    others = [e for e in estimates if e is not mine and _apart(mine, e)]
    if not others or mine.latency is None:
        return ""
    said = ", ".join(f"{e.model} {_told(e.latency)}" for e in others)
    return (
        f"models disagree: {counting.name} predicts {_told(mine.latency)}, {said}; "
        f"{counting.name} leads, because {counting.why}"
    )


def _apart(one: Estimate, other: Estimate) -> bool:
    if one.latency is None or other.latency is None:
        return False
    if math.isinf(one.latency) or math.isinf(other.latency):
        return one.latency != other.latency
    low, high = sorted((max(one.latency, 1e-9), max(other.latency, 1e-9)))
    return high > APART * low


def _told(seconds: float | None) -> str:
    if seconds is None:
        return "nothing"
    return format_duration(round(seconds, 3)) if math.isfinite(seconds) else "no end"
