"""A dataflow on a continuum as a placement problem: its layers, its costs, and refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headwater as hw
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.cli import app
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList, HeadwaterError, PlacementError
from headwater.core.jsonform import dump
from headwater.dataflow.graph import Dataflow
from headwater.placement import STRATEGIES
from headwater.placement.cost import evaluate, shortages
from headwater.plan.build import build, in_layers, marked_layers
from headwater.plan.place import ANNOTATED, PlacementRequest, place
from headwater.plan.profile import Known, OperatorProfile, Profile
from headwater.plan.setting import Setting

ZONES = """
name: plant
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {vm: {n_cpu: 16, memory: 64GiB, gpu: true}}}
  S1:
    {layer: site, parent: C1, link: {bandwidth: 10Mbit/s, latency: 40ms}, hosts: {rk: {n_cpu: 4, gpu: true}}}
  E1: {layer: edge, parent: S1, locations: [L1], link: {bandwidth: 2Mbit/s, latency: 5ms}, hosts: {pi1: {}}}
  E2: {layer: edge, parent: S1, locations: [L2], link: {bandwidth: 2Mbit/s, latency: 5ms}, hosts: {pi2: {}}}
"""
CONTINUUM = Continuum.from_text(ZONES)
SCHEMA = "machine string, ts timestamp, celsius double"


def plant(*, require: str = "", located: bool = True) -> Dataflow:
    f = hw.flow("plant", locations=["L1", "L2"])
    readings = f.read.csv("/in/{location}", SCHEMA, location_as="location").named("readings")
    valid = readings.where("celsius BETWEEN -50 AND 200").named("valid")
    if require:
        valid = valid.require(require).with_columns(f="celsius * 1.8 + 32").named("fahrenheit")
    keys = ("location", "machine") if located else ("machine",)
    means = (
        valid.with_watermark("ts", "10 minutes")
        .named("late")
        .group_by(hw.window("ts", "1 hour"), *keys)
        .agg(mean="avg(celsius)", n="count(*)")
        .named("means")
    )
    means.to_layer("cloud").write.json("/out").named("out")
    return f.build()


def setting(dataflow: Dataflow, profile: Profile | None = None, continuum: Continuum = CONTINUUM) -> Setting:
    return Setting(dataflow, continuum, marked_layers(dataflow, continuum), Known(dataflow, profile))


def measured(rate: float = 100.0, **operators: OperatorProfile) -> Profile:
    return Profile(rates={"readings": {"*": rate}}, operators=operators)


def test_operators_run_apart_for_each_location_where_they_can() -> None:
    apart = setting(plant())
    assert ("valid", "L1") in apart.instances and ("means", "L2") in apart.instances
    assert len(apart.problem.together) == len(plant().order)
    one = setting(plant(located=False))
    assert ("means", None) in one.instances and ("valid", "L1") in one.instances
    # Without the location among its keys, it may run only where one zone receives all rows.
    hosts = one.problem.application.operators[one.instances.index(("means", None))].hosts or ()
    assert {one.hosts[h].zone for h in hosts} == {"S1", "C1"}


def test_sources_and_sinks_stay_and_requirements_hold() -> None:
    found = setting(plant(require="gpu = true"))
    where = {
        name: {found.continuum.zone(found.hosts[h].zone).layer for h in operator.hosts or ()}
        for (name, _), operator in zip(found.instances, found.problem.application.operators, strict=True)
    }
    assert where["readings"] == where["late"] == {"edge"} and where["out"] == {"cloud"}
    assert where["fahrenheit"] == {"site", "cloud"}
    assert where["valid"] == {"edge", "site", "cloud"}


@pytest.mark.parametrize("strategy", [ANNOTATED, *STRATEGIES])
@pytest.mark.parametrize("dataflow", [plant(), plant(located=False), plant(require="gpu = true")])
def test_what_strategies_choose_can_be_built(strategy: str, dataflow: Dataflow) -> None:
    found = setting(dataflow)
    try:
        deployment, prediction = place(found, PlacementRequest(strategy=strategy))
    except HeadwaterError as error:
        assert strategy == ANNOTATED  # the marks put the operator into the edge
        why = {
            "gpu = true": "no host of zone E1 meets gpu = true",
            "": "'means' cannot run separately for each location",
        }
        assert why[str(dataflow["means"].requires or "")] in str(error)
        return
    plan = build(dataflow, CONTINUUM, deployment)
    assert {o: plan.layers[o] for o in dataflow.order} == prediction.layers
    assert prediction.latency > 0 and prediction.paths


def exhaustive(found: Setting) -> float:
    """Try every layer for every operator; return the least latency."""
    names, layers = found.dataflow.order, [layer.name for layer in found.continuum.layers]
    best = float("inf")
    for chosen in itertools.product(layers, repeat=len(names)):
        try:
            chosen_layers = dict(zip(names, chosen, strict=True))
            placement = found.placement(in_layers(found.dataflow, found.continuum, chosen_layers))
        except HeadwaterError:
            continue
        if not shortages(found.problem, placement):
            best = min(best, evaluate(found.problem, placement).latency)
    return best


@given(
    rate=st.sampled_from([10.0, 2_000.0, 20_000.0]),
    selectivity=st.sampled_from([0.01, 0.5, 1.0]),
    cpu=st.sampled_from([1e-6, 4e-5, 3e-4]),
    located=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_the_optimum_over_layers_is_that_of_trying_all(
    rate: float, selectivity: float, cpu: float, located: bool
) -> None:
    profile = measured(
        rate,
        valid=OperatorProfile(cpu_s=cpu, selectivity=selectivity, bytes_out=30),
        means=OperatorProfile(cpu_s=cpu, selectivity=0.1, bytes_out=40, state_bytes=1e6),
    )
    found = setting(plant(located=located), profile)
    least = exhaustive(found)
    if least == float("inf"):
        with pytest.raises(PlacementError):
            place(found, PlacementRequest(strategy="optimal"))
        return
    assert place(found, PlacementRequest(strategy="optimal"))[1].latency == pytest.approx(least)
    assert place(found, PlacementRequest(strategy="local_search"))[1].latency >= least * (1 - 1e-9)


def test_a_narrow_link_keeps_the_filter_at_the_edge() -> None:
    """60 bytes × 8,000 rows/s exceed 2 Mbit/s; a hundredth of that does not."""
    light = measured(8_000.0, valid=OperatorProfile(cpu_s=1e-6, selectivity=0.01, bytes_out=50))
    deployment, _ = place(setting(plant(), light), PlacementRequest(strategy="optimal"))
    assert build(plant(), CONTINUUM, deployment).layers["valid"] == "edge"
    with pytest.raises(PlacementError, match=r"bandwidth|no route"):
        place(setting(plant(), light), PlacementRequest(strategy="cloud_only"))


def test_too_much_work_for_the_edge_goes_up() -> None:
    heavy = measured(200.0, means=OperatorProfile(cpu_s=0.008, selectivity=0.1, bytes_out=40))
    deployment, prediction = place(setting(plant(), heavy), PlacementRequest(strategy="optimal"))
    assert build(plant(), CONTINUUM, deployment).layers["means"] in ("site", "cloud")
    assert max(prediction.load.values()) < 1
    with pytest.raises(PlacementError, match=r"(?s)cpu at.*pi1|processing rate at"):
        far_too_heavy = measured(200.0, means=OperatorProfile(cpu_s=1.0))
        place(setting(plant(), far_too_heavy), PlacementRequest(strategy="optimal"))


def test_what_is_predicted_is_said_with_its_grounds() -> None:
    profile = measured(100.0, valid=OperatorProfile(cpu_s=0.001, selectivity=0.5, bytes_out=50))
    _, prediction = place(setting(plant(), profile), PlacementRequest(strategy=ANNOTATED))
    data = dump(prediction)
    assert data["strategy"] == ANNOTATED
    # The marks put all operators up to the windows, included, at the edge; each link carries 50 rows/s of windows.
    assert data["layers"]["means"] == "edge"
    assert data["load"]["pi1 (E1)"] == pytest.approx(100 * 0.001 + 100 * 5e-6 + 2 * 50 * 5e-6, rel=0.2)
    assert set(data["links"]) == {"E1-S1", "E2-S1", "S1-C1"}
    assert data["links"]["S1-C1"]["bytes_per_s"] == pytest.approx(2 * data["links"]["E1-S1"]["bytes_per_s"])
    assert {(p["location"], p["sink"]) for p in data["paths"]} == {("L1", "out"), ("L2", "out")}
    assert all(0.045 + 0.5 < p["seconds"] < 0.7 for p in data["paths"])
    assert any("assumed, not measured" in note for note in data["notes"])


def proposed(dataflow: Dataflow, place: Path, **asked: Any) -> Proposal:
    """Propose a plan without a store."""
    request = PlanRequest(dataflow=dataflow, continuum=CONTINUUM, strategy="optimal", **asked)
    return Client(str(place / "none.db")).propose(request)


def test_a_strategys_layers_are_run_like_any_others(tmp_path: Path) -> None:
    proposal = proposed(plant(), tmp_path)
    plan, prediction = proposal.plan, proposal.prediction
    assert prediction is not None and not (tmp_path / "none.db").exists()
    by_hand = build(plant(), CONTINUUM, in_layers(plant(), CONTINUUM, prediction.layers))
    assert plan.units == by_hand.units and plan.channels == by_hand.channels
    assert not plan.warnings  # event time is declared before the streams of zones merge
    others = proposed(plant(require="gpu = true"), tmp_path, compare=True).others
    assert set(others) == {ANNOTATED, *STRATEGIES}
    failed = {name for name, found in others.items() if isinstance(found, HeadwaterError)}
    assert failed == {ANNOTATED}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "not JSON"),
        ("[]", "wrong at its top"),
        ('{"operators": {"valid": {"cpu_s": -1}}}', r"operators.valid.cpu_s"),
        ('{"operators": {"valid": {"cpu": 1}}}', "operators.valid.cpu"),
        ('{"rates": {"readings": {"L1": "fast"}}}', "rates.readings.L1"),
        ('{"rates": {"readings": {"L1": -5}}}', "rates.readings.L1"),
        ('{"rates": {"readings": {"L1": NaN}}}', "rates.readings.L1"),
    ],
)
def test_a_wrong_profile_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        Profile.from_json(text)


def test_a_profile_of_another_dataflow_is_refused() -> None:
    with pytest.raises(PlacementError, match="unknown operator 'nothing'"):
        Known(plant(), Profile(operators={"nothing": OperatorProfile()}))


def test_a_profile_is_read_as_it_was_written() -> None:
    profile = measured(7.0, valid=OperatorProfile(cpu_s=1e-5, selectivity=0.5, bytes_out=50))
    assert Profile.from_json(profile.to_json()) == profile


FLOW = f'''
import headwater as hw
f = hw.flow("plant", locations=["L1", "L2"])
readings = f.read.csv("/in/{{location}}", "{SCHEMA}", location_as="location").named("readings")
valid = readings.where("celsius > 0").named("valid")
valid.to_layer("cloud").write.json("/out").named("out")
'''


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "plant.yaml").write_text(ZONES)
    return [str(tmp_path / "flow.py"), "-c", str(tmp_path / "plant.yaml")]


def test_the_command_line_places_and_compares(files: list[str], tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(measured(50.0).to_json())
    shown = CliRunner().invoke(app, ["plan", *files, "--strategy", "optimal", "--profile", str(profile), "--compare"])
    assert shown.exit_code == 0, shown.output
    for word in ("Placed by optimal", "no placement has less", "Predicted latency", "aels_rp_la", "S1-C1"):
        assert word in shown.output
    told = CliRunner().invoke(app, ["plan", *files, "--strategy", "optimal", "--compare", "--json"])
    data = json.loads(told.output)
    assert data["layers"] == data["prediction"]["layers"]
    assert set(data["strategies"]) == {ANNOTATED, *STRATEGIES}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--strategy", "optimum"], 4, "did you mean 'optimal'"),
        (["--strategy", "optimal", "--one-unit"], 2, "exclude each other"),
        (["--strategy", "optimal", "--profile", "/nowhere.json"], 4, "cannot be read"),
    ],
)
def test_wrong_options_are_said(files: list[str], options: list[str], code: int, said: str) -> None:
    shown = CliRunner().invoke(app, ["plan", *files, *options])
    assert shown.exit_code == code
    assert said in " ".join(shown.output.split())


def test_an_impossible_placement_names_the_constraint(files: list[str], tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    heavy = Profile(rates={"readings": {"*": 1000.0}}, operators={"valid": OperatorProfile(cpu_s=10.0)})
    profile.write_text(heavy.to_json())
    shown = CliRunner().invoke(app, ["plan", *files, "--strategy", "optimal", "--profile", str(profile)])
    assert shown.exit_code == 4
    assert "work/s needed" in " ".join(shown.output.split())


def test_marks_that_cannot_be_built_are_still_refused(tmp_path: Path) -> None:
    with pytest.raises((ErrorList, PlacementError)):
        proposed(plant(require="n_cpu >= 400"), tmp_path)


def test_a_queue_that_grows_for_ever_is_said(files: list[str], tmp_path: Path) -> None:
    """The marks stay unchanged; the prediction names the shortages."""
    profile = tmp_path / "profile.json"
    heavy = Profile(rates={"readings": {"*": 1000.0}}, operators={"valid": OperatorProfile(cpu_s=0.01)})
    profile.write_text(heavy.to_json())
    options = ["--strategy", "annotated", "--profile", str(profile)]
    shown = " ".join(CliRunner().invoke(app, ["plan", *files, *options]).output.split())
    assert "grows without bound" in shown and "cpu at pi1 (E1)" in shown
    told = json.loads(
        CliRunner().invoke(app, ["plan", *files, *options, "--json"]).output,
        parse_constant=lambda name: pytest.fail(f"{name} is no JSON"),
    )
    assert told["prediction"]["latency_s"] is None


def test_apply_takes_a_strategy(files: list[str], tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    options = ["--store", store, "--yes", "--json", "--strategy", "cloud_only"]
    stored = CliRunner().invoke(app, ["apply", *files, *options])
    assert stored.exit_code == 0, stored.output
    assert json.loads(stored.output)["stored"]
    assert Client(store).stored("plant").layers["valid"] == "cloud"
