"""Random histories of pools: dataflows come, change and go while hosts do, and nothing is refused or left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headwater.app import pools
from headwater.control import tables
from headwater.control.store import Store
from headwater.dataflow.graph import Dataflow
from tests.unit.pooled import PoolHistory, at_places, city, made_up, scientific

Flows = Callable[[int], Mapping[str, Dataflow]]
WORKLOADS: Mapping[str, Flows] = {
    "city": lambda seed: city(),
    "scientific": lambda seed: scientific(),
    "made up": made_up,
    "at places": at_places,
}


def live(place: Path, flows: Flows, seeds: range, steps: int) -> Counter[str]:
    """Run a history for each seed; return the number of changes by kind."""
    done: Counter[str] = Counter()
    for seed in seeds:
        history = PoolHistory(Store(place / f"{seed}.db"), flows(seed), seed)
        try:
            history.run(steps)
        except Exception as error:
            error.add_note(f"seed {seed}: {dict(history.done)}, {', '.join(history.there)}")
            raise
        done += history.done
    return done


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(pools.TOKEN, raising=False)
    return tmp_path


@pytest.mark.parametrize("flows", [made_up, at_places])
def test_any_history_of_a_pool(place: Path, flows: Flows) -> None:
    done = live(place, flows, range(2), steps=4)
    assert done["submit"] > 2 and done["remove"] > 2


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("workload", "count"), [("city", 100), ("scientific", 300), ("made up", 300), ("at places", 300)]
)
def test_a_thousand_histories_of_pools(place: Path, workload: str, count: int) -> None:
    done = live(place, WORKLOADS[workload], range(1000, 1000 + count), steps=12)
    assert all(done[what] > count / 4 for what in ("submit", "update", "remove", "defragment", "continuum", "move"))
