"""Commands over a store: apply, stop, status, history, explain, up. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import cli_place
from headwater.cli_place import MaxBandwidth, MaxLatency, ProfileFiles, Strategy, WeightsOf

if TYPE_CHECKING:
    from headwater.live import Preview, Status
    from headwater.plan.model import DeploymentPlan
    from headwater.plan.place import Wish
    from headwater.plan.steps import CanarySettings
    from headwater.profile import Profile

Flow = Annotated[str, typer.Argument(help="flow.py, flow.py:name or flow.json", show_default=False)]
ContinuumFile = Annotated[
    Path, typer.Option("--continuum", "-c", help="The zones, as YAML.", show_default=False)
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="HEADWATER_STORE",
        help="Path, or postgresql://user@host/database.",
        show_default=".headwater/headwater.db",
    ),
]
Home = Annotated[Path, typer.Option("--home", help="Where agents of this machine are kept.")]
Name = Annotated[str, typer.Argument(help="The dataflow's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the change to its end.")]
Reset = Annotated[
    list[str] | None,
    typer.Option("--reset-state", help="A unit whose state may be given up; repeat it.", show_default=False),
]
Canary = Annotated[
    str | None,
    typer.Option(
        "--canary", help="Zone by zone, and so long a look after each, such as 60s.", show_default=False
    ),
]
Factor = Annotated[
    float, typer.Option("--factor", help="By how much dead letters and late rows may grow.", min=0)
]
Trust = Annotated[bool, typer.Option("--trust-code", help="Run the pickled functions of a JSON dataflow.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (apply, stop, status, history, explain, up, down):
        app.command()(command)


def apply(
    flow: Flow,
    continuum: ContinuumFile,
    store: StorePlace = None,
    yes: Yes = False,
    canary: Canary = None,
    factor: Factor = 2.0,
    reset_state: Reset = None,
    wait: Wait = False,
    trust_code: Trust = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    weights: WeightsOf = None,
    as_json: Json = False,
) -> None:
    """Show what a dataflow would change, and store it as what is wanted."""
    from headwater import live

    kept: dict[str, Profile] = {}

    def chosen(name: str) -> tuple[Wish | None, Mapping[str, Profile]]:
        plans, profiles = live.in_force(store) if strategy else {}, cli_place.read_profiles(profile, name)
        kept.update(profiles)
        wish = cli_place.wished(
            strategy, max_latency, max_bandwidth, weights, name=name, plans=plans, profiles=profiles
        )
        return wish, profiles

    planned = _planned(flow, continuum, chosen, trust_code=trust_code)
    propose(
        planned,
        store,
        yes,
        reset=frozenset(reset_state or ()),
        canary=_canary(canary, factor),
        profile=kept.get(planned.dataflow.name),
        wait=wait,
        as_json=as_json,
    )


def propose(
    planned: DeploymentPlan,
    store: str | None,
    yes: bool,
    *,
    reset: frozenset[str] = frozenset(),
    canary: CanarySettings | None = None,
    profile: Profile | None = None,
    approve: Callable[[], int] | None = None,
    wait: bool,
    as_json: bool,
) -> None:
    """Show what a plan would change, ask, store it as what is wanted, and perhaps follow it.

    ``profile``: by which it was placed; it is kept. ``approve`` stores what was decided on already.
    """
    from headwater import live

    found = live.preview(planned, store, reset_state=reset, canary=canary)
    if not as_json:
        _show(planned, found)
    name = planned.dataflow.name
    if found.same and approve is None:
        if profile is not None:
            live.keep_profile(name, profile, store)
        if as_json:
            print_json({**found.to_data(), "stored": False})
        return
    if not yes and not _agreed(as_json=as_json):
        say("nothing was stored")
        raise typer.Exit(1)
    if approve is not None:
        version = approve()
    else:
        version = live.apply(
            planned, store, reset_state=reset, canary=canary, after=found.version, profile=profile
        )
    if as_json:
        print_json({**found.to_data(), "stored": True, "version": version})
    else:
        say(f"{name}: version {version} is wanted")
    if wait:
        _follow(name, version, store, quiet=as_json)


def stop(
    name: Name,
    store: StorePlace = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete its state and channels, too.")] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="Use up all input and close windows first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    wait: Wait = False,
) -> None:
    """Stop a deployment at batch boundaries; its state stays, and `apply` goes on with it."""
    from headwater import live

    if forget and finish:
        raise typer.BadParameter("--forget and --finish exclude each other")
    if forget and not yes and not _agreed(as_json=False, what=f"delete all that {name} has stored?"):
        say("nothing was stored")
        raise typer.Exit(1)
    version = live.stop(name, store, how="forget" if forget else "finish" if finish else "stop")
    say(f"{name}: version {version} is wanted")
    if wait:
        _follow(name, version, store, quiet=False)


def status(
    name: Annotated[str | None, typer.Argument(help="The dataflow's name.", show_default="all")] = None,
    store: StorePlace = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    model: Annotated[
        bool, typer.Option("--model", help="Hold what was predicted against what is measured.")
    ] = False,
) -> None:
    """Show what deployments do: phase, steps of a change, units with rows and lag."""
    from rich.console import Console, Group
    from rich.live import Live

    from headwater import live
    from headwater.render import status_view

    if model:
        _show_model(name, store, as_json=as_json)
        return

    def show() -> tuple[Status, ...]:
        return live.status(name, store)

    if not watch:
        found = show()
        if as_json:
            print_json(found[0].to_data() if name else [s.to_data() for s in found])
        else:
            Console(highlight=False).print(Group(*(status_view(s) for s in found)))
            if not found:
                say("no deployments")
        return
    stop = stopped_by_signals()
    with Live(auto_refresh=False) as screen:
        while not stop.is_set():
            found = show()
            if as_json:
                print_json([s.to_data() for s in found])
            else:
                screen.update(Group(*(status_view(s) for s in found)), refresh=True)
            stop.wait(1.0)


def _show_model(name: str | None, store: str | None, *, as_json: bool) -> None:
    """Show for each deployment what the model says of it and how far that is off."""
    from rich.console import Console

    from headwater import live, live_loop
    from headwater.render_loop import model_view

    names = [name] if name else [s.deployment.name for s in live.status(None, store)]
    found = {one: live_loop.compared(one, store) for one in names}
    if as_json:
        data = {
            one: {kind: [c.to_data() for c in pairs] for kind, pairs in kinds.items()}
            for one, kinds in found.items()
        }
        print_json(data[name] if name else data)
        return
    for one, kinds in found.items():
        Console(highlight=False).print(model_view(one, kinds))


def history(name: Name, store: StorePlace = None, as_json: Json = False) -> None:
    """List what was wanted of a deployment, what became of it, and what happened."""
    from headwater import live
    from headwater.render_loop import decision_line

    found = live.history(name, store)
    if as_json:
        print_json(found.to_data())
        return
    outcomes = {c.version: c for c in found.changes}
    for wish in found.wishes:
        change = outcomes.get(wish.version)
        newest = wish.version == found.wishes[-1].version
        ended = (change.outcome or change.phase) if change else "wanted" if newest else "superseded"
        typer.echo(f"{live.clock(wish.at)}  version {wish.version}: {wish.goal}, {ended}")
        if change is not None and change.message:
            typer.echo(f"{'':21}{change.message.splitlines()[0]}")
    for decision in found.decisions:
        typer.echo(f"{live.clock(decision.at)}  {decision_line(decision)}")
    for event in found.events:
        typer.echo(f"{live.clock(event.at)}  {event.text.splitlines()[0]}")


def explain(
    subject: Annotated[
        str,
        typer.Argument(
            help="A deployment's name, a decision's number, or a dataflow's file.", show_default=False
        ),
    ],
    continuum: Annotated[
        Path | None, typer.Option("--continuum", "-c", help="The zones; for a file.", show_default=False)
    ] = None,
    store: StorePlace = None,
    canary: Canary = None,
    factor: Factor = 2.0,
    reset_state: Reset = None,
    as_json: Json = False,
) -> None:
    """Say in words what applying a dataflow would do, what the last change did, or why it was decided."""
    from headwater import live

    if continuum is not None:
        planned = _planned(subject, continuum, trust_code=True)
        settings = _canary(canary, factor)
        shown = live.preview(planned, store, reset_state=frozenset(reset_state or ()), canary=settings)
        if as_json:
            typer.echo(json.dumps(shown.to_data(), indent=2))
        else:
            _numbered(shown.words)
        return
    if subject.isdecimal() and not live.holds(subject, store):
        _explain_decision(int(subject), store, as_json=as_json)
        return
    change, lines, journal = live.explain(subject, store)
    if as_json:
        typer.echo(json.dumps(live.change_data(change, lines, journal) if change else None, indent=2))
    elif change is None:
        typer.echo("it is wanted, and not begun yet")
    else:
        done = sum(e.state == "done" for e in journal)
        typer.echo(f"version {change.version}: {change.outcome or change.phase}")
        typer.echo(f"{done} of {len(journal)} steps done")
        _numbered(lines)
        for line in live.measured(journal):
            typer.echo(line)


def _explain_decision(number: int, store: str | None, *, as_json: bool) -> None:
    from rich.console import Console

    from headwater import live_loop
    from headwater.render_loop import decision_view

    found = live_loop.decision(number, store)
    if as_json:
        print_json(found.to_data())
    else:
        Console(highlight=False).print(decision_view(found))


def _numbered(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        typer.echo(f"{number:3d}. {line}")


def up(
    continuum: Annotated[
        Path | None,
        typer.Option("--continuum", "-c", help="Zones to open at once.", show_default="as they are needed"),
    ] = None,
    store: StorePlace = None,
    home: Home = Path(".headwater"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Agents started here: Spark starts sooner, runs slower.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            help="[HOST:]PORT where Prometheus finds /metrics; without a host, this machine alone.",
            show_default="nowhere",
        ),
    ] = None,
) -> None:
    """Run the controller: make the zones match what the store says is wanted, until Ctrl-C.

    Zones with `at:` are reached there, with the token in HEADWATER_TOKEN. The agents of all others
    are started on this machine, and run on when the controller ends (`headwater down` ends them).
    """
    from headwater import live, service

    zones = service.load_continuum(continuum).zones if continuum else ()
    options = ("--quick",) if quick else ()
    stop = stopped_by_signals()
    with contextlib.ExitStack() as stack:
        if metrics is not None:
            from headwater.prometheus import address, serving

            host, port = address(metrics)
            say(f"metrics at {stack.enter_context(serving(store, host, port))}")
        live.up(store, home=home, options=options, zones=zones, stop=stop, say=say)
    say("stopped; all units run on")


def down(home: Home = Path(".headwater")) -> None:
    """End the zones' agents on this machine, with their units and Sparks; their state stays."""
    from headwater import live

    ended = live.down(home)
    say(f"ended: {', '.join(ended)}" if ended else "no agent runs here")


# ---------------------------------------------------------------- parts


def _planned(
    flow: str,
    continuum: Path,
    chosen: Callable[[str], tuple[Wish | None, Mapping[str, Profile]]] = lambda name: (None, {}),
    *,
    trust_code: bool,
) -> DeploymentPlan:
    """Load a dataflow, and plan it as is ``chosen`` for its name; else by its marks."""
    from headwater import service

    loaded = service.load_dataflow(flow)
    service.check_trust(loaded, trust_code=trust_code)
    zones = service.load_continuum(continuum)
    wish, profiles = chosen(loaded.dataflow.name)
    return cli_place.planned(loaded.dataflow, zones, wish, profiles, spread=True)


def _canary(text: str | None, factor: float) -> CanarySettings | None:
    from headwater.plan.steps import CanarySettings
    from headwater.quantity import parse_duration

    return CanarySettings(seconds=parse_duration(text), factor=factor) if text else None


def _show(planned: DeploymentPlan, found: Preview) -> None:
    from rich.console import Console

    from headwater.render import change_view

    for warning in planned.warnings:
        say(f"warning: {warning}")
    Console(highlight=False).print(change_view(planned.dataflow.name, found.diff, found.words))


def _agreed(*, as_json: bool, what: str = "apply this?") -> bool:
    """Ask on a terminal; elsewhere nobody can answer."""
    if as_json or not _is_terminal():
        raise typer.BadParameter("nobody can be asked here: give --yes")
    return typer.confirm(what, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _follow(name: str, version: int, store: str | None, *, quiet: bool) -> None:
    from headwater import live

    tell = (lambda text: None) if quiet else say
    ended = live.follow(name, version, store, stop=stopped_by_signals(), say=tell)
    if ended is None:
        say("not waited for; the controller goes on")


def stopped_by_signals() -> threading.Event:
    """Give an event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return stop


def print_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    typer.echo(text, err=True)
