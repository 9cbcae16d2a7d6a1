"""The policy in a simulated world: rates, links and hosts change; the policy makes decisions and evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.adapt.compliance import Figures, breaks, strain
from headwater.adapt.slo import SLO
from headwater.control import policy, tables
from tests.unit.looped import BEGIN, Loop

CALM = SLO(mode="auto", max_latency=8.0, headroom=0.1, settle=15.0, cool_down=30.0)
Begin = Callable[..., Loop]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")

    def make(slo: SLO = CALM, **more: object) -> Loop:
        monkeypatch.setattr("time.time", lambda: BEGIN)
        loop = Loop(tmp_path, slo, **more)  # type: ignore[arg-type]
        monkeypatch.setattr("time.time", loop.clock)
        return loop

    return make


def test_in_calm_nothing_is_changed(begin: Begin) -> None:
    loop = begin()
    loop.go(120)
    assert loop.decisions() == ()
    assert loop.broken == 0


def test_what_one_core_cannot_do_is_shared_before_results_are_late(begin: Begin) -> None:
    loop = begin()
    loop.go(40)
    loop.rate(2000)
    loop.go(120)
    assert "light" in loop.cloud and "heavy" not in loop.cloud
    states = [d.state for d in loop.decisions()]
    assert states == ["kept"]
    assert loop.broken <= 10


@pytest.mark.parametrize("hours", [-1, pytest.param(1, marks=pytest.mark.long)])
def test_a_clock_that_is_set_delays_no_decision(begin: Begin, hours: int) -> None:
    loop = begin()
    loop.go(40)
    loop.wrong_by = hours * 3600.0
    loop.go(40)
    loop.rate(2000)
    loop.go(120)
    assert "light" in loop.cloud and "heavy" not in loop.cloud
    assert [d.state for d in loop.decisions()] == ["kept"]
    assert loop.broken <= 10


@pytest.mark.long
def test_over_a_narrow_link_only_small_rows_go(begin: Begin) -> None:
    loop = begin(first_in_cloud="light")
    loop.go(40)
    loop.world.facts = replace(loop.world.facts, capacity={"kerb-cloud": 125_000.0})
    loop.go(120)
    assert "light" not in loop.cloud
    assert [d.state for d in loop.decisions()] == ["kept"]
    assert loop.broken <= 10


def test_it_does_not_flap(begin: Begin) -> None:
    loop = begin()
    for rate in (100, 2000, 100, 2000, 100, 2000):
        loop.rate(rate)
        loop.go(60)
    assert len(loop.decisions()) <= 6
    assert loop.broken <= 12


def test_advice_waits_for_a_person_and_expires_with_its_reason(begin: Begin) -> None:
    loop = begin(replace(CALM, mode="advise"))
    loop.go(40)
    loop.rate(2000)
    loop.go(30)
    (found,) = loop.decisions()
    assert found.state == "proposed" and found.version is None
    assert "light" not in loop.cloud
    chosen = found.data["alternatives"][found.data["chosen"]]
    assert chosen["keeps"] and chosen["layers"]["light"] == "cloud"
    loop.store.want_decided(None, found.id)
    loop.go(60)
    assert loop.store.decision(found.id).state == "kept"
    loop.store.set_slo("two", CALM)
    loop.rate(100)
    loop.go(30)


def test_a_proposal_expires_when_its_reason_is_gone(begin: Begin) -> None:
    loop = begin(replace(CALM, mode="advise"))
    loop.go(40)
    loop.rate(2000)
    loop.go(20)
    loop.rate(100)
    loop.go(120)
    assert [d.state for d in loop.decisions()] == ["expired"]


def test_a_load_that_nothing_explains_is_no_reason_to_move(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches suddenly use more CPU, and the model does not know it yet."""
    loop = begin()
    loop.go(40)
    monkeypatch.setattr(policy, "learn", lambda learned, plan, seen: learned)
    costs = loop.world.facts.costs
    loop.world.facts = replace(loop.world.facts, costs=replace(costs, batch_cpu=3 * costs.batch_cpu))
    loop.go(60)
    found = loop.decisions()[0]
    assert (found.trigger, found.state) == ("headroom", "nothing")
    for option in (found.data["current"], *found.data["alternatives"]):
        assert max(option["load"].values()) > 0.9 * max(found.data["measured"]["load"].values())


def test_latency_that_rises_on_a_full_host_is_an_alarm_before_it_is_too_much(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows cost more than the model knows: it predicts that one core is enough."""
    loop = begin(replace(CALM, max_latency=12.0))
    loop.go(40)
    monkeypatch.setattr(policy, "learn", lambda learned, plan, seen: learned)
    costs = loop.world.facts.costs
    loop.world.facts = replace(loop.world.facts, costs=replace(costs, row={"heavy": 1.5, "light": 1.5}))
    loop.rate(1600)
    loop.go(90)
    found = next(d for d in loop.decisions() if d.state != "nothing")
    assert found.trigger == "expected max_latency" and "rises" in found.why
    assert found.data["measured"]["latency_s"] < 12.0
    assert "light" in loop.cloud


def test_off_decides_nothing_and_learns(begin: Begin) -> None:
    loop = begin(replace(CALM, mode="off"))
    loop.go(40)
    loop.rate(2000)
    loop.go(60)
    assert loop.decisions() == ()
    assert loop.store.learned("two") is not None


def test_a_change_that_makes_things_worse_is_undone_and_not_made_again(begin: Begin) -> None:
    loop = begin()
    loop.go(40)
    loop.rate(2000)
    before = loop.cloud
    real = loop.world.change

    def poisoned(plan, **more):  # type: ignore[no-untyped-def]
        """Change the plan; the cloud is then much slower than its costs predict."""
        real(plan, **more)
        slow = 0.9 if "light" in loop.cloud else 0.0
        loop.world.facts = replace(loop.world.facts, others={("cloud", "vm"): slow})

    loop.world.change = poisoned  # type: ignore[method-assign]
    loop.go(15)
    assert loop.cloud != before
    loop.go(45)
    kinds = [(d.trigger, d.state) for d in loop.decisions()]
    assert ("undo", "watched") in kinds or ("undo", "kept") in kinds, kinds
    assert loop.cloud == before
    (tried,) = [d for d in loop.decisions() if d.state == "undone"]
    assert tried.after and tried.after["verdict"] == "worse"


@pytest.mark.long
def test_what_is_late_all_the_same_is_not_undone_where_staying_would_have_been_worse(begin: Begin) -> None:
    """One core is not enough; two are slower than the SLO allows, and slower than just after the rates rose."""
    loop = begin(replace(CALM, max_latency=4.0))
    loop.go(40)
    loop.rate(3000)
    loop.go(90)
    assert "light" in loop.cloud
    (found, *_) = loop.decisions()
    assert found.data["current"]["latency_s"] is None
    assert found.state == "kept" and found.after and found.after["strain"] > 1.1, found.after


def test_every_decision_tells_what_it_stands_on(begin: Begin) -> None:
    loop = begin()
    loop.go(40)
    loop.rate(2000)
    loop.go(60)
    (found,) = loop.decisions()
    data = found.data
    assert data["measured"]["rates"]["trips"]["nyc"] == pytest.approx(2000, rel=0.5)
    assert data["slo"]["max_latency"] == 8.0
    assert all(o["why_not"] for n, o in enumerate(data["alternatives"]) if n != data["chosen"])
    assert found.after and found.after["verdict"] in ("better", "as good")


def test_in_calm_zones_try_what_is_likely_to_come(begin: Begin) -> None:
    """With more rows, `light` would move to the cloud: each plan is tried once, and none is stored as desired state."""
    loop = begin()
    alone = loop.world.facts
    loop.world.facts = replace(alone, others={("kerb", "pi"): 0.3})
    loop.go(60)
    assert loop.tried == []  # no core is free for a trial
    loop.world.facts = replace(alone, cores={("kerb", "pi"): 2.0, ("cloud", "vm"): 2.0})
    loop.rate(200)
    loop.go(120)
    tried = [{o for u in plan.units if u.zone == "cloud" for o in u.operators} for plan in loop.tried]
    assert {"light", "zones", "result"} in tried
    assert len({frozenset(t) for t in tried}) == len(tried)
    assert loop.decisions() == () and loop.store.deployment("two").version == 1


def test_without_headroom_a_full_host_breaks_no_limit() -> None:
    full = Figures(latency=1.0, bandwidth=5.0, cost=0.0, load={"e1": 3.0})
    assert [b.limit for b in breaks(SLO(), full)] == ["headroom"]
    assert breaks(SLO(headroom=None), full) == () and strain(SLO(headroom=None, max_bandwidth=10.0), full) == 0.5
