"""The command that plans: once, or again whenever a file changes. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import place as placing
from headwater.cli.bars import Bar
from headwater.cli.control import ContinuumFile, Flow, StorePlace
from headwater.cli.files import changes
from headwater.cli.out import Json, print_json, print_line
from headwater.cli.place import Compare, MaxBandwidth, MaxLatency, ProfileFiles, Strategy, WeightsOf
from headwater.cli.signals import stopped_by_signals
from headwater.errors import ErrorList, HeadwaterError

if TYPE_CHECKING:
    from headwater.live import Preview
    from headwater.plan.diff import PlanDiff
    from headwater.plan.model import DeploymentPlan
    from headwater.plan.place import Prediction
    from headwater.service import Shape


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is to be planned, and how."""

    flow: str
    continuum: Path
    shape: Shape
    strategy: str | None
    profile: Sequence[Path]
    max_latency: str | None
    max_bandwidth: str | None
    weights: str | None
    compare: bool
    store: str | None

    def files(self) -> list[Path]:
        """Give the files that the plan follows from; those beside a dataflow in Python may be its modules."""
        name = Path(self.flow)
        file = name if name.is_file() else Path(self.flow.rpartition(":")[0] or self.flow)
        beside = sorted(file.parent.glob("*.py")) if file.suffix == ".py" else []
        return [file, *beside, self.continuum, *self.profile]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A plan with what was asked beside it; ``refused`` is why it could not be applied."""

    planned: DeploymentPlan
    change: Preview | None = None
    prediction: Prediction | None = None
    others: Mapping[str, Prediction | HeadwaterError] = field(default_factory=dict)
    refused: HeadwaterError | None = None

    def to_data(self) -> dict[str, Any]:
        extra: dict[str, Any] = {"change": self.change.to_data()} if self.change else {}
        if self.prediction is not None:
            from headwater.live_plan import foretold_data

            extra |= foretold_data(self.prediction, self.others)
        return {**self.planned.to_data(), **extra}


def plan(
    flow: Flow,
    continuum: ContinuumFile,
    as_json: Json = False,
    one_unit: Annotated[bool, typer.Option("--one-unit", help="All in the root zone.")] = False,
    unit_per_operator: Annotated[
        bool, typer.Option("--unit-per-operator", help="Cut between all operators.")
    ] = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    weights: WeightsOf = None,
    compare: Compare = False,
    store: StorePlace = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Plan again whenever a file changes, until Ctrl-C.")
    ] = False,
) -> None:
    """Show which units run in which zones, what crosses each link, and what applying it would change."""
    predict = strategy is not None or compare or bool(profile)
    if one_unit + unit_per_operator + predict > 1:
        raise typer.BadParameter(
            "--one-unit, --unit-per-operator and --strategy (with its options) exclude each other"
        )
    asked = _Asked(
        flow=flow,
        continuum=continuum,
        shape="one-unit" if one_unit else "unit-per-operator" if unit_per_operator else "annotated",
        strategy=strategy or ("annotated" if predict else None),
        profile=tuple(profile or ()),
        max_latency=max_latency,
        max_bandwidth=max_bandwidth,
        weights=weights,
        compare=compare,
        store=store,
    )
    if watch:
        _watch(asked, as_json=as_json)
        return
    found = _plan(asked)
    if as_json:
        print_json(found.to_data())
    else:
        _show(found)
    if found.refused is not None:
        raise found.refused


def _plan(asked: _Asked) -> _Found:
    from headwater import live, service

    loaded = service.load_dataflow(asked.flow)
    zones = service.load_continuum(asked.continuum)
    plans, change, refused = {}, None, None
    try:
        plans = live.in_force(asked.store) if asked.strategy else {}
    except HeadwaterError as error:
        refused = error  # the plan is shown all the same
    name = loaded.dataflow.name
    profiles = placing.read_profiles(asked.profile, name)
    limits = (asked.max_latency, asked.max_bandwidth, asked.weights)
    wish = placing.wished(asked.strategy, *limits, name=name, plans=plans, profiles=profiles)
    foreseen = placing.chosen(loaded.dataflow, zones, wish, profiles)
    decided = None if foreseen is None else foreseen[0]
    planned = service.plan(loaded.dataflow, zones, shape=asked.shape, decided=decided)
    try:
        if asked.shape == "annotated" and live.holds(name, asked.store):
            planned = service.plan(loaded.dataflow, zones, decided=decided, spread=True)
            change = live.preview(planned, asked.store)
    except HeadwaterError as error:
        refused = error
    others: Mapping[str, Prediction | HeadwaterError] = {}
    if asked.compare and wish is not None:
        with Bar("comparing strategies") as bar:
            others = service.compare(
                loaded.dataflow,
                zones,
                wish,
                profile=profiles.get(name),
                observe=lambda one, done, of: bar.at(done, total=of, what=f"trying {one}"),
            )
    prediction = None if foreseen is None else foreseen[1]
    return _Found(planned=planned, change=change, prediction=prediction, others=others, refused=refused)


def _show(found: _Found) -> None:
    from rich.console import Console

    from headwater.render.deployment import change_view, plan_view

    console = Console(highlight=False)
    console.print(plan_view(found.planned))
    if found.prediction is not None:
        from headwater.render.place import comparison_view, prediction_view

        console.print("", prediction_view(found.prediction), sep="\n")
        if found.others:
            console.print("", comparison_view(found.others, found.prediction.layers), sep="\n")
    if found.change is not None:
        name = found.planned.dataflow.name
        console.print("", change_view(name, found.change.diff, found.change.words), sep="\n")


# ---------------------------------------------------------------- again and again


def _watch(asked: _Asked, *, as_json: bool) -> None:
    """Plan at each change of a file; what is wrong is shown, and it goes on."""
    stop = stopped_by_signals()
    last: DeploymentPlan | None = None
    for changed in changes(asked.files, stop):
        names = [str(path) for path in changed]
        try:
            found = _plan(asked)
        except HeadwaterError as error:
            _show_error(error, names, as_json=as_json)
            continue
        differs = None if last is None else _difference(last, found.planned)
        if as_json:
            data: dict[str, Any] = {"at": time.time(), "changed": names, **found.to_data()}
            refused = {"refused": _error_data(found.refused)} if found.refused else {}
            print_line({**data, **_difference_data(differs), **refused})
        else:
            _show_again(found, differs, names, first=last is None)
        last = found.planned


def _difference(last: DeploymentPlan, now: DeploymentPlan) -> PlanDiff | HeadwaterError | None:
    """Compare with the last plan: what differs, or why it could not take its place."""
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
    return {"differs": differs and differs.to_data()}


def _show_again(
    found: _Found, differs: PlanDiff | HeadwaterError | None, changed: list[str], *, first: bool
) -> None:
    from rich.console import Console

    from headwater.render.deployment import change_view, print_error

    console = Console(highlight=False)
    _show_heading(changed)
    _show(found)
    if isinstance(differs, HeadwaterError):
        console.print("\nBeside the last plan: it could not take its place while that one runs", style="bold")
        print_error(differs, console)
    elif differs is not None and differs.empty:
        console.print("\nThe same as the last plan", style="bold")
    elif differs is not None:
        console.print("\nBeside the last plan", style="bold")
        notes = [f"note: {note}" for note in differs.notes]
        console.print(change_view(found.planned.dataflow.name, differs, notes))
    elif not first:
        console.print("\nThe last plan was of another dataflow", style="bold")
    if found.refused is not None:
        print_error(found.refused, Console(stderr=True, highlight=False))


def _show_heading(changed: list[str]) -> None:
    from rich.console import Console
    from rich.rule import Rule

    from headwater.live import clock

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
    return [
        {"what": one.what, "where": one.where, "hint": one.hint, "exit_code": one.exit_code}
        for one in members
    ]
