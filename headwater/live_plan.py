"""The use case of planning: a dataflow as asked for, what applying it would change, what is foretold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwater import live, service
from headwater.continuum import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.errors import DeploymentError, HeadwaterError, Missing
from headwater.live import Preview, existing
from headwater.placement.situation import Limits
from headwater.placement.usage import Weights
from headwater.plan.model import Deployment, DeploymentPlan
from headwater.plan.place import ANNOTATED, Prediction, Wish
from headwater.plan.steps import CanarySettings
from headwater.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A dataflow that is to be planned, and how. Without ``strategy`` as its marks say, nothing foretold."""

    dataflow: Dataflow
    continuum: Continuum
    strategy: str | None = None
    limits: Limits = field(default_factory=Limits)
    weights: Weights = field(default_factory=Weights)
    profile: Profile | None = None
    """What its operators cost; else that is assumed."""
    compare: bool = False
    """Whether what each other strategy would cost is foretold, too."""
    reset_state: frozenset[str] = frozenset()
    canary: CanarySettings | None = None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A plan that can be applied, what that would change, and what is foretold of it."""

    plan: DeploymentPlan
    preview: Preview
    prediction: Prediction | None = None
    others: Mapping[str, Prediction | HeadwaterError] = field(default_factory=dict)
    ask: Ask | None = None
    """What was asked for; None of an edit of what runs."""

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data, in the form of `headwater plan --json`."""
        data = {
            **self.plan.to_data(),
            "change": self.preview.to_data(),
            "same": self.preview.same,
            "busy": self.preview.busy,
        }
        if self.prediction is not None:
            data |= foretold_data(self.prediction, self.others)
        return data

    def apply(self, place: str | None = None, *, after: int | None = None) -> int:
        """Store the plan as the wanted one and give its version; ``after``: the version it was shown for."""
        ask = self.ask
        return live.apply(
            self.plan,
            place,
            reset_state=ask.reset_state if ask else frozenset(),
            canary=ask.canary if ask else None,
            after=self.preview.version if after is None else after,
            profile=ask.profile if ask else None,
        )


def propose(ask: Ask, place: str | None = None) -> Proposal:
    """Plan a dataflow as asked for; raise what is wrong with it, and why applying it would be refused."""
    flow = ask.dataflow
    strategy = ask.strategy or (ANNOTATED if ask.compare else None)
    prediction, decided = None, None
    others: Mapping[str, Prediction | HeadwaterError] = {}
    if strategy is not None:
        running = live.in_force(place)
        wish = Wish(
            strategy=strategy,
            limits=ask.limits,
            weights=ask.weights,
            running=running[flow.name].deployment if flow.name in running else None,
            beside=tuple((plan, None) for name, plan in running.items() if name != flow.name),
        )
        decided, prediction = service.place(flow, ask.continuum, wish, profile=ask.profile)
        if ask.compare:
            others = service.compare(flow, ask.continuum, wish, profile=ask.profile)
    plan = planned(flow, ask.continuum, decided, prediction, spread=True)
    preview = live.preview(plan, place, reset_state=ask.reset_state, canary=ask.canary)
    return Proposal(plan=plan, preview=preview, prediction=prediction, others=others, ask=ask)


def planned(
    dataflow: Dataflow,
    continuum: Continuum,
    decided: Deployment | None,
    prediction: Prediction | None,
    *,
    spread: bool,
) -> DeploymentPlan:
    """Plan as is decided, or by the marks; a limit that nothing keeps to is among the warnings."""
    plan = service.plan(dataflow, continuum, decided=decided, spread=spread)
    missing = prediction.promise.missing if prediction and prediction.promise else ""
    return replace(plan, warnings=(*plan.warnings, missing)) if missing else plan


def foretold_data(found: Prediction, others: Mapping[str, Prediction | HeadwaterError]) -> dict[str, Any]:
    """Give predictions as JSON-able data."""
    data: dict[str, Any] = {"prediction": found.to_data()}
    if others:
        data["strategies"] = {
            name: {"failed": str(outcome)} if isinstance(outcome, HeadwaterError) else outcome.to_data()
            for name, outcome in others.items()
        }
    return data


def edit(name: str, change: Callable[[DeploymentPlan], Deployment], place: str | None = None) -> Proposal:
    """Plan a deployment with other layers or cuts."""
    plan = live.edited(change, name, place)
    return Proposal(plan=plan, preview=live.preview(plan, place))


def stored(reference: str, place: str | None = None) -> DeploymentPlan:
    """Give the newest plan that is wanted of a deployment, by its name, or any plan by its id."""
    with existing(place) as store:
        record = store.find(reference)
        if record is None:
            try:
                return store.plan(reference)
            except Missing:
                names = ", ".join(d.name for d in store.deployments()) or "none"
                raise Missing(
                    f"neither a deployment nor a plan is called '{reference[:100]}'",
                    where=store.where,
                    hint=f"the deployments are: {names}",
                ) from None
        wanted = next((w.plan for w in reversed(store.wishes(reference)) if w.plan), record.base)
        if wanted is None:
            raise DeploymentError("has no plan", where=f"deployment '{reference}'", hint="apply one first")
        return store.plan(wanted)


def in_force(name: str, place: str | None = None) -> DeploymentPlan:
    """Give the plan whose names and epochs hold; raise Missing where there is none (yet, or any more)."""
    with existing(place) as store:
        store.deployment(name)
        found = store.base(name)
    if found is None:
        raise Missing(
            "no plan is in force", where=f"deployment '{name}'", hint="see its history for what is wanted"
        )
    return found
