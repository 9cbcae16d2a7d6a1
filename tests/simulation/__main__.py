"""Play drawn histories: ``python -m tests.simulation --histories N --seed S``.

A history that breaks a rule is made as short as possible, and printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.simulation.history import Broken, History, histories, play

HASH_SEED = "0"
"""Python's order of sets depends on it, so every run has the same one."""


def find(count: int, seed: int, *, shrink: bool = True) -> tuple[int, str | None]:
    """Play drawn histories; return their number, and the account of the shortest one that breaks a rule."""
    played, told = 0, ""
    root = _root()

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(histories())
    def each(history: History) -> None:
        nonlocal played, told
        played += 1
        try:
            play(history, root)
        except Broken as error:
            told = f"{history}\n{error}"
            raise

    try:
        each()
    except Broken:
        return played, told
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return played, None


def _root() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="headwater-simulation-", dir=memory if memory.is_dir() else None))


def main(arguments: list[str]) -> int:
    """Play histories; return 1 where one breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shrink", action="store_true", help="print the first history that breaks a rule")
    given_ = parser.parse_args(arguments)
    begun = time.perf_counter()
    played, broken = find(given_.histories, given_.seed, shrink=not given_.no_shrink)
    seconds = time.perf_counter() - begun
    print(f"{played} histories in {seconds:.0f} s")
    if broken is not None:
        print(f"seed {given_.seed} breaks a rule:\n{broken}")
    return 0 if broken is None else 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
