"""The store's data for decisions: samples, SLOs, profiles, decisions; older stores."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from headwater.adapt.calibrate import Learned
from headwater.adapt.slo import SLO
from headwater.control import tables as t
from headwater.control.database import LeaseLost
from headwater.control.memory import APART, DECISIONS, DENSE, LASTING
from headwater.control.sharing import OwnerLimits
from headwater.control.store import Store, StoreReader
from headwater.core.errors import DeploymentError, Unavailable
from headwater.core.jsonform import dump_json
from headwater.core.metrics import (
    HostProgress,
    Latency,
    LinkProgress,
    OperatorProgress,
    Progress,
    UnitProgress,
)
from headwater.plan.diff import diff
from headwater.plan.document import plan_id
from headwater.plan.profile import OperatorProfile, Profile
from headwater.plan.steps import WarmUp, unit_statuses_of
from tests.unit.changes import FIRST, steps_of
from tests.unit.test_store import store

__all__ = ["store"]  # a fixture

OTHER = replace(FIRST, windows="cloud").plan()
DAY = 86400.0
SEEN = Progress(
    seconds=5.0,
    units=(
        UnitProgress(
            unit="AD@S1", zone="S1", layer="site", status="running", rows_in=7, lag=0,
            operators=(OperatorProgress(operator="AD", rows_in=7, rows_out=2),),
            latency=Latency(p50=0.5, p95=1.5, rows=2, over_s=60.0), error="it fell",
        ),
    ),
    links=(LinkProgress(link="E1-S1", rows=3, up=False, delay_s=0.02),),
    hosts=(HostProgress(host="s1a", zone="S1", cores=2.0, seconds=9.0, cpu_s=1.5),),
)  # fmt: skip


def running(store: Store, plan=None) -> str:  # type: ignore[no-untyped-def] # a plan
    """Make a plan active; return its id."""
    store.hold("me", 600)
    store.want("f", "run", plan or FIRST.plan())
    decided = diff(store.active_plan("f"), plan or FIRST.plan(), generation=store.desired("f").generation)
    store.begin_change("me", store.desired("f"), decided.wanted, steps_of(decided), phase="checking")
    change = store.change("f")
    assert change is not None
    store.step_begun("me", change, 0, {}, phase="changing")
    unit_statuses, base = unit_statuses_of(decided.wanted), plan_id(decided.wanted)
    store.end_change("me", change, "done", phase="running", unit_statuses=unit_statuses, active_plan=base)
    return base


def propose(store: Store, before: str | None, why: str = "max_latency is broken: 4.2 s > 3 s") -> int:
    return store.record_decision(
        "me", "f", mode="advise", trigger="max_latency", why=why, state="proposed", plan=OTHER,
        before=before, data={"chosen": 0, "load": {"s1a (S1)": math.inf}, "alternatives": ({"moved": 1},)},
    )  # fmt: skip


def test_samples_are_kept_as_they_were_seen(store: Store) -> None:
    running(store)
    for at in (1000.0, 1001.5, 1003.0):
        store.report("me", at, samples={"f": replace(SEEN, seconds=at)})
    store.report("me", 1002.0, samples={"g": SEEN})
    assert [s.at for s in store.samples("f")] == [1000.0, 1001.5, 1003.0]
    assert store.samples("f")[0].progress == replace(SEEN, seconds=1000.0)
    assert [s.at for s in store.samples("f", since=1001.5)] == [1001.5, 1003.0]
    assert [s.at for s in store.samples("f", most=2)] == [1001.5, 1003.0]
    store.report("me", 1003.0, samples={"f": Progress(seconds=0.0)})  # a clock that does not advance
    assert store.samples("f")[-1].progress == Progress(seconds=0.0)
    store.report("me", 500.0, samples={"f": replace(SEEN, seconds=500.0)})  # a clock that was set back
    assert [(s.at, s.progress.seconds) for s in store.samples("f")] == [(500.0, 500.0)]
    with pytest.raises(LeaseLost):
        store.report("two", 1004.0, samples={"f": SEEN})
    assert b"watermark" not in dump_json(SEEN, lean=True)
    assert b"hosts" not in dump_json(Progress(seconds=1.0), lean=True)


def test_samples_are_bounded(store: Store) -> None:
    store.hold("me", 600)
    end = 30 * DAY
    begin, step = end - LASTING - 3600.0, 30.0
    times = [begin + step * n for n in range(int((end - begin) / step) + 1)]
    with store._writing() as connection:
        rows = [{"deployment": "f", "at": at, "progress": '{"seconds":0.0}'} for at in times]
        connection.execute(t.samples.insert(), rows)
    store.report("me", end + APART, samples={"f": SEEN})
    kept = [s.at for s in store.samples("f", most=100_000)]
    now = end + APART
    assert [at for at in kept if at >= now - DENSE] == [*(x for x in times if x >= now - DENSE), now]
    older = [at for at in kept if at < now - DENSE]
    assert older[0] >= now - LASTING and len(older) < (LASTING - DENSE) / APART + 2
    assert {b - a for a, b in itertools.pairwise(older)} == {float(APART)}
    store.report("me", now + 1.0, samples={"f": SEEN})
    assert len(store.samples("f", most=100_000)) == len(kept) + 1  # samples are thinned once a minute


def test_slo_profile_and_what_was_learned(store: Store) -> None:
    with pytest.raises(DeploymentError, match="no deployment 'f'"):
        store.set_slo("f", SLO())
    running(store)
    assert (store.slo("f"), store.profile("f"), store.learned("f")) == (None, None, None)
    slo = SLO(mode="auto", max_latency=3.0, max_bandwidth=2e5)
    store.set_slo("f", SLO())
    store.set_slo("f", slo)
    assert store.slo("f") == slo
    assert store.events("f")[-1].text == (
        "SLO: latency up to 3s, up to 200kB/s into the top layer, headroom 20%; "
        "mode auto, gain 10%, cool-down 60s, settle 20s"
    )
    profile = Profile(dataflow="f", operators={"AD": OperatorProfile(cpu_s=1e-5)}, rates={"read": {"*": 9.0}})
    store.keep_profile("f", profile)
    assert store.profile("f") == profile
    learned = Learned(profile=profile)
    store.keep_learned("me", "f", learned)
    assert store.learned("f") == learned == store.known("f")
    with pytest.raises(LeaseLost):
        store.keep_learned("two", "f", {})


def test_a_decision_is_wanted_watched_and_kept(store: Store) -> None:
    base = running(store)
    first, number = propose(store, base), propose(store, base, "less is used: 12%")
    found = store.decision(number)
    assert found.plan is not None and store.plan(found.plan) == OTHER
    assert (found.state, found.version, found.before, found.after) == ("proposed", None, base, None)
    assert found.data == {"chosen": 0, "load": {"s1a (S1)": None}, "alternatives": [{"moved": 1}]}
    assert store.events("f")[-1].text == f"decision {number}: less is used: 12%: proposed"
    assert store.want_decided("me", number) == 2
    desired = store.desired("f")
    assert (desired.version, desired.goal, desired.plan) == (2, "run", found.plan)
    assert (store.decision(number).state, store.decision(number).version) == ("wanted", 2)
    with pytest.raises(DeploymentError, match="it is wanted and cannot be approved"):
        store.want_decided(None, number)
    with pytest.raises(DeploymentError, match="no longer active"):  # another version is wanted now
        store.want_decided(None, first)
    store.settle_decision(None, first, "rejected")
    store.settle_decision("me", number, "watched")
    with pytest.raises(DeploymentError, match="it is watched and cannot be rejected"):
        store.settle_decision(None, number, "rejected")
    store.settle_decision("me", number, "kept", {"latency_s": 1.0, "text": "latency fell to 1 s"})
    store.settle_decision("me", number, "kept")  # after a kill
    with pytest.raises(DeploymentError, match="it is kept and cannot be undone"):
        store.settle_decision("me", number, "undone")
    assert store.decision(number).after == {"latency_s": 1.0, "text": "latency fell to 1 s"}
    assert f"decision {number}: kept: latency fell to 1 s" in [e.text for e in store.events("f")]
    assert [d.id for d in store.decisions("f")] == [first, number] == [d.id for d in store.decisions()]
    assert [d.id for d in store.decisions("f", states=("kept",))] == [number]
    assert [d.id for d in store.decisions(limit=1)] == [number] and store.decisions("g") == ()
    assert store.decided("f") == {"rejected": 1, "kept": 1}
    with pytest.raises(DeploymentError, match="no decision 99"):
        store.decision(99)


def test_a_decision_whose_ground_is_gone_is_refused(store: Store) -> None:
    base = running(store)
    stale = propose(store, base)
    nothing = store.record_decision(
        "me", "f", mode="advise", trigger="gain", why="all is well", state="proposed", plan=None,
        before=base, data={},
    )  # fmt: skip
    with pytest.raises(DeploymentError, match="it changes nothing"):
        store.want_decided("me", nothing)
    assert running(store, replace(FIRST, above=5).plan()) != base
    for holder in ("me", None):
        with pytest.raises(DeploymentError, match="no longer active"):
            store.want_decided(holder, stale)
    assert store.decision(stale).state == "proposed" and store.deployment("f").version == 2
    fresh = propose(store, store.deployment("f").active_plan)
    store.want("f", "stop")
    with pytest.raises(DeploymentError, match="no longer active"):
        store.want_decided("me", fresh)
    with pytest.raises(LeaseLost):
        store.settle_decision("two", fresh, "expired")


def test_decisions_are_bounded(store: Store) -> None:
    base = running(store)
    numbers = [propose(store, base) for _ in range(3)]
    filler = {
        "deployment": "f", "at": 0.0, "updated": 0.0, "mode": "auto", "trigger": "gain", "why": "",
        "state": "nothing", "data": "{}",
    }  # fmt: skip
    with store._writing() as connection:
        connection.execute(t.decisions.insert(), [filler] * (DECISIONS - 2))
    last = propose(store, base)
    kept = [d.id for d in store.decisions("f", limit=10 * DECISIONS)]
    assert len(kept) == DECISIONS and kept[-1] == last and set(kept).isdisjoint(numbers[:2])


def test_what_is_forgotten_and_what_stays(store: Store) -> None:
    base = running(store)
    store.report("me", 1000.0, samples={"f": SEEN})
    store.report("me", 1000.0, samples={"g": SEEN})
    store.set_slo("f", SLO())
    number = propose(store, base)
    store.want("f", "forget")
    store.begin_change("me", store.desired("f"), None, (), phase="stopping")
    change = store.change("f")
    assert change is not None
    store.end_change("me", change, "done", phase="stopped", unit_statuses={}, active_plan=None)
    assert store.samples("f") == () and store.slo("f") is None
    assert store.decision(number).state == "expired"
    assert len(store.samples("g")) == 1


NEWER = {
    3: ("headwater_samples", "headwater_memory", "headwater_decisions"),
    4: ("headwater_submissions", "headwater_owners", "headwater_rights"),
    8: ("headwater_sessions",),
}
"""The tables that each version added."""


def lacking(store: Store, version: int = 2) -> str:
    """Convert a store to an older version; return the id of the active plan."""
    base = running(store)
    store.release("me")
    with store._writing() as connection:
        connection.exec_driver_sql("ALTER TABLE headwater_units DROP COLUMN ahead")
        if version < 8:
            connection.exec_driver_sql("ALTER TABLE headwater_desired_states RENAME TO headwater_wishes")
            for former, now in (("dealt", "observed_version"), ("base", "active_plan")):
                connection.exec_driver_sql(f"ALTER TABLE headwater_deployments RENAME COLUMN {now} TO {former}")
        if version < 5:
            connection.exec_driver_sql("ALTER TABLE headwater_owners DROP COLUMN role")
        for name in (n for since, names in NEWER.items() if since > version for n in names):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql(f"UPDATE headwater_meta SET schema = {version}")
    return base


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("opened", [Store, StoreReader.open])
def test_an_older_store_gets_what_it_lacks(tmp_path: Path, opened, version: int) -> None:  # type: ignore[no-untyped-def]
    made = Store(tmp_path / "store.db")
    base = lacking(made, version)
    made.close()
    upgraded(tmp_path / "store.db", opened, base)


def upgraded(place: str | Path, opened, base: str) -> None:  # type: ignore[no-untyped-def]
    found = opened(place)
    assert (found.deployment("f").active_plan, found.slo("f"), found.samples("f")) == (base, None, ())
    assert found.pools() == found.owners() == ()
    assert found.owner_of_session("none") is None
    assert {status.ahead for status in found.unit_statuses("f").values()} == {False}
    with found._reading() as connection:
        assert connection.execute(select(t.meta.c.schema)).all() == [(t.SCHEMA,)]
        assert connection.execute(select(func.count()).select_from(t.desired_states)).scalar() == 1
    found.close()
    again = Store(place)
    again.set_slo("f", SLO())
    again.close()


def test_slos_steps_and_the_lease_of_an_older_store_are_read(store: Store) -> None:
    base = lacking(store, 6)
    with store._writing() as connection:
        text = '{"mode": "advise", "max_latency": 3.0}'
        connection.execute(t.memory.insert().values(deployment="f", what="promise", document=text, updated=0.0))
        step = {"kind": "rehearse", "plan": base, "unit": "AD@S1", "carry": None}
        number = connection.execute(select(func.max(t.changes.c.id))).scalar()
        values = {"change": number, "number": 99, "step": json.dumps(step), "state": "done", "note": ""}
        connection.execute(t.journal.insert().values(**values))
    store.hold("old controller", 60.0)
    with pytest.raises(Unavailable, match="older version"):
        StoreReader.open(store.where)
    store.release("old controller")
    found = StoreReader.open(store.where)
    assert found.slo("f") == SLO(mode="advise", max_latency=3.0)
    assert number is not None and found.journal(number)[-1].step == WarmUp(plan=base, unit="AD@S1")
    found.close()


def test_owners_of_an_older_store_go_on_as_owners(store: Store) -> None:
    mine = store.set_owner("a", OwnerLimits(dataflows=2), role="viewer", token=True)
    lacking(store, 4)
    store.close()
    found = StoreReader.open(store.where)
    assert [(o.name, o.role, o.limits) for o in found.owners()] == [("a", "owner", OwnerLimits(dataflows=2))]
    assert found.is_owner("a", mine)
    found.close()
    again = Store(store.where)
    again.set_owner("a", OwnerLimits(), role="operator")
    assert [o.role for o in again.owners()] == ["operator"]
    again.close()
