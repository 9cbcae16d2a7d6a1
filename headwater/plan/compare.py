"""Compare strategies: each one's placement by the model of the requested one and within the same limits. Pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.placement.cost import ROUNDING, evaluate, shortages, usage_of
from headwater.placement.problem import moved
from headwater.placement.response import response
from headwater.placement.schedule import SCHEDULERS
from headwater.placement.usage import resource_usage
from headwater.plan.deployment import Deployment
from headwater.plan.place import (
    AELS_MODEL,
    MODEL,
    LimitCheck,
    PlacementRequest,
    Prediction,
    Setting,
    place,
    running_placement,
    slowest_paths,
)


def compared(setting: Setting, request: PlacementRequest, strategy: str) -> Prediction:
    """Predict a strategy's placement by the model of the requested strategy, and within the same limits.

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
    """Return RU, response time and B of a deployment, and whether limits, memory and links have room for it.

    Response times are those of TSOO's model where a scheduler was requested, and else of AELS's.
    """
    scheduled = request.strategy in SCHEDULERS
    setting = replace(setting, apart=scheduled, beside=request.beside)
    problem, limits = setting.problem, request.limits
    placement = setting.placement(deployment)
    usage = resource_usage(problem, placement, request.weights)
    if scheduled:
        seconds, used = response(problem, placement).worst, usage_of(problem, placement)
        over = any(m > problem.hosts.memory_free[host] * (1 + ROUNDING) for host, m in used.memory.items())
        if limits.links:
            over |= any(b > problem.network.available(link) * (1 + ROUNDING) for link, b in used.links.items())
    else:
        timed = evaluate(problem, placement)
        paths = slowest_paths(setting, timed.service, timed.transfer)
        seconds, over = max((path.seconds for path in paths), default=0.0), bool(shortages(problem, placement))
    over |= seconds > limits.most_seconds * (1 + ROUNDING) or usage.bandwidth > limits.max_bandwidth * (1 + ROUNDING)
    current = None if request.running is None else running_placement(setting, request.running)
    return LimitCheck(
        cost=usage.total,
        response=seconds,
        bandwidth=usage.bandwidth / 8,
        limits=limits,
        kept=not over,
        moved=moved(current, placement),
        model=MODEL if scheduled else AELS_MODEL,
    )
