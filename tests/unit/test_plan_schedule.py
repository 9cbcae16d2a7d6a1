"""Schedulers on a dataflow's own continuum: layers by location, limits, traces of rates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.app import deployments
from headwater.app.client import Client, PlanRequest
from headwater.cli import app
from headwater.continuum.model import Continuum
from headwater.core.errors import PlacementError
from headwater.dataflow.graph import Dataflow
from headwater.placement import STRATEGIES
from headwater.placement.forecast import FORECASTS, ewma, forecast, holt_winters, last_value
from headwater.placement.schedule import SCHEDULERS
from headwater.placement.situation import Limits
from headwater.placement.usage import Weights
from headwater.plan.build import annotated, build, in_layers
from headwater.plan.compare import compared
from headwater.plan.deployment import Deployment, Placement
from headwater.plan.model import DeploymentPlan
from headwater.plan.place import ANNOTATED, PlacementRequest, judged, place
from headwater.plan.prediction import AELS_MODEL, MODEL
from headwater.plan.profile import OperatorProfile, Profile
from headwater.plan.rates import read_trace, replayed
from tests.unit.test_plan_place import CONTINUUM, FLOW, ZONES, measured, plant, setting

STRONG_AND_WEAK = Continuum.from_text(
    """
name: uneven
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {vm: {n_cpu: 16, memory: 64GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], link: {bandwidth: 8Mbit/s, latency: 50ms},
       hosts: {big: {n_cpu: 8, memory: 16GiB}}}
  E2: {layer: edge, parent: C1, locations: [L2], link: {bandwidth: 8Mbit/s, latency: 50ms},
       hosts: {small: {n_cpu: 1, memory: 16GiB}}}
"""
)
WORK = OperatorProfile(cpu_s=5e-4, selectivity=0.1, bytes_out=40)


def heavy(rate: float = 700.0) -> Profile:
    """Return the profile of a filter for which one core is enough, but not a fifth; it keeps a tenth of the rows."""
    return measured(rate, valid=WORK)


def exact(**limits: float) -> PlacementRequest:
    return PlacementRequest(strategy="tsoo_exact", limits=Limits(**limits), weights=Weights(0.0, 1.0))


def planned(deployment: Deployment, dataflow: Dataflow | None = None) -> DeploymentPlan:
    return build(dataflow or plant(), STRONG_AND_WEAK, deployment)


def test_each_location_is_cut_where_it_is_best_there() -> None:
    """Network use costs, so filters belong at the edge; the weak host is too slow for the limit."""
    found = setting(plant(), heavy(450.0), STRONG_AND_WEAK)
    deployment, prediction = place(found, exact(max_latency=1.0))
    plan = planned(deployment)
    assert plan.layer("valid", "L1") == "edge" and plan.layer("valid", "L2") == "cloud"
    assert prediction.limit_check is not None and prediction.limit_check.kept and prediction.limit_check.response <= 1.0
    where = {(u.zone, u.locations) for u in plan.units if "valid" in u.operators}
    assert where == {("E1", ("L1",)), ("C1", ("L2",))}
    without = planned(place(found, exact())[0])
    assert without.layer("valid", "L2") == "edge"  # no limit on T, and network use costs
    # Where its queue would grow without bound, it runs in the cloud even without a limit.
    growing, _ = place(setting(plant(), heavy(), STRONG_AND_WEAK), exact())
    assert planned(growing).layer("valid", "L2") == "cloud"


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("dataflow", [plant(), plant(located=False), plant(require="gpu = true")])
@pytest.mark.parametrize("continuum", [CONTINUUM, STRONG_AND_WEAK])
def test_what_schedulers_choose_can_be_built(name: str, dataflow: Dataflow, continuum: Continuum) -> None:
    found = setting(dataflow, measured(300.0), continuum)
    if continuum is STRONG_AND_WEAK and "fahrenheit" in dataflow.order:
        with pytest.raises(PlacementError, match="can run in no layer"):
            place(found, PlacementRequest(strategy=name))
        return
    deployment, prediction = place(found, PlacementRequest(strategy=name, limits=Limits(max_latency=3.0)))
    plan = build(dataflow, continuum, deployment)
    assert {o for u in plan.units for o in u.operators} == set(dataflow.order)
    assert prediction.layers == plan.layers and prediction.at == plan.layers_at


def test_what_must_not_be_replicated_is_in_one_zone() -> None:
    deployment, _ = place(setting(plant(located=False), heavy(50.0), STRONG_AND_WEAK), exact())
    plan = planned(deployment, plant(located=False))
    assert plan.layers["means"] == "cloud" and all("means" not in own for own in plan.layers_at.values())


def test_what_runs_is_moved_only_where_it_pays() -> None:
    found = setting(plant(), heavy(50.0), STRONG_AND_WEAK)
    first, _ = place(found, exact(max_latency=3.0))
    again, prediction = place(found, replace(exact(max_latency=3.0), running=first))
    assert (again, prediction.limit_check and prediction.limit_check.moved) == (first, 0)
    layers = {**planned(first).layers, "valid": "cloud", "late": "edge", "means": "cloud"}
    other = in_layers(plant(), STRONG_AND_WEAK, layers)
    _, prediction = place(found, replace(exact(max_latency=3.0), running=other))
    assert prediction.limit_check is not None and prediction.limit_check.moved
    # Another dataflow of that name: none of its placement can stay.
    strange = Deployment(frozenset(), Placement({"nothing": {"L1": ("big",)}}))
    assert place(found, replace(exact(max_latency=3.0), running=strange))[0] == first


def test_other_dataflows_take_their_part() -> None:
    """Other dataflows use the host's CPU and the links: this dataflow runs where it keeps to the limit."""
    found = setting(plant(), heavy(150.0), STRONG_AND_WEAK)
    alone, prediction = place(found, exact(max_latency=1.0))
    assert planned(alone).layer("valid", "L2") == "edge" and not any("beside" in n for n in prediction.notes)
    marks = annotated(plant(), STRONG_AND_WEAK)
    others = tuple((build(plant(), STRONG_AND_WEAK, marks), None) for _ in range(4))
    shared, prediction = place(found, replace(exact(max_latency=1.0), beside=others))
    assert planned(shared).layer("valid", "L2") == "cloud" and planned(shared).layer("valid", "L1") == "edge"
    assert f"beside {', '.join(['plant (costs assumed)'] * 4)}" in prediction.notes
    taken = replace(found, beside=others).problem
    assert taken.hosts.processes is not None and taken.hosts.cpu_used is not None
    # At each edge: readings, late, valid and means, four times each; 1,000 rows/s of 5 µs.
    at_edge = [n for n, host in enumerate(found.hosts) if host.zone == "E1"]
    assert taken.hosts.processes[at_edge].tolist() == [16]
    assert taken.hosts.cpu_used[at_edge].tolist() == [pytest.approx(4 * 4 * 1_000 * 5e-6)]
    # With a profile, they use the measured amounts.
    known = replace(found, beside=((others[0][0], measured(10.0, valid=OperatorProfile(cpu_s=0.01))),)).problem
    assert known.hosts.cpu_used is not None
    assert known.hosts.cpu_used[at_edge].tolist() == [pytest.approx(10 * 0.01 + 3 * 10 * 5e-6)]
    elsewhere = ((build(plant(), CONTINUUM, annotated(plant(), CONTINUUM)), None),)
    assert place(found, replace(exact(max_latency=1.0), beside=elsewhere))[0] == alone


def test_a_limit_that_nothing_keeps_to_is_named() -> None:
    found = setting(plant(), measured(100.0), STRONG_AND_WEAK)
    _, prediction = place(found, exact(max_latency=0.1))
    slo = prediction.limit_check
    assert slo is not None and not slo.kept
    assert "best placement found" in slo.missing and "max_latency" in slo.missing
    assert slo.missing in prediction.notes
    _, prediction = place(found, replace(exact(max_latency=0.1), running=found.marked))
    assert prediction.limit_check is not None and "placement unchanged" in prediction.limit_check.missing
    assert prediction.layers == planned(found.marked).layers
    with pytest.raises(PlacementError, match="has no limits"):
        place(found, PlacementRequest(strategy="optimal", limits=Limits(max_latency=1.0)))
    with pytest.raises(PlacementError, match="unknown strategy 'tsoo_exakt'") as refused:
        place(found, PlacementRequest(strategy="tsoo_exakt"))
    assert "did you mean 'tsoo_exact'" in str(refused.value)


# ---------------------------------------------------------------- traces


def trace(rows: Sequence[object], header: str = "time,source,location,rate") -> str:
    return "\n".join((header, *map(str, rows), ""))


def test_a_trace_is_read_step_by_step() -> None:
    found = setting(plant(), measured(7.0))
    sources = [n for n, (name, _) in enumerate(found.instances) if name == "readings"]
    one, two = sources
    steps = read_trace(trace(["0,readings,L1,10", "1,readings,*,20", "1.5,readings,L2,0"]), found)
    assert steps == ({one: 10.0, two: 7.0}, {one: 20.0, two: 20.0}, {one: 20.0, two: 0.0})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with nothing"),
        ("time,source\rlocation,rate", "begins with time,source"),
        (f"{'x' * 200_000},source,location,rate", "line 1 is not CSV: field larger"),
        ("when,what\n", "begins with when,what"),
        (trace([]), "has no rows"),
        (trace(["0,readings,L1,fast"]), "line 2 is wrong"),
        (trace(["0,readings,L1,-1"]), "line 2 is wrong"),
        (trace(["0,readings,L1,nan"]), "line 2 is wrong"),
        (trace(["1,readings,L1,1", "0,readings,L1,1"]), "line 3 is wrong"),
        (trace(["0,readings,L1"]), "line 2 is wrong"),
        (trace(["0,readings,L1,1,1"]), "line 2 is wrong"),
        (trace(["0,writings,L1,1"]), "unknown source 'writings'"),
        (trace(["0,valid,L1,1"]), "unknown source 'valid'"),
        (trace(["0,readings,L9,1"]), "unknown source 'readings' at 'L9'"),
    ],
)
def test_a_wrong_trace_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        read_trace(text, setting(plant()))


def test_schedulers_follow_rates_that_marks_do_not() -> None:
    """Rates rise until the weak host is too slow for the filter, and fall again."""
    found = setting(plant(), heavy(), STRONG_AND_WEAK)
    rising = [100, 300, 500, 700, 700, 300, 100]
    steps = read_trace(trace([f"{n},readings,*,{rate}" for n, rate in enumerate(rising)]), found)
    follows = replayed(found, steps, exact(max_latency=1.2))
    stays = replayed(found, steps, replace(exact(max_latency=1.2), strategy=ANNOTATED))
    assert all(score.kept for score in follows) and follows[0].seconds > 0
    assert not all(score.kept for score in stays) and stays[3].late
    assert sum(score.changed for score in stays) == 0 < sum(score.changed for score in follows)
    blind = replayed(found, steps, exact(max_latency=1.2), forecast="last")
    assert sum(score.kept for score in blind) < len(blind)
    with pytest.raises(PlacementError, match="does not adapt"):
        replayed(found, steps, PlacementRequest(strategy="optimal"))


def test_a_trend_is_foreseen() -> None:
    """Rates rise by 40 per step: a scheduler that expects this changes before the limit breaks."""
    found = setting(plant(), heavy(), STRONG_AND_WEAK)
    rates = [100 + 40 * n for n in range(18)]
    steps = read_trace(trace([f"{n},readings,*,{rate}" for n, rate in enumerate(rates)]), found)
    late = {}
    for name in FORECASTS:
        if name == "holt_winters":
            pytest.importorskip("statsmodels")
        scores = replayed(found, steps, exact(max_latency=1.2), forecast=name)
        late[name] = sum(score.late for score in scores)
    assert late["holt_winters"] == 0 < late["last"] <= late["ewma"]


def test_forecasts() -> None:
    assert last_value([3.0, 5.0]) == 5.0
    assert ewma([4.0, 8.0, 8.0], weight=0.5) == pytest.approx(7.0)
    assert forecast("last") is last_value
    with pytest.raises(PlacementError, match="did you mean 'holt_winters'"):
        forecast("holt_winter")
    assert holt_winters([5.0]) == 5.0
    pytest.importorskip("statsmodels")
    assert holt_winters([10.0 * n for n in range(20)]) == pytest.approx(200.0, rel=0.02)
    assert holt_winters([100.0 - 10 * n for n in range(11)]) == 0.0
    season = [100 + 50 * math.sin(n * math.pi / 4) for n in range(48)]
    assert holt_winters(season, season=8) == pytest.approx(season[0], abs=3)


# ---------------------------------------------------------------- command line


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "plant.yaml").write_text(ZONES)
    (tmp_path / "rates.csv").write_text(trace(["0,readings,*,100", "1,readings,*,4000", "2,readings,*,100"]))
    return [str(tmp_path / "flow.py"), "-c", str(tmp_path / "plant.yaml")]


LIMITS = ["--max-latency", "2s", "--max-bandwidth", "125MB/s", "--weights", "cpu=0.5,network=0.5"]


def test_plan_keeps_to_limits_and_compares(files: list[str]) -> None:
    options = ["--strategy", "tsoo_exact", *LIMITS, "--compare"]
    shown = CliRunner().invoke(app, ["plan", *files, *options])
    assert shown.exit_code == 0, shown.output
    for word in ("Placed by tsoo_exact", "of at most 2s", "resource usage", "fog_only", "optimal"):
        assert word in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(app, ["plan", *files, *options, "--json"]).output)
    slo = told["prediction"]["limit_check"]
    assert slo["kept"] and slo["response_s"] <= slo["max_latency_s"] == 2.0
    assert slo["max_bandwidth_bytes_per_s"] == 125e6
    assert set(told["strategies"]) >= set(SCHEDULERS)
    models = {one["limit_check"]["model"] for one in told["strategies"].values() if "failed" not in one}
    assert models == {MODEL} and MODEL.split(":")[0] in " ".join(shown.output.split())
    for one in told["strategies"].values():
        assert "failed" in one or one["limit_check"]["cost"] >= slo["cost"] * 0.999 or not one["limit_check"]["kept"]


@pytest.mark.parametrize(("strategy", "model"), [("tsoo_exact", MODEL), ("optimal", AELS_MODEL)])
def test_all_seconds_of_an_answer_are_by_one_model(strategy: str, model: str, files: list[str]) -> None:
    options = ["plan", *files, "--strategy", strategy, "--compare", "--json"]
    told = json.loads(CliRunner().invoke(app, options).output)
    own, found = told["prediction"], told["strategies"][strategy]
    assert max(path["seconds"] for path in own["paths"]) == pytest.approx(found["limit_check"]["response_s"])
    assert {one["limit_check"]["model"] for one in told["strategies"].values() if "failed" not in one} == {model}


@pytest.mark.parametrize("rate", [100.0, 4000.0])
def test_one_model_judges_all_strategies(rate: float) -> None:
    """Check that judging a scheduler's deployment gives the figures of its own decision, and limits hold alike."""
    given = setting(plant(), measured(rate), STRONG_AND_WEAK)
    kept = set()
    for name in (*STRATEGIES, *SCHEDULERS):
        asked = replace(exact(max_latency=3.0), strategy="tsoo_exact")
        found = compared(given, asked, name).limit_check
        assert found is not None and found.limits == asked.limits
        kept.add(found.kept)
        if name in SCHEDULERS:
            deployment, prediction = place(given, replace(asked, strategy=name))
            own, again = prediction.limit_check, judged(given, asked, deployment)
            assert own is not None
            assert (own.cost, own.response, own.bandwidth) == pytest.approx(
                (again.cost, again.response, again.bandwidth)
            )
            assert name == "tsoo_robust" or own.kept == again.kept
    assert kept


def test_a_broken_limit_is_among_the_plans_warnings(files: list[str], tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    options = ["--strategy", "tsoo_exact", "--max-latency", "1ms"]
    shown = CliRunner().invoke(app, ["plan", *files, *options])
    assert shown.exit_code == 0 and "no placement meets max_latency" in " ".join(shown.output.split())
    stored = CliRunner().invoke(app, ["apply", *files, *options, "--store", store, "--yes"])
    assert stored.exit_code == 0, stored.output
    assert deployments.in_force(store) == {}  # no controller has executed it yet


def test_profiles_are_of_their_dataflows(files: list[str], tmp_path: Path) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    own.write_text(heavy(50.0).model_copy(update={"dataflow": "plant"}).to_json())
    other.write_text(measured(5.0).model_copy(update={"dataflow": "other"}).to_json())
    options = ["--strategy", "tsoo_exact", "--profile", str(own), "--profile", str(other), "--json"]
    told = json.loads(CliRunner().invoke(app, ["plan", *files, *options]).output)
    notes = " ".join(told["prediction"]["notes"])
    assert "cost of 'valid'" not in notes and "cost of 'out'" in notes
    twice = CliRunner().invoke(app, ["plan", *files, *options[:4], "--profile", str(own)])
    assert twice.exit_code == 2 and "same dataflow" in " ".join(twice.output.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-latency", "1s"], "--max-latency is for --strategy"),
        (["--strategy", "tsoo_exact", "--weights", "cpu=1,disk=2"], "write cpu=NUMBER,network=NUMBER"),
        (["--strategy", "tsoo_exact", "--weights", "cpu=-1"], "write cpu=NUMBER,network=NUMBER"),
        (["--strategy", "tsoo_exact", "--max-latency", "1"], "is not a duration: '1'"),
        (["--strategy", "optimal", "--max-latency", "1s"], "has no limits"),
        (["--strategy", "tsoo_exact", "--one-unit"], "exclude each other"),
    ],
)
def test_wrong_options_are_said(files: list[str], options: list[str], said: str) -> None:
    shown = CliRunner().invoke(app, ["plan", *files, *options])
    assert shown.exit_code != 0
    assert said in " ".join(shown.output.replace("│", " ").split())


def test_simulate_compares_schedulers(files: list[str], tmp_path: Path) -> None:
    options = [*files, "--trace", str(tmp_path / "rates.csv"), *LIMITS]
    shown = CliRunner().invoke(app, ["simulate", *options])
    assert shown.exit_code == 0, shown.output
    for word in ("tsoo_exact", "atsoo_h", "annotated", "Success", "Response time, step by step"):
        assert word in shown.output
    told = CliRunner().invoke(app, ["simulate", *options, "--strategy", "trcs,fog_only", "--json"])
    data = json.loads(told.output)
    assert set(data["strategies"]) == {"trcs", "fog_only"}
    assert [step["step"] for step in data["steps"]["trcs"]] == [0, 1, 2]
    assert data["strategies"]["trcs"].keys() >= {"success", "ru", "late", "wide", "changed", "decision_ms"}
    wrong = CliRunner().invoke(app, ["simulate", *files, "--trace", str(tmp_path / "none.csv")])
    assert wrong.exit_code == 4 and "trace cannot be read" in wrong.output


def test_simulate_draws(files: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "replay.png"
    options = ["--trace", str(tmp_path / "rates.csv"), *LIMITS, "--plot", str(picture)]
    assert CliRunner().invoke(app, ["simulate", *files, *options]).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_schedulers_are_asked_for_like_any_strategy(tmp_path: Path) -> None:
    asked = PlanRequest(dataflow=plant(), continuum=CONTINUUM, strategy="fog_only")
    proposal = Client(str(tmp_path / "none.db")).propose(asked)
    assert proposal.prediction is not None and proposal.prediction.limit_check is not None
    assert proposal.plan.layers["means"] == "edge"
