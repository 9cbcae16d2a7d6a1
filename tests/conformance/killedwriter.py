"""A writer in a process of its own that is killed at random moments and started again, until it has written all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_with_kills(
    program: str, target: str, progress: Path, last: int, *, kills: int, batches: int, within: float
) -> None:
    """Run a program that writes batches up to ``last`` to a target, and kill it some times.

    Its arguments are the target, the file of its ``progress`` and ``last``; it prints a line after each batch. It is
    killed after one to ``batches`` of them, and up to ``within`` seconds.
    """
    progress.write_text("0")
    chance = random.Random(4)
    command = [sys.executable, "-c", program, target, str(progress), str(last)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for turn in range(kills + 1):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if turn < kills:
                for _ in range(chance.randint(1, batches)):  # some batches, then somewhere in the next one
                    process.stdout.readline()
                time.sleep(chance.uniform(0, within))
                process.send_signal(signal.SIGKILL)
            process.wait(120)
    assert process.returncode == 0
