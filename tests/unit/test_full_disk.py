"""A controller whose store cannot be written for a while: it waits, gives no orders, and goes on."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control.controller import Controller
from headwater.control.database import LeaseLost
from headwater.control.reserve import is_reserved
from headwater.control.store import Store
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import FIRST

LEASE = 1.0
LIMIT = 120.0
"""Seconds for each event: long enough for a busy machine."""


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a disk of two megabytes, too small for a reserve, or of as many as the test names."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={getattr(request, 'param', 2)}m"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def reserved(store: Store) -> bool:
    with store._reading() as connection:
        return is_reserved(connection)


@contextmanager
def full(disk: Path, *, keep_journal: bool = False) -> Iterator[Callable[[], None]]:
    """Leave no byte of a disk free; the block may fill it again.

    The database's journal is deleted first: it has room for further writes.
    """
    filler = disk / "filler"

    def fill() -> None:
        if not keep_journal:
            with (
                closing(sqlite3.connect(disk / "store.db", isolation_level=None)) as database,
                contextlib.suppress(sqlite3.OperationalError),
            ):
                for mode in ("PERSIST", "DELETE"):  # the change deletes the file
                    database.execute(f"PRAGMA journal_mode = {mode}")
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096) == 4096:
                pass

    fill()
    try:
        yield fill
    finally:
        filler.unlink()


def told_when_full(one: Running, text: str, fill: Callable[[], None]) -> bool:
    """Fill a disk again, unless a text was said."""
    if not one.told(text):
        fill()
    return one.told(text)


class Running:
    """A controller in a thread."""

    def __init__(self, place: Path, nodes: SimulatedNodes, holder: str = "one") -> None:
        self.store = Store(place)
        self.said: list[str] = []
        self.error: HeadwaterError | None = None
        self.stop = threading.Event()
        self.controller = Controller(self.store, nodes.open, holder=holder, lease=LEASE, poll=0.2)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.controller.run(self.stop, say=self.said.append)
        except HeadwaterError as error:
            self.error = error

    def told(self, text: str) -> bool:
        return any(text in one for one in self.said)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(LIMIT)
        self.store.close()


@contextmanager
def running(place: Path, nodes: SimulatedNodes | None = None) -> Iterator[tuple[Running, SimulatedNodes]]:
    nodes = nodes or SimulatedNodes()
    one = Running(place, nodes)
    try:
        yield one, nodes
    finally:
        one.end()


def test_a_full_disk_stops_orders_and_not_the_controller(disk: Path) -> None:
    with running(disk / "store.db") as (one, nodes):
        one.store.want("f", "run", FIRST.plan())
        until(lambda: one.store.deployment("f").observed_version == 1, "the first version")
        lease = one.store.lease()
        assert lease is not None
        with full(disk) as fill:
            until(lambda: told_when_full(one, "no orders are given", fill), "the pause is not told")
            for text in ("the controller waits", "the store cannot be used", "free space on that disk"):
                assert one.told(text), one.said
            with pytest.raises(Unavailable):
                one.store.want("f", "run", replace(FIRST, alarm=2).plan())
            orders = len(nodes.calls)
            assert one.thread.is_alive() and not one.told("goes on")
            with pytest.raises(Unavailable, match="could not be renewed"):
                one.controller.lease.stamp()
        until(lambda: one.told("goes on"), "it does not go on")
        one.store.want("f", "run", replace(FIRST, alarm=2).plan())
        until(lambda: one.store.deployment("f").observed_version == 2, "the second version")
        assert len(nodes.calls) > orders
        after = one.store.lease()
        assert after is not None and (after.holder, after.term) == ("one", lease.term)
        assert len([text for text in one.said if "waits" in text]) == 1, one.said
    assert one.error is None


@pytest.mark.parametrize("disk", [32], indirect=True)
def test_leases_failures_and_changes_are_recorded_on_a_full_disk(disk: Path) -> None:
    nodes = SimulatedNodes()
    with running(disk / "store.db", nodes) as (one, _):
        one.store.want("f", "run", FIRST.plan())
        until(lambda: one.store.deployment("f").observed_version == 1, "the first version")
        until(lambda: reserved(one.store), "the reserve")
        with full(disk, keep_journal=True):
            with pytest.raises(OSError, match="No space left"):
                (disk / "more").write_bytes(b"x" * 100_000)
            nodes.seen = lambda u: replace(u, status="failed", error="the disk is full")
            told = "AD@S1 failed: the disk is full"
            until(lambda: told in [e.text for e in one.store.events("f")], "the record of the failure")

            def reported() -> bool:
                (found,) = [r.progress for r in one.store.reports("f") if r.node == "S1"]
                return found is not None and [u.error for u in found.units] == ["the disk is full"]

            until(reported, "the report")
            nodes.seen = lambda u: u
            one.store.want("f", "run", replace(FIRST, alarm=2).plan())
            until(lambda: one.store.deployment("f").observed_version == 2, "the second version")
            lease = one.store.lease()
            assert lease is not None and lease.holder == "one"
        assert not one.told("waits"), one.said


def test_a_change_goes_on_where_the_disk_was_full(disk: Path) -> None:
    nodes = SimulatedNodes()
    store = Store(disk / "store.db")
    with closing(store):
        store.want("f", "run", FIRST.plan())
        with running(disk / "store.db", nodes) as (one, _):
            until(lambda: one.told("acting on"), "it does not act")
            with full(disk) as fill:
                until(lambda: told_when_full(one, "no orders are given", fill), "the pause is not told")
                one.end()
            assert one.error is None, "it ends in order while the disk is full, too"
        second = Running(disk / "store.db", nodes, "two")
        until(lambda: store.deployment("f").observed_version == 1, "the change")
        second.end()
        assert store.changes("f")[-1].outcome == "done"


@pytest.mark.parametrize("left", [True, False])
def test_who_finds_another_holder_after_a_pause_ends(tmp_path: Path, left: bool) -> None:
    """``left``: the other one has released the lease by then."""
    place = tmp_path / "store.db"
    with running(place) as (one, _):
        until(lambda: one.told("acting on"), "it does not act")
        with sqlite3.connect(place, isolation_level=None) as other:
            other.execute("PRAGMA busy_timeout = 60000")
            holder = "" if left else "two"
            other.execute("UPDATE headwater_leases SET holder = ?, term = term + 1, beat = 0, seconds = 600", (holder,))
        other.close()
        one.thread.join(LIMIT)
        assert isinstance(one.error, LeaseLost)
        lease = one.store.lease()
        assert (lease is None) if left else (lease is not None and lease.holder == "two")


def test_a_store_that_is_locked_for_longer_than_a_lease_is_no_loss(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with running(place) as (one, _):
        until(lambda: one.told("acting on"), "it does not act")
        with closing(sqlite3.connect(place, isolation_level=None, timeout=60)) as other:
            other.execute("BEGIN EXCLUSIVE")
            until(lambda: not one.controller.lease.is_proven(), "the lease does not run out")
            assert one.thread.is_alive()
            other.execute("ROLLBACK")
        until(one.controller.lease.is_proven, "it is not renewed")
        one.store.want("f", "run", FIRST.plan())
        until(lambda: one.store.deployment("f").observed_version == 1, "the order")
    assert one.error is None
