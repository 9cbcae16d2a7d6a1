"""Commands of the closed loop: slo, metrics, approve, reject. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import bounds, complete
from headwater.cli.control import Name, StoreOption, Wait, Yes, agree, show_change, tell_stored
from headwater.cli.out import Json, print_json, print_line, say
from headwater.cli.signals import stopped_by_signals
from headwater.core.text import cut

if TYPE_CHECKING:
    from headwater.adapt.slo import SLO
    from headwater.app.metrics import Metrics

Number = Annotated[
    int,
    typer.Argument(
        help="The decision's number.", parser=bounds.DECISION, show_default=False, autocompletion=complete.decisions
    ),
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
        str | None, _given("--max-latency", "Maximum p95 latency at every sink, such as 3s; or none.")
    ] = None,
    max_bandwidth: Annotated[
        str | None, _given("--max-bandwidth", "Maximum rate into the top layer, such as 200kB/s; or none.")
    ] = None,
    max_cost: Annotated[str | None, _given("--max-cost", "Maximum resource usage, a number; or none.")] = None,
    headroom: Annotated[
        str | None, _given("--headroom", "Share of each host's cores to keep free, such as 20%; or none.")
    ] = None,
    gain: Annotated[
        str | None, _given("--gain", "Minimum cost reduction for a change while no limit is broken.")
    ] = None,
    cool_down: Annotated[
        str | None, _given("--cool-down", "Minimum time between changes while no limit is broken, such as 60s.")
    ] = None,
    settle: Annotated[str | None, _given("--settle", "Time after which a change is judged, such as 20s.")] = None,
    mode: Annotated[
        ModeOf | None,
        _given("--mode", "off: no decisions; advise: decisions wait for approval; auto: decisions are applied."),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Set or show a deployment's SLO: its limits, and who decides on changes.

    Omitted options keep their values. The controller (`headwater up`) compares the SLO with measurements and
    proposes or makes changes; `headwater status` shows whether it is kept.
    """
    from headwater.app import objectives
    from headwater.control.memory import in_words
    from headwater.core.quantity import parse_bandwidth, parse_duration

    readers: dict[str, tuple[str | None, Callable[[str], float | None]]] = {
        "max_latency": (max_latency, _limit(parse_duration)),
        "max_bandwidth": (max_bandwidth, _limit(lambda text: parse_bandwidth(text) / 8)),
        "max_cost": (max_cost, _limit(lambda text: _number(text, "--max-cost"))),
        "headroom": (headroom, lambda text: None if text.strip() == "none" else _share(text, "--headroom")),
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
    """Show what a decision's plan would change, and store it as the desired state."""
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
    """Reject the proposal of a decision."""
    from headwater.app import objectives

    objectives.reject(number, store)
    if as_json:
        print_json(objectives.decision(number, store))
    else:
        say(f"decision {number} is rejected")


def metrics(
    name: Name,
    since: Annotated[str, typer.Option("--since", parser=bounds.SINCE, help="Period to show, up to 24h.")] = "10min",
    follow: Annotated[bool, typer.Option("--follow", help="Refresh every second, until Ctrl-C.")] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show rates and costs of units and operators, loads of hosts and links, and their course."""
    from rich.console import Console
    from rich.live import Live

    from headwater.app.metrics import metrics_of
    from headwater.core.quantity import parse_duration
    from headwater.render.loop import metrics_view

    seconds = parse_duration(since)

    def look() -> Metrics:
        return metrics_of(name, seconds, store)

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
    """Parse a limit; ``none`` is no limit."""
    return lambda text: math.inf if text.strip() == "none" else read(text)


def _number(text: str, option: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise typer.BadParameter(f"{option} {cut(text, 200)}: write a finite number, or none")
    return found


def _share(text: str, option: str) -> float:
    """Parse a share, written 20% or 0.2."""
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        found = math.nan
    if rest or not math.isfinite(found):
        raise typer.BadParameter(f"{option} {cut(text, 200)}: write a share, such as 20%")
    return found
