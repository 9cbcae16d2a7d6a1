"""A zone that hangs delays only the changes that need it; all other changes and polls continue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headwater.control import controller, executor, poller, tables
from headwater.control.controller import Controller
from headwater.control.store import Store
from headwater.core.errors import Unavailable
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.testing.nodes import NodeCall, SimulatedNodes
from tests.unit.changes import ACME, FIRST, Version

THROUGH_S1 = replace(FIRST, locations=("L1", "L2"))
THROUGH_S2 = replace(FIRST, locations=("L4",))
HANGS = "S1"
CHANGED = replace(THROUGH_S1, more=True, above=1, tap=True)
"""Another change in each zone."""


def planned(name: str, version: Version) -> DeploymentPlan:
    return build(replace(version.flow(), name=name), ACME)


class World:
    """Two deployments that share only the cloud, and a zone of the first that can hang."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory / "store.db")
        self.zones = SimulatedNodes(before=self._before)
        self.asked: Counter[str] = Counter()
        """The number of reports requested from each node."""
        self.held = threading.Semaphore(0)
        """Counts calls that hang."""
        self._free = threading.Event()
        self._free.set()
        self.stop = threading.Event()
        acting = Controller(self.store, self.zones.open, lease=60, poll=0.05)
        self.thread = threading.Thread(target=acting.run, args=(self.stop,))

    def _before(self, call: NodeCall) -> None:
        if call.name == "report":
            self.asked[call.node] += 1
        if call.node == HANGS and not self._free.is_set():
            self.held.release()
            assert self._free.wait(120)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Make every call to the zone hang while the block runs."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def end(self) -> None:
        self._free.set()
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.store.close()

    def want(self, name: str, version: Version) -> int:
        return self.store.want(name, "run", planned(name, version))

    def ended(self, name: str, version: int) -> bool:
        return self.store.deployment(name).observed_version >= version

    def check(self, name: str, version: Version) -> None:
        base = self.store.active_plan(name)
        assert base is not None and base.dataflow == planned(name, version).dataflow
        assert self.store.deployment(name).phase == "running"
        assert self.zones.differences(base, name) == []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    # Shorten the waits for answers; the order of events stays the same.
    monkeypatch.setattr(poller, "ROUND_SECONDS", 0.5)
    monkeypatch.setattr(poller, "SILENT", 0.3)
    monkeypatch.setattr(executor, "_SILENT", 0.3)
    made = World(tmp_path)
    made.thread.start()
    try:
        first, other = made.want("near", THROUGH_S1), made.want("far", THROUGH_S2)
        until(lambda: made.ended("near", first) and made.ended("far", other))
        yield made
    finally:
        made.end()


def until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen within a minute")


def outcomes(world: World) -> list[str]:
    """Return the ends of all changes but the first of each deployment, in order."""
    told = world.store.told(after=0, limit=10_000)
    ends = [f"{e.deployment} {e.text}" for e in told if e.text.endswith((": done", ": superseded"))]
    return [end for end in ends if not end.endswith("version 1: done")]


def test_changes_that_do_not_need_it_begin_and_end(world: World) -> None:
    with world.hung():
        stuck = world.want("near", CHANGED)
        assert world.held.acquire(timeout=60)
        for alarm in (2, 3):
            version = world.want("far", replace(THROUGH_S2, alarm=alarm, above=alarm))
            until(lambda version=version: world.ended("far", version))  # type: ignore[misc]
            world.check("far", replace(THROUGH_S2, alarm=alarm, above=alarm))
        assert not world.ended("near", stuck)
        assert outcomes(world) == ["far version 2: done", "far version 3: done"]
    until(lambda: world.ended("near", stuck))
    assert outcomes(world)[2:] == ["near version 2: done"]
    world.check("near", CHANGED)


def test_a_change_that_needs_it_waits_says_so_and_goes_on(world: World) -> None:
    with world.hung():
        stuck = world.want("near", CHANGED)
        assert world.held.acquire(timeout=60)
        until(lambda: "does not answer" in world.store.deployment("near").message)
        assert not world.ended("near", stuck)
    until(lambda: world.ended("near", stuck))
    world.check("near", CHANGED)
    assert outcomes(world) == ["near version 2: done"]


def test_of_the_same_deployment_what_does_not_need_it_goes_on(world: World) -> None:
    """Change only the cloud's unit."""
    with world.hung():
        assert world.held.acquire(timeout=60)  # a report hangs
        version = world.want("near", replace(THROUGH_S1, alarm=2))
        until(lambda: world.ended("near", version))
        world.check("near", replace(THROUGH_S1, alarm=2))


def test_a_newer_wish_takes_the_place_of_one_that_hangs(world: World) -> None:
    with world.hung():
        world.want("near", replace(THROUGH_S1, tap=True))
        until(lambda: "does not answer" in world.store.deployment("near").message)
        newer = world.want("near", replace(THROUGH_S1, alarm=5))
        until(lambda: world.ended("near", newer))  # no step in the zone has begun
        assert outcomes(world) == ["near version 2: superseded", "near version 3: done"]
    world.check("near", replace(THROUGH_S1, alarm=5))
    last = world.want("near", replace(THROUGH_S1, tap=True, alarm=5))
    until(lambda: world.ended("near", last))
    world.check("near", replace(THROUGH_S1, tap=True, alarm=5))


def test_polls_of_others_go_on_and_it_is_told_as_silent(world: World) -> None:
    others = {"C1", "S2", "E4"}
    with world.hung():
        assert world.held.acquire(timeout=60)
        began = Counter(world.asked)
        until(lambda: all(world.asked[node] >= began[node] + 5 for node in others))
        assert world.asked[HANGS] == began[HANGS]  # a node that has not answered is not polled again
        until(lambda: errors(world, "near") == {HANGS: "does not answer"})
        assert errors(world, "far") == {}
    until(lambda: errors(world, "near") == {} and world.asked[HANGS] >= began[HANGS] + 2)


def errors(world: World, name: str) -> dict[str, str]:
    return {r.node: r.error for r in world.store.reports(name) if r.error is not None}


def test_many_changes_at_once_are_begun_a_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "WIDTH", 3)
    monkeypatch.setattr(controller, "SLOW", 60.0)  # no step counts as slow
    lock, now, found = threading.Lock(), set[str](), set[int]()
    advance = Controller.advance

    def counted(self: Controller, name: str) -> float:
        with lock:
            now.add(name)
            found.add(len(now))
        try:
            return advance(self, name)
        finally:
            with lock:
                now.discard(name)

    monkeypatch.setattr(Controller, "advance", counted)
    versions = {f"f{n}": world.want(f"f{n}", THROUGH_S2) for n in range(12)}
    until(lambda: all(world.ended(name, version) for name, version in versions.items()))
    assert 1 < max(found) <= 3


def test_a_busy_store_is_unavailable_for_now() -> None:
    with pytest.raises(Unavailable, match="busy"), tables.reachable("store"):
        raise PoolTimeout("QueuePool limit reached")
