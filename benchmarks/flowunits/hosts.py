"""The hosts of the experiment, one in each zone: their disks, and the processes of a variant on them.

A host's disk is a directory, and its processes see those of other hosts as empty. An edge's directory
is named after its location, so that `{location}` in the path of a source leads to the host's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.flowunits.workload import FLOWUNITS, Shape
from benchmarks.netlab import Lab, ProcessorShares
from headwater.core.errors import RuntimeFailure
from headwater.spark.endpoint import find_java

_TAIL = 15


class Hosts:
    """The processes of one variant, by name, and the disks below `place`."""

    def __init__(
        self, variant: str, lab: Lab, place: Path, shares: ProcessorShares | None = None, shape: Shape = FLOWUNITS
    ) -> None:
        self.variant, self.lab, self.place, self.shares, self.shape = variant, lab, place, shares, shape
        self._processes: dict[str, subprocess.Popen[Any]] = {}

    def directory(self, zone: str) -> Path:
        """Return the disk of a zone's host."""
        return self.place / self.shape.edges.get(zone, zone)

    def make(self) -> None:
        """Make the disks."""
        for zone in self.shape.cores:
            (self.directory(zone) / "tmp").mkdir(parents=True, exist_ok=True)

    def environment(self, zone: str) -> dict[str, str]:
        """Return the environment of a process on a host: this checkout, Java, and the host's own directories."""
        scratch = str(self.directory(zone) / "tmp")
        return {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "HOME": str(self.directory(zone)),
            # With an empty cache each host's first Spark writes a class-data archive for minutes, beside the rows.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "JAVA_HOME": str(find_java()),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch}",
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start(
        self,
        zone: str,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[Any]:
        """Start a process on a host; `env` comes on top of the environment."""
        with (self.directory(zone) / f"{name}.log").open("ab") as log:
            process = self.lab.popen(
                zone,
                argv,
                env={**self.environment(zone), **(env or {})},
                cwd=self.directory(zone),
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=stdout if stdout is not None else log,
                stderr=log,
                hide=[self.directory(other) for other in self.shape.cores if other != zone],
                join=self.shares.entrances(zone) if self.shares is not None else (),
                text=True,
            )
        self._processes[name] = process
        return process

    def check(self) -> None:
        """Raise if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self.failure(name, f"{name} has ended with status {process.returncode}")

    def finish(self, name: str, seconds: float) -> None:
        """Wait until a process has ended with success, while all others run."""
        process = self._processes.pop(name)
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            self.check()
            if time.monotonic() > deadline:
                self.lab.end(process)
                raise self.failure(name, f"{name} has not ended after {seconds:.0f} s")
            time.sleep(0.1)
        self.lab.end(process)
        if process.returncode:
            raise self.failure(name, f"{name} has ended with status {process.returncode}")

    def end(self, first: Iterable[str] = (), *, patience: float = 0.0) -> None:
        """End all processes: some before the others, which are asked at once and given `patience` seconds."""
        for name in first:
            if (process := self._processes.pop(name, None)) is not None:
                self.lab.end(process)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.lab.end(process)
        self._processes.clear()

    def failure(self, name: str, what: str) -> RuntimeFailure:
        """Return an error that ends with the last lines of a process's log."""
        tail: list[str] = []
        for log in sorted(self.place.glob(f"*/{name}*.log"))[:1]:
            with contextlib.suppress(OSError):
                tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
        return RuntimeFailure("\n".join([what, *tail]), where=self.variant, hint="keep the logs with --keep DIR")
