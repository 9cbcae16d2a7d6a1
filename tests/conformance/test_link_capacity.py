"""Compare the relays' measurements with a link of the real kernel, while it is throttled and released."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.netlab import Lab
from tests.conformance import labs
from tests.patience import PATIENCE

CONTINUUM = """
name: capacity
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1}
"""
SIDE = str(Path(__file__).with_name("link_side.py"))
FAST, SLOW = 16e6, 1.6e6  # bit/s
DELAY = 0.02


@pytest.fixture
def lab() -> Iterator[Lab]:
    with labs.running(CONTINUUM, "cap") as made:
        yield made


def test_capacity_follows_the_link(lab: Lab, tmp_path: Path) -> None:
    lab.set_link("E1", bandwidth=FAST, delay=DELAY)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    piped: dict[str, Any] = {"env": env, "stdout": subprocess.PIPE, "text": True}
    argv = [sys.executable, SIDE]
    address = f"{lab.address('E1')}:7700"
    below = lab.popen("E1", [*argv, "serve", address, str(tmp_path)], **piped)
    assert below.stdout is not None and below.stdout.readline() == "ready\n"
    above = lab.popen("C1", [*argv, "pull", address, str(tmp_path)], **piped)

    def until(condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the measurement at the upper end meets the condition."""
        assert above.stdout is not None
        deadline, seen = time.monotonic() + PATIENCE, None
        for line in above.stdout:
            seen = json.loads(line)
            if condition(seen):
                return
            assert time.monotonic() < deadline, seen

    def near(bandwidth: float, least: float = 0.6) -> Callable[[dict[str, Any]], bool]:
        return lambda seen: seen["capacity"] and least < 8 * seen["capacity"] / bandwidth < 1.2

    fast = near(FAST, least=0.25)  # a machine that is busy may itself be slower than this link
    until(fast)
    until(lambda seen: seen["delay_s"] is not None and DELAY <= seen["delay_s"] < 5 * DELAY)
    until(lambda seen: 300_000 < seen["bytes_per_s"] < 600_000)
    lab.set_link("E1", bandwidth=SLOW)
    until(near(SLOW))
    lab.set_link("E1", bandwidth=FAST)
    until(fast)
