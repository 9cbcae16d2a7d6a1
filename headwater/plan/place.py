"""Choose each operator's layer with a strategy, from a dataflow and a continuum. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headwater.core.errors import PlacementError, suggestion
from headwater.placement import STRATEGIES, Answer, solve
from headwater.placement.cost import ROUNDING, evaluate, shortages, usage_of
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.lacking import lacking
from headwater.placement.problem import Placement, moved
from headwater.placement.response import response
from headwater.placement.schedule import SCHEDULERS, Scheduled, decide
from headwater.placement.situation import Limits
from headwater.placement.uncertainty import ForecastRecord
from headwater.placement.usage import Weights, resource_usage
from headwater.plan.deployment import Deployment
from headwater.plan.prediction import AELS_MODEL, MODEL, LimitCheck, Prediction, predict, slowest_paths
from headwater.plan.setting import Beside, Setting, running_placement

ANNOTATED = "annotated"
"""The strategy that follows the dataflow's marks."""


@dataclass(frozen=True, kw_only=True)
class PlacementRequest:
    """How to choose a placement: the strategy, and for schedulers the limits.

    ``weights``: cost of memory and links. ``running``: the running deployment; changes have a price.
    ``beside``: other dataflows that use the same hosts and links.
    """

    strategy: str
    limits: Limits = field(default_factory=Limits)
    weights: Weights = field(default_factory=Weights)
    running: Deployment | None = None
    beside: tuple[Beside, ...] = ()


def place(setting: Setting, request: PlacementRequest) -> tuple[Deployment, Prediction]:
    """Choose layers as requested.

    Raises PlacementError, with the missing resource, if a strategy finds no placement. A scheduler always
    chooses: ``Prediction.limit_check`` says whether the limits hold.
    """
    setting = replace(setting, beside=request.beside)
    known = (ANNOTATED, *STRATEGIES, *SCHEDULERS)
    if request.strategy not in known:
        raise PlacementError(
            f"unknown strategy '{request.strategy}'",
            hint=suggestion(request.strategy, known, "the strategies are"),
        )
    if request.strategy in SCHEDULERS:
        return _scheduled(setting, request)
    if (request.limits, request.weights) != (Limits(), Weights()):
        raise PlacementError(
            f"strategy '{request.strategy}' has no limits and weights",
            hint=f"strategies with limits and weights are {', '.join(SCHEDULERS)}",
        )
    if request.strategy == ANNOTATED:
        return setting.marked, predict(setting, _marked(setting))
    answer = _solved(setting, request.strategy)
    return setting.deployment(answer.placement), predict(setting, answer)


def _solved(setting: Setting, strategy: str) -> Answer:
    answer = solve(setting.problem, strategy)
    together = setting.joined(answer.placement)
    if together == answer.placement:
        return answer
    return replace(answer, placement=together, evaluation=evaluate(setting.problem, together))


def _scheduled(setting: Setting, request: PlacementRequest) -> tuple[Deployment, Prediction]:
    setting = replace(setting, apart=True)
    current = None if request.running is None else running_placement(setting, request.running)
    problem = (replace(setting, on_tree=True) if setting.in_zones else setting).problem
    load = CutLoad.of(problem)
    found = decide(
        problem,
        request.strategy,
        request.limits,
        current=current,
        weights=request.weights,
        possible=tuple(replace(load, rates=rates) for rates in ForecastRecord().scenarios(load.rates)),
    )
    check, deployment = _limit_check(found, request, current), setting.deployment(found.placement)
    if setting.in_zones:  # the scheduler did not see the streams from and to them
        check = _with_all_streams(check, judged(setting, request, deployment))
    answer = Answer(
        request.strategy,
        found.placement,
        evaluate(setting.problem, found.placement),
        notes=[check.missing] if check.missing else [],
    )
    predicted = predict(setting, answer, response(setting.problem, found.placement))
    return deployment, replace(predicted, limit_check=check)


def _with_all_streams(check: LimitCheck, whole: LimitCheck) -> LimitCheck:
    """Return the check of a placement with the figures of ``whole``, the check with the streams of zones by name."""
    missing = check.missing
    if check.kept and not whole.kept:
        missing = "best placement found: with the streams from and to zones by name, it is not within the limits"
    return replace(
        check,
        cost=whole.cost,
        response=whole.response,
        bandwidth=whole.bandwidth,
        kept=check.kept and whole.kept,
        missing=missing,
    )


def _limit_check(found: Scheduled, request: PlacementRequest, current: Placement | None) -> LimitCheck:
    measured, missing = found.decision.measured, ""
    changed = moved(current, found.placement)
    if not found.decision.kept:
        short, chance = lacking(found.situation), found.decision.chance
        missing = "placement unchanged" if current is not None and not changed else "best placement found"
        if short is not None:
            missing += f": no placement meets {short}"
        elif chance is not None:
            missing += f": it keeps the limits with a probability of {chance:.0%}"
        else:
            missing += ": no placement within the limits was found"
    return LimitCheck(
        cost=measured.cost,
        response=measured.worst,
        bandwidth=measured.bandwidth / 8,
        limits=request.limits,
        kept=found.decision.kept,
        missing=missing,
        moved=changed,
        chance=found.decision.chance,
    )


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


def _marked(setting: Setting) -> Answer:
    """Return the dataflow's own marks as an answer, with violated constraints as notes."""
    placement = setting.placement(setting.marked)
    short = [str(shortage) for shortage in shortages(setting.problem, placement)]
    return Answer(ANNOTATED, placement, evaluate(setting.problem, placement), notes=short)
