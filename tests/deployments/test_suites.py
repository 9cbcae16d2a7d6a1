"""The suites that others defined: deployments, one Spark batch run and the published definition agree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.debs2015 import definition as debs_definition
from examples.debs2015 import flow as debs_flow
from examples.debs2015 import generate as debs_generate
from examples.linearroad import definition as road_definition
from examples.linearroad import flow as road_flow
from examples.linearroad import generate as road_generate
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, Kill, Pause, batch_result, check_equivalent
from tests.deployments.test_oracle import DECISIONS

GARAGES = ("garage-a", "garage-b")
STRETCHES = ("x0-west", "x0-east")
SMALL = """
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [%s, %s]}
"""


@dataclass(frozen=True)
class Case:
    """Input, dataflow and continuum, and what the sinks are to hold by the published definition."""

    dataflow: Dataflow
    continuum: Continuum
    wanted: dict[str, Any]
    read: Callable[[list[dict[str, Any]]], Any]

    def check(self, tables: dict[str, pa.Table]) -> None:
        """Compare the rows of the sinks with the definition."""
        assert all(self.wanted.values()), "an empty result proves nothing"
        for name, wanted in self.wanted.items():
            assert self.read(tables[name].to_pylist()) == wanted, name


def debs(
    place: Path,
    *,
    seed: int,
    rows: int,
    garages: Sequence[str],
    continuum: str,
    queries: Sequence[str] = ("routes", "areas"),
    **more: Any,
) -> Case:
    """Write trips; return queries over them."""
    files = debs_generate.write_files(place, rows, seed=seed, per_file=-(-rows // 3), garages=garages, **more)
    trips = list(debs_definition.trips_in(list(files)))
    answers = {"routes": debs_definition.routes, "areas": debs_definition.areas}
    wanted = {name: answers[name](trips) for name in queries}
    flow = debs_flow.debs2015(str(place), None, queries=queries, garages=garages)
    return Case(flow, Continuum.from_text(continuum), wanted, debs_definition.listed)


def road(place: Path, files: Iterable[Path], *, stretches: Sequence[str], continuum: str) -> Case:
    """Return the dataflow over the reports in some files."""
    reports = road_definition.reports_in(list(files))
    wanted = {"tolls": road_definition.tolls(reports), "alerts": road_definition.alerts(reports)}
    assert any(notice[-1] for notice in wanted["tolls"]), "no toll is paid"
    flow = road_flow.linear_road(str(place), None, stretches=stretches)
    return Case(flow, Continuum.from_text(continuum), wanted, road_definition.noticed)


def small_debs(place: Path) -> Case:
    return debs(
        place, seed=3, rows=500, garages=GARAGES, continuum=SMALL % GARAGES, queries=("routes",), late=0.05, taxis=60
    )


def small_road(place: Path) -> Case:
    settings: dict[str, Any] = {"expressways": 1, "segments": 4, "rate": 40.0, "accidents": 0.15, "per_file": 1500}
    files = list(road_generate.write_files(place, 10, seed=2, **settings))
    return road(place, files, stretches=STRETCHES, continuum=SMALL % STRETCHES)


def unlike_roads(place: Path) -> Case:
    """Write reports that no simulation gives: vehicles that jump, pause, and stand in any combination."""
    drawn = random.Random(11)
    found = []
    for vehicle in range(260):
        second, reports = drawn.randrange(30), drawn.randint(2, 24)
        spot = (drawn.randint(0, 4), drawn.choice((0, 0, 1)), drawn.choice((2, 2, 2, 3, 4, 5, 6)))
        for _ in range(reports):
            lane, direction, segment = spot
            position = segment * road_generate.MILE + 100 * (lane % 2)
            speed = drawn.choice((0, 7, 18, 33, 55, 88))
            found.append(road_generate.Report(second, vehicle, speed, 0, lane, direction, segment, position))
            second += drawn.choice((30, 30, 30, 30, 30, 30, 30, 60, 90))
            if drawn.random() < 0.2:
                spot = (drawn.randint(0, 4), drawn.choice((0, 0, 1)), drawn.choice((2, 2, 2, 3, 4, 5, 6)))
    files = []
    for name in STRETCHES:
        mine = [r for r in sorted(found, key=lambda r: r.second) if road_generate.stretch_of(r, 10) == name]
        (place / name).mkdir(parents=True)
        for number, begin in enumerate(range(0, len(mine), 800)):
            files.append(place / name / f"{number}.csv")
            files[-1].write_text("".join(f"{r.line()}\n" for r in mine[begin : begin + 800]))
    return road(place, files, stretches=STRETCHES, continuum=SMALL % STRETCHES)


SMALL_CASES = {"debs2015": small_debs, "linearroad": small_road}


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL_CASES)
def test_deployment_batch_and_definition_agree(name: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    case = SMALL_CASES[name](tmp_path / "in")
    batch = batch_result(endpoint.session(), case.dataflow, case.continuum)
    case.check(batch)
    outcome = check_equivalent(case.dataflow, case.continuum, endpoint, tmp_path / "run", expected=batch)
    assert {unit.layer for unit in outcome.plan.units} == {"edge", "site", "cloud"}


class Released:
    """Files that appear one after another in every directory, with events between them."""

    def __init__(self, place: Path, events: Sequence[Kill | Pause]) -> None:
        self._place, self._events = place, events
        self._files = {d: sorted(d.glob("[!.]*")) for d in sorted(place.iterdir())}
        for file in (f for files in self._files.values() for f in files):
            file.rename(file.with_name(f".{file.name}"))

    def release(self) -> Iterator[Kill | Pause | None]:
        """Show the next file of each directory, then yield the next event."""
        events = iter(self._events)
        for number in range(max(map(len, self._files.values()))):
            for files in self._files.values():
                for file in files[number : number + 1]:
                    file.with_name(f".{file.name}").rename(file)
            yield next(events, None)


def whole_debs(place: Path) -> Case:
    text = Path(debs_flow.__file__).with_name("continuum.yaml").read_text()
    return debs(place, seed=8, rows=3000, garages=debs_flow.GARAGES, continuum=text, late=0.03, taxis=700)


def whole_road(place: Path) -> Case:
    text = Path(road_flow.__file__).with_name("continuum.yaml").read_text()
    files = list(road_generate.write_files(place, 9, seed=10, rate=45.0, segments=4, accidents=0.15, per_file=2000))
    return road(place, files, stretches=road_flow.STRETCHES, continuum=text)


CASES = {"debs2015": whole_debs, "linearroad": whole_road, "reports at random": unlike_roads}


# Linear Road with a unit per operator would be some seventy queries on one Spark; reports at random have fewer zones.
MATRIX = [(name, d) for name in CASES for d in DECISIONS if (name, d) != ("linearroad", "unit per operator")]


@pytest.mark.long
@pytest.mark.parametrize(("name", "decision"), MATRIX)
def test_any_cuts_and_kills_give_the_definitions_rows(
    name: str, decision: str, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    case = CASES[name](tmp_path / "in")
    batch = batch_result(endpoint.session(), case.dataflow, case.continuum)
    case.check(batch)
    wanted = DECISIONS[decision](case.dataflow, case.continuum)
    source = Released(tmp_path / "in", [PAUSE, KILL, KILL])
    check_equivalent(
        case.dataflow, case.continuum, endpoint, tmp_path / "run", decision=wanted, source=source, expected=batch
    )
