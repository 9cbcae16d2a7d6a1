"""`headwater up` in a process of its own, for tests of changes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from headwater import live
from headwater.control.records import Change

PATIENCE = 300.0
MOST_KILLS = 6
"""In one change: some steps take longer than the time between two kills."""


class Controller:
    """`headwater up` in a process of its own, killed and started again by chance."""

    def __init__(self, name: str, place: Path, seed: int) -> None:
        self.name = name
        self.place = place
        self.kills = 0
        self._chance = random.Random(seed)
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "headwater", "up", "--store", str(self.place / "store.db")]
        root = str(Path(__file__).resolve().parents[2])
        with (self.place / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--home", str(self.place), "--quick"],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": root},
            )

    def carry_out(self, version: int, *, kill: bool) -> None:
        """Wait until a version is in force; kill the controller meanwhile, with ``kill``."""
        change = self.end_of(version, kill=kill)
        assert change.outcome == "done", change

    def end_of(self, version: int, *, kill: bool) -> Change:
        """Wait until a version is dealt with; kill the controller meanwhile, with ``kill``."""
        begun, before = time.monotonic(), self.kills
        due = begun + self._chance.uniform(0.3, 3.0)
        while True:
            (now,) = live.status(self.name, str(self.place / "store.db"))
            if now.deployment.dealt >= version:
                assert now.change is not None
                return now.change
            assert time.monotonic() - begun < PATIENCE, now
            if kill and time.monotonic() > due and self.kills < before + MOST_KILLS:
                self.kill()
                due = time.monotonic() + self._chance.uniform(0.5, 4.0)
            time.sleep(0.1)

    def kill(self) -> None:
        self.kills += 1
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)
