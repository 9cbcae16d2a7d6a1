"""The store: desired states, journal, lease, and concurrent use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.control import database
from headwater.control.controller import Controller
from headwater.control.database import LeaseLost
from headwater.control.heldlease import holder_label
from headwater.control.lifecycle import BUSY, WAYS, move
from headwater.control.records import Lease, ReportRecord
from headwater.control.store import Store, StoreReader
from headwater.control.tables import shown, url_of
from headwater.core.errors import DeploymentError, Unavailable
from headwater.core.jsonform import dump_json, load_json
from headwater.core.metrics import Progress, UnitProgress
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.steps import CanarySettings, unit_statuses_of
from headwater.testing.nodes import SimulatedNodes
from tests.unit.changes import FIRST, steps_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "deep" / "store.db")
    yield made
    made.close()


def test_a_wish_is_kept_with_its_plan_and_options(store: Store) -> None:
    canary = CanarySettings(seconds=5, factor=1.5)
    assert store.want("f", "run", FIRST.plan(), reset_state=frozenset({"AD@S1"}), canary=canary) == 1
    assert store.want("f", "stop") == 2
    first, second = store.desired_states("f")
    assert (first.goal, first.reset_state, first.canary) == ("run", {"AD@S1"}, canary)
    assert first.plan is not None and store.plan(first.plan) == FIRST.plan()
    assert (second.goal, second.plan, second.generation) == ("stop", None, 3)
    record = store.deployment("f")
    assert (record.version, record.observed_version, record.phase, record.active_plan) == (2, 0, "wanted", None)
    assert [e.text for e in store.events("f")] == [
        "version 1: a new plan is wanted",
        "version 2: wanted: stop",
    ]


def test_reading_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="no store here"):
        StoreReader.open(tmp_path / "none.db")
    assert not list(tmp_path.iterdir())
    assert not hasattr(StoreReader, "want") and issubclass(Store, StoreReader)


def test_a_reader_sees_what_is_written(store: Store, tmp_path: Path) -> None:
    store.want("f", "run", FIRST.plan())
    reader = StoreReader.open(tmp_path / "deep" / "store.db")
    assert reader.deployment("f").version == 1
    store.want("f", "stop")
    assert reader.desired("f").goal == "stop"
    with pytest.raises(DeploymentError, match="no deployment 'g'") as caught:
        reader.deployment("g")
    assert "the deployments are: f" in str(caught.value)
    reader.close()


def test_other_files_and_versions_are_refused(tmp_path: Path, store: Store) -> None:
    (tmp_path / "x.db").write_text("no database, " * 100)
    with pytest.raises(DeploymentError, match="the store rejects"):
        Store(tmp_path / "x.db")
    with store._writing() as connection:
        connection.exec_driver_sql("UPDATE headwater_meta SET schema = 99")
    with pytest.raises(DeploymentError, match="a store of version 99"):
        Store(tmp_path / "deep" / "store.db")


def test_a_password_is_never_shown() -> None:
    url = url_of("postgresql://me:secret@db.example/headwater?password=other")
    assert shown(url) == "postgresql+psycopg://me:***@db.example/headwater"
    with pytest.raises(DeploymentError, match="kind mysql"):
        url_of("mysql://me:secret@db/x")
    with pytest.raises(Unavailable) as caught:
        Store("postgresql://me:secret@127.0.0.1:1/headwater?connect_timeout=1")
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


class Clock:
    """The clocks of a machine, as the store sees them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wrong_by = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now + self.wrong_by


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(database, "time", made)
    return made


def test_one_controller_at_a_time(store: Store, clock: Clock) -> None:
    assert store.hold("one", 60.0, label="here") == 1 and store.hold("two", 60.0) is None
    assert store.lease() == Lease(holder="one", label="here", term=1, seconds=60.0)
    assert store.hold("one", 3.0) == 1  # renewed, for a shorter time
    assert store.hold("two", 60.0) is None  # from now on, the holder does not renew its lease
    clock.now += 2.9
    assert store.hold("two", 5.0) is None
    clock.now += 0.2
    assert store.lease() is None and store.hold("two", 5.0, label="there") == 2
    assert store.lease() == Lease(holder="two", label="there", term=2, seconds=5.0)
    desired = _wanted(store)
    with pytest.raises(LeaseLost, match="two acts on this store"):
        store.begin_change("one", desired, FIRST.plan(), (), phase="checking")
    assert store.change("f") is None
    store.release("one")  # it no longer holds the lease
    assert store.hold("one", 5.0) is None
    store.release("two")
    assert store.lease() is None
    with pytest.raises(LeaseLost):
        store.begin_change("two", desired, FIRST.plan(), (), phase="checking")
    assert store.hold("one", 5.0) == 3  # terms are not used again


@pytest.mark.parametrize("hours", [-2, 2])
def test_no_clock_of_another_machine_counts(tmp_path: Path, store: Store, clock: Clock, hours: int) -> None:
    other = Store(tmp_path / "deep" / "store.db")
    assert store.hold("one", 3.0) == 1
    clock.wrong_by = hours * 3600.0
    for _ in range(5):  # as long as the holder renews its lease
        assert other.hold("two", 3.0) is None
        clock.now += 2.0
        assert other.hold("two", 3.0) is None
        assert store.hold("one", 3.0) == 1
    assert other.hold("two", 3.0) is None
    clock.now += 3.0
    late = Store(tmp_path / "deep" / "store.db")
    assert late.hold("three", 3.0) is None  # it has only begun to observe the lease
    assert other.hold("two", 3.0) == 2 and store.hold("one", 3.0) is None
    other.close()
    late.close()


def _wanted(store: Store):  # type: ignore[no-untyped-def] # a DesiredState
    store.want("f", "run", FIRST.plan())
    return store.desired("f")


def test_journal_and_standings(store: Store) -> None:
    store.hold("me", 60)
    desired = _wanted(store)
    decided = diff(None, FIRST.plan())
    steps = steps_of(decided)
    number = store.begin_change("me", desired, decided.wanted, steps, phase="checking")
    assert [e.step for e in store.journal(number)] == list(steps)
    change = store.change("f")
    assert change is not None and (change.id, change.before, change.baseline) == (number, None, None)
    unit_statuses = unit_statuses_of(decided.wanted)
    store.step_begun("me", change, 0, unit_statuses, phase="changing")
    assert store.deployment("f").active_plan == plan_id(decided.wanted)
    assert store.unit_statuses("f") == unit_statuses
    assert store.plans_of(unit_statuses) == {plan_id(decided.wanted): decided.wanted}
    current = store.change("f")
    assert current is not None
    store.step_waits("me", current, 0, "E1: away")
    store.step_waits("me", current, 0, "E1: away")
    assert [e.text for e in store.events("f")].count("E1: away") == 1
    assert [(e.state, e.note) for e in store.journal(number)[:2]] == [
        ("begun", "E1: away"),
        ("todo", ""),
    ]
    store.step_done("me", current, 0, unit_statuses)
    store.end_change("me", current, "failed", phase="failed", message="it broke")
    assert {e.state for e in store.journal(number)} == {"done", "dropped"}
    assert store.change("f") is None and store.deployment("f").phase == "failed"
    (ended,) = store.changes("f")
    assert (ended.outcome, ended.message) == ("failed", "it broke")
    assert store.deployment("f").observed_version == 1


def test_reports_keep_the_last_progress(store: Store) -> None:
    store.hold("me", 60)
    store.want("f", "run", FIRST.plan())
    seen = Progress(
        seconds=1.0, units=(UnitProgress(unit="AD@S1", zone="S1", layer="site", status="running", rows_in=7),)
    )
    store.report("me", 5.0, {"f": [ReportRecord(node="S1", at=5.0, progress=seen)]})
    away = ReportRecord(node="S1", at=9.0, progress=None, error="cannot be reached")
    store.report("me", 9.0, {"f": [away]})
    (report,) = store.reports("f")
    assert (report.at, report.progress, report.error) == (5.0, seen, "cannot be reached")
    assert load_json(Progress, dump_json(seen), what="progress") == seen
    store.clear_reports("me", "f", frozenset({"E1"}))
    assert store.reports("f") == ()


def test_many_entrances_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    plan = FIRST.plan()

    def enter() -> None:
        try:
            mine = Store(tmp_path / "store.db")
            for _ in range(5):
                mine.want("f", "run", plan)
                mine.hold(f"{threading.get_ident()}", 0.01)
            mine.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = StoreReader.open(tmp_path / "store.db")
    assert [w.version for w in store.desired_states("f")] == list(range(1, 31))
    store.close()


def test_phases_have_declared_ways() -> None:
    assert set(WAYS) == {to for ways in WAYS.values() for to in ways}
    assert all("wanted" in ways for phase, ways in WAYS.items() if phase != "wanted")
    assert {"running", "stopped", "failed"} == set(WAYS) - BUSY
    assert move("checking", "changing", where="x") == "changing"
    with pytest.raises(DeploymentError, match="cannot go from stopped to running"):
        move("stopped", "running", where="x")


def test_two_controllers_with_equal_labels_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may have the same host name and process number; only the label for people contains them."""
    monkeypatch.setattr("socket.gethostname", lambda: "edge")
    monkeypatch.setattr("os.getpid", lambda: 1)
    stores = [Store(tmp_path / "store.db") for _ in range(2)]
    one, other = (Controller(store, SimulatedNodes().open, lease=60.0) for store in stores)
    assert one.lease.hold() and not other.lease.hold()
    lease = stores[1].lease()
    assert lease is not None and lease.label == "edge:1" == holder_label()
    other.lease.release()  # the lease of the first one stays
    assert not other.lease.hold() and one.lease.hold()
    one.lease.release()
    assert other.lease.hold() and not one.lease.hold()
    for store in stores:
        store.close()
