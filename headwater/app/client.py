"""The one way to plan: a request becomes a proposal, and a proposal becomes the desired state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from headwater.adapt.reoptimise import unsafe
from headwater.app.stores import existing
from headwater.continuum.model import Continuum
from headwater.control.lifecycle import BUSY
from headwater.control.records import DesiredState, whole
from headwater.control.store import Store, StoreReader
from headwater.control.tables import NoStore, resolved_url
from headwater.core.errors import DeploymentError, HeadwaterError, Missing, PlacementError
from headwater.core.metrics import Observe
from headwater.dataflow.graph import Dataflow
from headwater.placement.situation import Limits
from headwater.placement.usage import Weights
from headwater.plan import build as planning
from headwater.plan.compare import compared
from headwater.plan.cutcost import CutCost, cut_cost
from headwater.plan.deployment import Deployment
from headwater.plan.diff import DiffOutline, PlanDiff, diff
from headwater.plan.document import plan_id
from headwater.plan.edit import Edit, edited
from headwater.plan.explain import explain
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import Optimised, Rewriting, optimise
from headwater.plan.order import steps_to
from headwater.plan.outline import PlanOutline, outline
from headwater.plan.place import ANNOTATED, PlacementRequest, place
from headwater.plan.prediction import Prediction
from headwater.plan.profile import Known, Profile
from headwater.plan.search import optimise_placed, setting_of
from headwater.plan.setting import Setting
from headwater.plan.steps import CanarySettings, FormerOutputChoice, Step
from headwater.plan.written import Written
from headwater.reuse.pool import Pool
from headwater.rewrite.rules import rules_without

Shape = Literal["annotated", "one-unit", "unit-per-operator"]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request for a plan: a dataflow on a continuum, or the existing deployment named by ``of``.

    By default the operators' annotations place it. ``strategy`` chooses another placement, within ``limits``;
    ``profiles`` hold operator costs by dataflow, and ``compare`` evaluates the other strategies too. ``edits`` are
    applied afterwards, in order. ``decided`` is used as it is. ``pool`` is the origin of the dataflow and is stored
    with the plan. ``rewrite``: choose an equivalent dataflow that sends less over links, by all rules but some; with a
    strategy, by those rules with which its placement costs least.
    """

    dataflow: Dataflow | None = None
    continuum: Continuum | None = None
    of: str | None = None
    shape: Shape = "annotated"
    strategy: str | None = None
    limits: Limits = field(default_factory=Limits)
    weights: Weights = field(default_factory=Weights)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    compare: bool = False
    edits: tuple[Edit, ...] = ()
    decided: Deployment | None = None
    pool: Pool | None = None
    reset_state: frozenset[str] = frozenset()
    canary: CanarySettings | None = None
    former_output: FormerOutputChoice = "refuse"
    rewrite: bool = False
    without_rules: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        chosen = [
            self.shape != "annotated",
            self.strategy is not None or self.compare,
            self.decided is not None,
        ]
        if sum(chosen) > 1:
            raise PlacementError(
                "a shape, a strategy and a decided placement exclude each other", hint="ask for one of them"
            )
        if self.without_rules and not self.rewrite:
            raise PlacementError("rewrite rules are left out, but nothing is rewritten", hint="add --rewrite")
        if self.rewrite and (self.decided is not None or self.pool is not None or self.shape != "annotated"):
            raise PlacementError(
                "a shape, a decided placement and a pool are not rewritten", hint="leave --rewrite out"
            )


@dataclass(frozen=True, kw_only=True)
class ChangeOutline(DiffOutline):
    """The changes of applying a plan, against a version, and its steps in words."""

    version: int
    steps: tuple[str, ...]
    cost: CutCost | None


@dataclass(frozen=True, kw_only=True)
class NoPlacement:
    """The reason why a strategy finds no placement."""

    failed: str


@dataclass(frozen=True, kw_only=True)
class ProposalOutline(PlanOutline):
    """A plan that can be applied, its changes, and its predictions, in JSON form.

    ``same``: the plan is active already, and nothing changes; ``busy``: a change is under way, which it would
    supersede. These and ``change`` are null where it cannot be applied beside the active plan.
    """

    change: ChangeOutline | None
    same: bool | None
    busy: bool | None
    prediction: Prediction | None
    strategies: Mapping[str, Prediction | NoPlacement]
    rewriting: Rewriting | None


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The effect of applying a plan, as of ``version`` of its deployment (0: there is none yet)."""

    diff: PlanDiff
    steps: tuple[Step, ...]
    version: int
    busy: bool
    """Whether a change is under way, which this one would supersede."""
    same: bool
    """Whether the plan is active already and nothing changes."""
    cost: CutCost | None = None
    """The cost or gain of its cuts against the active plan's."""

    @property
    def words(self) -> list[str]:
        lines = list(explain(self.steps)) + [f"note: {note}" for note in self.diff.notes]
        lines += self.cost.words() if self.cost else []
        if self.busy:
            lines.append("a change is under way: this one takes its place between two of its steps")
        return lines

    def shown(self) -> ChangeOutline:
        """Return the JSON form."""
        return ChangeOutline(**vars(self.diff.shown()), version=self.version, steps=tuple(self.words), cost=self.cost)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A plan that can be applied, its changes, and its predictions.

    ``refused``: why it cannot be applied beside the active plan; then there is no ``preview``. ``rewriting``: what
    rewrite rules have changed.
    """

    request: PlanRequest
    plan: DeploymentPlan
    preview: Preview | None
    prediction: Prediction | None = None
    others: Mapping[str, Prediction | HeadwaterError] = field(default_factory=dict)
    refused: HeadwaterError | None = None
    rewriting: Rewriting | None = None

    @property
    def change(self) -> Preview:
        """Return the effect of applying it; raise ``refused`` where it cannot be applied."""
        if self.preview is None:
            assert self.refused is not None
            raise self.refused
        return self.preview

    def shown(self) -> ProposalOutline:
        """Return the JSON form."""
        change = self.preview
        return ProposalOutline(
            **vars(outline(self.plan)),
            change=None if change is None else change.shown(),
            same=None if change is None else change.same,
            busy=None if change is None else change.busy,
            prediction=self.prediction,
            strategies={
                name: NoPlacement(failed=str(found)) if isinstance(found, HeadwaterError) else found
                for name, found in self.others.items()
            },
            rewriting=self.rewriting,
        )


class Client:
    """A store, by path or URL, for planning and changing deployments; no connection is kept open."""

    def __init__(self, store_url: str | None = None) -> None:
        self.store_url = store_url

    def propose(self, request: PlanRequest, *, observe: Observe = lambda what, done, of: None) -> Proposal:
        """Plan a request; raise the errors in it.

        The proposal tells why it cannot be applied beside the active plan. ``observe`` is called before each strategy
        that is compared.
        """
        try:
            with existing(self.store_url) as store:
                return _proposed(request, store, observe)
        except NoStore:
            return _proposed(request, None, observe)

    def preview(self, plan: DeploymentPlan) -> Preview:
        """Return the effect of applying an existing plan, such as a decision's; raise where it cannot be applied."""
        try:
            with existing(self.store_url) as store:
                return preview(plan, store)
        except NoStore:
            return preview(plan, None)

    def stored(self, reference: str) -> DeploymentPlan:
        """Return a deployment's newest wanted plan, by its name, or any plan by its id."""
        with existing(self.store_url) as store:
            if store.find(reference) is None:
                try:
                    return store.plan(reference)
                except Missing:
                    names = ", ".join(d.name for d in store.deployments()) or "none"
                    raise Missing(
                        f"no deployment and no plan is named '{reference[:100]}'",
                        where=store.where,
                        hint=f"the deployments are: {names}",
                    ) from None
            found = _newest(store, reference)
        if found is None:
            raise DeploymentError("has no plan", where=f"deployment '{reference}'", hint="apply one first")
        return found

    def in_force(self, name: str) -> DeploymentPlan:
        """Return the active plan; raise Missing where there is none."""
        with existing(self.store_url) as store:
            store.deployment(name)
            found = store.active_plan(name)
        if found is None:
            raise Missing(
                "no plan is in force",
                where=f"deployment '{name}'",
                hint="see its desired state in its history",
            )
        return found

    def only(self) -> str:
        """Name the only deployment; raise DeploymentError unless there is exactly one."""
        with existing(self.store_url) as store:
            names = [record.name for record in store.deployments()]
            if len(names) != 1:
                raise DeploymentError(
                    f"which deployment? There is {', '.join(names) or 'none'}",
                    where=store.where,
                    hint="name it with --of NAME",
                )
        return names[0]

    def holds(self, name: str) -> bool:
        """Return whether a store exists and holds a deployment of this name."""
        try:
            with existing(self.store_url) as store:
                return store.find(name) is not None
        except NoStore:
            return False

    def apply(self, proposal: Proposal, *, after: int | None = None) -> int:
        """Store a proposal's plan as the desired state and return its version.

        ``after``: the deployment's version that the proposal is based on, by default that of its preview. Raises
        DeploymentError where another change came first.
        """
        name, shown = proposal.plan.dataflow.name, proposal.change
        request = proposal.request
        after = shown.version if after is None else after
        with closing(Store(resolved_url(self.store_url))) as store:
            if request.pool is not None:
                return store.keep_pool(request.pool, proposal.plan, after=after, former_output=request.former_output)
            version = store.want(
                name,
                "run",
                proposal.plan,
                reset_state=request.reset_state,
                canary=request.canary,
                former_output=request.former_output,
                after=after,
            )
            if (profile := request.profiles.get(name)) is not None:
                store.keep_profile(name, profile)
        return version


def _proposed(request: PlanRequest, store: StoreReader | None, observe: Observe) -> Proposal:
    base = _newest(store, request.of) if store is not None and request.of is not None else None
    if request.of is not None and base is None:
        raise DeploymentError("has no plan", where=f"deployment '{request.of}'", hint="apply one first")
    dataflow, written = request.dataflow, None
    if dataflow is None and base is not None:
        dataflow, written = base.dataflow, base.written
        if request.rewrite and written is not None:
            dataflow = written.dataflow
    continuum = request.continuum or (base.continuum if base else None)
    if dataflow is None or continuum is None:
        raise DeploymentError("a dataflow and a continuum are needed", hint="give both, or a deployment")
    running = _in_force(store) if store is not None and (request.strategy or request.compare) else {}
    strategy = request.strategy or (ANNOTATED if request.compare else None)
    placing = None if strategy is None else _placement_request(request, dataflow.name, strategy, running)
    optimised: Optimised | None = None
    if request.rewrite:
        rules, profile = rules_without(request.without_rules), request.profiles.get(dataflow.name)
        if placing is None or request.strategy is None:
            optimised = optimise(dataflow, continuum, profile, rules)
        else:
            optimised = optimise_placed(dataflow, continuum, profile, rules, placing)
        written = optimised.written(dataflow, request.without_rules)
        dataflow = optimised.dataflow
        if optimised.profile is not None:
            request = replace(request, profiles={**request.profiles, dataflow.name: optimised.profile})
    prediction: Prediction | None = None
    others: Mapping[str, Prediction | HeadwaterError] = {}
    if placing is not None:
        setting = _setting(dataflow, continuum, request.profiles.get(dataflow.name), optimised)
        if request.compare:
            others = compare(setting, placing, observe=observe)
        decided, prediction = place(setting, placing)
    elif optimised is not None:
        decided = optimised.deployment
    else:
        decided = _decided(request, dataflow, continuum, base)
    pooled = request.pool is not None or (base is not None and base.pooled)
    plan = planning.build(dataflow, continuum, decided, pooled=pooled)
    for edit in request.edits:
        plan = planning.build(dataflow, continuum, edited(plan, edit), pooled=pooled)
    plan = replace(plan, written=written)
    if prediction is not None and prediction.limit_check is not None and prediction.limit_check.missing:
        plan = replace(plan, warnings=(*plan.warnings, prediction.limit_check.missing))
    found = Proposal(
        request=request,
        plan=plan,
        preview=None,
        prediction=prediction,
        others=others,
        rewriting=None if optimised is None else optimised.rewriting,
    )
    try:
        if store is not None and plan.written is not None and not request.reset_state:
            _check_rewriting(store.active_plan(plan.dataflow.name), plan, plan.written)
        shown = preview(
            plan,
            store,
            reset_state=request.reset_state,
            canary=request.canary,
            former_output=request.former_output,
        )
    except HeadwaterError as error:
        return replace(found, refused=error)
    return replace(found, preview=shown)


def _check_rewriting(active: DeploymentPlan | None, plan: DeploymentPlan, wanted: Written) -> None:
    """Refuse to rewrite a running dataflow, otherwise unchanged, in a way that changes its results."""
    if active is None:
        return
    written = active.written or Written(dataflow=active.dataflow)
    if written.dataflow != wanted.dataflow:
        return
    if why := unsafe(replace(active, written=written), plan, wanted):
        raise DeploymentError(
            f"it cannot be rewritten so while it runs: {why}",
            where=f"deployment '{plan.dataflow.name}'",
            hint="leave filters where they are with --no-rewrite-rule filter-down, or give the state up with "
            "--reset-state UNIT",
        )


def _decided(request: PlanRequest, dataflow: Dataflow, continuum: Continuum, base: DeploymentPlan | None) -> Deployment:
    if request.decided is not None:
        return request.decided
    if base is not None and request.dataflow is None and request.continuum is None:
        return base.deployment
    match request.shape:
        case "one-unit":
            return planning.one_unit(dataflow, continuum)
        case "unit-per-operator":
            return planning.unit_per_operator(dataflow, continuum)
    return planning.annotated(dataflow, continuum)


def _newest(store: StoreReader, name: str) -> DeploymentPlan | None:
    """Return the newest wanted plan of a deployment."""
    record = store.deployment(name)
    wanted = next((w.plan for w in reversed(store.desired_states(name)) if w.plan), record.active_plan)
    return store.plan(wanted) if wanted is not None else None


def _in_force(store: StoreReader) -> dict[str, DeploymentPlan]:
    found = {r.name: store.active_plan(r.name) for r in store.deployments() if r.phase != "stopped"}
    return {name: plan for name, plan in found.items() if plan is not None}


def _setting(dataflow: Dataflow, continuum: Continuum, profile: Profile | None, optimised: Optimised | None) -> Setting:
    if optimised is not None:
        return setting_of(optimised, continuum)
    return Setting(dataflow, continuum, planning.marked_layers(dataflow, continuum), Known(dataflow, profile))


def _placement_request(
    request: PlanRequest, name: str, strategy: str, running: Mapping[str, DeploymentPlan]
) -> PlacementRequest:
    return PlacementRequest(
        strategy=strategy,
        limits=request.limits,
        weights=request.weights,
        running=running[name].deployment if name in running else None,
        beside=tuple((plan, request.profiles.get(other)) for other, plan in running.items() if other != name),
    )


def compare(
    setting: Setting, request: PlacementRequest, *, observe: Observe = lambda what, done, of: None
) -> dict[str, Prediction | HeadwaterError]:
    """Predict each strategy's placement by one model and within the same limits, or tell why it finds none.

    Where the requested strategy is a scheduler, the other schedulers are compared too. ``observe`` is called with each
    name first.
    """
    from headwater.placement import STRATEGIES
    from headwater.placement.schedule import SCHEDULERS

    names = (ANNOTATED, *STRATEGIES, *(SCHEDULERS if request.strategy in SCHEDULERS else ()))
    found: dict[str, Prediction | HeadwaterError] = {}
    for name in names:
        observe(name, len(found), len(names))
        try:
            found[name] = compared(setting, request, name)
        except HeadwaterError as error:
            found[name] = error
    return found


def preview(
    plan: DeploymentPlan,
    store: StoreReader | None,
    *,
    reset_state: frozenset[str] = frozenset(),
    canary: CanarySettings | None = None,
    former_output: FormerOutputChoice = "refuse",
) -> Preview:
    """Return the effect of applying a plan; raise where it cannot be applied."""
    name = plan.dataflow.name
    record = store.find(name) if store is not None else None
    if store is None or record is None:
        decided = diff(None, plan, reset_state=reset_state)
        steps = steps_to(decided, {}, {}, canary=canary, former_output=former_output)
        return Preview(diff=decided, steps=steps, version=0, busy=False, same=False)
    base, unit_statuses = store.active_plan(name), store.unit_statuses(name)
    next_one = DesiredState(deployment=name, version=record.version + 1, goal="run", plan=None)
    decided = diff(base, plan, reset_state=reset_state, generation=next_one.generation)
    plans = store.plans_of(unit_statuses)
    seen = whole(store.reports(name))
    steps = steps_to(decided, unit_statuses, plans, canary=canary, former_output=former_output, seen=seen)
    same = not steps and record.phase == "running" and plan_id(decided.wanted) == record.active_plan
    return Preview(
        diff=decided,
        steps=steps,
        version=record.version,
        busy=record.phase in BUSY - {"wanted"},
        same=same,
        cost=cut_cost(base, decided.wanted, seen) if base else None,
    )
