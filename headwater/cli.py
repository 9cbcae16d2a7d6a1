"""The command line: reads arguments, calls the service, shows what comes back.

Imports beyond typer wait until a command needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headwater import cli_broker, cli_control, cli_edit, cli_place, cli_promise, cli_simulate
from headwater.cli_control import ContinuumFile, Flow, Home, Json, StorePlace
from headwater.cli_place import Compare, MaxBandwidth, MaxLatency, ProfileFiles, Strategy, WeightsOf
from headwater.cli_zone import Delivery, WhenFull, zone
from headwater.errors import HeadwaterError, RuntimeFailure

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.live import Live

    from headwater.metrics import Progress
    from headwater.service import LoadedDataflow, Outcome, RunSettings, Shape

PLAIN_EVERY = 5.0  # seconds between two lines where no terminal shows a table

EXIT_CODES = (
    "Exit codes: 0 done, or stopped by Ctrl-C at a batch boundary; 1 other error; 2 wrong arguments; "
    "3 wrong dataflow or continuum; 4 it cannot be placed; 5 a unit failed, or the demo differs from the "
    "batch result; 6 the directory's deployment does not allow it; 7 Java, Spark or a broker is not there; "
    "130 a second Ctrl-C."
)


class _Commands(TyperGroup):
    """Shows a HeadwaterError as a message and an exit code, never as a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            from rich.console import Console

            from headwater.render import print_error

            print_error(error, Console(stderr=True, highlight=False))
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    cls=_Commands,
    name="headwater",
    help="One dataflow over edge, site and cloud: Spark inside a zone, Headwater between zones.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(cli_broker.app, name="broker", no_args_is_help=True)
cli_control.register(app)
cli_edit.register(app)
cli_place.register(app)
cli_promise.register(app)
cli_simulate.register(app)


@app.command()
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
) -> None:
    """Show which units run in which zones, what crosses each link, and what applying it would change."""
    from headwater import live, service

    predict = strategy is not None or compare or profile is not None
    if one_unit + unit_per_operator + predict > 1:
        raise typer.BadParameter(
            "--one-unit, --unit-per-operator and --strategy (with its options) exclude each other"
        )
    shape: Shape = "one-unit" if one_unit else "unit-per-operator" if unit_per_operator else "annotated"
    loaded = service.load_dataflow(flow)
    zones = service.load_continuum(continuum)
    plans, change, refused = {}, None, None
    try:
        plans = live.in_force(store) if predict else {}
    except HeadwaterError as error:
        refused = error  # the plan is shown all the same
    named = strategy or ("annotated" if predict else None)
    name = loaded.dataflow.name
    profiles = cli_place.read_profiles(profile, name)
    wish = cli_place.wished(
        named, max_latency, max_bandwidth, weights, name=name, plans=plans, profiles=profiles
    )
    foreseen = cli_place.chosen(loaded.dataflow, zones, wish, profiles)
    decided = None if foreseen is None else foreseen[0]
    planned = service.plan(loaded.dataflow, zones, shape=shape, decided=decided)
    try:
        if shape == "annotated" and live.holds(planned.dataflow.name, store):
            planned = service.plan(loaded.dataflow, zones, decided=decided, spread=True)
            change = live.preview(planned, store)
    except HeadwaterError as error:
        refused = error  # the plan is shown all the same
    others = {}
    if compare and wish is not None:
        others = service.compare(loaded.dataflow, zones, wish, profile=profiles.get(name))
    if as_json:
        extra = {"change": change.to_data()} if change else {}
        if foreseen is not None:
            extra |= cli_place.prediction_data(foreseen[1], others)
        _print_json({**planned.to_data(), **extra}, indent=2)
    else:
        from rich.console import Console

        from headwater.render import change_view, plan_view

        console = Console(highlight=False)
        console.print(plan_view(planned))
        if foreseen is not None:
            from headwater.render_place import comparison_view, prediction_view

            console.print("", prediction_view(foreseen[1]), sep="\n")
            if others:
                console.print("", comparison_view(others, foreseen[1].layers), sep="\n")
        if change is not None:
            console.print("", change_view(planned.dataflow.name, change.diff, change.words), sep="\n")
    if refused is not None:
        raise refused


@app.command()
def run(
    flow: Flow,
    continuum: ContinuumFile,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where its state is kept.", show_default=".headwater/<name>"),
    ] = None,
    until_drained: Annotated[
        bool, typer.Option("--until-drained", help="End when all bounded input is used up.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what an earlier run left, first.")] = False,
    trigger: Annotated[str, typer.Option(help="Time between two batches.")] = "500 milliseconds",
    cores: Annotated[int | None, typer.Option(help="Cores for Spark.", min=1, show_default="all")] = None,
    memory: Annotated[str, typer.Option(help="Heap of Spark, such as 1g or 512m.")] = "1g",
    max_buffer: Annotated[str, typer.Option(help="Largest size of one channel on disk.")] = "1GiB",
    when_full: Annotated[WhenFull, typer.Option(help="What to do when it is reached.")] = WhenFull.block,
    delivery: Annotated[
        Delivery, typer.Option(help="Of its channels: at least once is faster.")
    ] = Delivery.exactly_once,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON, one object per line.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the pickled functions of a JSON dataflow.")
    ] = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    weights: WeightsOf = None,
) -> None:
    """Run a dataflow, or go on where it was stopped."""
    from headwater import service
    from headwater.quantity import parse_duration, parse_heap, parse_size

    parse_duration(trigger)
    memory_mb, buffer = parse_heap(memory), parse_size(max_buffer)
    loaded = service.load_dataflow(flow)
    service.check_trust(loaded, trust_code=trust_code)
    wish = cli_place.wished(strategy, max_latency, max_bandwidth, weights)
    profiles = cli_place.read_profiles(profile, loaded.dataflow.name)
    planned = cli_place.planned(loaded.dataflow, service.load_continuum(continuum), wish, profiles)
    settings = service.RunSettings(
        directory=directory or service.default_directory(loaded.dataflow.name),
        until_drained=until_drained,
        fresh=fresh,
        trigger=trigger,
        cores=cores,
        memory_mb=memory_mb,
        max_buffer=buffer,
        when_full=when_full.value,
        delivery=delivery.value,
        python_path=(str(loaded.directory),) if loaded.directory else (),
    )
    if not as_json:
        for warning in planned.warnings:
            _say(f"warning: {warning}")
        _say(f"{loaded.dataflow.name}: {len(planned.units)} units, state in {settings.directory}")
        _say("starting Spark")
    with stopping(settings.directory) as stop, Screen(loaded.dataflow.name, as_json=as_json) as screen:
        outcome = service.run(planned, settings, stop=stop, observe=screen.show, show_rows=screen.rows)
    if not as_json:
        _tell_end(outcome, loaded, settings)


@app.command()
def deadletters(
    name: Annotated[
        str | None,
        typer.Argument(help="A deployment of the store; its zones are asked.", show_default="that of --dir"),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="What `run` has run.", show_default="the only one in .headwater"),
    ] = None,
    store: StorePlace = None,
    home: Home = Path(".headwater"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the records that did not fit their source's schema."""
    from headwater import live, service

    if name and directory:
        raise typer.BadParameter("a name and --dir exclude each other")
    if name:
        letters = live.dead_letters(name, store, home=home, say=_say)
    else:
        letters = service.dead_letters(directory or service.only_deployment())
    count = 0
    for letter in letters:
        count += 1
        if as_json:
            _print_json(letter)
        else:
            origin = " ".join(str(letter[k]) for k in ("source", "offset") if letter.get(k) is not None)
            typer.echo(f"{letter.get('unit')} {letter.get('operator')}: {letter.get('reason')}")
            typer.echo(f"  {letter.get('record')!r}" + (f"  ({origin})" if origin else ""))
    if not as_json:
        _say(f"{count} dead letters")


app.command()(zone)


@app.command()
def version() -> None:
    """Show the version."""
    import headwater

    typer.echo(headwater.__version__)


@app.command()
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary to this file.", show_default=False)
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to run it.", show_default="a temporary directory")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long new input keeps coming.", min=0)
    ] = 20.0,
    days: Annotated[
        float | None, typer.Option(help="Length of the series.", min=1, show_default="60")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated readings.")] = 2,
    nab: Annotated[
        Path | None, typer.Option(help="NAB's machine-temperature CSV instead.", show_default=False)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="NAB's combined_windows.json.", show_default=False)
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
) -> None:
    """Run the Acme example over three layers and five locations, and check it against one batch run."""
    from headwater.demo.run import DemoSettings, run_demo, summary_view

    if (nab is None) != (labels is None):
        raise typer.BadParameter("--nab and --labels go together")
    settings = DemoSettings(seconds=seconds, days=days, seed=seed, nab=nab, labels=labels)
    with scratch(directory, keep=keep) as place, stopping(place / "deployment") as stop:
        _say(f"Acme on five edge zones, two sites and one cloud; starting Spark (in {place})")
        with Screen("acme", as_json=False) as screen:
            summary = run_demo(settings, place, stop=stop, observe=screen.show, say=screen.say)
    if summary is None:
        _say("stopped")
        raise typer.Exit(130)
    from rich.console import Console

    Console(highlight=False).print(summary_view(summary))
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if summary["lost"] or summary["duplicated"] or summary["malformed_found"] != summary["malformed_written"]:
        raise RuntimeFailure(
            "the result differs from that of one batch run", where="demo", hint="report this, with --keep"
        )


# ---------------------------------------------------------------- showing and stopping


class Screen:
    """Shows progress: a live table on a terminal, a line now and then elsewhere, or JSON lines."""

    def __init__(self, title: str, *, as_json: bool) -> None:
        self._title = title
        self._json = as_json
        self._live: Live | None = None
        self._last = float("-inf")
        self._states: tuple[str, ...] = ()

    def __enter__(self) -> Screen:
        if not self._json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show the state of now."""
        if self._json:
            _print_json(progress.to_data())
        elif self._live:
            from headwater.render import progress_view

            self._live.update(progress_view(progress, title=self._title), refresh=True)
        else:
            states = tuple(u.status for u in progress.units)
            if progress.seconds - self._last >= PLAIN_EVERY or states != self._states:
                from headwater.render import progress_line

                self._last, self._states = progress.seconds, states
                typer.echo(progress_line(progress))

    def rows(self, sink: str, rows: pa.Table) -> None:
        """Print rows of a console sink; JSON lines have their own form of it."""
        for row in rows.to_pylist():
            if self._json:
                _print_json({"sink": sink, "row": row})
            else:
                self.say(f"{sink}: " + ", ".join(f"{k}={v}" for k, v in row.items()))

    def say(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            typer.echo(text)


class stopping:  # noqa: N801 (reads as a statement: `with stopping(...) as stop`)
    """Turns the first Ctrl-C (or SIGTERM) into a request, and ends everything at the second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> threading.Event:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self._stop

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: object) -> None:
        # os.write: a signal may come in the middle of a print, which cannot be entered twice.
        if not self._stop.is_set():
            self._stop.set()
            os.write(2, b"\nstopping at the next batch boundary (Ctrl-C again: at once)\n")
            return
        os.write(2, b"\nended at once; the next run repeats the batches that were cut off\n")
        from headwater import service

        service.end_spark(self._directory)
        os._exit(130)


class scratch:  # noqa: N801 (reads as a statement)
    """A directory for one run: the given one, or a temporary one that is removed unless kept."""

    def __init__(self, given: Path | None, *, keep: bool) -> None:
        self._given = given
        self._keep = keep

    def __enter__(self) -> Path:
        import tempfile

        if self._given:
            self._given.mkdir(parents=True, exist_ok=True)
        self._path = self._given or Path(tempfile.mkdtemp(prefix="headwater-demo-"))
        return self._path

    def __exit__(self, *_: object) -> None:
        import shutil

        if self._given is None and not self._keep:
            shutil.rmtree(self._path, ignore_errors=True)
        elif self._keep:
            _say(f"kept in {self._path}")


def _tell_end(outcome: Outcome, loaded: LoadedDataflow, settings: RunSettings) -> None:
    if outcome.drained:
        _say(f"all input is used up, after {outcome.seconds:.0f} s")
        return
    _say(f"stopped at a batch boundary; run the same command again to go on (state in {settings.directory})")


def _print_json(data: object, *, indent: int | None = None) -> None:
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=str))


def _say(text: str) -> None:
    typer.echo(text, err=True)


def main() -> None:
    """Run the command line."""
    app()
