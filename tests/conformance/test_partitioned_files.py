"""Files partitioned by columns: exact like other files, in the directories that Spark itself would write and reads."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headwater.connectors import filetasks, filewriter
from headwater.connectors.filewriter import FileSinkWriter
from headwater.core.errors import ChannelError

from .killedwriter import write_with_kills
from .test_sink_writers import Crash, crash, put, stage

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

ODD = [*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{}[]^ +&;,.~ü€😀", "a/b=50%", "..", "day=1", "x" * 80]


def writer(path: Path, *columns: str, epoch: int = 1, kind: str = "json", **others: Any) -> FileSinkWriter:
    named = {"path": str(path), "format": kind, "fsync": False, "name": "w", "partition_by": columns, "lineage": "l"}
    return FileSinkWriter({**named, **others}, epoch)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "k": [f"k{i % 3}" for i in ids]})


def shown(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and ".headwater" not in p.parts)


def ids(path: Path) -> list[int]:
    return sorted(json.loads(line)["id"] for name in shown(path) for line in (path / name).read_text().splitlines())


def staged(path: Path) -> list[str]:
    return [p.name for p in (path / ".headwater" / "w" / "staging").iterdir()]


def test_files_are_in_the_directories_of_their_values(tmp_path: Path) -> None:
    put(writer(tmp_path, "K"), 4, table(0, 1, 2, 3), table(4))
    assert shown(tmp_path) == [
        "K=k0/w-part-00000004-0-1.json",
        "K=k1/w-part-00000004-1-1.json",
        "K=k1/w-part-00000004-3-1.json",
        "K=k2/w-part-00000004-2-1.json",
    ]
    assert (tmp_path / "K=k0" / "w-part-00000004-0-1.json").read_text() == '{"id": 0}\n{"id": 3}\n'
    assert writer(tmp_path, "K").rows() == 5
    put(writer(tmp_path, "K"), 4, table(0, 1, 2, 3), table(4))
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert staged(tmp_path) == []


@pytest.mark.parametrize("fsync", [False, True])
def test_a_crash_between_record_and_rename_is_rolled_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    put(writer(tmp_path, "k", fsync=fsync), 0, table(1))
    with monkeypatch.context() as patch:
        real = os.rename
        calls = iter([real, real, crash])  # first for the batch before
        patch.setattr("headwater.connectors.filewriter.os.rename", lambda *paths: next(calls)(*paths))
        with pytest.raises(Crash):
            put(writer(tmp_path, "k", fsync=fsync), 1, table(2, 3, 4))
    assert len(ids(tmp_path)) == 2  # one of the three partitions
    writer(tmp_path, "k", fsync=fsync).recover()
    assert ids(tmp_path) == [1, 2, 3, 4]
    put(writer(tmp_path, "k", fsync=fsync), 1, table(2, 3, 4))
    assert ids(tmp_path) == [1, 2, 3, 4]
    writer(tmp_path, "k").sweep()
    assert staged(tmp_path) == []


def test_staged_files_that_were_not_committed_go(tmp_path: Path) -> None:
    sink_writer = writer(tmp_path, "k")
    segments = stage(sink_writer, table(1, 2, 3))
    assert len(staged(tmp_path)) == 4
    sink_writer.abort(segments)
    assert staged(tmp_path) == []
    task = sink_writer.open()
    task.write(table(1, 2, 3).to_batches()[0])
    task.abandon()
    assert staged(tmp_path) == []
    stage(sink_writer, table(1, 2, 3))
    sink_writer.sweep()
    assert staged(tmp_path) == []


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filetasks, "_MOST_OPEN", 2)
    sink_writer = writer(tmp_path, "k")
    task = sink_writer.open()
    for first in (0, 1, 0, 2, 1, 5):
        task.write(table(first).to_batches()[0])
    segment = task.close()
    assert segment is not None
    assert segment.rows == 6
    sink_writer.commit([segment], 0)
    assert ids(tmp_path) == [0, 0, 1, 1, 2, 5]
    assert len(shown(tmp_path)) == 4


def test_only_files_of_writers_are_removed(tmp_path: Path) -> None:
    put(writer(tmp_path, "k"), 0, table(1, 2, 3))
    (tmp_path / "k=k1" / "theirs.json").write_text('{"id": 7}\n')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "w-part-00000000-0-1.json").write_text('{"id": 8}\n')
    assert filewriter.writers_in(tmp_path) == {"w": 3}
    filewriter.remove_output(tmp_path)
    assert ids(tmp_path) == [7, 8]
    assert not (tmp_path / "k=k0").exists()


def test_a_value_that_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="a value of 'k' is too long for a directory"):
        put(writer(tmp_path, "k"), 0, pa.table({"id": [1], "k": ["x" * 300]}))


def odd_rows() -> pa.Table:
    day = datetime.date(2026, 1, 31)
    return pa.table(
        {
            "k": [*ODD, None, ""],
            "id": pa.array(range(len(ODD) + 2), pa.int64()),
            "day": [day if n % 3 else None for n in range(len(ODD) + 2)],
            "flag": [n % 2 == 0 for n in range(len(ODD) + 2)],
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_spark_reads_equal_rows(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    put(writer(tmp_path / "ours", "k", "day", "flag", kind=kind), 0, odd_rows())
    schema = "id bigint, k string, day date, flag boolean"
    reader = spark.read.schema(schema).option("header", "true")
    found = {row.id: (row.k, row.day, row.flag) for row in reader.format(kind).load(str(tmp_path / "ours")).collect()}
    rows = odd_rows().to_pylist()
    # A directory has no empty name: Spark's own files have NULL in this place, too.
    assert found == {row["id"]: (row["k"] or None, row["day"], row["flag"]) for row in rows}


def test_directories_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = odd_rows()
    put(writer(tmp_path / "ours", "k", "day", "flag", kind="parquet"), 0, rows)
    frame = spark.createDataFrame(rows)
    frame.write.partitionBy("k", "day", "flag").parquet(str(tmp_path / "theirs"))

    def directories(path: Path) -> set[str]:
        return {str(p.relative_to(path)) for p in path.rglob("flag=*") if ".headwater" not in p.parts}

    assert directories(tmp_path / "ours") == directories(tmp_path / "theirs")
    named = [n for n in (spark.read.parquet(str(tmp_path / "ours")).columns)]
    assert named == spark.read.parquet(str(tmp_path / "theirs")).columns


WRITER = """
import os, sys
from pathlib import Path
from tests.conformance.test_partitioned_files import put, table, writer
path, progress, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begin = int(open(progress).read())
for batch in range(begin, last):
    sink_writer = writer(path, "k", fsync=True)
    sink_writer.recover()
    put(sink_writer, batch, table(*range(batch * 20, batch * 20 + 10)), table(*range(batch * 20 + 10, batch * 20 + 20)))
    print(batch, flush=True)
    open(progress + ".new", "w").write(str(batch + 1))
    os.replace(progress + ".new", progress)
"""


@pytest.mark.parametrize(
    ("kills", "last"), [(2, 15), *(pytest.param(*case, marks=pytest.mark.long) for case in ((4, 30), (8, 60)))]
)
def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(kills: int, last: int, tmp_path: Path) -> None:
    progress, out = tmp_path / "progress", tmp_path / "out"
    write_with_kills(WRITER, str(out), progress, last, kills=kills, batches=5, within=0.03)
    assert ids(out) == list(range(last * 20))
