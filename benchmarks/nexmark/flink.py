"""PyFlink in an environment of its own, below the user's cache: Flink's packages do not go together with Spark's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "1.20.5"
"""The newest one whose PyPI packages support this Python and have readers and writers of CSV and JSON in them."""
UNSUPPORTED = {"q6": "Flink's OVER windows take no updates, as the published suite says"}
INSTALL_SECONDS = 1200


def environment() -> Path:
    """Return the directory of the environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"
    return cache / f"flink-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"


def python(*, install: bool) -> tuple[Path | None, str]:
    """Return Python with PyFlink, or None and the reason why there is none."""
    place = environment()
    found = place / "bin" / "python"
    ready = place / "installed"
    if ready.exists():
        return found, ""
    if not install:
        return None, "not installed: run it with --flink"
    print(f"  installing apache-flink {VERSION} in {place}", file=sys.stderr, flush=True)
    try:
        venv.create(place, with_pip=True, clear=True)
        command = [str(found), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}", "setuptools<81"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        return None, f"not installed: {(error.stderr or '').strip().splitlines()[-1:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"not installed: {error}"
    ready.touch()
    return found, ""


def run(
    found: Path, order: Mapping[str, Any], queries: Sequence[str], log: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run queries one after the other in one mini-cluster; yield the seconds, or the error, of each."""
    job = Path(__file__).with_name("flinkjob.py")
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with log.open("w") as errors:
        command = [str(found), str(job), json.dumps({**order, "queries": list(queries)})]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables, start_new_session=True
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    row = json.loads(line)
                    yield row.pop("query"), row
            process.wait(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Python, and Java where it is left
            process.wait()
