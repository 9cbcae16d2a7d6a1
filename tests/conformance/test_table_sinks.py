"""Delta and Iceberg tables, and PostgreSQL, as sinks: real tables, writers killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels.segments import Segment
from headwater.connectors.icebergtable import IcebergAddress, existing, opened
from headwater.connectors.staged import StagedSinkWriter
from headwater.connectors.writers import SinkWriter, open_sink_writer
from headwater.core.errors import ChannelError

from .postgresql import server

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate PostgreSQL server."""
    yield from server()


@dataclass
class Place:
    """A table of one kind, and how its rows are read back."""

    kind: str
    directory: Path
    url: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> IcebergAddress:
        catalog = f"sqlite:///{self.directory / 'catalog.db'}"
        return IcebergAddress(table="plant.readings", catalog=catalog, warehouse=str(self.directory / "warehouse"))

    @property
    def name(self) -> str:
        return f"t{abs(hash(str(self.directory)))}"

    def spec(self, **others: Any) -> dict[str, Any]:
        """Describe a sink writer."""
        own: dict[str, dict[str, Any]] = {
            "delta": {"table": str(self.directory / "table")},
            "iceberg": self.address.to_data(),
            "postgres": {"url": self.url, "table": self.name, "columns": [("id", "bigint"), ("k", "text")]},
        }
        named = {"kind": self.kind, "id": "headwater-7-aa", "operator": "out", "unit": "u", "fsync": False}
        return {**named, "path": str(self.directory / "staged"), **own[self.kind], **self.settings, **others}

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of the table."""
        if self.kind == "delta":
            table = deltalake.DeltaTable(str(self.directory / "table")).to_pyarrow_table()
            return table.to_pylist(maps_as_pydicts="strict")
        if self.kind == "iceberg":
            with opened(self.address) as catalog:
                found = existing(catalog, self.address)
                assert found is not None
                return found.scan().to_arrow().to_pylist(maps_as_pydicts="strict")
        return self.select(f'SELECT * FROM "{self.name}"')

    def select(self, text: str) -> list[dict[str, Any]]:
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(text).fetchall()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = request.getfixturevalue("postgresql") if request.param == "postgres" else ""
    return Place(request.param, tmp_path, url)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def stage(writer: SinkWriter, *batches: pa.RecordBatch) -> list[Segment]:
    """Stage each batch as one task would."""
    found = []
    for batch in batches:
        task = writer.open()
        task.write(batch)
        piece = task.close()
        assert isinstance(piece, Segment)
        found.append(piece)
    return found


def rows_of(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "k": [f"k{i}" for i in ids]})


def write(config: dict[str, Any], batch: int, *ids: int, epoch: int = 1) -> None:
    """Write a batch as Spark does: a task writes, then the driver commits."""
    writer = open_sink_writer(config, epoch)
    writer.commit(stage(writer, rows_of(*ids)), batch)


def left(place: Place) -> list[str]:
    return [p.name for p in (place.directory / "staged").iterdir()]


# -- exactly once --------------------------------------------------------------------------------


def test_a_repeated_batch_is_written_once(place: Place) -> None:
    config = place.spec()
    assert open_sink_writer(config, 1).newest() is None
    write(config, 0, 1, 2)
    write(config, 0, 1, 2)
    write(config, 3, 3)  # batches without rows do not reach a table
    write(config, 3, 3)
    write(config, 1, 9)
    assert place.ids() == [1, 2, 3]
    assert open_sink_writer(config, 1).newest() == 3
    assert left(place) == []


def test_a_batch_without_rows_makes_no_table(place: Place) -> None:
    open_sink_writer(place.spec(), 1).commit([], 0)
    assert open_sink_writer(place.spec(), 1).newest() is None


class Crash(Exception):
    """Stands for the end of the process at this point."""


def test_a_crash_behind_the_commit_doubles_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(StagedSinkWriter, "abort", crash)
        with pytest.raises(Crash):
            write(place.spec(), 0, 1, 2)
    assert len(left(place)) == 1
    open_sink_writer(place.spec(), 1).sweep()
    assert left(place) == []
    write(place.spec(), 0, 1, 2)
    assert place.ids() == [1, 2]


def test_staged_rows_that_were_not_committed_are_in_no_table(place: Place) -> None:
    writer = open_sink_writer(place.spec(), 1)
    stage(writer, rows_of(1))
    writer.sweep()
    writer.recover()
    assert left(place) == []
    segments = stage(writer, rows_of(2))
    writer.abort(segments)
    assert left(place) == []
    write(place.spec(), 0, 3)
    assert place.ids() == [3]


def test_a_replaced_writer_repeats_nothing(place: Place) -> None:
    """The sink writer's id is its checkpoint's: a batch keeps its number in every epoch."""
    write(place.spec(), 4, 1, epoch=1)
    write(place.spec(), 4, 1, epoch=2)
    write(place.spec(), 5, 2, epoch=2)
    assert place.ids() == [1, 2]


def test_an_older_writer_is_refused(place: Place) -> None:
    write(place.spec(), 0, 1, epoch=2)
    with pytest.raises(ChannelError, match="epoch 2 has taken over"):
        write(place.spec(), 1, 2, epoch=1)
    assert place.ids() == [1]


def test_a_repetition_by_the_next_epoch_shuts_the_older_one_out(place: Place) -> None:
    write(place.spec(), 4, 1, epoch=1)
    write(place.spec(), 4, 1, epoch=2)  # adds no row
    with pytest.raises(ChannelError, match="epoch 2 has taken over"):
        write(place.spec(), 5, 2, epoch=1)
    assert place.ids() == [1]


def test_two_outputs_into_one_table_do_not_take_each_others_batches(place: Place) -> None:
    write(place.spec(), 0, 1)
    write(place.spec(id="headwater-7-bb"), 0, 2)
    write(place.spec(id="headwater-8-aa"), 0, 3)
    assert place.ids() == [1, 2, 3]


def test_a_zombie_between_look_and_commit_is_refused(lake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at the table, sleeps, and commits after the writer that has replaced it."""
    write(lake.spec(), 0, 1)
    zombie = open_sink_writer(lake.spec(), 1)
    staged = stage(zombie, rows_of(9))
    real = type(zombie)._append  # type: ignore[attr-defined]

    def late(self: Any, *given: Any) -> bool:
        monkeypatch.setattr(type(zombie), "_append", real)
        write(lake.spec(path=str(lake.directory / "other")), 1, 2, epoch=2)
        return bool(real(self, *given))

    monkeypatch.setattr(type(zombie), "_append", late)
    with pytest.raises(ChannelError, match="epoch 2 has taken over"):
        zombie.commit(staged, 1)
    assert lake.ids() == [1, 2]


def test_writers_at_once_lose_and_double_nothing(place: Place) -> None:
    """Two units begin with no table; two processes of a third write the same batches."""
    names = ("headwater-1-aa", "headwater-2-aa", "headwater-3-aa", "headwater-3-aa")
    problems: list[BaseException] = []

    def work(number: int, name: str) -> None:
        config = place.spec(id=name, path=str(place.directory / f"staged{number}"), compact_after=4)
        first = int(name.split("-")[1]) * 1000
        try:
            for batch in range(8):
                write(config, batch, first + batch)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n, name)) for n, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert place.ids() == [first * 1000 + batch for first in (1, 2, 3) for batch in range(8)]


WRITER = """
import os, sys, json
from tests.conformance.test_table_sinks import write
config, progress, last = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begin = int(open(progress).read())
for batch in range(begin, last):
    write(config, batch, *[batch * 100 + n for n in range(20)])
    print(batch, flush=True)
    open(progress + ".new", "w").write(str(batch + 1))  # as Spark notes it: after the commit, at once
    os.replace(progress + ".new", progress)
"""


def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(place: Place) -> None:
    progress, kills, last = place.directory / "progress", 6, 30
    progress.write_text("0")
    chance = random.Random(4)
    config = place.spec(fsync=True, compact_after=5)
    command = [sys.executable, "-c", WRITER, json.dumps(config), str(progress), str(last)]
    root = str(Path(__file__).parents[2])
    for turn in range(kills + 1):
        with subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            if turn < kills:
                for _ in range(chance.randint(1, 3)):  # some batches, then somewhere in the next one
                    process.stdout.readline()
                time.sleep(chance.uniform(0, 0.08))
                process.send_signal(signal.SIGKILL)
            process.wait(120)
    assert process.returncode == 0
    assert place.ids() == [batch * 100 + n for batch in range(last) for n in range(20)]
