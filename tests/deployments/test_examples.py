"""Compare the examples' dataflows with their batch runs: taxi in both forms, Acme, each cut in every way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from examples.taxi import flow as taxi_flow
from examples.taxi.generate import write_files
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sensors import SensorModel
from headwater.demo.data import sensor_series, write_steps
from headwater.demo.flow import CONTINUUM, LOCATIONS, acme
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, check_equivalent
from tests.deployments.test_oracle import DECISIONS

TAXI = {
    "most frequent": ("30 minutes", "5 minutes"),
    "most profitable": ("30 seconds", "30 seconds"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with three thousand trips and some days of machine temperatures."""
    directory = tmp_path_factory.mktemp("examples")
    for _ in write_files(directory / "taxi" / "nyc", 3000, seed=5, per_file=1500):
        pass
    series = sensor_series(SensorModel(seed=2, machines=2), LOCATIONS, days=12)
    for _ in write_steps(directory / "acme", series, files=2, malformed=0.002):
        pass
    return directory


def example(name: str, place: Path) -> tuple[Dataflow, Continuum]:
    if name == "acme":
        return acme(str(place / "acme")), Continuum.from_yaml(CONTINUUM)
    window, slide = TAXI[name]
    flow = taxi_flow.taxi(str(place / "taxi"), None, name="taxi", window=window, slide=slide, ranking=name)
    return flow, Continuum.from_yaml(Path(taxi_flow.__file__).with_name("continuum.yaml"))


@dataclass(frozen=True)
class Batch:
    """An example and the result of its batch run."""

    flow: Dataflow
    continuum: Continuum
    tables: dict[str, pa.Table]


# A short test of the demo runs acme with its marked layers (`test_demo.py`).
@pytest.fixture(scope="module", params=[pytest.param("acme", marks=pytest.mark.long), *TAXI])
def batch(request: pytest.FixtureRequest, endpoint: LocalEndpoint, place: Path) -> Batch:
    """Run an example as a batch, once for all cuts."""
    flow, continuum = example(request.param, place)
    return Batch(flow, continuum, batch_result(endpoint.session(), flow, continuum))


@pytest.mark.parametrize(
    "decision",
    [pytest.param(d, marks=[] if d == "unit per layer" else [pytest.mark.long]) for d in DECISIONS],
)
def test_examples_equal_one_batch_run(batch: Batch, decision: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    wanted = DECISIONS[decision](batch.flow, batch.continuum)
    outcome = check_equivalent(
        batch.flow, batch.continuum, endpoint, tmp_path / "run", decision=wanted, expected=batch.tables
    )
    assert all(outcome.rows.values()), "an empty result proves nothing"


@pytest.mark.parametrize("batch", list(TAXI), indirect=True)
def test_taxi_lists_are_rankings_that_change(batch: Batch) -> None:
    lists = sorted(batch.tables["result"].to_pylist(), key=lambda row: row["ts"])
    assert len(lists) > 1
    assert all(taxi_flow.only_routes(a["top"]) != taxi_flow.only_routes(b["top"]) for a, b in pairwise(lists))
    for row in lists:
        top = json.loads(row["top"])
        scores = [route["score"] for route in top]
        assert len(top) <= 10
        assert scores == sorted(scores, reverse=True)
