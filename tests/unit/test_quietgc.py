"""Full garbage collections wait for quiet moments, and for some minutes at most."""

from __future__ import annotations

import gc

from headwater.web.dashboard.quietgc import MOST_SECONDS, QUIET_SECONDS, QuietCollector


def test_a_collection_waits_for_a_quiet_moment() -> None:
    now, done = [0.0], list[float]()
    collector = QuietCollector(lambda: now[0], lambda: done.append(now[0]))
    for second in range(500):
        now[0] = float(second)
        collector.rest(quiet=second in (5, 65, 70, 450))
    assert done == [65.0, 65.0 + MOST_SECONDS, 65.0 + 2 * MOST_SECONDS]
    assert QUIET_SECONDS < MOST_SECONDS


def test_python_makes_no_full_collections_while_it_is_started() -> None:
    before = gc.get_threshold()
    collector = QuietCollector()
    collector.start()
    try:
        assert gc.get_threshold()[:2] == before[:2]
        full, loops = gc.get_stats()[2]["collections"], []
        for _ in range(200_000):
            loop: list[object] = []
            loop.append(loop)
            loops.append(loop)
        assert gc.get_stats()[2]["collections"] == full
        assert gc.get_stats()[0]["collections"] > 0
    finally:
        collector.stop()
    assert gc.get_threshold() == before
    collector.stop()
    assert gc.get_threshold() == before
