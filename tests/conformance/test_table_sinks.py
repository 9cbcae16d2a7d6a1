"""Delta and Iceberg tables, and PostgreSQL, as sinks: real tables, writers killed at random moments."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.agent.resuming import resume
from headwater.channels.segments import Segment
from headwater.connectors import deltacompact, postgreswriter
from headwater.connectors.icebergtable import IcebergAddress, existing, opened
from headwater.connectors.staged import StagedSinkWriter
from headwater.connectors.writers import SinkWriter, open_sink_writer
from headwater.continuum.model import Continuum
from headwater.core.errors import ChannelError, DeploymentError, RuntimeFailure, Unavailable
from headwater.plan.build import build
from headwater.plan.spec import spec_of

from .killedwriter import write_with_kills
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


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(place: Place, kills: int) -> None:
    progress, last = place.directory / "progress", 5 * kills
    config = place.spec(fsync=True, compact_after=5)
    write_with_kills(WRITER, json.dumps(config), progress, last, kills=kills, batches=3, within=0.08)
    assert place.ids() == [batch * 100 + n for batch in range(last) for n in range(20)]


# -- partitions, small files, types --------------------------------------------------------------


def files_of(place: Place) -> list[Path]:
    """Return the data files of the newest version."""
    if place.kind == "delta":
        return [Path(uri) for uri in deltalake.DeltaTable(str(place.directory / "table")).file_uris()]
    with opened(place.address) as catalog:
        found = existing(catalog, place.address)
        assert found is not None
        return [Path(task.file.file_path.removeprefix("file://")) for task in found.scan().plan_files()]


def test_small_files_are_held_together(lake: Place) -> None:
    for batch in range(40):
        write(lake.spec(compact_after=8), batch, batch)
    assert len(files_of(lake)) < 20
    assert lake.ids() == list(range(40))
    lone = Place(lake.kind, lake.directory / "lone")
    lone.directory.mkdir()
    for batch in range(10):
        write(lone.spec(compact_after=0), batch, batch)
    assert len(files_of(lone)) == 10


def test_two_compactions_at_once_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has listed the same files, and commits after the first."""
    place = Place("delta", tmp_path)
    for batch in range(4):
        write(place.spec(), batch, batch)
    real, table = deltacompact._committed, tmp_path / "table"

    def late(*given: Any) -> bool:
        monkeypatch.setattr(deltacompact, "_committed", real)
        assert deltacompact.compact(table, [], least=2, told={}, where="first")
        write(place.spec(), 4, 4)
        return bool(real(*given))

    monkeypatch.setattr(deltacompact, "_committed", late)
    assert not deltacompact.compact(table, [], least=2, told={}, where="second")
    assert place.ids() == [0, 1, 2, 3, 4]
    assert len(list(table.glob("*.parquet"))) == 6  # five batches, one compacted file: the other one is removed
    assert deltacompact.compact(table, [], least=2, told={}, where="third")
    assert place.ids() == [0, 1, 2, 3, 4]
    assert len(files_of(place)) == 1


def test_rows_are_in_the_directories_of_their_values(lake: Place) -> None:
    values = ["a b%", "a/b=c:d", "ü", None, "plain"]
    day = datetime.date(2026, 1, 1)
    batch = pa.record_batch({"id": list(range(5)), "k": values, "day": [day, None, day, day, None]})
    for number in range(12):
        writer = open_sink_writer(lake.spec(partition_by=["k", "day"]), 1)
        writer.commit(stage(writer, batch), number)
    expected = [row for row in batch.to_pylist() for _ in range(12)]
    found = lake.rows()
    assert sorted(found, key=lambda r: r["id"]) == expected
    writer = open_sink_writer(lake.spec(partition_by=["k", "day"], compact_after=13), 1)
    writer.commit(stage(writer, batch), 12)  # Delta has made the table in a commit of its own
    writer = open_sink_writer(lake.spec(partition_by=["k", "day"], compact_after=13), 1)
    writer.commit(stage(writer, batch), 13)
    assert len(files_of(lake)) <= 10
    assert sorted(lake.rows(), key=lambda r: r["id"]) == [row for row in batch.to_pylist() for _ in range(14)]
    assert len({file.parent for file in files_of(lake)}) == 5


def everything() -> pa.RecordBatch:
    """Return rows of every type that Spark gives, one of them all NULL."""
    utc, plain = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
    columns = {
        "tiny": pa.array([-128, None], pa.int8()),
        "small": pa.array([32767, None], pa.int16()),
        "int": pa.array([1, None], pa.int32()),
        "big": pa.array([2**62, None], pa.int64()),
        "f": pa.array([1.5, None], pa.float32()),
        "d": pa.array([float("nan"), None], pa.float64()),
        "s": pa.array(["a'b\"ü\n\\t", None]),
        "b": pa.array([True, None]),
        "bin": pa.array([b"\x00\xff", None], pa.binary()),
        "day": pa.array([datetime.date(2024, 2, 29), None]),
        "ts": pa.array([1_500_001, None], utc),
        "ntz": pa.array([1_500_001, None], plain),
        "dec": pa.array([decimal.Decimal("-1.50"), None], pa.decimal128(38, 2)),
        "items": pa.array([["x", None], None], pa.list_(pa.field("element", pa.string()))),
    }
    return pa.record_batch(columns)


def nested() -> pa.RecordBatch:
    struct = pa.struct([("a", pa.int16()), ("at", pa.timestamp("us", tz="UTC"))])
    columns = {
        "st": pa.array([{"a": 7, "at": 1}, None], struct),
        "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        "deep": pa.array([[{"a": 1, "at": None}], None], pa.list_(pa.field("element", struct))),
    }
    return pa.record_batch(columns)


def test_tables_hold_the_values(lake: Place) -> None:
    deep = nested() if lake.kind == "delta" else nested().drop_columns("deep")  # refused when the dataflow is built
    both = pa.RecordBatch.from_arrays(
        [*everything().columns, *deep.columns], names=[*everything().schema.names, *deep.schema.names]
    )
    for batch in (0, 1):
        writer = open_sink_writer(lake.spec(compact_after=2), 1)
        writer.commit(stage(writer, both), batch)
    expected = both.to_pylist(maps_as_pydicts="strict")
    assert sorted(map(repr, lake.rows())) == sorted(repr(row) for row in expected for _ in range(2))


def test_postgresql_holds_the_values(postgresql: str, tmp_path: Path) -> None:
    from headwater.dataflow.tablesinks import postgres_type
    from headwater.sql.schema import Schema

    text = (
        "tiny tinyint, small smallint, int int, big bigint, f float, d double, s string, b boolean, bin binary, "
        "day date, ts timestamp, ntz timestamp_ntz, dec decimal(38,2), items array<string>"
    )
    columns = [(c.name, postgres_type(c.type)) for c in Schema.parse(text).columns]
    place = Place("postgres", tmp_path, postgresql, {"columns": columns})
    writer = open_sink_writer(place.spec(), 1)
    writer.commit(stage(writer, everything()), 0)
    found = place.rows()
    for row in found:
        row["ts"] = row["ts"] and row["ts"].astimezone(datetime.UTC)
    assert list(map(repr, found)) == [repr(row) for row in _in_utc(everything().to_pylist())]


def _in_utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        row["ts"] = row["ts"] and row["ts"].astimezone(datetime.UTC)
    return rows


# -- errors --------------------------------------------------------------------------------------


def test_a_table_that_does_not_fit_is_told(place: Place) -> None:
    write(place.spec(), 0, 1)
    other = place.spec(id="headwater-9-aa", columns=[("id", "bigint"), ("new", "text")])
    writer = open_sink_writer(other, 1)
    rows = pa.record_batch({"id": [2], "new": ["x"]})
    with pytest.raises(RuntimeFailure, match="the table was not written") as error:
        writer.commit(stage(writer, rows), 0)
    assert "check that the table has the columns" in str(error.value.hint)
    assert place.ids() == [1]


def test_other_partitions_than_the_tables_are_told(lake: Place) -> None:
    write(lake.spec(), 0, 1)
    with pytest.raises(RuntimeFailure, match="partition"):
        write(lake.spec(partition_by=["k"]), 1, 2)
    assert lake.ids() == [1]


def test_a_table_outside_the_warehouse_is_refused(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path)
    write(place.spec(), 0, 1)
    with pytest.raises(ChannelError, match="outside the warehouse"):
        write(place.spec(warehouse=str(tmp_path / "other")), 1, 2)
    with opened(place.address) as catalog:
        catalog.load_table(place.address.table).transaction().set_properties(
            {"write.data.path": f"file://{tmp_path}/else"}
        ).commit_transaction()
    with pytest.raises(ChannelError, match=r"property write\.data\.path is not supported"):
        write(place.spec(), 1, 2)
    assert not (tmp_path / "else").exists()


def test_a_damaged_commit_is_told(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    write(place.spec(), 0, 1)
    newest = max((tmp_path / "table" / "_delta_log").glob("*.json"))
    text = newest.read_text()
    newest.write_text(text[:40])
    with pytest.raises(RuntimeFailure, match="the table was not written"):
        write(place.spec(), 1, 2)
    newest.unlink()  # as the documents tell
    write(place.spec(), 0, 1)
    assert place.ids() == [1]


def test_a_table_that_is_ahead_of_its_checkpoint_is_told(tmp_path: Path) -> None:
    """Its batches would be taken for repetitions, and their rows left out."""
    place = Place("delta", tmp_path)
    for batch in range(3):
        write(place.spec(), batch, batch)
    builder = hw.flow("f", locations=["L1"])
    builder.read.json("/in", "id bigint, k string").write.delta(str(tmp_path / "table"))
    plan = build(builder.build(), Continuum.from_text("layers: [e]\nzones: {E1: {layer: e, locations: [L1]}}"))
    checkpoint = tmp_path / "checkpoint"
    for directory in ("offsets", "commits"):
        (checkpoint / directory).mkdir(parents=True)
        (checkpoint / directory / "0").write_text("v1\n{}\n")
    with pytest.raises(DeploymentError, match="its output goes up to batch 2, but batch 0 is the newest") as error:
        resume(spec_of(plan, plan.units[0].id), checkpoint, [place.spec()], pytest.fail)
    assert str(tmp_path / "table") in str(error.value.where)


# -- replaced rows in PostgreSQL ------------------------------------------------------------------


def upserts(url: str, tmp_path: Path, **others: Any) -> Place:
    columns = [("k", "text"), ("at", "bigint"), ("v", "bigint")]
    return Place("postgres", tmp_path, url, {"columns": columns, "keys": ["k"], **others})


def upsert(place: Place, batch: int, *rows: tuple[str | None, int | None, int | None], **others: Any) -> None:
    writer = open_sink_writer(place.spec(**others), 1)
    names = [name for name, _ in place.settings["columns"]]
    types = [pa.string(), pa.int64(), pa.int64()]
    columns = [pa.array(list(values), type_) for values, type_ in zip(zip(*rows, strict=True), types, strict=True)]
    writer.commit(stage(writer, pa.RecordBatch.from_arrays(columns, names=names)), batch)


def content(place: Place) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in place.rows())


def test_a_row_replaces_that_of_the_same_key(postgresql: str, tmp_path: Path) -> None:
    place = upserts(postgresql, tmp_path)
    upsert(place, 0, ("a", 5, 1), ("b", 5, 1), ("a", 4, 2))  # without an order the last one stays
    assert content(place) == [("a", 4, 2), ("b", 5, 1)]
    upsert(place, 1, ("b", 1, 7))
    upsert(place, 1, ("b", 1, 8))  # a repetition
    upsert(place, 0, ("a", 0, 0))
    assert content(place) == [("a", 4, 2), ("b", 1, 7)]


def test_the_newest_row_of_a_key_stays_in_any_order(postgresql: str, tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [(f"k{chance.randrange(4)}", chance.choice([None, *range(6)]), n) for n in range(60)]
    expected = {}
    for row in sorted(rows, key=lambda r: (r[1] is not None, r[1] or 0, r[2])):
        expected[row[0]] = row
    for turn in range(3):
        chance.shuffle(rows)
        directory = tmp_path / str(turn)
        directory.mkdir()
        place = upserts(postgresql, directory, order_by=["at", "v"])
        for batch in range(6):
            upsert(place, batch, *rows[batch * 10 : batch * 10 + 10], id=f"headwater-{batch % 2}-aa")
        assert content(place) == sorted(expected.values())


def test_columns_that_are_all_keys_make_a_set(postgresql: str, tmp_path: Path) -> None:
    place = upserts(postgresql, tmp_path, keys=["k", "at", "v"])
    upsert(place, 0, ("a", 1, 1), ("a", 1, 1))
    upsert(place, 1, ("a", 1, 1), ("a", 1, 2))
    assert content(place) == [("a", 1, 1), ("a", 1, 2)]


def test_names_are_quoted(postgresql: str, tmp_path: Path) -> None:
    names = [('k" text); DROP TABLE x; --', "text"), ("select", "bigint"), ("ü v", "bigint")]
    place = upserts(postgresql, tmp_path, columns=names, keys=[names[0][0]], table='a"; --')
    upsert(place, 0, ("a", 1, 1), ("a", 1, 2))
    assert [tuple(row.values()) for row in place.select('SELECT * FROM "a""; --"')] == [("a", 1, 2)]


def test_a_table_without_an_index_on_the_keys_is_told(postgresql: str, tmp_path: Path) -> None:
    append = upserts(postgresql, tmp_path, keys=[])
    upsert(append, 0, ("a", 1, 1), ("a", 1, 1))
    assert content(append) == [("a", 1, 1), ("a", 1, 1)]
    with pytest.raises(RuntimeFailure, match="no unique or exclusion constraint"):
        upsert(upserts(postgresql, tmp_path), 1, ("a", 1, 2))
    assert content(append) == [("a", 1, 1), ("a", 1, 1)]
    assert open_sink_writer(append.spec(), 1).newest() == 0


def test_a_password_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_PG", "topsecret")
    monkeypatch.setattr(postgreswriter, "_SECONDS", 2)
    place = upserts("postgresql://127.0.0.1:9/none", tmp_path, password_env="HEADWATER_SECRET_PG")
    with pytest.raises(Unavailable, match="the database does not answer") as error:
        upsert(place, 0, ("a", 1, 1))
    place.settings["password_env"] = "HEADWATER_SECRET_ABSENT"
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_ABSENT is not set"):
        upsert(place, 0, ("a", 1, 1))
    assert "topsecret" not in str(error.value)
