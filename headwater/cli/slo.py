"""Commands of the closed loop: slo, metrics, approve, reject. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import complete
from headwater.cli.control import Name, StoreOption, Wait, Yes, agree, show_change, tell_stored
from headwater.cli.out import Json, print_json, print_line, say
from headwater.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from headwater.adapt.slo import SLO
    from headwater.app.objectives import Metrics

Number = Annotated[
    int,
    typer.Argument(help="The decision's number.", show_default=False, autocompletion=complete.decisions),
]


class ModeOf(StrEnum):
    """Who decides on changes of a deployment."""

    off = "off"
    advise = "advise"
    auto = "auto"


def _given(name: str, help_: str) -> Any:
    return typer.Option(name, help=help_, show_default="as it is")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (slo, approve, reject, metrics):
        app.command()(command)
    app.command("promise", hidden=True, deprecated=True)(slo)


def slo(
    name: Name,
    max_latency: Annotated[
        str | None, _given("--max-latency", "For 95 of 100 at every sink, such as 3s; or none.")
    ] = None,
    max_bandwidth: Annotated[
        str | None, _given("--max-bandwidth", "Into the top layer, such as 200kB/s; or none.")
    ] = None,
    max_cost: Annotated[str | None, _given("--max-cost", "Resource usage, a number; or none.")] = None,
    headroom: Annotated[
        str | None, _given("--headroom", "The share of each host's cores that stays free, such as 20%.")
    ] = None,
    gain: Annotated[str | None, _given("--gain", "By how much the cost has to fall where no limit is broken.")] = None,
    cool_down: Annotated[
        str | None, _given("--cool-down", "Time between changes that no limit calls for, such as 60s.")
    ] = None,
    settle: Annotated[str | None, _given("--settle", "Time after which a change is judged, such as 20s.")] = None,
    mode: Annotated[
        ModeOf | None, _given("--mode", "off: nothing is decided; advise: you are asked; auto: it is done.")
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Say what a deployment is to keep to while it runs, and who changes it for that; or show it.

    What is not given stays as it is. The controller (`headwater up`) holds it against what is measured, and
    proposes changes or makes them; `headwater status` tells whether it is kept.
    """
    from headwater.app import objectives
    from headwater.control.memory import in_words
    from headwater.core.quantity import parse_bandwidth, parse_duration

    readers: dict[str, tuple[str | None, Callable[[str], float]]] = {
        "max_latency": (max_latency, _limit(parse_duration)),
        "max_bandwidth": (max_bandwidth, _limit(lambda text: parse_bandwidth(text) / 8)),
        "max_cost": (max_cost, _limit(lambda text: _number(text, "--max-cost"))),
        "headroom": (headroom, lambda text: _share(text, "--headroom")),
        "gain": (gain, lambda text: _share(text, "--gain")),
        "cool_down": (cool_down, parse_duration),
        "settle": (settle, parse_duration),
    }
    given: dict[str, Any] = {k: read(text) for k, (text, read) in readers.items() if text is not None}
    if mode is not None:
        given["mode"] = mode.value
    found = objectives.slo(name, store)
    if given:
        found = _changed(found, given)
        objectives.set_slo(name, found, store)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{name}: {in_words(found)}" if found else f"{name}: no SLO is set")


def _changed(before: SLO | None, given: dict[str, Any]) -> SLO:
    from dataclasses import replace

    from headwater.adapt.slo import SLO

    return replace(before or SLO(), **given)


def approve(
    number: Number, store: StoreOption = None, yes: Yes = False, wait: Wait = False, as_json: Json = False
) -> None:
    """Show what a decision proposes would change, and store it as what is wanted."""
    from headwater.app import objectives
    from headwater.app.client import Client

    client, plan = Client(store), objectives.proposed(number, store)
    found = client.preview(plan)
    if not as_json:
        show_change(plan, found)
    agree(yes, as_json=as_json)
    version = objectives.approve(number, store)
    tell_stored(client, plan, found, version, wait=wait, as_json=as_json)


def reject(number: Number, store: StoreOption = None, as_json: Json = False) -> None:
    """Turn down what a decision proposes."""
    from headwater.app import objectives

    objectives.reject(number, store)
    if as_json:
        print_json(objectives.decision(number, store))
    else:
        say(f"decision {number} is rejected")


def metrics(
    name: Name,
    since: Annotated[str, typer.Option("--since", help="How far to look back, up to 24h.")] = "10min",
    follow: Annotated[bool, typer.Option("--follow", help="Look again every second, until Ctrl-C.")] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show what units and operators take, give and cost, how busy hosts and links are, and how it went."""
    from rich.console import Console
    from rich.live import Live

    from headwater.app import objectives
    from headwater.core.quantity import parse_duration
    from headwater.render.loop import metrics_view

    seconds = parse_duration(since)

    def look() -> Metrics:
        return objectives.metrics(name, seconds, store)

    if not follow:
        if as_json:
            print_json(look())
        else:
            Console(highlight=False).print(metrics_view(name, look()))
        return
    stop = stopped_by_signals()
    if as_json:
        while not stop.is_set():
            print_line(look())
            stop.wait(1.0)
        return
    with Live(auto_refresh=False) as screen:
        while not stop.is_set():
            screen.update(metrics_view(name, look()), refresh=True)
            stop.wait(1.0)


# ---------------------------------------------------------------- reading


def _limit(read: Callable[[str], float]) -> Callable[[str], float]:
    """Read a limit, or that there is none."""
    return lambda text: math.inf if text.strip() == "none" else read(text)


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: write a number, or none") from None


def _share(text: str, option: str) -> float:
    """Read a share, written 20% or 0.2."""
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        found = math.nan
    if rest or not math.isfinite(found):
        raise typer.BadParameter(f"{option} {text}: write a share, such as 20%")
    return found
