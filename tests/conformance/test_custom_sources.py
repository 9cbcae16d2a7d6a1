"""Python data sources of the user's as sources and sinks, and the public kit that checks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.loading import LoadedDataflow, check_trust
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, HeadwaterError, UserCodeError
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import NotConformant, check_equivalent, check_sink, check_source, run_to_end
from tests.conformance.custom_sources import (
    FAULTS,
    SCHEMA,
    AppendingSink,
    Files,
    FilesSink,
    Outside,
    stored,
)
from tests.conftest import start_endpoint
from tests.deployments.flows import CONTINUUM, LOCATIONS

TREE = Continuum.from_text(CONTINUUM)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark of its own: the kit kills it, and other tests hold sessions of theirs."""
    started = start_endpoint(tmp_path_factory.mktemp("custom-spark"), memory_mb=1024)
    try:
        yield started
    finally:
        started.stop()


def test_a_source_that_keeps_its_promises_passes(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    outside = Outside(tmp_path / "outside")
    options = {"path": str(outside.directory)}
    read = check_source(Files, lambda: outside.add(7), endpoint, tmp_path, options=options)
    assert read == outside.count() > 20


@pytest.mark.parametrize("what", list(FAULTS))
def test_a_source_with_a_fault_is_refused(what: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    faulty = type("Faulty", (Files,), {"stream": FAULTS[what]})
    outside = Outside(tmp_path / "outside")
    with pytest.raises(NotConformant, match=what) as caught:
        options = {"path": str(outside.directory)}
        check_source(faulty, lambda: outside.add(7), endpoint, tmp_path, options=options)
    assert caught.value.hint


@pytest.mark.long
def test_a_sink_that_stores_the_number_of_a_batch_passes(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path / "outside"
    assert check_sink(FilesSink, lambda: stored(place), endpoint, tmp_path, options={"path": str(place)}) == 120


@pytest.mark.long
def test_a_sink_that_appends_repetitions_is_refused(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path / "outside"
    with pytest.raises(NotConformant, match="too many"):
        check_sink(AppendingSink, lambda: stored(place), endpoint, tmp_path, options={"path": str(place)})


def test_a_dataflow_equals_its_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    for location in LOCATIONS:
        Outside(tmp_path / "outside" / location).add(20)
    f = hw.flow("own", locations=LOCATIONS)
    f.dataSource.register(Files)
    read = f.read.format("files_of_tests").option("path", f"{tmp_path}/outside/{{location}}")
    rows = read.load(bounded=True, location_as="location")
    assert rows.columns == ["n", "name", "location"]
    rows.to_layer("cloud").where("n % 2 = 0").write.memory("out")
    flow = f.build()
    assert flow.sources[0].per_location
    again = hw.Dataflow.from_json(flow.to_json())
    assert again == flow
    with pytest.raises(HeadwaterError, match="carries pickled Python code"):
        check_trust(LoadedDataflow(again, "flow.json", is_code=False), trust_code=False)
    assert check_equivalent(flow, TREE, endpoint, tmp_path / "run").rows == {"out": 30}


def test_a_sink_that_raises_says_where(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"n": 1}')
    f = hw.flow("own", locations=["L1"])
    f.read.json(str(tmp_path / "in"), "n bigint").to_layer("cloud").write.format(FilesSink).start().named("out")
    with pytest.raises(UserCodeError, match="the data source raised KeyError") as caught:  # it has no path
        run_to_end(build(f.build(), TREE), tmp_path / "run", endpoint)
    assert "out" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("unknown", "there is no data source 'unknown'"),
        (dict, "is no Python data source"),
        (7, "is no Python data source"),
    ],
)
def test_what_is_no_data_source_is_refused(source: Any, what: str) -> None:
    f = hw.flow("own")
    with pytest.raises(DataflowError, match=what) as caught:
        f.read.format(source)
    assert caught.value.hint
    with pytest.raises(DataflowError, match=what):
        f.read.json("/d", SCHEMA).write.format(source)


def test_a_source_without_a_schema_needs_one() -> None:
    f = hw.flow("own")
    with pytest.raises(DataflowError, match="tells no schema") as caught:
        f.read.format(FilesSink).load()
    assert ".schema(" in str(caught.value.hint)
    assert f.read.format(FilesSink).schema("a int").load("/d").columns == ["a"]
