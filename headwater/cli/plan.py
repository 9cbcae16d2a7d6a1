"""The plan command: once, or again whenever a file changes. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import place as placing
from headwater.cli.bars import Bar
from headwater.cli.control import ContinuumFile, Flow, StoreOption
from headwater.cli.files import changes
from headwater.cli.out import Json, print_json, print_line
from headwater.cli.place import (
    Compare,
    Confidence,
    MaxBandwidth,
    MaxLatency,
    MinBandwidth,
    ProfileFiles,
    Rewrite,
    Strategy,
    WeightsOf,
    WithoutRules,
)
from headwater.cli.signals import stopped_by_signals
from headwater.core.errors import ErrorList, HeadwaterError

if TYPE_CHECKING:
    from headwater.app.client import Proposal, Shape
    from headwater.plan.diff import PlanDiff
    from headwater.plan.model import DeploymentPlan


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Arguments of the plan."""

    flow: str
    continuum: Path
    shape: Shape
    strategy: str | None
    profile: Sequence[Path]
    max_latency: str | None
    max_bandwidth: str | None
    min_bandwidth: str | None
    confidence: float | None
    weights: str | None
    rewrite: bool
    without_rules: Sequence[str]
    compare: bool
    store: str | None

    def files(self) -> list[Path]:
        """Return the files that the plan depends on; files beside a Python dataflow may be its modules."""
        name = Path(self.flow)
        file = name if name.is_file() else Path(self.flow.rpartition(":")[0] or self.flow)
        beside = sorted(file.parent.glob("*.py")) if file.suffix == ".py" else []
        return [file, *beside, self.continuum, *self.profile]


def plan(
    flow: Flow,
    continuum: ContinuumFile,
    as_json: Json = False,
    one_unit: Annotated[bool, typer.Option("--one-unit", help="All in the root zone.")] = False,
    unit_per_operator: Annotated[bool, typer.Option("--unit-per-operator", help="Cut between all operators.")] = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    min_bandwidth: MinBandwidth = None,
    confidence: Confidence = None,
    weights: WeightsOf = None,
    rewrite: Rewrite = False,
    no_rewrite_rule: WithoutRules = None,
    compare: Compare = False,
    store: StoreOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Plan again whenever a file changes, until Ctrl-C.")] = False,
) -> None:
    """Show the units of each zone, the traffic of each link, and the changes of applying the plan."""
    predict = strategy is not None or compare or (bool(profile) and not rewrite)
    if one_unit + unit_per_operator + predict > 1:
        raise typer.BadParameter("--one-unit, --unit-per-operator and --strategy (with its options) exclude each other")
    if rewrite and (one_unit or unit_per_operator):
        raise typer.BadParameter("--rewrite chooses the units itself: leave out --one-unit and --unit-per-operator")
    asked = _Asked(
        flow=flow,
        continuum=continuum,
        shape="one-unit" if one_unit else "unit-per-operator" if unit_per_operator else "annotated",
        strategy=strategy or ("annotated" if predict else None),
        profile=tuple(profile or ()),
        max_latency=max_latency,
        max_bandwidth=max_bandwidth,
        min_bandwidth=min_bandwidth,
        confidence=confidence,
        weights=weights,
        rewrite=rewrite,
        without_rules=tuple(no_rewrite_rule or ()),
        compare=compare,
        store=store,
    )
    if watch:
        _watch(asked, as_json=as_json)
        return
    found = _plan(asked)
    if as_json:
        print_json(found.shown())
    else:
        _show(found)
    if found.refused is not None and asked.shape == "annotated":
        raise found.refused


def _plan(asked: _Asked) -> Proposal:
    from headwater.app import loading
    from headwater.app.client import Client
    from headwater.continuum.model import Continuum

    loaded = loading.load_dataflow(asked.flow)
    request = placing.requested(
        loaded.dataflow,
        Continuum.from_yaml(asked.continuum),
        strategy=asked.strategy,
        profile=asked.profile,
        max_latency=asked.max_latency,
        max_bandwidth=asked.max_bandwidth,
        min_bandwidth=asked.min_bandwidth,
        confidence=asked.confidence,
        weights=asked.weights,
        rewrite=asked.rewrite,
        without_rules=asked.without_rules,
        shape=asked.shape,
        compare=asked.compare,
    )
    with Bar("comparing strategies") if asked.compare else contextlib.nullcontext() as bar:

        def observe(one: str, done: int, of: int) -> None:
            if bar is not None:
                bar.at(done, total=of, what=f"trying {one}")

        return Client(asked.store).propose(request, observe=observe)


def _show(found: Proposal) -> None:
    from rich.console import Console

    from headwater.render.deployment import change_view, plan_view

    console = Console(highlight=False)
    console.print(plan_view(found.plan))
    if found.rewriting is not None:
        from headwater.render.rewriting import rewriting_view

        console.print("", rewriting_view(found.rewriting), sep="\n")
    if found.prediction is not None:
        from headwater.render.place import comparison_view, prediction_view

        console.print("", prediction_view(found.prediction), sep="\n")
        if found.others:
            console.print("", comparison_view(found.others, found.prediction.layers), sep="\n")
    if found.preview is not None and found.preview.version:
        name = found.plan.dataflow.name
        console.print("", change_view(name, found.preview.diff, found.preview.words), sep="\n")


# ---------------------------------------------------------------- again and again


def _watch(asked: _Asked, *, as_json: bool) -> None:
    """Plan at each change of a file; show errors and continue."""
    stop = stopped_by_signals()
    last: DeploymentPlan | None = None
    for changed in changes(asked.files, stop):
        names = [str(path) for path in changed]
        try:
            found = _plan(asked)
        except HeadwaterError as error:
            _show_error(error, names, as_json=as_json)
            continue
        differs = None if last is None else _difference(last, found.plan)
        if as_json:
            from headwater.core.jsonform import dump

            data: dict[str, Any] = {"at": time.time(), "changed": names, **dump(found.shown())}
            refused = {"refused": _error_data(found.refused)} if found.refused else {}
            print_line({**data, **_difference_data(differs), **refused})
        else:
            _show_again(found, differs, names, first=last is None)
        last = found.plan


def _difference(last: DeploymentPlan, now: DeploymentPlan) -> PlanDiff | HeadwaterError | None:
    """Compare with the last plan: the differences, or why it cannot replace that one."""
    from headwater.plan.diff import diff

    if last.dataflow.name != now.dataflow.name:
        return None
    try:
        return diff(last, now)
    except HeadwaterError as error:
        return error


def _difference_data(differs: PlanDiff | HeadwaterError | None) -> dict[str, Any]:
    if isinstance(differs, HeadwaterError):
        return {"differs": None, "cannot_follow": _error_data(differs)}
    return {"differs": differs and differs.shown()}


def _show_again(found: Proposal, differs: PlanDiff | HeadwaterError | None, changed: list[str], *, first: bool) -> None:
    from rich.console import Console

    from headwater.render.deployment import change_view, print_error

    console = Console(highlight=False)
    _show_heading(changed)
    _show(found)
    if isinstance(differs, HeadwaterError):
        console.print("\nCompared with the last plan: it cannot replace that one while it runs", style="bold")
        print_error(differs, console)
    elif differs is not None and differs.empty:
        console.print("\nThe same as the last plan", style="bold")
    elif differs is not None:
        console.print("\nCompared with the last plan", style="bold")
        notes = [f"note: {note}" for note in differs.notes]
        console.print(change_view(found.plan.dataflow.name, differs, notes))
    elif not first:
        console.print("\nThe last plan was of another dataflow", style="bold")
    if found.refused is not None:
        print_error(found.refused, Console(stderr=True, highlight=False))


def _show_heading(changed: list[str]) -> None:
    from rich.console import Console
    from rich.rule import Rule

    from headwater.app.deployments import clock

    what = f"{', '.join(changed)} changed" if changed else "planned; waiting for files to change"
    Console(highlight=False).print(Rule(f"{clock(time.time())}  {what}", align="left"))


def _show_error(error: HeadwaterError, changed: list[str], *, as_json: bool) -> None:
    from rich.console import Console

    from headwater.render.deployment import print_error

    if as_json:
        print_line({"at": time.time(), "changed": changed, "error": _error_data(error)})
        return
    _show_heading(changed)
    print_error(error, Console(stderr=True, highlight=False))


def _error_data(error: HeadwaterError) -> list[dict[str, Any]]:
    members = error.errors if isinstance(error, ErrorList) else (error,)
    return [{"what": one.what, "where": one.where, "hint": one.hint, "exit_code": one.exit_code} for one in members]
