"""PyFlink in an environment of its own, below the user's cache: Flink's packages do not go together with Spark's."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from headwater.core.errors import Unavailable

VERSION = "1.20.5"
"""The newest one whose PyPI packages support this Python and have readers and writers of CSV and JSON in them."""
_SECONDS = 1200.0


def directory() -> Path:
    """Return the directory of the environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"
    return cache / f"flink-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"


def home(interpreter: Path) -> Path:
    """Return the directory of PyFlink's package, which has Flink's jars and settings, in an environment."""
    return next(interpreter.parent.parent.glob("lib/python*/site-packages/pyflink"))


def python(place: Path, *, install: bool) -> Path:
    """Return the interpreter of PyFlink's environment; raise Unavailable where it is missing and cannot be made."""
    interpreter, ready = place / "bin" / "python", place / "installed"
    if ready.exists():
        return interpreter
    if not install:
        raise Unavailable("not installed", where="PyFlink", hint="run it with --flink")
    print(f"  installing apache-flink {VERSION} in {place}", file=sys.stderr, flush=True)
    try:
        venv.create(place, with_pip=True, clear=True)
        command = [str(interpreter), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}", "setuptools<81"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise Unavailable(
            f"PyFlink cannot be installed: {said[-1] if said else error}",
            where=str(place),
            hint="it needs a package index and Python 3.8 to 3.11",
        ) from error
    ready.touch()
    return interpreter
