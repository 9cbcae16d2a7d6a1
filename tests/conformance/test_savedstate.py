"""State of a real query in a store that fsspec opens: only necessary files, and no file of RocksDB twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.disk.checkpoint import needed_of
from headwater.state.savedstate import StateStore, describe, operators, put_early

PATIENCE_S = 120
NAME = "once@E1/key"


def ran(spark: Any, place: Path, ids: range, *, batch: int) -> Path:
    """Let a query that drops duplicates read one more file; return its checkpoint."""
    (place / "in").mkdir(exist_ok=True)
    (place / "in" / f"{batch}.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
    frame = spark.readStream.name("read").schema("id bigint").json(str(place / "in")).dropDuplicates(["id"])
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(place / "out"))
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
    return place / "checkpoint"


@pytest.fixture(params=["directory", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"memory://{tmp_path.name}"


def test_what_is_sent_early_is_not_sent_again(spark: Any, tmp_path: Path, uri: str) -> None:
    store = StateStore(uri)
    store.check()
    checkpoint = ran(spark, tmp_path, range(2000), batch=0)
    early = put_early(checkpoint, NAME, store)
    assert early is not None and early.batch == 0 and store.has_early(NAME)
    assert any(f.endswith(".sst") for f in early.files), "without them nothing is saved early"

    ran(spark, tmp_path, range(2000, 2010), batch=1)
    saved, files = describe(checkpoint, {"c": 7}, rows_in=2010, late_rows=3)
    assert operators(checkpoint) == {0: "dedupe"}
    sent = store.put(NAME, files)
    assert 0 < sent < saved.bytes
    assert sent + sum(f.stat().st_size for p, f in files.items() if p in early.files) >= saved.bytes
    store.note(NAME, saved)

    found = StateStore(uri).saved(NAME)
    assert (found.batch, found.outputs, found.rows_in, found.late_rows) == (1, {"c": 7}, 2010, 3)
    for place in found.files:
        store.get(NAME, place, tmp_path / "got" / place)
        assert (tmp_path / "got" / place).read_bytes() == (checkpoint / place).read_bytes()


def test_what_was_fetched_once_is_kept(spark: Any, tmp_path: Path, uri: str) -> None:
    checkpoint = ran(spark, tmp_path, range(100), batch=0)
    kept = StateStore(uri).keeping(tmp_path / "kept")
    early = put_early(checkpoint, NAME, kept)
    assert early is not None
    unchanging = [f for f in early.files if f.endswith(".sst")]
    for place in early.files:
        kept.get(NAME, place, tmp_path / "first" / place)
    kept.remove(NAME)
    assert not kept.has_early(NAME)
    for place in unchanging:
        kept.get(NAME, place, tmp_path / "second" / place)
        assert (tmp_path / "second" / place).read_bytes() == (checkpoint / place).read_bytes()
    with pytest.raises(Unavailable, match="cannot be used"):
        kept.get(NAME, next(f for f in early.files if f not in unchanging), tmp_path / "x")


@pytest.fixture
def often_compact(spark: Any) -> Iterator[None]:
    setting = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(setting, "3")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("often_compact")
def test_of_a_file_sources_log_little_is_needed(spark: Any, tmp_path: Path) -> None:
    def read(name: str) -> None:
        frame = spark.readStream.name("read").schema("id bigint").option("maxFilesPerTrigger", 1)
        writer = frame.json(str(tmp_path / "in")).writeStream.format("parquet")
        query = (
            writer.option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()

    (tmp_path / "in").mkdir()
    for n in range(8):
        (tmp_path / "in" / f"{n:02d}.json").write_text(json.dumps({"id": n}) + "\n")
    read("all")
    (log,) = (tmp_path / "all" / "sources").iterdir()
    needed = needed_of(log)
    assert [f.name for f in needed] == ["2.compact", "3", "4", "5.compact", "6", "7"]
    shutil.copytree(tmp_path / "all", tmp_path / "some")
    for file in (tmp_path / "some" / "sources" / log.name).iterdir():
        if file.name.removeprefix(".").removesuffix(".crc") not in {f.name for f in needed}:
            file.unlink()
    for n in range(8, 12):
        (tmp_path / "in" / f"{n:02d}.json").write_text(json.dumps({"id": n}) + "\n")
    read("some")
    got = spark.read.parquet(str(tmp_path / "out")).toArrow().column("id").to_pylist()
    assert sorted(got) == list(range(12))


def test_a_damaged_note_is_said(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    (tmp_path / NAME).mkdir(parents=True)
    (tmp_path / NAME / "saved.json").write_text("{")
    with pytest.raises(RuntimeFailure, match="damaged"):
        store.saved(NAME)
    with pytest.raises(Unavailable, match="cannot be used"):
        store.saved("nobody")
