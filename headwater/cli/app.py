"""The command line: parses arguments, calls use cases, shows results.

Imports beyond typer wait until a command needs them, so that ``--help`` is fast.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from headwater.cli import (
    bounds,
    broker,
    control,
    deadletters,
    edit,
    exits,
    look,
    plan,
    share,
    simulate,
    slo,
    start,
    top,
    whatif,
)
from headwater.cli import place as placing
from headwater.cli.bars import Bar
from headwater.cli.control import Append, ContinuumFile, Flow, Overwrite, Reset, former_output, tell_rewriting
from headwater.cli.out import Json, print_json, print_line, say
from headwater.cli.place import (
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
from headwater.cli.signals import STOPS, on_signals
from headwater.cli.sparkoptions import Conf, ConfFile, Packages, QuickRun, spark_settings
from headwater.cli.zone import Delivery, WhenFull, zone
from headwater.core.environment import hide_environment
from headwater.core.errors import HeadwaterError, RuntimeFailure

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.live import Live

    from headwater.app.loading import LoadedDataflow
    from headwater.app.running import RunOutcome, RunSettings
    from headwater.core.metrics import Progress

PLAIN_EVERY = 5.0  # seconds between two lines without a terminal


class _Commands(TyperGroup):
    """Shows an error as a message and an exit code, never as a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            _show_error(error)
            raise typer.Exit(error.exit_code) from error


def _show_error(error: HeadwaterError) -> None:
    from rich.console import Console

    from headwater.render.deployment import print_error

    print_error(error, Console(stderr=True, highlight=False))


def _unexpected(error: Exception) -> HeadwaterError:
    """Explain an error of the system, or a defect, whose stack trace goes to a file."""
    import tempfile
    import traceback

    if isinstance(error, OSError) and error.strerror is not None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free space on that disk, and try again" if full else "correct the cause, and try again"
        return HeadwaterError(error.strerror, where=str(error.filename or "a file"), hint=hint)
    text = str(error).partition("\n")[0]
    with tempfile.NamedTemporaryFile("w", prefix="headwater-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    return HeadwaterError(f"{type(error).__name__}: {text}", hint=f"report this as a defect, with {log.name}")


app = typer.Typer(
    cls=_Commands,
    name="headwater",
    help="One dataflow over edge, site and cloud: Spark inside a zone, Headwater between zones.",
    epilog=exits.IN_WORDS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        import headwater

        typer.echo(headwater.__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None: ...


app.add_typer(broker.app, name="broker", no_args_is_help=True)
plan.register(app)
control.register(app)
look.register(app)
edit.register(app)
deadletters.register(app)
placing.register(app)
slo.register(app)
share.register(app)
simulate.register(app)
start.register(app)
top.register(app)
whatif.register(app)


@app.command()
def run(
    flow: Flow,
    continuum: ContinuumFile,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory of its state.", show_default=".headwater/<name>"),
    ] = None,
    until_drained: Annotated[
        bool, typer.Option("--until-drained", help="End when all bounded input is used up.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="First delete the state of earlier runs.")] = False,
    append: Append = False,
    overwrite: Overwrite = False,
    trigger: Annotated[
        str, typer.Option(help="Time between two batches, 0s to 24h.", parser=bounds.trigger)
    ] = "500 milliseconds",
    cores: Annotated[
        int | None, typer.Option(help="Cores for Spark, 1 to 4096.", parser=bounds.CORES, show_default="all")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of Spark, such as 1g or 512m.")] = "1g",
    packages: Packages = "",
    conf: Conf = None,
    conf_file: ConfFile = None,
    quick: QuickRun = None,
    max_buffer: Annotated[
        str, typer.Option(help="Largest size of one channel on disk, from 4KiB.", parser=bounds.MAX_BUFFER)
    ] = "1GiB",
    when_full: Annotated[WhenFull, typer.Option(help="What to do when a channel is full.")] = WhenFull.block,
    delivery: Annotated[
        Delivery, typer.Option(help="Delivery of its channels; at least once is faster.")
    ] = Delivery.exactly_once,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON, one object per line.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Trust the pickled functions of a JSON dataflow.")
    ] = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    min_bandwidth: MinBandwidth = None,
    confidence: Confidence = None,
    weights: WeightsOf = None,
    rewrite: Rewrite = False,
    no_rewrite_rule: WithoutRules = None,
    reset_state: Reset = None,
) -> None:
    """Run a dataflow, or continue where it was stopped; an edited one continues with its state."""
    from headwater.app import loading, running
    from headwater.app.client import Client
    from headwater.continuum.model import Continuum
    from headwater.core.quantity import parse_heap, parse_size
    from headwater.disk.layout import RUN_STORE
    from headwater.disk.openfiles import allow_open_files

    spark = spark_settings(packages, conf, conf_file)
    memory_mb, buffer = parse_heap(memory), parse_size(max_buffer)
    loaded = loading.load_dataflow(flow)
    loading.check_trust(loaded, trust_code=trust_code)
    place = directory or running.default_directory(loaded.dataflow.name)
    request = placing.requested(
        loaded.dataflow,
        Continuum.from_yaml(continuum),
        strategy=strategy,
        profile=profile,
        max_latency=max_latency,
        max_bandwidth=max_bandwidth,
        min_bandwidth=min_bandwidth,
        confidence=confidence,
        weights=weights,
        rewrite=rewrite,
        without_rules=no_rewrite_rule,
        reset_state=frozenset(reset_state or ()),
        former_output=former_output(append, overwrite),
    )
    proposal = Client(None if fresh else str(place / RUN_STORE)).propose(request)
    planned = proposal.plan
    if not fresh:
        _ = proposal.change
    settings = running.RunSettings(
        directory=place,
        reset_state=request.reset_state,
        until_drained=until_drained,
        fresh=fresh,
        former_output=request.former_output,
        trigger=trigger,
        cores=cores,
        memory_mb=memory_mb,
        spark=spark,
        quick=quick,
        max_buffer=buffer,
        when_full=when_full.value,
        delivery=delivery.value,
        python_path=(str(loaded.directory),) if loaded.directory else (),
    )
    if not as_json:
        tell_rewriting(proposal)
        for warning in planned.warnings:
            say(f"warning: {warning}")
        say(f"{loaded.dataflow.name}: {len(planned.units)} units, state in {settings.directory}")
        say("starting Spark")
    allow_open_files()
    with stopping(settings.directory) as stop, Screen(loaded.dataflow.name, as_json=as_json) as screen:
        screen.wait("starting Spark")
        outcome = running.run(planned, settings, stop=stop, observe=screen.show, show_rows=screen.rows)
    if not as_json:
        _tell_end(outcome, loaded, settings)


app.command()(zone)


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    import headwater

    if as_json:
        print_json({"version": headwater.__version__})
    else:
        typer.echo(headwater.__version__)


@app.command()
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON only.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the summary to this file as well.", show_default=False),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory of the run.", show_default="a temporary directory"),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", help="Seconds in which new input is generated, 0 to 604800.", parser=bounds.GENERATED
        ),
    ] = 20.0,
    days: Annotated[
        float | None,
        typer.Option(help="Length of the series in days, 1 to 3660.", parser=bounds.DAYS, show_default="60"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated readings.", parser=bounds.SEED)] = 2,
    nab: Annotated[Path | None, typer.Option(help="NAB's machine-temperature CSV instead.", show_default=False)] = None,
    labels: Annotated[Path | None, typer.Option(help="NAB's combined_windows.json.", show_default=False)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
) -> None:
    """Run the Acme example over three layers and five locations, and compare it with one batch run."""
    from headwater.spark.endpoint import LocalEndpoint
    from headwater.spark.starting import starting

    if (nab is None) != (labels is None):
        raise typer.BadParameter("--nab and --labels go together")
    for file in (nab, labels):
        if file is not None and not file.is_file():
            raise HeadwaterError("the file does not exist", where=str(file), hint="give the paths of NAB's files")
    with scratch(directory, keep=keep) as place, stopping(place) as stop:
        if not as_json:
            say(f"Acme on five edge zones, two sites and one cloud (in {place})")
        with (
            Screen("acme", as_json=False, quiet=as_json) as screen,
            starting(partial(LocalEndpoint.start, (place / "spark").resolve(), quick=True)) as endpoint,
        ):
            screen.wait("starting Spark")
            from headwater.demo.run import DemoSettings, run_demo, summary_view

            settings = DemoSettings(seconds=seconds, days=days, seed=seed, nab=nab, labels=labels)
            summary = run_demo(
                settings, place, stop=stop, observe=screen.show, say=screen.say, wait=screen.wait, endpoint=endpoint
            )
    if summary is None:
        say("stopped")
        raise typer.Exit(130)
    if as_json:
        print_json(summary)
    else:
        from rich.console import Console

        Console(highlight=False).print(summary_view(summary))
    if out is not None:
        out.write_text(json.dumps(summary, indent=2) + "\n")
    if summary["lost"] or summary["duplicated"] or summary["malformed_found"] != summary["malformed_written"]:
        raise RuntimeFailure("the result differs from the batch run", where="demo", hint="report this, with --keep")


# ---------------------------------------------------------------- showing and stopping


class Screen:
    """Shows progress: a live table on a terminal, a line at intervals elsewhere, or JSON lines.

    A ``quiet`` one prints nothing and shows only a bar.
    """

    def __init__(self, title: str, *, as_json: bool, quiet: bool = False) -> None:
        self._title = title
        self._json = as_json
        self._quiet = quiet
        self._live: Live | None = None
        self._bar: Bar | None = None
        self._last = float("-inf")
        self._states: tuple[str, ...] = ()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._bar:
            self._bar.end()
        if self._live:
            self._live.stop()
        self._bar = self._live = None

    def wait(self, what: str) -> None:
        """Show that something takes time, until there is progress to show."""
        self._clear()
        self._bar = Bar(what).__enter__()

    def show(self, progress: Progress) -> None:
        """Show the current state."""
        if self._quiet:
            if self._bar:
                self._bar.at(0, what=self._line(progress))
            return
        if self._bar:
            self._clear()
        if self._json:
            print_line(progress)
        elif sys.stdout.isatty():
            from rich.live import Live

            from headwater.render.deployment import progress_view

            if self._live is None:
                self._live = Live(auto_refresh=False, transient=False)
                self._live.start()
            self._live.update(progress_view(progress, title=self._title), refresh=True)
        else:
            states = tuple(u.status for u in progress.units)
            if progress.seconds - self._last >= PLAIN_EVERY or states != self._states:
                self._last, self._states = progress.seconds, states
                typer.echo(self._line(progress))

    @staticmethod
    def _line(progress: Progress) -> str:
        from headwater.render.deployment import progress_line

        return progress_line(progress)

    def rows(self, sink: str, rows: pa.Table) -> None:
        """Print rows of a console sink; JSON lines have their own form."""
        for row in rows.to_pylist():
            if self._json:
                print_line({"sink": sink, "row": row})
            else:
                self.say(f"{sink}: " + ", ".join(f"{k}={v}" for k, v in row.items()))

    def say(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        if self._quiet:
            return
        if self._live is None:
            self._clear()
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            typer.echo(text)


class stopping:  # noqa: N801 (reads as a statement: `with stopping(...) as stop`)
    """Turns the first Ctrl-C (or SIGTERM) into a request to stop, and ends everything at the second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()

    def __enter__(self) -> threading.Event:
        self._back = on_signals(STOPS, self._on_signal)
        return self._stop

    def __exit__(self, *_: object) -> None:
        self._back()

    def _on_signal(self, number: int) -> None:
        # os.write: the main thread may be inside a print.
        if not self._stop.is_set():
            self._stop.set()
            os.write(2, b"\nstopping at the next batch boundary (Ctrl-C again: at once)\n")
            return
        os.write(2, b"\nended at once; the next run repeats the batches that were cut off\n")
        from headwater.app import running

        running.end_spark(self._directory)
        os._exit(130)


class scratch:  # noqa: N801 (reads as a statement)
    """The directory of one run: the given one, or a temporary one that is removed unless kept."""

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
            say(f"kept in {self._path}")


def _tell_end(outcome: RunOutcome, loaded: LoadedDataflow, settings: RunSettings) -> None:
    if outcome.drained:
        say(f"all input is used up, after {outcome.seconds:.0f} s")
        return
    say(f"stopped at a batch boundary; run the same command again to continue (state in {settings.directory})")


def main() -> None:
    """Run the command line."""
    hide_environment()
    try:
        app()
    except Exception as error:
        shown = _unexpected(error)
        _show_error(shown)
        _end(shown.exit_code)
    except SystemExit as done:
        _end(done.code)


def _end(code: int | str | None) -> NoReturn:
    from headwater.app.flowfile import end_despite_threads

    end_despite_threads(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)
