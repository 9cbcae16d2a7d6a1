"""Many small batches on real Spark: files, handles, threads, processes and memory stay level."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployments.soaking import Soak, batches_between, growth

LEAST_BATCHES = 500
"""Batches between the two times that are compared: a leak of one in a hundred batches exceeds the bounds."""
EXPECTED = {
    # Spark opens and closes files of its state while it is measured, and starts Python processes by need.
    "handles": 5,
    "sockets": 4,
    "threads": 6,
    "processes": 4,
    # Spark deletes old versions of its state once a minute: what is found depends on the time since.
    "files": 150,
    "MiB": 20,
    # Two Sparks, with garbage of up to half a minute.
    "spark MiB": 100,
    # A sample of 4 KB is stored every second, and all of them are kept for an hour.
    "store bytes": 6 << 20,
}
"""Growth of each kind of resource that is no leak."""


# A minute does not suffice: Spark tidies up once a minute, and idle Python processes end after one.
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_day_of_small_batches_leaves_nothing_behind(tmp_path: Path) -> None:
    with Soak(tmp_path) as soak:
        samples = soak.run(1500)
    assert batches_between(samples) > LEAST_BATCHES, "too few batches show no leak"
    roles = ("agent", "controller", "spark", "python")
    assert all(samples[-1].held[f"{role} {what}"] for role in roles for what in ("handles", "threads", "MiB"))
    bound = {name: EXPECTED.get(name, EXPECTED.get(name.split()[-1], 0)) for name in growth(samples)}
    assert {name: more for name, more in growth(samples).items() if more > bound[name]} == {}
