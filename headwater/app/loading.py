"""Load dataflows from files: flow.py, flow.py:name or flow.json, with errors at the user's own lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headwater.app.flowfile import executed, moved
from headwater.core.errors import DataflowError, HeadwaterError
from headwater.dataflow.builder import DataflowBuilder, flow
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.graph import Dataflow

_PYSPARK = re.compile(rb"\bSparkSession\b|\bpyspark\b.*\bpipelines\b")
"""Text by which a file may be one for plain PySpark."""


@dataclass(frozen=True)
class LoadedDataflow:
    """A dataflow and its origin: ``directory`` holds the modules that its functions may import."""

    dataflow: Dataflow
    source: str
    directory: Path | None = None
    is_code: bool = True
    """Whether its Python file was run here, so that its functions are trusted."""


def load_dataflow(reference: str) -> LoadedDataflow:
    """Load ``flow.py``, ``flow.py:name`` or ``flow.json``; errors in the user's file name its line."""
    file, _, name = reference.rpartition(":") if _has_name(reference) else (reference, "", "")
    path = Path(file)
    if not path.is_file():
        what = "a directory, not a file" if path.is_dir() else "no such file"
        raise DataflowError(what, where=file, hint="give flow.py, flow.py:name or flow.json")
    if path.suffix == ".json":
        if name:
            raise DataflowError("a JSON file holds one dataflow", where=reference, hint=f"leave ':{name}' out")
        with _located(str(path)):
            return LoadedDataflow(Dataflow.from_json(_text(path)), str(path), is_code=False)
    if path.suffix != ".py":
        raise DataflowError("neither Python nor JSON", where=file, hint="give flow.py, flow.py:name or flow.json")
    path = path.resolve()
    with _plain_job(path) as finished, executed(path, shown=file) as module:
        job = finished() if not name else None
        found = job if job is not None else _found(module, name, shown=file)
        if not isinstance(found, (Dataflow, DataflowBuilder)) and callable(found):
            found = found()
        if isinstance(found, DataflowBuilder):
            found = found.build()
        if not isinstance(found, Dataflow):
            raise DataflowError(
                f"{name or 'build'} returns {type(found).__name__}, not a dataflow",
                where=file,
                hint="return hw.flow(...), or the value of its build()",
            )
    return LoadedDataflow(found, str(path), path.parent)


@contextlib.contextmanager
def _plain_job(path: Path) -> Iterator[Callable[[], DataflowBuilder | None]]:
    """Let a file for plain PySpark have a SparkSession without a server; yield a function that returns its dataflow."""
    try:
        asks = _PYSPARK.search(path.read_bytes())
    except OSError:
        asks = None  # reading it again says why
    if not asks:
        yield lambda: None
        return
    from headwater.frames.session import flow_name, offline

    job = flow(flow_name(path.stem, "job"))

    def finished() -> DataflowBuilder | None:
        session.pipeline.finish()
        return job if job.has_sinks else None

    with offline(job) as session:
        yield finished


def _has_name(reference: str) -> bool:
    file, colon, name = reference.rpartition(":")
    return bool(colon) and name.isidentifier() and file.endswith((".py", ".json"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataflowError(f"the file cannot be read: {error.strerror}", hint="check its permissions") from error
    except UnicodeDecodeError as error:
        raise DataflowError("the text is not UTF-8", hint="write it with Dataflow.to_json()") from error


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
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        raise moved(error, where) from error


def check_trust(loaded: LoadedDataflow, *, trust_code: bool) -> None:
    """Refuse a dataflow with pickled code from a file that was not run here, unless it is trusted."""
    if loaded.is_code or trust_code:
        return
    for operator in loaded.dataflow.operators:
        if any(_has_code(value) for value in vars(operator).values()):
            raise DataflowError(
                "carries pickled Python code, which would be run",
                where=f"{loaded.source}, {operator.where}",
                hint="run it with --trust-code if you know who wrote it",
            )


def _has_code(value: object) -> bool:
    return isinstance(value, PythonFunction) or (isinstance(value, BuiltinFunction) and value.has_code)
