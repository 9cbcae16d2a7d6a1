"""Load dataflows from files: flow.py, flow.py:name or flow.json, with errors at the user's own lines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.graph import Dataflow


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
        raise DataflowError("no such file", where=file, hint="give flow.py, flow.py:name or flow.json")
    if path.suffix == ".json":
        if name:
            raise DataflowError("a JSON file holds one dataflow", where=reference, hint=f"leave ':{name}' out")
        with _located(str(path)):
            return LoadedDataflow(Dataflow.from_json(_text(path)), str(path), is_code=False)
    if path.suffix != ".py":
        raise DataflowError("neither Python nor JSON", where=file, hint="give flow.py, flow.py:name or flow.json")
    path = path.resolve()
    with _importable(path.parent), _in_user_file(path, shown=file), _printing_on_stderr():
        module = _executed(path)
        found = _found(module, name, shown=file)
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
    """Let a flow file import its neighbours, and unload them afterwards: the next file may have others."""
    before, writes = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(directory))
    # Bytecode on disk is matched to its source by whole seconds and size: an edit can be missed.
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        with contextlib.suppress(ValueError):
            sys.path.remove(str(directory))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(directory) and "site-packages" not in file:
                del sys.modules[name]


class _FromSource(SourceFileLoader):
    """Loads a file from its source, never from cached bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@contextlib.contextmanager
def _printing_on_stderr() -> Iterator[None]:
    """Send all that a flow file prints to standard error: standard output is for the command's results.

    Programs that it starts, and libraries in C, write to the file descriptor.
    """
    out = sys.stdout
    out.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        out.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _executed(path: Path) -> ModuleType:
    # A unique name: a file called json.py must not replace a real module.
    name = f"flow_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise DataflowError("cannot be loaded as Python", where=str(path), hint="give a .py file")
    module = importlib.util.module_from_spec(spec)
    # Functions are pickled by value only when their module is known by name.
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


_SQL_TEXT = """PySpark's functions need a running Spark, which starts later: write columns as SQL text, as in \
where("v > 5"), and use functions over rows in map_batches or, with imports inside, in transform"""


@contextlib.contextmanager
def _in_user_file(path: Path, *, shown: str) -> Iterator[None]:
    """Turn any exception of the user's file into an error at its line."""
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
            f"the file raised {text.splitlines()[0]}",
            where=_user_line(error, path.parent) or shown,
            hint=_SQL_TEXT if _is_from_pyspark(error) else "correct the file; `python` with the file runs it alone",
        ) from error


def _is_from_pyspark(error: BaseException) -> bool:
    """Return whether PySpark raised an exception: its functions need a Spark session, which runs later."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _user_line(error: BaseException, directory: Path) -> str | None:
    """Return ``file:line`` of the innermost frame in the user's directory."""
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
    """Prefix an error's location with a file's line."""
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
    """Refuse a dataflow with pickled code from a file that was not run here, unless it is trusted."""
    if loaded.is_code or trust_code:
        return
    for operator in loaded.dataflow.operators:
        if any(isinstance(value, PythonFunction) for value in vars(operator).values()):
            raise DataflowError(
                "carries pickled Python code, which would be run",
                where=f"{loaded.source}, {operator.where}",
                hint="run it with --trust-code if you know who wrote it",
            )
