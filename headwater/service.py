"""The use cases, as functions that the command line and other faces call.

They take values and paths, give values, and raise HeadwaterErrors; they print nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from headwater.continuum import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sinks import ConsoleSink
from headwater.errors import DataflowError, DeploymentError, ErrorList, HeadwaterError, RuntimeFailure
from headwater.metrics import Progress
from headwater.plan import build as planning
from headwater.plan.model import DeploymentPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.runtime.deployment import Deployment
    from headwater.runtime.endpoint import LocalEndpoint

Shape = Literal["annotated", "one-unit", "unit-per-operator"]
WhenFull = Literal["block", "drop_oldest", "drop_newest", "fail"]


@dataclass(frozen=True)
class LoadedDataflow:
    """A dataflow and where it came from: ``directory`` holds the modules its functions may import."""

    dataflow: Dataflow
    source: str
    directory: Path | None = None
    is_code: bool = True
    """Whether it came as Python that has been run already, so that its functions are trusted."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How to run: where state is kept, how often batches start, what the embedded Spark may use."""

    directory: Path
    until_drained: bool = False
    fresh: bool = False
    trigger: str = "500 milliseconds"
    cores: int | None = None
    memory_mb: int = 1024
    max_buffer: int = 2**30
    when_full: WhenFull = "block"
    every: float = 1.0
    """Seconds between two looks at the progress."""
    python_path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    progress: Progress
    drained: bool
    seconds: float
    found: object = field(default=None)
    """What ``at_end`` returned."""


# ---------------------------------------------------------------- loading


def load_dataflow(reference: str) -> LoadedDataflow:
    """Load ``flow.py``, ``flow.py:name`` or ``flow.json``; errors in the user's file name its line."""
    file, _, name = reference.rpartition(":") if _has_name(reference) else (reference, "", "")
    path = Path(file)
    if not path.is_file():
        raise DataflowError("no such file", where=file, hint="give flow.py, flow.py:name or flow.json")
    if path.suffix == ".json":
        if name:
            raise DataflowError(
                "a JSON file holds one dataflow", where=reference, hint=f"leave ':{name}' out"
            )
        with _located(str(path)):
            return LoadedDataflow(Dataflow.from_json(_text(path)), str(path), is_code=False)
    if path.suffix != ".py":
        raise DataflowError(
            "neither Python nor JSON", where=file, hint="give flow.py, flow.py:name or flow.json"
        )
    path = path.resolve()
    with _importable(path.parent), _in_user_file(path, shown=file):
        module = _executed(path)
        found = _found(module, name, shown=file)
        if not isinstance(found, (Dataflow, DataflowBuilder)) and callable(found):
            found = found()
        if isinstance(found, DataflowBuilder):
            found = found.build()
    if not isinstance(found, Dataflow):
        raise DataflowError(
            f"{name or 'build'} gives {type(found).__name__}, not a dataflow",
            where=file,
            hint="return hw.flow(...), or what its build() gives",
        )
    return LoadedDataflow(found, str(path), path.parent)


def load_continuum(path: str | Path) -> Continuum:
    """Read a continuum file; raise ErrorList of ContinuumErrors."""
    return Continuum.from_yaml(path)


def plan(dataflow: Dataflow, continuum: Continuum, *, shape: Shape = "annotated") -> DeploymentPlan:
    """Plan a dataflow: as its marks say, all in the root zone, or cut at every edge."""
    match shape:
        case "one-unit":
            return planning.build(dataflow, continuum, planning.one_unit(dataflow, continuum))
        case "unit-per-operator":
            return planning.build(dataflow, continuum, planning.unit_per_operator(dataflow, continuum))
        case _:
            return planning.build(dataflow, continuum)


def default_directory(name: str) -> Path:
    """Give the directory a deployment of this name is kept in."""
    return Path(".headwater") / name


def _has_name(reference: str) -> bool:
    file, colon, name = reference.rpartition(":")
    return bool(colon) and name.isidentifier() and file.endswith((".py", ".json"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataflowError(f"cannot be read: {error}", where=str(path), hint="write it as UTF-8") from error


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let a flow file import its neighbours, and forget them afterwards: the next one may have others."""
    before = set(sys.modules)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(directory))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(directory) and "site-packages" not in file:
                del sys.modules[name]


def _executed(path: Path) -> ModuleType:
    # A name of its own: a file called json.py must not take the place of a real module.
    name = f"flow_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataflowError("cannot be loaded as Python", where=str(path), hint="give a .py file")
    module = importlib.util.module_from_spec(spec)
    # Functions travel by value only when their module is known by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _found(module: ModuleType, name: str, *, shown: str) -> Any:
    if name:
        if not hasattr(module, name):
            known = ", ".join(_dataflows(module)) or "none"
            raise DataflowError(f"there is no '{name}'", where=shown, hint=f"dataflows in the file: {known}")
        return getattr(module, name)
    named = _dataflows(module)
    if len(set(map(id, named.values()))) == 1:
        return next(iter(named.values()))
    if named:
        names = list(named)
        raise DataflowError(
            f"{len(names)} dataflows: {', '.join(names)}", where=shown, hint=f"name one: {shown}:{names[0]}"
        )
    build = getattr(module, "build", None)
    if callable(build):
        return build
    raise DataflowError(
        "no dataflow in the file",
        where=shown,
        hint="assign f = hw.flow('name') at the top level of the file, or define build()",
    )


def _dataflows(module: ModuleType) -> dict[str, Dataflow | DataflowBuilder]:
    return {k: v for k, v in vars(module).items() if isinstance(v, (Dataflow, DataflowBuilder))}


@contextlib.contextmanager
def _in_user_file(path: Path, *, shown: str) -> Iterator[None]:
    """Turn whatever the user's file raises into an error at its line."""
    try:
        yield
    except HeadwaterError as error:
        line = _user_line(error, path.parent)
        if line is None:
            raise
        raise _moved(error, line) from error
    except SyntaxError as error:
        raise DataflowError(
            f"not Python: {error.msg}",
            where=f"{error.filename or shown}:{error.lineno}",
            hint="correct this line",
        ) from error
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataflowError(
            f"the file raised {text}",
            where=_user_line(error, path.parent) or shown,
            hint="correct the file; `python` with the file runs it alone",
        ) from error


def _user_line(error: BaseException, directory: Path) -> str | None:
    """Give ``file:line`` of the innermost frame in the user's directory."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        ours = Path(__file__).parent in file.parents or "site-packages" in file.parts
        if not ours and file.is_absolute() and file.is_relative_to(directory):
            return f"{_short(file)}:{frame.lineno}"
    return None


def _short(file: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(file.relative_to(Path.cwd()))
    return str(file)


def _moved(error: HeadwaterError, line: str) -> HeadwaterError:
    """Put a file's line before the place an error names."""
    if isinstance(error, ErrorList):
        return ErrorList([_moved(e, line) for e in error.errors])
    where = f"{line}, {error.where}" if error.where else line
    return type(error)(error.what, where=where, hint=error.hint)


@contextlib.contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        raise _moved(error, where) from error


def check_trust(loaded: LoadedDataflow, *, trust_code: bool) -> None:
    """Refuse a dataflow that brings pickled code from a file that was not run here, unless it is trusted."""
    if loaded.is_code or trust_code:
        return
    for operator in loaded.dataflow.operators:
        if any(isinstance(value, PythonFunction) for value in vars(operator).values()):
            raise DataflowError(
                "carries pickled Python code, which would be run",
                where=f"{loaded.source}, {operator.where}",
                hint="run it with --trust-code if you know who wrote it",
            )


# ---------------------------------------------------------------- running


def run(
    plan: DeploymentPlan,
    settings: RunSettings,
    *,
    stop: threading.Event | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    show_rows: Callable[[str, pa.Table], None] = lambda sink, rows: None,
    feed: Callable[[threading.Event], None] = lambda stop: None,
    at_end: Callable[[Deployment, LocalEndpoint], object] = lambda deployment, endpoint: None,
    endpoint: LocalEndpoint | None = None,
) -> Outcome:
    """Run a plan until it is drained (if asked for), ``stop`` is set or a unit fails; keep its state.

    ``observe`` is called about every ``settings.every`` seconds, ``show_rows`` with the newest rows
    of a console sink, ``feed`` once to make input before
    it is drained (in a thread; its argument is set when it is to give up), ``at_end`` once before Spark ends.
    A given ``endpoint`` is used and left running.
    Raises the failed unit's error, DeploymentError if the directory is in use or holds another plan.
    """
    from headwater.runtime.deployment import ChannelSettings, Deployment
    from headwater.runtime.endpoint import LocalEndpoint

    stop = stop or threading.Event()
    begun = time.monotonic()
    with _only_one(settings.directory):
        if settings.fresh:
            _clear(settings.directory)
        channel = ChannelSettings(max_bytes=settings.max_buffer, when_full=settings.when_full)
        spark = endpoint or LocalEndpoint.start(
            settings.directory.resolve() / "spark",
            cores=settings.cores,
            memory_mb=settings.memory_mb,
            python_path=settings.python_path,
        )
        try:
            deployment = Deployment(
                plan,
                settings.directory.resolve(),
                spark,
                trigger=settings.trigger,
                channel=channel,
            )
            drained = False
            if not stop.is_set():
                consoles = _Consoles(deployment, show_rows)
                deployment.start()

                def look(progress: Progress) -> None:
                    observe(progress)
                    consoles.look()

                try:
                    drained = _watch(deployment, settings, stop=stop, observe=look, feed=feed)
                finally:
                    deployment.stop()
                consoles.look()
            progress = deployment.progress()
            observe(progress)
            found = at_end(deployment, spark)
        finally:
            if endpoint is None:
                spark.stop()
    return Outcome(progress=progress, drained=drained, seconds=time.monotonic() - begun, found=found)


def _watch(
    deployment: Deployment,
    settings: RunSettings,
    *,
    stop: threading.Event,
    observe: Callable[[Progress], None],
    feed: Callable[[threading.Event], None],
) -> bool:
    """Look at the progress again and again; return whether all input was used up."""
    ended = threading.Event()
    drain = _Drain(deployment, feed, ended) if settings.until_drained else None
    if drain:
        drain.start()
    try:
        while True:
            progress = deployment.progress()
            observe(progress)
            if drain and drain.error:
                raise drain.error
            for unit in progress.failed:
                what, _, hint = (unit.error or f"unit {unit.unit} failed").partition("\n  -> ")
                raise RuntimeFailure(
                    what, hint=hint or "correct the cause and run again: it goes on from its last batch"
                )
            if drain and ended.is_set():
                return True
            if _wait(stop, ended, settings.every):
                return False
    finally:
        if drain:
            drain.give_up.set()
            drain.join(30)


class _Consoles:
    """Follows the console sinks: what was there before this run is not shown again."""

    def __init__(self, deployment: Deployment, show: Callable[[str, pa.Table], None]) -> None:
        self._deployment = deployment
        self._show = show
        operators = deployment.plan.dataflow.sinks
        self._sinks = [o for o in operators if isinstance(o, ConsoleSink)]
        self._positions: dict[str, dict[str, int]] = {o.id: {} for o in self._sinks}
        for sink in self._sinks:
            self._newest(sink)

    def look(self) -> None:
        """Show what came since the last look."""
        for sink in self._sinks:
            rows = self._newest(sink)
            if rows is not None:
                self._show(sink.id, rows)

    def _newest(self, sink: ConsoleSink) -> pa.Table | None:
        import pyarrow as pa

        batches = list(self._deployment.sink_tail(sink.id, self._positions[sink.id]))
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        return table.slice(max(0, table.num_rows - sink.rows))


class _Drain(threading.Thread):
    """Waits for a deployment to use up its input, beside the loop that shows progress."""

    def __init__(
        self, deployment: Deployment, feed: Callable[[threading.Event], None], ended: threading.Event
    ) -> None:
        super().__init__(name="drain", daemon=True)
        self.give_up = threading.Event()
        self.error: BaseException | None = None
        self._deployment = deployment
        self._feed = feed
        self._ended = ended

    def run(self) -> None:
        try:
            self._feed(self.give_up)
            if not self.give_up.is_set():
                self._deployment.drain(stop=self.give_up)
        except BaseException as error:
            self.error = error
        self._ended.set()


def _wait(stop: threading.Event, ended: threading.Event, seconds: float) -> bool:
    """Sleep until something happens; return whether it is a request to stop."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not ended.is_set():
        if stop.wait(0.1):
            return True
    return stop.is_set() and not ended.is_set()


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Keep a second run out of a directory: it would end the first one's Spark."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            owner = lock.read().strip()
            raise DeploymentError(
                f"is in use by process {owner}" if owner else "is in use",
                where=str(directory),
                hint="stop that run first (Ctrl-C, or kill -TERM its process), or give another --dir",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _clear(directory: Path) -> None:
    """Delete a deployment, but never a directory that is something else."""
    from headwater.runtime.endpoint import end_stale

    end_stale(directory.resolve() / "spark")
    rest = [p for p in directory.iterdir() if p.name != ".lock"]
    ours = {"plan.json", "spark", "channels", "units", "checkpoints", "sinks", "deadletters"}
    strange = sorted(p.name for p in rest if p.name not in ours)
    if strange:
        raise DeploymentError(
            f"holds other things than a deployment: {', '.join(strange[:5])}",
            where=str(directory),
            hint="give a directory of its own with --dir",
        )
    for path in rest:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def end_spark(directory: Path) -> None:
    """End the Spark of a deployment at once; the next run does the batches over that were cut off."""
    from headwater.runtime.endpoint import end_stale

    end_stale(directory.resolve() / "spark")


# ---------------------------------------------------------------- dead letters


def dead_letters(directory: Path) -> Iterator[dict[str, Any]]:
    """Give the malformed records of a deployment, running or not."""
    from headwater.runtime.deadletters import read_dead_letters
    from headwater.runtime.layout import Layout

    layout = Layout(directory)
    if not layout.plan.exists():
        raise DeploymentError(
            "no deployment here", where=str(directory), hint="give the --dir of `headwater run`"
        )
    letters: Iterator[dict[str, Any]] = read_dead_letters(layout.all_dead_letters)
    return letters


def only_deployment() -> Path:
    """Give the directory of the deployment below .headwater, if there is exactly one."""
    root = default_directory("x").parent
    found = sorted(p.parent for p in root.glob("*/plan.json"))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} deployments: {', '.join(p.name for p in found)}" if found else "no deployment"
    raise DeploymentError(what, where=str(root), hint="name its directory with --dir")
