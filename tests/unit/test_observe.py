"""Views of the whole system: their content, reads that are not repeated, and views without a store."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import Engine, delete, event, insert, update

from headwater.adapt.slo import SLO
from headwater.app import observe, pools
from headwater.app.assembly import deployment_seen
from headwater.app.storecache import RECENT, UNREAD, KnownDeployment, Steps
from headwater.app.view import DeploymentSeen, Status, UnitSeen, View
from headwater.control import snapshot
from headwater.control import tables as t
from headwater.control.lifecycle import WAYS, Phase
from headwater.control.notify import ChangeNotifier
from headwater.control.snapshot import Snapshot
from headwater.control.store import Store
from headwater.control.tables import NoStore
from headwater.core.jsonform import dump
from headwater.render.deployment import status_view
from tests import crowd
from tests.unit.test_reuse import TWO
from tests.unit.test_sharing import end, flow

HOLDER = "test:1"


@contextmanager
def queries() -> Iterator[list[str]]:
    """Yield a list of all queries to databases."""
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, *more: object) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def unit_of(view: View, unit: str, deployment: str = "d0") -> UnitSeen:
    return next(u for u in view.units if u.unit == unit and u.deployment == deployment)


def test_zones_units_links_and_hosts_are_seen(store: Store) -> None:
    (plan,) = crowd.fill(store, 12, 1)
    view = observe.look(store.where)
    names = [zone.name for zone in view.zones]
    assert names[:3] == ["C1", "S1", "E1.1"] and len(names) == 12  # parents first
    assert view.layers == ("edge", "site", "cloud")
    assert {u.unit for u in view.units} == {u.id for u in plan.units}
    low = unit_of(view, "low@E1.1")
    assert (low.status, low.layer, low.lag) == ("running", "edge", None)
    told = next(u for u in crowd.said(plan, 1.0).units if u.unit == "low@E1.1")
    assert told.rows_in - 1 < (low.rows_in_per_s or 0) < told.rows_in + 1.5  # over one second
    assert unit_of(view, "high@S1").lag is not None
    site = next(zone for zone in view.zones if zone.name == "S1")
    assert site.parent == "C1" and site.hosts[0].name == "s1" and site.hosts[0].load == pytest.approx(0.15)
    link = next(x for x in view.links if x.link == "E1.1-S1")
    assert link.declared_bytes_per_s == link.capacity_bytes_per_s == 10e6 / 8
    assert link.used == pytest.approx((link.bytes_per_s or 0) / (10e6 / 8)) and link.up
    idle = next(x for x in view.links if x.link == "E1.9-S1")
    assert idle.bytes_per_s is None and idle.used is None and idle.up is None
    (one,) = view.deployments
    assert (one.name, one.phase, one.units, one.running, one.failed) == ("d0", "running", 5, 5, 0)
    assert one.rows_per_s == pytest.approx(sum(unit_of(view, f"low@E1.{n}").rows_in_per_s or 0 for n in (1, 2, 3)))
    assert view.controller is None and view.error is None
    data = dump(view)
    assert data["zones"][0]["units"][0]["unit"] == "out@C1" and data["deployments"][0]["name"] == "d0"


def test_the_status_has_the_footprint_of_each_host(store: Store) -> None:
    crowd.fill(store, 12, 1)
    (status,) = observe.status("d0", store.where)
    found = {one.host: one for one in status.footprints}
    assert found.keys() == {host.host for host in status.hosts} and "s1" in found
    assert (found["s1"].zone, found["s1"].rss, found["s1"].pss) == ("S1", 10**9 + 10**8, 3 * 10**8)
    assert found["s1"].cores == pytest.approx(0.3)
    assert dump(status)["footprints"][0]["rss"] == 10**9 + 10**8
    screen = Console(width=120, file=(out := io.StringIO()))
    screen.print(status_view(status))
    shown = out.getvalue()
    assert re.search(r"Host +RSS +PSS +Cores", shown) and re.search(r"s1 +1100MB +300MB +0.30", shown)


@pytest.mark.parametrize("phase", sorted(WAYS))
def test_the_status_shows_a_deployment_in_any_phase(store: Store, phase: Phase) -> None:
    crowd.fill(store, 12, 1)
    (status,) = observe.status("d0", store.where)
    screen = Console(width=80, file=(out := io.StringIO()))
    screen.print(status_view(replace(status, phase=phase)))
    assert phase in out.getvalue()


def test_what_goes_over_a_link_is_added_up(store: Store) -> None:
    plans = crowd.fill(store, 4, 2, each=2)  # both over the same two locations
    view = observe.look(store.where)
    links = [x for n, p in enumerate(plans) for x in crowd.said(p, 1.0, n).links if x.link == "S1-C1"]
    assert len(links) == 2
    link = next(x for x in view.links if x.link == "S1-C1")
    assert link.bytes_per_s == pytest.approx(sum(x.bytes_per_s or 0 for x in links))
    assert link.rows_per_s == pytest.approx(sum(x.rows for x in links), rel=0.02)  # in its first second
    assert {u.deployment for u in view.units if u.zone == "C1"} == {"d0", "d1"}


def test_what_a_zone_said_last_stays_and_says_why(store: Store) -> None:
    (plan,) = crowd.fill(store, 12, 1)
    with store._writing() as connection:
        zone = t.reports.c.zone == "E1.1"
        connection.execute(update(t.reports).where(zone).values(error="it cannot be reached"))
        connection.execute(delete(t.samples))
    whole = crowd.said(plan, 1013.0)
    crowd_without = replace(whole, units=tuple(u for u in whole.units if u.zone != "E1.1"))
    store.hold(HOLDER, 60.0)
    store.report(HOLDER, time.time(), samples={"d0": crowd_without})
    view = observe.look(store.where)
    zone_seen = next(z for z in view.zones if z.name == "E1.1")
    assert zone_seen.error == "it cannot be reached" and zone_seen.heartbeat
    silent = unit_of(view, "low@E1.1")
    assert silent.status == "unreachable" and silent.rows_in_per_s is silent.latency_p95_s is None
    assert view.deployments[0].running == 4 and view.controller == HOLDER
    (status,) = observe.status("d0", store.where)
    assert next(u for u in status.units if u.unit == "low@E1.1").status == "unreachable"
    assert {link.up for link in whole.links} == {True} and {link.up for link in whole.unreachable().links} == {None}
    text = shown(status)
    assert re.search(r"low@E1\.1 +unreachable", text), text
    assert re.search(r"E1\.1: it cannot be reached; its figures are \d+ s old", text), text


def test_without_a_controller_old_figures_are_not_shown_as_if_units_ran(store: Store) -> None:
    crowd.fill(store, 12, 1, samples=1)
    with store._writing() as connection:
        connection.execute(delete(t.samples))
        connection.execute(update(t.reports).values(at=time.time() - 600.0))
    store.hold(HOLDER, 60.0)
    assert {u.status for u in observe.look(store.where).units} == {"running"}  # a node without changes need not report
    store.release(HOLDER)
    assert {u.status for u in observe.look(store.where).units} == {"unreachable"}
    (status,) = observe.status("d0", store.where)
    assert {z.error for z in status.zones} == {UNREAD} and min(z.age_s for z in status.zones) >= 600.0
    assert "its figures are 10.0 min old" in shown(status)
    assert dump(status)["zones"][0]["age_s"] >= 600.0 and dump(status)["units"][0]["status"] == "unreachable"


def test_a_stopped_deployment_breaks_no_slo(store: Store) -> None:
    crowd.fill(store, 12, 1)
    store.set_slo("d0", SLO(max_latency=0.1))
    with store._writing() as connection:
        connection.execute(update(t.deployments).values(phase="stopped"))
    (one,) = observe.look(store.where).deployments
    (status,) = observe.status("d0", store.where)
    assert one.has_slo and one.broken == status.broken == () and status.kept is None
    assert "broken" not in shown(status)


def shown(status: Status) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(status_view(status))
    return console.export_text()


def test_units_are_planned_before_zones_speak(store: Store) -> None:
    crowd.fill(store, 12, 1, samples=0)
    view = observe.look(store.where)
    assert {u.status for u in view.units} == {"planned"} and view.deployments[0].rows_per_s is None


def test_a_broken_slo_is_told(store: Store) -> None:
    crowd.fill(store, 12, 1)
    store.set_slo("d0", SLO(max_latency=1000.0))
    (one,) = observe.look(store.where).deployments
    assert one.has_slo and one.broken == ()
    store.set_slo("d0", SLO(max_latency=0.1))
    (one,) = observe.look(store.where).deployments
    assert len(one.broken) == 1 and one.broken[0].startswith("max_latency: ")


def test_a_change_under_way_is_counted(store: Store) -> None:
    (plan,) = crowd.fill(store, 12, 1)
    store.want("d0", "stop")
    (one,) = observe.look(store.where).deployments
    assert (one.phase, one.busy, one.done, one.steps) == ("wanted", True, 0, 0)
    store.hold(HOLDER, 60.0)
    from headwater.plan.steps import Check

    steps = [Check(unit=u.id, plan=store.deployment("d0").active_plan or "") for u in plan.units[:2]]
    number = store.begin_change(HOLDER, store.desired("d0"), None, steps, phase="stopping")
    with store._writing() as connection:
        first = (t.journal.c.change == number) & (t.journal.c.number == 0)
        connection.execute(update(t.journal).where(first).values(state="done"))
    (one,) = observe.look(store.where).deployments
    assert (one.done, one.steps) == (1, 2)


def test_pools_and_what_they_share(store: Store) -> None:
    pools.plan_submission(flow("one"), TWO, "ann", store.where).apply()
    end(store)
    pools.plan_submission(flow("two", least=5), TWO, "bob", store.where).apply()
    end(store)
    (pool,) = observe.look(store.where).pools
    assert [(m.name, m.owner) for m in pool.dataflows] == [("one", "ann"), ("two", "bob")]
    assert pool.dataflows[0].shared >= 1  # the shared source
    assert pool.operators < sum(m.operators for m in pool.dataflows)
    whole = store.pool(pools.POOL)
    assert whole is not None and pool.operators == len(whole.users)
    pools.plan_removal("two", "bob", store.where).apply()
    end(store, outcome="refused")
    (pool,) = observe.look(store.where).pools
    assert len(pool.dataflows) == 2  # nothing was removed


def test_a_look_asks_the_same_of_few_as_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "SYNCHRONOUS", "OFF")
    counts = []
    for dataflows in (2, 12):
        store = Store(tmp_path / f"{dataflows}.db")
        plans = crowd.fill(store, 40, dataflows)
        observe.look(store.where)
        with queries() as asked:
            observe.look(store.where)
        assert not any("headwater_plans" in q for q in asked)  # plans do not change
        assert not any("headwater_samples.progress" in q for q in asked)
        crowd.tell(store, plans, 1020.0, at=time.time())
        with queries() as again:
            observe.look(store.where)
        assert sum("headwater_samples.progress" in q for q in again) == 1
        counts.append((len(asked), len(again)))
        store.close()
    assert counts[0] == counts[1]


def test_a_deployment_is_assembled_again_where_its_data_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = crowd.fill(store, 12, 3)
    made: list[str] = []
    real = deployment_seen

    def assembled(one: KnownDeployment, steps: Steps) -> DeploymentSeen:
        made.append(one.record.name)
        return real(one, steps)

    monkeypatch.setattr(observe, "deployment_seen", assembled)

    def names() -> list[str]:
        """Return the deployments that a look assembles, after checking all against data that nothing knows."""
        made.clear()
        seen, again = observe.look(store.where).deployments, list(made)
        with closing(Snapshot.open(store.where)) as fresh:
            assert observe._Memory().look(fresh).deployments == seen
        return again

    store.hold(HOLDER, 60.0)
    assert names() == ["d0", "d1", "d2"] and names() == []
    store.set_slo("d1", SLO(max_latency=0.1))
    assert names() == ["d1"]
    crowd.tell(store, plans[2:], 5000.0, at=time.time())
    assert names() == ["d2"]
    store.want("d0", "stop")
    assert names() == ["d0"]
    store.begin_change(HOLDER, store.desired("d0"), None, [], phase="stopping")
    assert names() == ["d0"] and names() == []


def test_newer_words_are_seen(store: Store) -> None:
    plans = crowd.fill(store, 12, 1)
    before = unit_of(observe.look(store.where), "low@E1.1").rows_in_per_s
    crowd.tell(store, plans, 1013.0 + 500, at=time.time() + 0.001)
    after = unit_of(observe.look(store.where), "low@E1.1").rows_in_per_s
    assert before is not None and after is not None and after > 10 * before
    with store._writing() as connection:
        connection.execute(update(t.deployments).values(active_plan=None))
    assert list(observe.look(store.where).units) == []


def test_without_a_store_it_says_so_and_goes_on(tmp_path: Path) -> None:
    place, stop = str(tmp_path / "later.db"), threading.Event()
    with pytest.raises(NoStore):
        observe.look(place)
    seen = observe.watch(place, every=0.01, stop=stop)
    empty = next(seen)
    assert "no store here" in (empty.error or "") and empty.zones == ()
    store = Store(place)
    crowd.fill(store, 12, 1)
    there = next(seen)
    assert there.error is None and len(there.zones) == 12
    store.close()
    Path(place).unlink()
    lost = next(seen)
    assert "no store here" in (lost.error or "") and lost.zones == there.zones and lost.at == there.at
    stop.set()
    assert list(seen) == []


def test_what_is_written_is_seen_at_once(store: Store) -> None:
    plans, stop = crowd.fill(store, 12, 1), threading.Event()
    seen = observe.watch(store.where, every=60.0, at_once=True, stop=stop)
    assert len(next(seen).decisions) == 0
    begun = time.monotonic()
    writing = threading.Timer(0.3, crowd.tell, (store, plans, 5000.0), {"at": time.time() + 1})
    writing.start()
    faster = unit_of(next(seen), "low@E1.1").rows_in_per_s
    assert faster is not None and faster > 1000 and time.monotonic() - begun < 60
    writing.join()


def test_a_pulse_is_felt_where_somebody_writes(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    notifier = ChangeNotifier(place)
    assert not notifier.beats()
    for name in ("first", "in its place"):
        store = Store(str(place))
        assert not notifier.beats(), name  # no earlier value to compare with
        crowd.fill(store, 12, 1)
        assert notifier.beats() and not notifier.beats(), name
        store.close()
        place.rename(tmp_path / name)
    assert not notifier.beats()
    notifier.close()
    assert not ChangeNotifier("postgresql://nobody@127.0.0.1:1/none").beats() and not ChangeNotifier(tmp_path).beats()


def test_a_store_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    for zones in (12, 14):
        store = Store(place)
        crowd.fill(store, zones, 1)
        assert len(observe.look(str(place)).zones) == zones
        store.close()
        place.unlink()


def test_a_plan_that_is_gone_leaves_the_rest(store: Store) -> None:
    crowd.fill(store, 12, 1)
    with store._writing() as connection:
        connection.execute(
            insert(t.deployments).values(
                name="lost",
                version=1,
                observed_version=1,
                phase="running",
                active_plan="0" * 64,
                message="",
                updated=0.0,
            )
        )
    view = observe.look(store.where)
    assert [d.name for d in view.deployments] == ["d0", "lost"] and view.deployments[1].units == 0


def test_many_old_reports_are_read_in_few_queries(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_KEYS", 5)
    plans = crowd.fill(store, 30, 4, samples=0)
    crowd.tell(store, plans, 1000.0, at=time.time() - 2 * RECENT)
    with queries() as asked:
        units = list(observe.look(store.where).units)
    nodes = len({(unit.deployment, unit.zone) for unit in units})
    assert nodes > 10 and {unit.status for unit in units} == {"unreachable"}
    assert sum("FROM headwater_reports" in one and "progress" in one for one in asked) == -(-nodes // 5)


@pytest.fixture
def busy(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Iterator[View], list[float]]]:
    """Watch a store that is written all the time; ``works``: seconds of each read. Pauses are noted, not waited for."""
    view, waits = observe.look(store.where), list[float]()

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(0)

    def watched(*works: float) -> tuple[Iterator[View], list[float]]:
        left = iter(works)

        def look(store_url: str | None = None) -> View:
            until = time.thread_time() + next(left)
            while time.thread_time() < until:
                pass
            return view

        monkeypatch.setattr(observe, "look", look)
        monkeypatch.setattr(ChangeNotifier, "beats", lambda notifier: True)
        return observe.watch(store.where, every=60.0, at_once=True, stop=Waits()), waits

    return watched


def test_only_reads_for_writes_delay_the_next(busy: Callable[..., tuple[Iterator[View], list[float]]]) -> None:
    """The first read has no write before it, like those of an idle store: it may delay no news."""
    seen, waits = busy(0.1, 0.1, 0.1)
    next(seen)
    next(seen)
    assert waits == []
    next(seen)
    (pause,) = waits
    assert pause >= 0.1 * observe.RESTS


def test_one_slow_read_does_not_delay_the_next(busy: Callable[..., tuple[Iterator[View], list[float]]]) -> None:
    seen, waits = busy(0.0, 0.2, 0.2, 0.0)
    pauses = []
    for _ in range(4):
        next(seen)
        pauses.append(waits[-1] if waits else 0.0)
    # The first value is from before the first pause.
    assert pauses[1] < 0.2 * observe.RESTS and pauses[2] < 0.2 * observe.RESTS <= pauses[3]
