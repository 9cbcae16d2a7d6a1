"""Commands that show deployments: status, history, explain. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import complete
from headwater.cli.control import (
    Canary,
    Factor,
    Name,
    Reset,
    StoreOption,
    canary_of,
    loaded,
)
from headwater.cli.out import Json, print_json, print_line, say
from headwater.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from headwater.app.view import Status


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (status, history, explain):
        app.command()(command)


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="The dataflow's name.", show_default="all", autocompletion=complete.deployments),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C; JSON: one line each.")
    ] = False,
    model: Annotated[bool, typer.Option("--model", help="Compare predictions with measurements.")] = False,
    costs: Annotated[bool, typer.Option("--costs", help="Costs of shared dataflows, shared and alone.")] = False,
) -> None:
    """Show the state of deployments: phase, steps of a change, units with rows and lag."""
    from rich.console import Console, Group
    from rich.live import Live

    from headwater.app import observe
    from headwater.render.deployment import status_view

    if model or costs:
        show_one = _show_model if model else _show_costs
        show_one(name, store, as_json=as_json)
        return

    def show() -> tuple[Status, ...]:
        return observe.status(name, store)

    if not watch:
        found = show()
        if as_json:
            print_json(found[0] if name else found)
        else:
            Console(highlight=False).print(Group(*(status_view(s) for s in found)))
            if not found:
                say("no deployments")
        return
    stop = stopped_by_signals()
    if as_json:
        while not stop.is_set():
            print_line(show())
            stop.wait(1.0)
        return
    with Live(auto_refresh=False) as screen:
        while not stop.is_set():
            screen.update(Group(*(status_view(s) for s in show())), refresh=True)
            stop.wait(1.0)


def _show_model(name: str | None, store: str | None, *, as_json: bool) -> None:
    """Show for each deployment the model's predictions and their errors."""
    from rich.console import Console

    from headwater.app import objectives, observe
    from headwater.render.loop import model_view

    names = [name] if name else [s.name for s in observe.status(None, store)]
    found = {one: objectives.compared(one, store) for one in names}
    if as_json:
        print_json(found[name] if name else found)
        return
    for one, kinds in found.items():
        Console(highlight=False).print(model_view(one, kinds))


def _show_costs(name: str | None, store: str | None, *, as_json: bool) -> None:
    """Show the costs of each pool's dataflows."""
    from rich.console import Console

    from headwater.app import pools
    from headwater.render.share import costs_view

    found = {pool: own for pool, own in pools.costs(store).items() if name in (None, pool)}
    if as_json:
        print_json(found)
        return
    for pool, own in found.items():
        Console(highlight=False).print(costs_view(pool, own))
    if not any(found.values()):
        say("nothing is shared, or nothing was measured yet")


def history(name: Name, store: StoreOption = None, as_json: Json = False) -> None:
    """List a deployment's desired states, changes and events."""
    from headwater.app import deployments
    from headwater.render.loop import decision_line

    found = deployments.history(name, store)
    if as_json:
        print_json(found)
        return
    outcomes = {c.version: c for c in found.changes}
    for request in found.desired_states:
        change = outcomes.get(request.version)
        newest = request.version == found.desired_states[-1].version
        ended = (change.outcome or change.phase) if change else "wanted" if newest else "superseded"
        typer.echo(f"{deployments.clock(request.at)}  version {request.version}: {request.goal}, {ended}")
        if change is not None and change.message:
            typer.echo(f"{'':21}{change.message.splitlines()[0]}")
    for decision in found.decisions:
        typer.echo(f"{deployments.clock(decision.at)}  {decision_line(decision)}")
    for event in found.events:
        typer.echo(f"{deployments.clock(event.at)}  {event.text.splitlines()[0]}")


def explain(
    subject: Annotated[
        str,
        typer.Argument(
            help="A deployment's name, a decision's number, or a dataflow's file.",
            show_default=False,
            autocompletion=complete.deployments_and_files,
        ),
    ],
    continuum: Annotated[
        Path | None, typer.Option("--continuum", "-c", help="The zones; for a file.", show_default=False)
    ] = None,
    store: StoreOption = None,
    canary: Canary = None,
    factor: Factor = 2.0,
    reset_state: Reset = None,
    as_json: Json = False,
) -> None:
    """Explain in words what applying a dataflow would do, what the last change did, or why a decision was made."""
    from headwater.app import deployments
    from headwater.app.client import Client, PlanRequest

    client = Client(store)
    if continuum is not None:
        dataflow, zones = loaded(subject, continuum, trust_code=True)
        request = PlanRequest(
            dataflow=dataflow,
            continuum=zones,
            reset_state=frozenset(reset_state or ()),
            canary=canary_of(canary, factor),
        )
        shown = client.propose(request).change
        if as_json:
            print_json(shown.shown())
        else:
            _numbered(shown.words)
        return
    if subject.isdecimal() and not client.holds(subject):
        _explain_decision(int(subject), store, as_json=as_json)
        return
    change = deployments.explain(subject, store)
    if as_json:
        print_json(change)
    elif change is None:
        typer.echo("it is wanted, but has not begun yet")
    else:
        typer.echo(f"version {change.version}: {change.outcome or change.phase}")
        typer.echo(f"{change.done} of {len(change.steps)} steps done")
        _numbered(change.words)
        for line in change.measured:
            typer.echo(line)


def _explain_decision(number: int, store: str | None, *, as_json: bool) -> None:
    from rich.console import Console

    from headwater.app import objectives
    from headwater.render.loop import decision_view

    found = objectives.decision(number, store)
    if as_json:
        print_json(found)
    else:
        Console(highlight=False).print(decision_view(found))


def _numbered(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        typer.echo(f"{number:3d}. {line}")
