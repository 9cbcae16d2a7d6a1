"""A real controller process, killed with SIGKILL at random moments."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control.store import Store
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import FIRST, Version

ROOT = Path(__file__).parents[2]
VERSIONS = (
    FIRST,
    replace(FIRST, wider=True, locations=("L1", "L4", "L5")),
    replace(FIRST, locations=("L1", "L2", "L4", "L5"), alarm=2),
    replace(FIRST, tap=True, path="/elsewhere"),
)


def start(directory: Path, place: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.unit.zones_in_a_file", str(directory), place]
    return subprocess.Popen(command, cwd=ROOT)


@pytest.mark.parametrize(
    ("versions", "seed"),
    [(VERSIONS[:2], 11), *(pytest.param(VERSIONS, s, marks=pytest.mark.long) for s in range(3))],
)
def test_killed_at_random_it_ends_in_the_wanted_plan(tmp_path: Path, versions: tuple[Version, ...], seed: int) -> None:
    changed_and_killed(tmp_path, str(tmp_path / "store.db"), versions, seed)


def changed_and_killed(directory: Path, place: str, versions: tuple[Version, ...], seed: int) -> None:
    """Apply versions one after another to a store, and kill controllers until each version is active."""
    rng = random.Random(seed)
    store, zones = Store(place), SimulatedNodes(directory / "zones.json")
    kills = 0
    for number, version in enumerate(versions, start=1):
        longest = 0.3
        store.want("f", "run", version.plan())
        deadline = time.monotonic() + 300
        while store.deployment("f").observed_version < number:
            assert time.monotonic() < deadline, store.deployment("f")
            process = start(directory, place)
            try:
                _until_it_acts(store, process, number)
                time.sleep(rng.uniform(0, longest))
                longest *= 1.6  # at any speed of the machine, some kills hit a change, and one comes after its end
            finally:
                process.kill()
                process.wait()
            kills += store.deployment("f").observed_version < number
        base = store.active_plan("f")
        assert base is not None and base.dataflow == version.flow()
        assert store.deployment("f").phase == "running"
        assert zones.differences(base, "f") == []
    store.close()
    assert kills >= 2  # else the changes were too fast for the kills


def _until_it_acts(store: Store, process: subprocess.Popen[bytes], version: int) -> None:
    """Wait until the process acts, so that kills do not hit only its start."""
    for _ in range(600):
        lease = store.lease()
        acting = lease is not None and lease.label.endswith(f":{process.pid}")
        if acting or store.deployment("f").observed_version >= version:
            return
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("it never acted")
