"""Predictions for other rates or links, compared with a simulated world that changes accordingly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.adapt.calibrate import Learned
from headwater.adapt.model import Costs
from headwater.adapt.slo import SLO
from headwater.app.whatif import Supposed, WhatIf, what_if
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE
from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.core.jsonform import dump
from headwater.core.quantity import QuantityError
from headwater.plan.profile import Profile
from tests.unit.changes import FIRST
from tests.unit.looped import BEGIN, HOLDER, PROFILE, Loop
from tests.unit.test_cli_control import invoke
from tests.unit.test_memory import running

CALM = SLO(mode="auto", max_latency=8.0, headroom=0.1, settle=15.0, cool_down=30.0)
Begin = Callable[..., Loop]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.setenv(STORE, str(tmp_path / "store.db"))
    monkeypatch.setenv("COLUMNS", "200")

    def make(slo: SLO = CALM, **more: object) -> Loop:
        monkeypatch.setattr("time.time", lambda: BEGIN)
        loop = Loop(tmp_path, slo, **more)  # type: ignore[arg-type]
        monkeypatch.setattr("time.time", loop.clock)
        return loop

    return make


def suppose(*rates: str, links: tuple[str, ...] = (), name: str = "two") -> WhatIf:
    return what_if(name, Supposed.read(rates, links))


def finite_all_through(data: Any) -> bool:
    """Return whether all numbers are finite, so that JSON parsers of other languages read the data."""
    if isinstance(data, dict):
        return all(map(finite_all_through, data.values()))
    if isinstance(data, list):
        return all(map(finite_all_through, data))
    return not isinstance(data, float) or math.isfinite(data)


# ---------------------------------------------------------------- predictions that come true


def test_what_is_foretold_of_more_rows_is_what_happens_then(begin: Begin) -> None:
    loop = begin()
    loop.go(60)
    found = suppose("20x")
    assert found.basis == "measured" and found.measured_at == pytest.approx(loop.clock(), abs=2)
    assert not found.now.breaks and found.choice.current.breaks
    assert loop.decisions() == () and loop.store.deployment("two").version == 1  # nothing was changed
    loop.rate(2000)
    loop.go(120)
    chosen = found.choice.chosen
    assert chosen is not None and chosen.deployment == loop.world.plan.deployment
    assert chosen.predicted.p95 == pytest.approx(loop.world.latency, rel=0.25)
    settled = suppose()
    for key, share in chosen.predicted.load.items():
        assert share == pytest.approx(settled.now.predicted.load[key], rel=0.1)
    assert chosen.predicted.links == pytest.approx(settled.now.predicted.links, rel=0.05)


def test_what_is_foretold_of_a_narrower_link_is_what_happens_then(begin: Begin) -> None:
    loop = begin(first_in_cloud="light")
    loop.go(60)
    found = suppose(links=("kerb=1Mbit/s",))
    assert math.isinf(found.choice.current.figures.latency) and found.now.figures.latency < 8.0
    data = dump(found.shown())
    assert data["now"]["links"]["kerb-cloud"]["capacity_bytes_per_s"] == pytest.approx(12.5e6)
    assert data["current"]["links"]["kerb-cloud"]["capacity_bytes_per_s"] == pytest.approx(125e3)
    assert data["current"]["latency_s"] is None and finite_all_through(data)
    loop.world.facts = replace(loop.world.facts, capacity={"kerb-cloud": 125_000.0})
    loop.go(120)
    assert found.choice.chosen is not None
    assert found.choice.chosen.deployment == loop.world.plan.deployment


def test_a_delay_is_added_to_what_crosses_the_link(begin: Begin) -> None:
    begin().go(60)
    found = suppose(links=("kerb=405ms",))  # 5 ms in the continuum
    assert found.choice.current.predicted.p50 - found.now.predicted.p50 == pytest.approx(0.4, abs=0.02)
    assert found.choice.chosen is None and found.preview is None
    assert dump(found.shown())["change"] is None and dump(found.shown())["chosen"] is None


def test_what_was_left_for_a_limit_may_come_back_where_that_is_gone(begin: Begin) -> None:
    loop = begin()
    loop.go(60)
    loop.rate(2000)
    loop.go(120)
    (decision,) = loop.decisions()
    assert decision.state == "kept" and "light" in loop.cloud
    left = [o for o in suppose().choice.others if "it was left" in o.why_not]
    assert left and not [o for o in suppose("0.05x").choice.others if "it was left" in o.why_not]


# ---------------------------------------------------------------- the basis of a prediction


def test_without_samples_it_goes_by_the_profile_and_says_so(begin: Begin) -> None:
    loop = begin()
    with pytest.raises(DeploymentError, match="the rate of 'trips' was not measured yet") as refused:
        suppose()
    assert "trips=500" in str(refused.value.hint)
    with pytest.raises(DeploymentError, match="2 times an unknown rate"):
        suppose("2x")
    found = suppose("trips=2000")
    assert (found.basis, found.measured_at) == ("profile", None)
    assert found.choice.chosen is not None and found.choice.chosen.plan.layers["light"] == "cloud"
    assert "cost of 'result'" in found.assumed and "cost of 'heavy'" not in found.assumed
    loop.store.keep_learned(HOLDER, "two", Learned(profile=PROFILE, costs=Costs(batch_s=3.0)))
    again = suppose("trips=20")
    assert again.basis == "learned" and again.now.predicted.p50 > 6.0


def test_a_profile_tells_of_rates_too(begin: Begin) -> None:
    loop = begin()
    loop.store.keep_profile("two", PROFILE.model_copy(update={"rates": {"trips": {"*": 100.0}}}))
    found = suppose("20x")
    assert dump(found.shown())["rates"]["then"]["trips"]["nyc"] == 2000.0
    assert found.choice.current.breaks and not found.now.breaks


def test_what_was_learned_before_a_stop_is_not_lost(begin: Begin) -> None:
    loop = begin()
    loop.go(60)
    loop.store.want("two", "stop")
    loop.store.begin_change(HOLDER, loop.store.desired("two"), None, (), phase="stopping")
    change = loop.store.change("two")
    assert change is not None
    loop.store.end_change(HOLDER, change, "done", phase="stopped", active_plan=loop.store.deployment("two").active_plan)
    found = suppose("20x")
    assert found.basis == "measured" and found.choice.current.breaks


def test_a_deployment_that_never_ran_or_is_not_there_is_refused(begin: Begin) -> None:
    loop = begin()
    with pytest.raises(DeploymentError, match="no deployment 'three'"):
        suppose(name="three")
    loop.store.want("three", "run", loop.world.plan)
    with pytest.raises(DeploymentError, match="not running yet"):
        suppose(name="three")


def test_without_an_slo_only_room_on_hosts_counts(begin: Begin) -> None:
    begin(SLO(mode="off", headroom=0.1)).go(60)
    found = suppose("20x")
    assert [b.limit for b in found.choice.current.breaks] == ["headroom"]
    assert "its mode is off" in invoke("what-if", "two", "--rate", "20x")[1]


# ---------------------------------------------------------------- rates by location


@pytest.fixture
def located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.setenv(STORE, str(tmp_path / "store.db"))
    store = Store(tmp_path / "store.db")
    running(store, FIRST.plan())
    return store


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (["read=400"], {"L1": 300, "L2": 100}),
        (["2x", "read@L2=7"], {"L1": 60, "L2": 7}),
        (["read@L2=7", "2x"], {"L1": 60, "L2": 14}),
        (["read=2x", "read=0.5x"], {"L1": 30, "L2": 10}),
        (["read=0"], {"L1": 0, "L2": 0}),
    ],
)
def test_rates_by_location(located: Store, rates: list[str], expected: dict[str, float]) -> None:
    places = located.active_plan("f").dataflow.locations  # type: ignore[union-attr]
    known = {"read": {p: {"L1": 30.0, "L2": 10.0}.get(p, 0.0) for p in places}}
    located.keep_profile("f", Profile(dataflow="f", rates=known))
    found = dump(suppose(*rates, name="f").shown())["rates"]
    assert {p: v for p, v in found["then"]["read"].items() if p in expected} == pytest.approx(expected)
    assert found["before"]["read"]["L1"] == 30


def test_an_amount_is_shared_evenly_where_nothing_is_known(located: Store) -> None:
    found = suppose("read=600", name="f")
    then = dump(found.shown())["rates"]["then"]["read"]
    assert sum(then.values()) == pytest.approx(600) and len(set(then.values())) == 1 and len(then) > 1
    assert found.basis == "assumed" and "cost of 'FP'" in found.assumed


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("rate", "link", "says"),
    [
        ("x", "", "is not a rate"),
        ("", "", "is not a rate"),
        ("-2x", "", "is not a rate"),
        ("nan", "", "is not a rate"),
        ("trips=infx", "", "is not a rate"),
        ("=5", "", "is not a rate"),
        ("trips@=5", "", "is not a rate"),
        ("500", "", "has no source"),
        ("trip=5", "", "no source 'trip'"),
        ("trips@L9=5", "", "not read at 'L9'"),
        ("", "kerb", "neither a bandwidth nor a delay"),
        ("", "kerb=fast", "neither a bandwidth nor a delay"),
        ("", "kerb=1Mbit,2Mbit", "has two values for its bandwidth"),
        ("", "kerb=0bit/s", "without bandwidth"),
        ("", "=1s", "names no zone"),
        ("", "kurb=1s", "no zone 'kurb'"),
        ("", "cloud=1s", "no link to a parent"),
    ],
)
def test_mistakes_are_named_with_what_to_write(begin: Begin, rate: str, link: str, says: str) -> None:
    begin()
    options = ["--link", link] if link else ["--rate", rate]
    with pytest.raises(HeadwaterError, match=says) as found:
        suppose(*([] if link else [rate]), links=(link,) if link else ())
    assert found.value.hint
    code, out, err = invoke("what-if", "two", *options)
    assert code == (3 if isinstance(found.value, QuantityError) else 6) and not out and found.value.what in err


# ---------------------------------------------------------------- display


def test_it_is_shown(begin: Begin) -> None:
    begin().go(60)
    code, out, err = invoke("what-if", "two", "--rate", "20x")
    assert code == 0, err
    for text in (
        "two, if all sources: 20 times the rows", "predicted from measurements until", "Then, changed",
        "rows/s of trips at nyc", "2,000", "load of pi (kerb)", "over kerb-cloud", "light to cloud: chosen",
        "light to cloud keeps to all limits", "light to cloud would be:", "start result@cloud: 'light' added",
    ):  # fmt: skip
        assert text in out, (text, out)
    code, out, _ = invoke("what-if", "two", "--rate", "20x", "--link", "kerb=50Mbit/s,1ms", "--json")
    data = json.loads(out)
    assert code == 0 and data["supposed"][1] == "the link of kerb: 50Mbit/s, 1ms"
    assert data["alternatives"][data["chosen"]]["name"] == data["wanted"]["name"] == "light to cloud"
    assert data["change"]["steps"] and data["wanted"]["links"]["kerb-cloud"]["bytes_per_s"] > 1e6
    assert {u["unit"] for u in data["wanted"]["units"]} == {"heavy@kerb", "result@cloud"}


def test_what_is_not_measured_is_said(begin: Begin) -> None:
    loop = begin(SLO(mode="off"))
    out = invoke("what-if", "two", "--rate", "trips=10")[1]
    assert "predicted from its profile" in out and "assumed: cost of 'result'" in out
    assert "no limit would be broken" in out and loop.decisions() == ()
