"""Choose among equivalent dataflows the one that sends least over links, rule by rule. Pure.

Costs are bytes over links, and then processor load: a rule that saves load may not send more.

Marks (``to_layer``) are binding: an operator that is left where it was runs in its marked layer. A dataflow without
marks gets the layers with the least traffic: sources in the lowest layer, sinks in the highest. A rule is applied where
it saves bytes, and nowhere else: inside a unit, Spark's own optimizer does the rest. The result is ordinary: a dataflow
with names, keys and state of its own. Rewriting it again finds nothing more to save.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.core.place import zone_named
from headwater.core.quantity import format_size
from headwater.core.requirement import Requirement
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.deployment import Deployment
from headwater.plan.figures import FlowFigures
from headwater.plan.profile import Known, Profile
from headwater.plan.setting import Setting
from headwater.plan.traffic import Traffic, least_traffic, traffic
from headwater.plan.written import Written
from headwater.rewrite.gathering import is_gathering
from headwater.rewrite.rule import NotRewritten, RewriteRule, Rewritten
from headwater.rewrite.semijoins import is_semi_join

_STEPS = 100  # of one operator by one rule
_ROUNDS = 20
_LEAST = 1e-6  # share of the traffic that a rule has to save
_WORTH_A_UNIT = 0.01
"""Share of the bandwidth of some link that a rule has to save if it adds a unit."""


@dataclass(frozen=True, kw_only=True)
class RuleUse:
    """A rule and an operator: what it changed and saves, or why it did not.

    ``saves_bytes_per_s``: over all links. ``saves_cores``: core seconds per second, of rules that save load.
    """

    rule: str
    operator: str
    applied: bool
    what: str
    saves_bytes_per_s: float = 0.0
    saves_cores: float = 0.0

    @property
    def text(self) -> str:
        """The rule, the operator, and the change, without figures."""
        return f"{self.rule} at '{self.operator}': {self.what}"

    def __str__(self) -> str:
        if self.applied and self.saves_cores:
            return f"{self.text}; saves {self.saves_cores:.2g} cores"
        if self.applied:
            return f"{self.text}; saves {format_size(self.saves_bytes_per_s)}/s"
        return f"not {self.text}"


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """The traffic over each link before and after, in bytes per second, and the use of each rule.

    ``cores_before``, ``cores_after``: the processor load of all operators, in core seconds per second. ``assumed``:
    the figures are assumptions, as there is no profile of some operators. ``placed``: the layers were chosen, because
    the dataflow has no marks.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    rules: tuple[RuleUse, ...]
    assumed: bool
    placed: bool
    cores_before: float = 0.0
    cores_after: float = 0.0

    @property
    def words(self) -> list[str]:
        """Describe it: the traffic, the load, and a line for each rule."""
        sums = [format_size(sum(links.values())) for links in (self.before, self.after)]
        by = ", by assumed rates and sizes" if self.assumed else ""
        first = f"over all links {sums[0]}/s before and {sums[1]}/s after rewriting{by}"
        load = f"processor load {self.cores_before:.2g} cores before and {self.cores_after:.2g} after"
        return [first, load, *map(str, self.rules)]


@dataclass(frozen=True, kw_only=True)
class Optimised:
    """The chosen dataflow, its placement, its profile, and how it came about; ``origins`` as in ``Written``.

    ``left_out``: the rules without which a strategy's placement costs less (``plan.search``).
    """

    dataflow: Dataflow
    deployment: Deployment
    profile: Profile | None
    rewriting: Rewriting
    origins: Mapping[str, str]
    left_out: frozenset[str] = frozenset()

    def written(self, dataflow: Dataflow, without_rules: Iterable[str]) -> Written:
        """Return what a plan keeps of the dataflow that was rewritten, so that it can be rewritten again."""
        applied = tuple(use.text for use in self.rewriting.rules if use.applied)
        without = tuple(sorted({*without_rules, *self.left_out}))
        return Written(dataflow=dataflow, without_rules=without, rules=applied, origins=self.origins)


def optimise(
    dataflow: Dataflow, continuum: Continuum, profile: Profile | None, rules: tuple[RewriteRule, ...]
) -> Optimised:
    """Rewrite a dataflow by some rules, each where it reduces the bytes over links; raise the errors of its marks."""
    known = Known(dataflow, profile)
    placed = not any(operator.layer for operator in dataflow.operators)
    marked = dataflow if placed else _marked(dataflow, marked_layers(dataflow, continuum))
    search = _RuleSearch(continuum, placed)
    start = search.choice(FlowFigures(dataflow=marked, continuum=continuum, known=known))
    found, uses = search.best(start, rules)
    flow = found.figures.dataflow
    if not placed:
        flow = _as_marked(_marked(flow, found.layers), dataflow, continuum)
    rewriting = Rewriting(
        before=start.links,
        after=found.links,
        rules=tuple(uses),
        assumed=bool(known.assumed),
        placed=placed,
        cores_before=start.figures.cores,
        cores_after=found.figures.cores,
    )
    deployment = in_layers(flow, continuum, found.layers)
    build(flow, continuum, deployment)
    return Optimised(
        dataflow=flow,
        deployment=deployment,
        profile=found.figures.profile(),
        rewriting=rewriting,
        origins=found.figures.origins,
    )


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A dataflow with the layers of its operators and its traffic."""

    figures: FlowFigures
    layers: Mapping[str, str]
    links: Traffic

    @property
    def bytes_per_s(self) -> float:
        return math.fsum(self.links.values())

    def cost(self, of: Literal["bytes", "load"]) -> float:
        """Return bytes per second over all links, or core seconds per second."""
        return self.bytes_per_s if of == "bytes" else self.figures.cores

    def can_gather(self, id_: str) -> bool:
        """Return whether zones' streams of an operator cross a link, and are known to repeat each other."""
        flow, figures = self.figures.dataflow, self.figures
        crosses = any(self.layers[c] != self.layers[id_] for c in flow.consumers[id_])
        return crosses and figures.gathering_layer is not None and figures.repeated(id_) > 0

    def relieves_links_of(self, other: _Choice) -> bool:
        """Return whether it saves a share of the bandwidth of some link that is worth a unit."""
        limits = {link.name: link.bandwidth for link in self.figures.continuum.links if link.bandwidth is not None}
        saved = {name: 8 * (other.links.get(name, 0.0) - self.links.get(name, 0.0)) for name in limits}
        return any(saved[name] >= _WORTH_A_UNIT * bandwidth for name, bandwidth in limits.items())

    def is_better(self, other: _Choice, rule: RewriteRule, start: _Choice) -> bool:
        """Return whether it saves what a rule is to save, by a share of the cost at the start, and sends no more."""
        if rule.saves == "load" and self.bytes_per_s > other.bytes_per_s + _LEAST * start.bytes_per_s:
            return False
        return self.cost(rule.saves) < other.cost(rule.saves) - _LEAST * max(start.cost(rule.saves), 1e-9)


class _RuleSearch:
    """Apply rules greedily: the first rule at the first operator where it saves something, again and again."""

    def __init__(self, continuum: Continuum, placed: bool) -> None:
        self._continuum = continuum
        self._placed = placed
        self._useless: dict[tuple[str, str], RuleUse] = {}

    def choice(self, figures: FlowFigures) -> _Choice:
        """Return a dataflow with its layers; raise HeadwaterError if it cannot be placed."""
        flow = figures.dataflow
        if self._placed:
            setting = Setting(flow, self._continuum, _ends(figures), Known(flow, figures.profile()))
            layers = least_traffic(setting, figures)
        else:
            layers = {o.id: o.layer or figures.gathering_layer or "" for o in flow.operators}
        return _Choice(figures=figures, layers=layers, links=traffic(figures, layers))

    def best(self, start: _Choice, rules: tuple[RewriteRule, ...]) -> tuple[_Choice, list[RuleUse]]:
        """Return the result of ``run``, again without rewritings that later ones have made useless."""
        while True:
            found, uses = self.run(start, rules)
            useless = {use for use in uses if use.applied and _is_idle(found, use.operator)}
            if not useless:
                return found, [*uses, *self._useless.values()]
            for use in useless:
                text = "it saves nothing once fewer columns cross the link"
                self._useless[use.rule, use.operator] = replace(use, applied=False, what=text, saves_bytes_per_s=0.0)

    def run(self, now: _Choice, rules: tuple[RewriteRule, ...]) -> tuple[_Choice, list[RuleUse]]:
        """Return the last dataflow, and what became of each rule at each operator that it is about."""
        uses: list[RuleUse] = []
        refused: dict[tuple[str, str], RuleUse] = {}
        for _ in range(_ROUNDS):
            applied = False
            for rule in rules:
                for id_ in now.figures.dataflow.order:
                    if id_ not in now.figures.dataflow or (rule.name, id_) in self._useless:
                        continue  # an earlier rewriting has replaced the operator, or made this one useless
                    better, use = self._try(now, rule, id_)
                    if better is not None and use is not None:
                        now, applied = better, True
                        uses.append(use)
                        refused.pop((rule.name, id_), None)
                    elif use is not None:
                        refused[rule.name, id_] = use
            if not applied:
                break
        done = {(use.rule, use.operator) for use in uses}
        by_name = {rule.name: rule for rule in rules}
        left = [use for key, use in refused.items() if key not in done and use.operator in now.figures.dataflow]
        return now, [*uses, *(use for use in left if _crosses(now, use.operator, by_name[use.rule]))]

    def _try(self, now: _Choice, rule: RewriteRule, id_: str) -> tuple[_Choice | None, RuleUse | None]:
        """Apply a rule to an operator as far as it goes; return the best of the steps, if it saves something."""
        if rule.gathers and not now.can_gather(id_):
            return None, None
        best: _Choice | None = None
        what, reason = "", None
        words: list[str] = []
        for result, figures in self._steps(now, rule, id_):
            if isinstance(result, NotRewritten):
                reason = reason or result.reason
                continue
            words.append(result.what)
            try:
                choice = self.choice(figures)
                self._check(choice)
            except HeadwaterError as error:
                reason = reason or error.what
                continue
            if not choice.is_better(best or now, rule, now):
                continue
            if rule.gathers and not choice.relieves_links_of(now):
                reason = f"it saves less than {_WORTH_A_UNIT:.0%} of the bandwidth of any link, and takes another unit"
                return None, RuleUse(rule=rule.name, operator=id_, applied=False, what=reason)
            best, what = choice, "; ".join(words)
        if best is not None:
            saved = now.bytes_per_s - best.bytes_per_s
            cores = now.figures.cores - best.figures.cores if rule.saves == "load" else 0.0
            use = RuleUse(
                rule=rule.name, operator=id_, applied=True, what=what, saves_bytes_per_s=saved, saves_cores=cores
            )
            return best, use
        if words:
            reason = ("it saves nothing on any link" if rule.saves == "bytes" else "it saves no load") + (
                f"; further, {reason}" if reason else ""
            )
        if reason is None:
            return None, None
        return None, RuleUse(rule=rule.name, operator=id_, applied=False, what=reason)

    def _steps(
        self, now: _Choice, rule: RewriteRule, id_: str
    ) -> Iterator[tuple[Rewritten | NotRewritten, FlowFigures]]:
        """Apply a rule again and again to the operators that it has moved; yield each result."""
        figures, todo = now.figures, [id_]
        needs_marks = rule.gathers and self._placed
        for _ in range(_STEPS):
            if not todo:
                return
            flow = _marked(figures.dataflow, now.layers) if needs_marks else figures.dataflow
            result = rule.apply(flow, todo.pop(0))
            if isinstance(result, Rewritten):
                made = _marked(result.dataflow, {}) if needs_marks else result.dataflow
                figures = figures.after(made, result.origins)
                todo = [*result.moved, *todo]
            if result is not None:
                yield result, figures

    def _check(self, choice: _Choice) -> None:
        """Raise HeadwaterError if the dataflow cannot run in these layers."""
        flow = choice.figures.dataflow
        build(flow, self._continuum, in_layers(flow, self._continuum, choice.layers))


def _is_idle(choice: _Choice, id_: str) -> bool:
    """Return whether an operator's partial results or partners, or its gathered stream, cross no link."""
    flow, layers = choice.figures.dataflow, choice.layers
    if id_ not in flow:
        return False
    above = [flow[i] for i in flow[id_].inputs]
    early = [o for o in above if getattr(o, "partial", None) is True or is_semi_join(o)]
    gathered = [c for c in flow.consumers[id_] if is_gathering(flow[c])]
    useless = any(layers[c] in (layers[id_], *(layers[r] for r in flow.consumers[c])) for c in gathered)
    return useless or any(layers[o.id] == layers[id_] for o in early)


def _crosses(choice: _Choice, id_: str, rule: RewriteRule) -> bool:
    """Return whether a stream that a rule is about crosses a link; one that saves load is about any stream."""
    flow, layers = choice.figures.dataflow, choice.layers
    if rule.saves == "load":
        return True
    if rule.behind:
        return any(layers[c] != layers[id_] for c in flow.consumers[id_])
    todo, seen = [id_], {id_}
    while todo:
        at = todo.pop()
        for above in flow[at].inputs:
            if layers[above] != layers[at]:
                return True
            if above not in seen:
                seen.add(above)
                todo.append(above)
    return False


def _ends(figures: FlowFigures) -> dict[str, str]:
    """Return the layers from which the search starts: sinks as high as their hosts allow, all others at the sources.

    Operators that gather streams have theirs, and those behind them are not below.
    """
    flow, continuum, locations = figures.dataflow, figures.continuum, figures.locations
    found = dict.fromkeys(flow.order, continuum.layers[0].name)
    gathered: set[str] = set()
    for operator in map(flow.__getitem__, flow.order):
        if isinstance(operator, Sink):
            found[operator.id] = _highest(continuum, locations, operator.requires)
        elif isinstance(operator, Source) and not operator.per_location:
            found[operator.id] = _common(continuum, locations)
        elif is_gathering(operator) or gathered.intersection(operator.inputs):
            gathered.add(operator.id)
            found[operator.id] = figures.gathering_layer or found[operator.id]
    return found


def _highest(continuum: Continuum, locations: tuple[str, ...], needs: Requirement) -> str:
    """Return the highest layer with hosts that meet a requirement at all locations; the highest if there is none."""
    for layer in reversed(continuum.layers):
        zones = [continuum.covering(layer.name, x) for x in locations]
        if all(zone is not None and any(needs.holds(h.capabilities) for h in zone.hosts) for zone in zones):
            return layer.name
    return continuum.root.layer


def _common(continuum: Continuum, locations: tuple[str, ...]) -> str:
    """Return the lowest layer of which one zone covers all locations."""
    for layer in continuum.layers:
        zones = {continuum.covering(layer.name, x) for x in locations}
        if len(zones) == 1 and None not in zones:
            return layer.name
    return continuum.root.layer


def _marked(flow: Dataflow, layers: Mapping[str, str]) -> Dataflow:
    """Return the dataflow with each operator marked with its layer, if it has one."""
    return replace(flow, operators=tuple(replace(o, layer=layers.get(o.id)) for o in flow.operators))


def _as_marked(flow: Dataflow, before: Dataflow, continuum: Continuum) -> Dataflow:
    """Leave out the marks that operators inherit from their inputs, except those that people made."""
    found: dict[str, ops.Operator] = {}
    for id_ in flow.order:
        operator = flow[id_]
        above = [flow[i].layer or "" for i in operator.inputs]
        inherited = max(above, key=continuum.height, default=continuum.layers[0].name)
        others = [x for x in above if x != inherited]
        clear = not any(zone_named(x) or continuum.height(x) == continuum.height(inherited) for x in others)
        own = (id_ in before and before[id_].layer is not None) or not clear
        found[id_] = operator if own or operator.layer != inherited else replace(operator, layer=None)
    return replace(flow, operators=tuple(found[o.id] for o in flow.operators))
