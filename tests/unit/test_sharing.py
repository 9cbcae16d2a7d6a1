"""Pools in the store: owners of dataflows, rights, and the state after a refused change."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.adapt.calibrate import Learned, learn
from headwater.adapt.model import Facts, rows_of
from headwater.adapt.window import window
from headwater.app import pools
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.sharing import OwnerLimits
from headwater.control.store import Store
from headwater.core.errors import Busy, DataflowError, DeploymentError, ErrorList, PlacementError, Unavailable
from headwater.dataflow.graph import Dataflow
from headwater.plan import edit
from headwater.plan.build import build
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.place import PlacementRequest, place
from headwater.plan.profile import Known, Profile
from headwater.plan.setting import Setting
from headwater.plan.steps import FormerOutputChoice
from headwater.reuse.pool import Pool
from headwater.reuse.ways import put_together
from headwater.testing.modelled import ModelledWorld
from tests.unit.test_reuse import TWO

HOLDER = "test:1"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(pools.TOKEN, raising=False)
    return Store(tmp_path / "store.db")


def flow(name: str, least: int = 1) -> Dataflow:
    builder = hw.flow(name, locations=["here"])
    rows = builder.read.json("/in", "id int, v double")
    rows.where(f"v > {least}").named("some").write.memory("out")
    return builder.build()


def end(store: Store, *, outcome: str = "done") -> None:
    """Finish the pool's desired state, as a controller would."""
    store.hold(HOLDER, 60.0)
    desired = store.desired(pools.POOL)
    plan = store.plan(desired.plan) if desired.plan else None
    if outcome == "refused":
        store.refuse(HOLDER, desired, plan, "no")
        return
    store.begin_change(HOLDER, desired, plan, (), phase="checking" if plan else "stopping")
    change = store.change(pools.POOL)
    assert change is not None
    store.end_change(
        HOLDER, change, "done", phase="running" if plan else "stopped", active_plan=desired.plan if plan else None
    )


def submit(store: Store, name: str, owner: str = "a", *, least: int = 1, **more: object) -> pools.Joined:
    return pools.plan_submission(flow(name, least), TWO, owner, store.where, **more).apply()  # type: ignore[arg-type]


def test_a_pool_is_kept_in_the_store(store: Store) -> None:
    first = submit(store, "one")
    assert (first.version, len(first.new), first.reused) == (1, 3, ())
    with pytest.raises(Unavailable, match="under way"):
        submit(store, "two")
    end(store)
    second = submit(store, "two", "b")
    assert len(second.reused) == 2 and second.new == ("two.out",)
    end(store)
    (pool,) = pools.pools(store.where)
    assert [(s.name, s.owner) for s in pool.submissions] == [("one", "a"), ("two", "b")]
    assert pool["two"].runs == submit_form(flow("two"))
    gone = pools.plan_removal("one", "a", store.where).apply()
    assert gone.new == ("one.out",) and len(gone.reused) == 2
    end(store)
    assert pools.plan_removal("two", "b", store.where).apply().queries[1] == 0
    end(store)
    (pool,) = pools.pools(store.where)
    assert pool.submissions == ()
    assert set(submit(store, "one").new).isdisjoint(first.new), "no name is used again"


def test_longer_windows_are_computed_from_shorter_ones_unless_that_is_refused(store: Store) -> None:
    def counting(name: str, size: str) -> Dataflow:
        builder = hw.flow(name, locations=["here"])
        rows = builder.read.json("/in", "ts timestamp, v double").with_watermark("ts", "5 seconds")
        rows.group_by(hw.window("ts", size)).agg(n="count(*)").named("counts").write.memory("out")
        return builder.build()

    def change(name: str, *, own_windows: bool) -> pools.PoolChange:
        hours = counting(name, "1 hour")
        return pools.plan_submission(hours, TWO, "b", store.where, own_windows=own_windows)

    assert pools.plan_submission(counting("minutes", "10 minutes"), TWO, "a", store.where).apply().notes == ()
    end(store)
    shared, own = change("hours", own_windows=False), change("hours", own_windows=True)
    assert "minutes.counts" in shared.result.reused and "minutes.counts" not in own.result.reused
    assert (
        own.result.notes == () and "'counts' is computed from running windows of 10 minutes" in shared.result.notes[0]
    )
    shared.apply()
    end(store)
    assert "minutes.counts" in pools.plan_removal("minutes", "a", store.where).result.reused


def test_a_submission_waits_for_the_change_before_it(store: Store) -> None:
    submit(store, "one")
    told: list[str] = []

    def waits() -> None:
        told.append("waits")
        end(store)

    second = pools.in_turn(partial(pools.plan_submission, flow("two"), TWO, "b", store.where), waits=waits)
    assert (second.version, told) == (2, ["waits"]) and len(second.reused) == 2
    with pytest.raises(Busy):
        pools.in_turn(partial(pools.plan_removal, "one", "a", store.where), patience=0)


def test_rows_of_two_dataflows_are_mixed_only_where_that_is_asked_for(store: Store) -> None:
    def written(name: str, least: int) -> Dataflow:
        builder = hw.flow(name, locations=["here"])
        builder.read.json("/in", "id int, v double").where(f"v > {least}").named("some").write.json("/out/").named(
            "kept"
        )
        return builder.build()

    def planned(name: str, least: int, choice: FormerOutputChoice) -> pools.PoolChange:
        return pools.plan_submission(written(name, least), TWO, "a", store.where, former_output=choice)

    planned("one", 1, "refuse").apply()
    end(store)
    choices: tuple[FormerOutputChoice, ...] = ("refuse", "overwrite")
    for choice in choices:
        with pytest.raises(DataflowError, match=r"'two.kept' writes to /out/?, to which the running 'one.kept' writes"):
            planned("two", 2, choice)
    assert planned("same", 1, "refuse").result.reused, "equal sinks over one stream are one sink"
    planned("two", 2, "append").apply()
    assert store.desired(pools.POOL).former_output == "append"


def submit_form(dataflow: Dataflow) -> Dataflow:
    from headwater.reuse.normal import normalized

    return normalized(dataflow)


def test_what_was_refused_was_never_there(store: Store) -> None:
    submit(store, "one")
    end(store)
    submit(store, "two")
    end(store, outcome="refused")
    (pool,) = pools.pools(store.where)
    assert [s.name for s in pool.submissions] == ["one"]
    pools.plan_removal("one", "a", store.where).apply()
    end(store, outcome="refused")
    (pool,) = pools.pools(store.where)
    assert [s.name for s in pool.submissions] == ["one"]


def test_names_and_pools(store: Store) -> None:
    submit(store, "one")
    end(store)
    with pytest.raises(DeploymentError, match="is a's"):
        submit(store, "one", "b", pool="other")
    with pytest.raises(DeploymentError, match="no dataflow 'none'"):
        pools.plan_removal("none", "a", store.where).apply()


def test_a_pool_takes_the_continuum_of_a_submission(store: Store) -> None:
    submit(store, "one")
    end(store)
    wider: dict[str, Any] = TWO.to_data()
    wider["zones"]["E"]["hosts"]["e2"] = {"n_cpu": 4}
    wide = Continuum.from_data(wider)
    pools.plan_submission(flow("two"), wide, "a", store.where).apply()
    end(store)
    plan = store.active_plan(pools.POOL)
    assert plan is not None and plan.continuum == wide
    pools.plan_removal("one", "a", store.where).apply()
    end(store)
    plan = store.active_plan(pools.POOL)
    assert plan is not None and plan.continuum == wide, "later changes plan on it"
    narrow: dict[str, Any] = TWO.to_data()
    narrow["zones"]["E"]["hosts"] = {"other": {"n_cpu": 4}}
    pools.plan_submission(flow("three"), Continuum.from_data(narrow), "a", store.where).apply()
    end(store)
    plan = store.active_plan(pools.POOL)
    assert plan is not None
    hosts = {h for o in plan.dataflow.order for x in plan.locations for h in plan.deployment.placement[o, x]}
    assert hosts <= {h.name for h in Continuum.from_data(narrow).hosts}, "units leave hosts that are gone"


def test_locations_are_a_set(store: Store) -> None:
    def over(name: str, *locations: str) -> Dataflow:
        builder = hw.flow(name, locations=list(locations))
        builder.read.json("/in/{location}", "id int, v double", location_as="at").where("v > 1").write.memory("out")
        return builder.build()

    pool = Pool("p").submit(over("one", "L1", "L2"), "a").submit(over("two", "L2", "L1"), "b")
    assert pool["two"].ids.keys() == pool["one"].ids.keys()
    assert sum(len(users) == 2 for users in pool.users.values()) == 2, "all but the sinks are shared"
    stored = replace(pool["one"], runs=replace(pool["one"].runs, locations=("L2", "L1")))  # by an earlier version
    older = Pool("p", (stored,)).submit(over("two", "L1", "L2"), "b")
    assert older.locations == older["two"].runs.locations == ("L2", "L1")


PLANT_TEXT = """
name: plant
layers: [edge, cloud]
zones:
  C: {layer: cloud, hosts: {c: {n_cpu: 4}}}
  E1: {layer: edge, parent: C, locations: [L1], hosts: {e1: {n_cpu: 1}}}
  E2: {layer: edge, parent: C, locations: [L2, L3], hosts: {e2: {n_cpu: 1}}}
"""
PLANT = Continuum.from_text(PLANT_TEXT)


def counting_at(name: str, *locations: str, located: bool = True) -> Dataflow:
    """Return a dataflow that filters at the edge and counts in the cloud."""
    builder = hw.flow(name, locations=list(locations))
    schema = "id int, ts timestamp, v double"
    read = builder.read.json("/in/{location}", schema, location_as="at" if located else None)
    good = read.with_watermark("ts", "1 second").where("v > 1").named("good").to_layer("cloud")
    good.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").named("counted").select("n").write.memory("out")
    return builder.build()


def at_edge(plan: DeploymentPlan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the locations and outputs of the units at the edge, by zone and first operator."""
    edge = [u for u in plan.units if u.layer == "edge"]
    return {f"{u.zone} {u.operators[0]}": (u.locations, u.outputs) for u in edge}


def test_dataflows_of_different_locations_share_what_treats_each_location_by_itself(store: Store) -> None:
    def submitted(name: str, *locations: str) -> DeploymentPlan:
        pools.plan_submission(counting_at(name, *locations), PLANT, "a", store.where).apply()
        end(store)
        return active()

    def active() -> DeploymentPlan:
        plan = store.active_plan(pools.POOL)
        assert plan is not None
        return plan

    submitted("one", "L1")
    both = submitted("both", "L1", "L2")  # L2 is in a zone of its own
    assert at_edge(both) == {"E1 one.files": (("L1",), ("one.good",)), "E2 one.files": (("L2",), ("one.good",))}
    third = submitted("third", "L3")  # in a zone that has read L2 for long
    assert at_edge(third) == at_edge(both) | {"E2 third.files": (("L3",), ("third.good",))}
    all_ = submitted("all", "L1", "L2", "L3")  # no unit has the rows of all three
    own = {"E1 all.files": (("L1",), ("all.good",)), "E2 all.files": (("L2", "L3"), ("all.good",))}
    assert at_edge(all_) == at_edge(third) | own
    (pool,) = pools.pools(store.where)
    assert [one.locations for one in pools.pool_outline(pool).dataflows] == [
        ("L1",), ("L1", "L2"), ("L3",), ("L1", "L2", "L3"),
    ]  # fmt: skip
    for name in ("all", "third", "both"):
        pools.plan_removal(name, "a", store.where).apply()
        end(store)
    assert at_edge(active()) == {"E1 one.files": (("L1",), ("one.good",))} and active().locations == ("L1",)
    with pytest.raises(PlacementError, match="no location is called 'L2'"):
        edit.move(active(), "one.good", "cloud", location="L2")


def test_a_dataflow_of_all_locations_shares_with_those_that_name_theirs(store: Store) -> None:
    def submitted(name: str, *locations: str, zones: Continuum = PLANT) -> DeploymentPlan:
        pools.plan_submission(counting_at(name, *locations), zones, "a", store.where).apply()
        end(store)
        plan = store.active_plan(pools.POOL)
        assert plan is not None
        return plan

    submitted("one", "L1")
    every = submitted("every")
    assert at_edge(every) == {"E1 one.files": (("L1",), ("one.good",)), "E2 one.files": (("L2", "L3"), ("one.good",))}
    assert every.deployment.placement.of("one.counted").keys() == {"L1"}
    third = submitted("third", "L1", "L2", "L3")  # today those of the continuum, and not of a later one
    assert "third.good" not in third.dataflow and "third.counted" in third.dataflow
    more = Continuum.from_text(PLANT_TEXT.replace("[L2, L3]", "[L0, L2, L3]"))
    assert set(more.locations) == {"L0", "L1", "L2", "L3"}
    fourth = submitted("fourth", "L1", zones=more)
    assert fourth.deployment.placement.of("every.counted").keys() == set(more.locations)
    assert fourth.deployment.placement.of("third.counted").keys() == {"L1", "L2", "L3"}
    with pytest.raises(ErrorList, match="no zone covers location L9"):
        pools.plan_submission(counting_at("ninth", "L9"), more, "a", store.where)
    for name in ("every", "third", "fourth"):
        pools.plan_removal(name, "a", store.where).apply()
        end(store)
    last = store.active_plan(pools.POOL)
    assert last is not None and at_edge(last) == {"E1 one.files": (("L1",), ("one.good",))}


def test_a_union_is_shared_whatever_the_order_of_its_inputs() -> None:
    def united(name: str, location: str, first: str, second: str) -> Dataflow:
        builder = hw.flow(name, locations=[location])
        read = builder.read.json("/in/{location}", "id int, v double", location_as="at")
        both = (
            read.where(first)
            .map_batches(len, "id int, at string")
            .union(read.where(second).map_batches(len, "id int, at string"))
        )
        both.write.memory("out")
        return builder.build()

    pool = (
        Pool("p").submit(united("one", "L1", "v > 1", "v < 0"), "a").submit(united("two", "L1", "v < 0", "v > 1"), "b")
    )
    assert all(len(users) == 2 for id_, users in pool.users.items() if not id_.endswith("out"))


def test_rows_without_their_location_are_not_shared_by_dataflows_of_others() -> None:
    pool = Pool("p").submit(counting_at("one", "L1", located=False), "a")
    pool = pool.submit(counting_at("both", "L1", "L2", located=False), "b")
    assert all(len(users) == 1 for users in pool.users.values())
    pool = pool.submit(counting_at("too", "L1", located=False), "c")
    assert {i for i, users in pool.users.items() if users == ("one", "too")} == {
        "one.files", "one.watermark", "one.good", "one.counted", "one.select",
    }  # fmt: skip


def test_a_pool_is_placed_and_predicted_with_each_operator_at_its_locations() -> None:
    pool = Pool("p").submit(counting_at("one", "L1", "L2", "L3"), "a").submit(counting_at("two", "L2"), "b")
    plan = put_together(pool, PLANT, None)
    profile = Profile(dataflow="p", rates={"one.files": {"*": 30.0}})
    known = Known(plan.dataflow, profile)
    setting = Setting(plan.dataflow, PLANT, plan.layers, known, decided=plan.deployment, apart=True)
    assert [x for name, x in setting.instances if name == "one.good"] == ["L1", "L2", "L3"]
    assert setting.deployment(setting.placement(plan.deployment)).placement == plan.deployment.placement
    request = PlacementRequest(strategy="tsoo_exact", running=plan.deployment)
    found = build(plan.dataflow, PLANT, place(setting, request)[0], pooled=True).deployment.placement
    assert found.of("two.counted").keys() == {"L2"} and found.of("one.counted").keys() == {"L1", "L2", "L3"}
    rows, _ = rows_of(plan, known)
    read = {id_: found for (unit, id_), found in rows.items() if id_.endswith("counted")}
    assert read["two.counted"] == pytest.approx(read["one.counted"] / 3)


def test_an_operator_is_not_moved_at_a_location_whose_rows_it_does_not_take() -> None:
    pool = Pool("p").submit(counting_at("one", "L1"), "a").submit(counting_at("both", "L1", "L2"), "b")
    plan = put_together(pool, PLANT, None)
    assert plan == from_document(to_document(plan))
    with pytest.raises(PlacementError, match=r"'one\.counted' takes no rows of L2") as refused:
        edit.move(plan, "one.counted", "cloud", location="L2")
    assert refused.value.hint == "its locations are L1"
    unfed = plan.deployment.placement.replaced({"both.counted": {"L3": ("c",)}})
    with pytest.raises(ErrorList):
        build(plan.dataflow, PLANT, replace(plan.deployment, placement=unfed), pooled=True)


def test_an_update_keeps_the_names_of_what_stays(store: Store) -> None:
    def counting(name: str, least: int, size: str = "10 seconds") -> Dataflow:
        builder = hw.flow(name, locations=["here"])
        read = builder.read.json("/in", "id int, ts timestamp, v double").with_watermark("ts", "1 second")
        windows = read.group_by(hw.window("ts", size)).agg(n="count(*)").named("counted")
        windows.select("n").where(f"n > {least}").named("some").write.json("/out").named("kept")
        return builder.build()

    def submitted(dataflow: Dataflow, owner: str = "a", *, update: bool = False) -> pools.Joined:
        return pools.plan_submission(dataflow, TWO, owner, store.where, update=update).apply()

    submitted(counting("one", 1))
    end(store)
    (pool,) = pools.pools(store.where)
    before = pool["one"].ids
    with pytest.raises(DeploymentError, match="--update"):
        submitted(counting("one", 5))
    with pytest.raises(DeploymentError, match="b may not update it"):
        submitted(counting("one", 5), "b", update=True)
    with pytest.raises(DeploymentError, match="no dataflow 'two'"):
        submitted(counting("two", 5), update=True)
    found = submitted(counting("one", 5), update=True)
    assert before["counted"] in found.reused and before["kept"] in found.ended and len(found.new) == len(found.ended)
    end(store, outcome="refused")
    (pool,) = pools.pools(store.where)
    assert pool["one"].written == counting("one", 1), "a refused update has no effect"
    submitted(counting("one", 5), update=True)
    end(store)
    (pool,) = pools.pools(store.where)
    assert pool["one"].written == counting("one", 5) and pool["one"].ids["counted"] == before["counted"]
    assert [s.name for s in pool.submissions] == ["one"]
    pools.plan_removal("one", "a", store.where).apply()
    end(store)
    (pool,) = pools.pools(store.where)
    assert pool.submissions == ()


def test_owners_have_rights_and_limits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    token = pools.set_owner("a", store.where, limits=OwnerLimits(dataflows=1), role="owner", token=True)
    assert token is not None
    with pytest.raises(DeploymentError, match="needs a token"):
        submit(store, "one")
    with pytest.raises(DeploymentError, match="needs a token"):
        pools.set_owner("a", store.where, token=True)
    monkeypatch.setenv(pools.TOKEN, token)
    submit(store, "one")
    end(store)
    with pytest.raises(DeploymentError, match="dataflows 2, 1 are allowed"):
        submit(store, "two")
    monkeypatch.delenv(pools.TOKEN)
    with pytest.raises(DeploymentError, match="b may not remove it"):
        pools.plan_removal("one", "b", store.where).apply()
    with pytest.raises(DeploymentError, match="b may not read it"):
        pools.written("one", "b", store.where)
    for what in ("read", "remove"):
        pools.grant("a", "b", what, store.where, token=token)
    assert pools.written("one", "b", store.where) == flow("one")
    pools.grant("a", "b", "read", store.where, given=False, token=token)
    with pytest.raises(DeploymentError, match="may not read"):
        pools.written("one", "b", store.where)
    pools.plan_removal("one", "b", store.where).apply()


def lived(store: Store, seconds: int = 20, rate: float = 400.0) -> DeploymentPlan:
    """Run the pool for a while in a simulated world, and keep samples of it; return its active plan."""
    plan = store.active_plan(pools.POOL)
    assert plan is not None
    rates = {s.id: {"here": rate} for s in plan.dataflow.sources}
    world = ModelledWorld(plan, Facts(profile=Profile(dataflow=pools.POOL, rates=rates)))
    begun = time.time() - seconds
    for second in range(seconds):
        world.go(1.0)
        store.report(HOLDER, begun + second, samples={pools.POOL: world.progress()})
    return plan


def test_who_shares_pays_less(store: Store) -> None:
    for name, least in (("one", 1), ("two", 1), ("other", -5)):
        submit(store, name, f"team-{name}", least=least)
        end(store)
    plan = lived(store)
    assert len(plan.units) == 1
    found = {a.name: a for a in pools.costs(store.where)[pools.POOL]}
    seen = window(store.samples(pools.POOL))
    assert seen is not None
    whole = sum(u.cpu for u in seen.units.values())
    assert sum(a.shared for a in found.values()) == pytest.approx(whole, rel=0.01), "all is paid for, once"
    assert found["one"].shared == pytest.approx(found["two"].shared)
    assert found["one"].common == 2 and found["other"].common == 1
    assert all(a.alone > 1.5 * a.shared > 0 for a in found.values()), found
    learned = learn(Learned(profile=Profile()), plan, seen)
    store.keep_learned(HOLDER, pools.POOL, learned)
    pools.plan_removal("other", "team-other", store.where).apply()
    end(store)
    lived(store)
    assert len(pools.costs(store.where)[pools.POOL]) == 2, "what was learned of it is no obstacle"
    submit(store, "new", "team-new", least=7)
    end(store)
    lived(store)
    pools.set_owner("team-one", store.where, limits=OwnerLimits(cores=0.0001))
    with pytest.raises(DeploymentError, match=r"cores .* are used"):
        submit(store, "more", "team-one")


def test_limits_are_the_admins_to_set(store: Store) -> None:
    pools.set_owner("a", store.where, limits=OwnerLimits(dataflows=2))
    admin = pools.set_owner(pools.ADMIN, store.where, token=True)
    with pytest.raises(DeploymentError, match="admin needs a token"):
        pools.set_owner("a", store.where, limits=OwnerLimits())
    pools.set_owner("a", store.where, limits=OwnerLimits(dataflows=1), shown=admin)
    assert pools.limits_of("a", store.where) == OwnerLimits(dataflows=1)
    assert pools.set_owner("a", store.where, token=True), "a token is each owner's own"
    assert pools.limits_of("a", store.where) == OwnerLimits(dataflows=1)


def test_a_token_is_kept_as_a_hash_alone(store: Store, tmp_path: Path) -> None:
    token = pools.set_owner("a", store.where, token=True)
    assert token is not None
    assert token.encode() not in (tmp_path / "store.db").read_bytes()
