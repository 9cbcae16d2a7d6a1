"""The benchmark of the controller: its worlds, and one row of it on a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.control import World, measure


@pytest.mark.parametrize(("zones", "deployments", "hung"), [(10, 1, 0), (100, 10, 1), (1000, 100, 10)])
def test_one_node_in_a_hundred_hangs(zones: int, deployments: int, hung: int) -> None:
    world = World.of(zones)
    assert (len(world.continuum.zones), len(world.sites), len(world.hung)) == (zones, deployments, hung)
    assert sum(world.hangs(site) for site in world.sites) == hung


def test_a_row_of_a_few_zones(tmp_path: Path) -> None:
    row = measure(20, tmp_path, 1, (1.0, 2.0))
    assert (row["zones"], row["deployments"], row["hung"]) == (20, 2, 0)
    assert 0 < row["poll_round_s"] < row["idle_watched_s"]
    assert row["plan_s"] > 0 and row["change_begins_s"] > 0 and row["rss_mb"] > 0
    assert 0 < row["idle_cores"] < 1
