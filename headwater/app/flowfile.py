"""Execute a flow file: anything that it raises is an error at its line, and this process stays as it was."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import sysconfig
import threading
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from io import BytesIO
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TextIO

from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.core.text import printable
from headwater.sql.columns import columns_allowed

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
_THREADS_SECONDS = 2.0  # time for threads of a flow file to end by themselves
_LONGEST = 300  # characters of an exception's text in a message
_NO_SPARK = """Spark starts later, on the zones: start no session here; write columns with pyspark.sql.functions or as \
SQL text, and use functions over rows in map_batches or, with imports inside, in transform"""
_ALONE = "correct the file; `python` with the file runs it alone"
_NO_END = "remove it: a flow file describes a dataflow, and the command decides when it ends"

_left: list[threading.Thread] = []


@contextlib.contextmanager
def executed(path: Path, *, shown: str) -> Iterator[ModuleType]:
    """Execute a Python file, and let the block use its module.

    Every exception of the file, also one that the block causes in the file's code, is raised as a DataflowError at its
    line. A real Ctrl-C stays a KeyboardInterrupt, even where the file catches it.
    """
    _check_text(path, shown=shown)
    with _interruptible() as interrupted, _process_restored(), columns_allowed(), _importable(path.parent):
        try:
            yield _module(path)
        except BaseException as error:
            if interrupted():
                raise KeyboardInterrupt from error
            raise _error_of(error, path, shown=shown) from error
    if interrupted():
        raise KeyboardInterrupt


def end_despite_threads(code: int) -> None:
    """Let this process end with an exit code although threads of flow files run on: soon, where they do not end.

    Python waits for such threads at its end. Idle threads of a pool end there by themselves.
    """

    def end() -> None:
        if names := [thread.name for thread in _left if thread.is_alive()]:
            text = f"ended with threads that the flow file left running: {printable(', '.join(names), 200)}\n"
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os.write(2, text.encode())
            os._exit(code)

    if any(thread.is_alive() for thread in _left):
        timer = threading.Timer(_THREADS_SECONDS, end)
        timer.daemon = True
        timer.start()


def moved(error: HeadwaterError, line: str | None) -> HeadwaterError:
    """Prefix an error's location with a file's line."""
    if isinstance(error, ErrorList):
        return ErrorList([moved(e, line) for e in error.errors])
    where = ", ".join(part for part in (line, error.where) if part)
    # A class of the file may have another constructor, and any exit code.
    kind = type(error) if type(error).__module__.startswith("headwater.") else DataflowError
    return kind(error.what, where=where or None, hint=error.hint)


# ---------------------------------------------------------------- the file


def _check_text(path: Path, *, shown: str) -> None:
    """Refuse a file that is no text: Python's own messages name neither the file nor what to do."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataflowError(
            f"the file cannot be read: {error.strerror}", where=shown, hint="check its permissions"
        ) from error
    if not data.strip():
        raise DataflowError("the file is empty", where=shown, hint="assign f = hw.flow('name') in it")
    if b"\0" in data:
        raise DataflowError("a binary file, not Python", where=shown, hint="give flow.py, flow.py:name or flow.json")
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataflowError(
            f"the text is not {error.encoding.upper()}", where=f"{shown}:{line}", hint="save the file as UTF-8"
        ) from error
    except SyntaxError as error:  # an unknown encoding, or a first line that is not UTF-8
        raise DataflowError(f"not Python: {error.msg}", where=f"{shown}:1", hint="save the file as UTF-8") from error


class _FromSource(SourceFileLoader):
    """Loads a file from its source, never from cached bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _module(path: Path) -> ModuleType:
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


# ---------------------------------------------------------------- the process


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Return a function that tells whether Ctrl-C was pressed in the block; the second time ends this process.

    A file may raise KeyboardInterrupt itself: only the signal tells.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(130)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    # Another handler, as `--watch` has it, raises nothing.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: bool(seen)
    finally:
        if main and before is not None:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _process_restored() -> Iterator[None]:
    """Send what a flow file prints to standard error, and restore what it may change: streams, limits, warnings.

    Standard output is for the command's results. Programs that it starts, and libraries in C, write to the file
    descriptor.
    """
    out, err = sys.stdout, sys.stderr
    out.flush()
    limit = sys.getrecursionlimit()
    before = set(threading.enumerate())
    kept = {number: os.dup(number) for number in (1, 2)}
    os.dup2(2, 1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.setrecursionlimit(limit)
        for number, copy in kept.items():
            if number == 1 and not out.closed:
                out.flush()
            os.dup2(copy, number)
            os.close(copy)
        sys.stdout = _opened(out, 1)
        sys.stderr = _opened(err, 2)
        _left.extend(t for t in threading.enumerate() if t not in before and not t.daemon)


def _opened(stream: TextIO, number: int) -> TextIO:
    """Return a standard stream, opened again where a file has closed it; the descriptor is still open."""
    return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False) if stream.closed else stream


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


# ---------------------------------------------------------------- its errors


def _error_of(error: BaseException, path: Path, *, shown: str) -> HeadwaterError:
    """Return the error of an exception of the user's file, at its line."""
    line = _user_line(error, path.parent)
    if isinstance(error, HeadwaterError):
        return moved(error, line)
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_absolute():
        number = "" if error.lineno is None else f":{error.lineno}"
        return DataflowError(
            f"not Python: {printable(str(error.msg), _LONGEST)}",
            where=f"{_short(Path(error.filename))}{number}",
            hint="correct this line",
        )
    hint = _NO_END if isinstance(error, (SystemExit, KeyboardInterrupt)) else _ALONE
    return DataflowError(
        f"the file raised {_in_words(error)}",
        where=line or shown,
        hint=_NO_SPARK if _is_from_pyspark(error) else hint,
    )


def _in_words(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, which comes from the file's code."""
    name = printable(type(error).__name__, 100)
    try:
        text = str(error)
    except BaseException as failed:
        return f"{name}, whose __str__ raises {printable(type(failed).__name__, 100)}"
    first = next((line.strip() for line in text[: 10 * _LONGEST].splitlines() if line.strip()), "")
    return f"{name}: {printable(first, _LONGEST)}" if first else name


def _is_from_pyspark(error: BaseException) -> bool:
    """Return whether PySpark raised an exception: its functions need a Spark session, which runs later."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _user_line(error: BaseException, directory: Path) -> str | None:
    """Return ``file:line`` of the innermost frame in the user's directory."""
    around = [library for library in (_PACKAGE, _LIBRARY) if not directory.is_relative_to(library)]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        ours = "site-packages" in file.parts or any(file.is_relative_to(library) for library in around)
        if not ours and file.is_absolute() and file.is_relative_to(directory):
            return f"{_short(file)}:{frame.lineno}"
    return None


def _short(file: Path) -> str:
    with contextlib.suppress(ValueError, OSError):  # the file may have removed the working directory
        return str(file.relative_to(Path.cwd()))
    return str(file)
