"""The Nexmark queries: their batch runs against the published statements, and deployments against the batch runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.nexmark.flow import HERE, QUERIES, nexmark
from examples.nexmark.generate import Workload, write_files
from examples.nexmark.published import STATEMENTS
from examples.nexmark.streams import LOCATIONS, SCHEMAS, SIDE
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, BoundedSource, Kill, batch_result, check_equivalent, compare

CONTINUUM = Continuum.from_yaml(HERE / "continuum.yaml")
# Windows, sessions and days end while rows come: the time passes midnight, and few auctions and people are active.
WORKLOAD = Workload(
    rate=50, seed=3, start=datetime(2026, 1, 1, 23, 59, 40, tzinfo=UTC), in_flight=10, active_people=10, late=0.2
)
FILES = 3


class Released(BoundedSource):
    """The files of a directory, released in the order in which they were written, with a kill in their middle."""

    def __init__(self, data: str, directory: Path) -> None:
        super().__init__(directory, {})
        self._data = Path(data)
        for location in LOCATIONS:
            for kind in SCHEMAS:
                (directory / location / kind).mkdir(parents=True)
        shutil.copy(self._data / "side_input.csv", directory)

    def release(self) -> Iterable[Kill | None]:
        for number in range(1, FILES + 1):
            for file in sorted(self._data.glob(f"*/*/*-{number:04d}.csv")):
                target = self.directory / file.relative_to(self._data)
                hidden = target.with_name(f".{target.name}")
                shutil.copy(file, hidden)
                hidden.rename(target)
            yield KILL if number == FILES // 2 + 1 else None


def written(place: Path, workload: Workload) -> str:
    """Write forty seconds of an auction house; return the directory."""
    for _ in write_files(place, 2000, workload, files=FILES):
        pass
    return str(place)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a directory with events."""
    return written(tmp_path_factory.mktemp("nexmark") / "data", WORKLOAD)


Expected = Callable[[str], pa.Table]


@pytest.fixture(scope="module")
def expected(data: str, endpoint: LocalEndpoint) -> Expected:
    """Return a function that gives the rows of a query's batch run."""

    @cache
    def found(query: str) -> pa.Table:
        return batch_result(endpoint.session(), nexmark(data, [query], bounds=WORKLOAD.bounds), CONTINUUM)[query]

    return found


@pytest.fixture(scope="module")
def published(data: str, endpoint: LocalEndpoint) -> Iterator[Any]:
    """Return a session with the tables of the published statements."""
    spark = endpoint.session()
    tables = {**{kind: f"{data}/*/{kind}" for kind in SCHEMAS}, "side_input": f"{data}/side_input.csv"}
    for name, path in tables.items():
        spark.read.schema(SCHEMAS.get(name, SIDE)).csv(path).createOrReplaceTempView(name)
    yield spark
    for name in tables:
        spark.catalog.dropTempView(name)


def last_of_each(table: pa.Table, key: str, number: str) -> pa.Table:
    """Return the row with the greatest number of each key, for a query that writes a row for each change."""
    rows = sorted(table.to_pylist(), key=lambda row: row[number])
    return pa.Table.from_pylist(list({row[key]: row for row in rows}.values()), table.schema)


OF_EACH_KIND = ("q3", "q4", "q5", "q7", "q11", "q13")
"""A join, changes of an average, windows of windows, a join of windows, sessions, and a table at the side."""


@pytest.mark.parametrize(
    "query", [q if q in OF_EACH_KIND else pytest.param(q, marks=pytest.mark.long) for q in QUERIES]
)
def test_equals_the_published_statement(query: str, expected: Expected, published: Any) -> None:
    found, wanted = expected(query), published.sql(STATEMENTS[query]).toArrow()
    if query == "q4":
        found = last_of_each(found, "category", "auctions")
    difference = compare(wanted, found.select(wanted.column_names))
    assert not difference, difference.examples
    assert found.num_rows, "an empty result proves nothing"


SHORT = ("q11",)


def test_queries_in_three_layers_equal_one_batch_run(
    data: str, expected: Expected, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    flow = nexmark(data, SHORT, bounds=WORKLOAD.bounds)
    assert {unit.layer for unit in build(flow, CONTINUUM).units} == {"edge", "site", "cloud"}
    outcome = check_equivalent(flow, CONTINUUM, endpoint, tmp_path / "run", expected={q: expected(q) for q in SHORT})
    assert set(outcome.rows) == set(SHORT)


@pytest.mark.long
@pytest.mark.parametrize("query", list(QUERIES))
def test_equals_one_batch_run_after_a_kill(
    query: str, data: str, expected: Expected, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    source = Released(data, tmp_path / "in")
    flow = nexmark(str(source.directory), [query], bounds=WORKLOAD.bounds)
    check_equivalent(flow, CONTINUUM, endpoint, tmp_path / "run", source=source, expected={query: expected(query)})
