"""Compare strategies: each one's placement by one model and within the same limits. Pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.placement.cost import ROUNDING, usage_of
from headwater.placement.problem import moved
from headwater.placement.response import response
from headwater.placement.schedule import SCHEDULERS
from headwater.placement.usage import resource_usage
from headwater.plan.deployment import Deployment
from headwater.plan.place import LimitCheck, PlacementRequest, Prediction, Setting, place, running_placement


def compared(setting: Setting, request: PlacementRequest, strategy: str) -> Prediction:
    """Predict a strategy's placement, within the request's limits and by the one model for all strategies.

    Raises PlacementError if the strategy finds none.
    """
    asked = replace(request, strategy=strategy)
    if strategy not in SCHEDULERS:
        asked = PlacementRequest(strategy=strategy, beside=request.beside)
    deployment, prediction = place(setting, asked)
    if prediction.limit_check is not None:
        return prediction
    return replace(prediction, limit_check=judged(setting, request, deployment))


def judged(setting: Setting, request: PlacementRequest, deployment: Deployment) -> LimitCheck:
    """Return RU, T and B of a deployment by TSOO's model, and whether limits, memory and links have room for it."""
    setting = replace(setting, apart=True, beside=request.beside)
    problem, limits = setting.problem, request.limits
    placement = setting.placement(deployment)
    usage, seconds = resource_usage(problem, placement, request.weights), response(problem, placement).worst
    used = usage_of(problem, placement)
    over = [
        *(memory > problem.hosts.memory_free[host] * (1 + ROUNDING) for host, memory in used.memory.items()),
        *(limits.links and b > problem.network.available(link) * (1 + ROUNDING) for link, b in used.links.items()),
        seconds > limits.most_seconds * (1 + ROUNDING),
        usage.bandwidth > limits.max_bandwidth * (1 + ROUNDING),
    ]
    current = None if request.running is None else running_placement(setting, request.running)
    return LimitCheck(
        cost=usage.total,
        response=seconds,
        bandwidth=usage.bandwidth / 8,
        limits=limits,
        kept=not any(over),
        moved=moved(current, placement),
    )
