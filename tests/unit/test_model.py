"""The model of units that work in batches, its calibration, and windows of samples."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headwater.adapt.calibrate import Learned, compared, facts_of, learn
from headwater.adapt.model import Costs, Facts, predict, rows_of
from headwater.adapt.window import window
from headwater.control.records import Sample
from headwater.core.jsonform import dump, load
from headwater.core.metrics import HostProgress, OperatorProgress, Progress, UnitProgress
from headwater.plan.profile import Known, OperatorProfile, Profile
from headwater.testing.modelled import ModelledWorld
from tests.unit.looped import PROFILE, planned

KERB, CLOUD = ("kerb", "pi"), ("cloud", "vm")


def facts(rate: float, **more: object) -> Facts:
    profile = PROFILE.model_copy(update={"rates": {"trips": {"nyc": rate}}})
    return Facts(profile=profile, **more)  # type: ignore[arg-type]


def test_rows_follow_selectivities() -> None:
    plan = planned("zones")
    taken, channels = rows_of(plan, Known(plan.dataflow, facts(500).profile))
    assert taken["light@kerb", "light"] == 500
    assert list(channels.values()) == [500]
    assert taken["result@cloud", "result"] == pytest.approx(10)


def test_one_unit_by_hand() -> None:
    """With 0.25 s fixed and 100 rows/s of 460 µs, a batch runs every half second."""
    found = predict(planned("zones"), facts(100))
    unit = found.units["light@kerb"]
    assert unit.period == pytest.approx(0.5)
    assert unit.batch_s == pytest.approx(0.25 + 100 * 0.5 * (20 + 220 + 220 + 5) * 1e-6)
    assert unit.cpu == pytest.approx(0.15 / 0.5 + 100 * 465e-6)
    assert found.reaches["light@kerb"][0] == pytest.approx(0.25 + unit.batch_s)
    assert found.load[KERB] == pytest.approx(unit.cpu)
    assert found.bandwidth == pytest.approx(100 * 20)


def test_more_rows_take_longer_until_it_is_too_many() -> None:
    times = [predict(planned("zones"), facts(rate)).p95 for rate in (10, 200, 800, 1500)]
    assert times == sorted(times) and all(map(math.isfinite, times))
    assert predict(planned("zones"), facts(3000)).p95 == math.inf


def test_a_link_that_is_too_narrow_never_catches_up() -> None:
    plan = planned("heavy")
    wide, narrow = facts(100), facts(100, capacity={"kerb-cloud": 100_000.0})
    assert math.isfinite(predict(plan, wide).p95)
    assert predict(plan, narrow).p95 == math.inf


def test_another_job_slows_batches_down() -> None:
    alone = predict(planned("zones"), facts(100)).units["light@kerb"]
    beside = predict(planned("zones"), facts(100, others={KERB: 0.5})).units["light@kerb"]
    assert beside.batch_s == pytest.approx(2 * alone.batch_s, rel=0.2)


# ---------------------------------------------------------------- windows


def sample(
    at: float,
    rows: int,
    run: str = "a",
    host_s: float = 0.0,
    *,
    began: float | None = None,
    oldest_s: float | None = None,
) -> Sample:
    unit = UnitProgress(
        unit="light@kerb", zone="kerb", layer="edge", status="running", rows_in=rows, run=run,
        batches=rows // 10, busy_s=rows / 100, cpu_s=rows / 200, began=began, oldest_s=oldest_s,
        operators=(
            OperatorProgress(operator="trips", rows_in=rows, rows_out=rows, location=None),
            OperatorProgress(operator="light", rows_in=rows, rows_out=rows // 2),
        ),
    )  # fmt: skip
    host = HostProgress(host="pi", zone="kerb", cores=2.0, seconds=at, cpu_s=host_s, others_s=at / 10)
    return Sample(at=at, progress=Progress(seconds=at, units=(unit,), hosts=(host,)))


def test_rates_are_differences_of_counters() -> None:
    found = window([sample(100, 0), sample(105, 400, host_s=5.0), sample(110, 1000, host_s=10.0)])
    assert found is not None
    unit = found.units["light@kerb"]
    assert unit.rows_in == 100 and unit.batches == 10 and unit.batch_s == pytest.approx(0.1)
    assert unit.operators["light"].rows_out == 50 and unit.steady
    assert found.rates(planned("zones")) == {"trips": {"nyc": 100.0}}
    assert found.hosts[KERB].load == pytest.approx((1.0 + 0.1) / 2)


def test_what_comes_is_counted_from_batch_to_batch() -> None:
    """A batch of 5 s, then one of 7 s; 1,000 rows/s arrived before the second batch, 2,000 before the third."""
    said = [(100, 3000, 95.0), (101, 3000, 95.0), (103, 8000, 100.0), (106, 8000, 100.0), (110, 22000, 107.0)]
    samples = [sample(at, rows, began=began, oldest_s=3.0) for at, rows, began in said]

    def rate(until: int, seconds: float) -> float:
        found = window(samples[:until], seconds)
        assert found is not None
        return found.units["light@kerb"].taken["trips", None]

    assert rate(4, 2.5) == rate(3, 2.5) == pytest.approx(1000)
    assert rate(5, 2.5) == pytest.approx(2000)
    assert rate(5, 10.0) == pytest.approx(19000 / 12)


def test_a_source_that_has_fallen_silent_has_no_rate() -> None:
    begun = [sample(100 + n, 100 * n, began=100.0 + n) for n in range(4)]
    silent = [sample(103.0 + n, 300, began=103.0) for n in range(1, 8)]

    def rate(count: int) -> float:
        found = window([*begun, *silent[:count]], 2.5)
        assert found is not None
        return found.units["light@kerb"].taken["trips", None]

    assert rate(1) == rate(2) == pytest.approx(100)
    assert rate(4) == rate(7) == 0


def test_a_new_run_counts_from_nothing() -> None:
    found = window([sample(100, 900), sample(105, 1000), sample(110, 300, run="b")])
    assert found is not None
    assert found.units["light@kerb"].taken["trips", None] == pytest.approx((100 + 300) / 10)
    assert not found.units["light@kerb"].steady


def test_before_its_first_batch_a_run_has_counted_none() -> None:
    first = sample(100, 0)
    (unit,) = first.progress.units
    silent = replace(unit, operators=tuple(replace(o, rows_in=None, rows_out=None) for o in unit.operators))
    begun = replace(first, progress=replace(first.progress, units=(silent,)))
    found = window([begun, sample(105, 0), sample(110, 1000)])
    assert found is not None
    assert found.units["light@kerb"].operators["light"].rows_in == 100
    assert found.units["light@kerb"].operators["light"].rows_out == 50
    never = window([sample(100, 0), replace(begun, at=110)])
    assert never is not None and never.units["light@kerb"].operators["light"].rows_in is None


def test_one_sample_tells_nothing() -> None:
    assert window([sample(1, 1)]) is None and window([]) is None


def test_the_newest_seconds_count() -> None:
    found = window([sample(n, 10 * n) for n in range(10)] + [sample(10, 1000)], 1.0)
    assert found is not None and found.units["light@kerb"].rows_in == 1000 - 90


# ---------------------------------------------------------------- calibration


def lived(world: ModelledWorld, seconds: int) -> list[Sample]:
    found = []
    for _ in range(seconds):
        world.go(1.0)
        found.append(Sample(at=world.now, progress=world.progress()))
    return found


@pytest.mark.parametrize("first_in_cloud", ["heavy", "light", "zones"])
def test_costs_that_nobody_knew_are_learned(first_in_cloud: str) -> None:
    """Rows cost three times as much as in the profile, batches twice as much as usual."""
    plan = planned(first_in_cloud)
    real = Costs(batch_s=0.5, batch_cpu=0.3, state_s=0.05, row=dict.fromkeys(plan.dataflow.order, 3.0))
    world = ModelledWorld(plan, facts(50, costs=real, others={CLOUD: 0.1}))
    learned = Learned(profile=PROFILE)
    for rate in (50, 300, 100, 200, 400, 250):
        world.set_rates({"trips": {"nyc": rate}})
        lived(world, 5)
        seen = window(lived(world, 15))
        assert seen is not None
        learned = learn(learned, plan, seen)
    last = window(lived(world, 15))
    assert last is not None
    errors = compared(plan, predict(plan, facts_of(learned, plan, last)), last)
    assert all(c.error < 0.2 for kind in errors.values() for c in kind), [
        (c.what, c.predicted, c.measured) for k in errors.values() for c in k
    ]
    assert errors["latency"] and errors["load"] and errors["bytes"]
    # ... so the model predicts an overload that was never observed.
    most = replace(world.facts, profile=facts(2000).profile)
    mine = replace(facts_of(learned, plan, last), profile=facts(2000).profile)
    assert predict(plan, mine).load[KERB] == pytest.approx(predict(plan, most).load[KERB], rel=0.35)


def test_one_units_batches_cost_more_than_anothers() -> None:
    """The fit has one figure for all units; a unit whose batches cost twice as much has its own figure."""
    plan = planned("zones")
    dear, _ = plan.units
    real = Costs(batch_s=0.2, batch_cpu=0.15, state_s=0.0, state_cpu=0.0, own_cpu={dear.key: 0.28})
    world = ModelledWorld(plan, facts(10, costs=real))
    learned = Learned(profile=PROFILE)
    for _ in range(6):
        seen = window(lived(world, 15))
        assert seen is not None
        learned = learn(learned, plan, seen)
    last = window(lived(world, 15))
    assert last is not None
    load = compared(plan, predict(plan, facts_of(learned, plan, last)), last)["load"]
    assert len(load) == 2 and all(c.error < 0.1 for c in load), load
    # The figure of a unit that does not run now is dropped.
    elsewhere = planned("light")
    world = ModelledWorld(elsewhere, facts(10, costs=real))
    seen = window(lived(world, 15))
    assert seen is not None
    assert dear.key not in learn(learned, elsewhere, seen).costs.own_cpu


def test_selectivity_and_sizes_are_measured() -> None:
    plan = planned("zones")
    world = ModelledWorld(plan, facts(200))
    unknown = Profile(dataflow="two", operators={"zones": OperatorProfile(selectivity=0.9)})
    learned = Learned(profile=unknown)
    for _ in range(12):
        seen = window(lived(world, 15))
        assert seen is not None
        learned = learn(learned, plan, seen)
    assert learned.profile.operators["zones"].selectivity == pytest.approx(0.02, rel=0.3)
    assert learned.profile.operators["light"].bytes_out == pytest.approx(20, rel=0.01)


def test_what_was_learned_is_kept_as_json() -> None:
    plan = planned("zones")
    seen = window(lived(ModelledWorld(plan, facts(200)), 15))
    assert seen is not None
    learned = learn(Learned(profile=PROFILE), plan, seen)
    assert load(Learned, dump(learned), what="what was learned") == learned
