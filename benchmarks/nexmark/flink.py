"""Queries on a mini-cluster of PyFlink (`benchmarks.flinkenv`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

UNSUPPORTED = {"q6": "Flink's OVER windows take no updates, as the published suite says"}


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
