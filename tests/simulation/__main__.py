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

from tests.simulation.bugs import BUGS, bug
from tests.simulation.history import Broken, History, Step, histories, play
from tests.simulation.regressions import REGRESSIONS

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


def replay(history: History, *, trace: bool = False) -> str | None:
    """Play one history; return the rule that it breaks."""
    root = _root()
    try:
        play(history, root, trace=print if trace else None)
    except Broken as error:
        return str(error)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return None


def _root() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="headwater-simulation-", dir=memory if memory.is_dir() else None))


def main(arguments: list[str]) -> int:
    """Play histories; return 1 where one breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shrink", action="store_true", help="print the first history that breaks a rule")
    parser.add_argument("--history", help="play this one, in the form in which it was printed")
    parser.add_argument("--trace", action="store_true", help="print its requests and deaths")
    parser.add_argument("--regressions", action="store_true", help="play the histories that once broke a rule")
    parser.add_argument("--bug", choices=sorted(BUGS), help="put a fault into the product first")
    given_ = parser.parse_args(arguments)
    if given_.history or given_.regressions:
        known = (
            {"the history": eval(given_.history, {"History": History, "Step": Step})} if given_.history else REGRESSIONS
        )
        with bug(given_.bug):
            found = {
                name: told
                for name, history in known.items()
                if (told := replay(history, trace=given_.trace)) is not None
            }
        for name, told in found.items():
            print(f"{name} breaks a rule:\n{told}")
        print(f"{len(known)} histories, {len(found)} break a rule")
        return 1 if found else 0
    begun = time.perf_counter()
    with bug(given_.bug):
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
