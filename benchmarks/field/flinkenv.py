"""PyFlink in an environment of its own below the cache directory: its requirements do not go with those of PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headwater.core.errors import Unavailable

VERSION = "2.3.0"
_SECONDS = 900.0


def directory() -> Path:
    """Return the directory of the environment."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "headwater" / f"flink-{VERSION}"


def python(place: Path) -> Path:
    """Return the interpreter of PyFlink's environment, which is made where it is missing; raise Unavailable."""
    interpreter = place / "bin" / "python"
    if _has_flink(interpreter):
        return interpreter
    try:
        make = [sys.executable, "-m", "venv", "--clear", str(place)]
        subprocess.run(make, check=True, capture_output=True, text=True, timeout=_SECONDS)
        install = [str(interpreter), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"]
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise Unavailable(
            f"PyFlink cannot be installed: {said[-1] if said else error}",
            where=str(place),
            hint="it needs a package index and Python 3.9 to 3.12; leave it out with --systems",
        ) from error
    return interpreter


def _has_flink(interpreter: Path) -> bool:
    if not interpreter.exists():
        return False
    asked = subprocess.run([str(interpreter), "-c", "import pyflink"], capture_output=True, timeout=_SECONDS)
    return asked.returncode == 0
