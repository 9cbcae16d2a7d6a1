"""A checkpoint is on disk before anything is published or deleted on its account."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels.channel_spark import ChannelReader, Members
from headwater.channels.filelog import FileLog
from headwater.disk.durable import read_note, write_atomically
from headwater.disk.syncing import SYNCED, sync_checkpoint, sync_tree
from headwater.plan.transfer import StateTransfer
from headwater.query.writer import SinkMessage, UnitWriter
from headwater.state.assembly import InputPosition, assemble
from headwater.state.savedstate import Saved, StateStore

FILES = ("metadata", "offsets/0", "offsets/.0.crc", "commits/0", "sources/s_a/0", "state/0/0/1.zip", "state/0/0/SSTs/a")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint with the files of one batch, none of them synced."""
    for name in FILES:
        write(tmp_path / "run/checkpoints/u", name)
    return tmp_path / "run/checkpoints/u"


def write(checkpoint: Path, name: str) -> None:
    (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
    (checkpoint / name).write_text(name)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Record what this process does to files from now on: what it syncs, gives a name and deletes."""
    seen: list[tuple[str, Path]] = []

    def recorded(kind: str, function: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            path = Path(os.fsdecode(target(*args)))
            found = function(*args, **more)
            seen.append((kind, path))
            return found

        return call

    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync, lambda fd: os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(os, "link", recorded("name", os.link, lambda old, new: new))
    monkeypatch.setattr(os, "replace", recorded("name", os.replace, lambda old, new: new))
    monkeypatch.setattr(os, "unlink", recorded("delete", os.unlink, lambda path: path))
    return seen


def synced(events: list[tuple[str, Path]], below: Path) -> set[str]:
    return {str(path.relative_to(below)) for kind, path in events if kind == "sync" and path.is_relative_to(below)}


def test_all_files_and_directories_are_synced_and_later_only_new_ones(
    checkpoint: Path, events: list[tuple[str, Path]]
) -> None:
    assert sync_checkpoint(checkpoint) == len([kind for kind, _ in events if kind == "sync"])
    directories = {
        ".",
        "offsets",
        "commits",
        "publishing",
        "sources",
        "sources/s_a",
        "state",
        "state/0",
        "state/0/0",
        "state/0/0/SSTs",
    }
    assert synced(events, checkpoint) == {*FILES, *directories}
    # The checkpoint's own name is new, too.
    assert {checkpoint.parent, checkpoint.parent.parent} <= {path for _, path in events}
    events.clear()
    assert sync_checkpoint(checkpoint) == 0
    assert [path for kind, path in events if kind == "sync"] == []
    write(checkpoint, "offsets/1")
    write(checkpoint, "state/0/1/1.zip")
    write_atomically(checkpoint / "metadata", "replaced by a file of another inode", fsync=False)
    events.clear()
    sync_checkpoint(checkpoint)
    assert synced(events, checkpoint) == {
        *("offsets/1", "offsets", "state/0/1/1.zip", "state/0/1", "state/0", "metadata", ".")
    }


def test_without_its_note_all_is_synced_again(checkpoint: Path, events: list[tuple[str, Path]]) -> None:
    sync_checkpoint(checkpoint)
    (checkpoint / SYNCED).write_text("")  # as after a power cut
    events.clear()
    sync_checkpoint(checkpoint)
    assert set(FILES) <= synced(events, checkpoint)


def test_a_tree_is_synced_with_its_name(checkpoint: Path, events: list[tuple[str, Path]]) -> None:
    sync_tree(checkpoint)
    assert set(FILES) <= synced(events, checkpoint)
    assert checkpoint.parent in [path for _, path in events]


def test_files_that_vanish_meanwhile_are_skipped(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def late(path: str, *args: Any, **more: Any) -> int:
        if str(path).endswith("1.zip"):
            Path(path).unlink()
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", late)
    assert sync_checkpoint(checkpoint) > len(FILES)
    assert not (checkpoint / "state/0/0/1.zip").exists()


def test_a_disk_that_cannot_sync_is_an_error(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        sync_checkpoint(checkpoint)
    assert not (checkpoint / SYNCED).exists()


def test_a_batch_is_published_after_its_checkpoint_is_synced(
    checkpoint: Path, tmp_path: Path, events: list[tuple[str, Path]]
) -> None:
    specs = {0: {"kind": "filelog", "path": str(tmp_path / "out"), "tag": 0}}
    (checkpoint / "publishing").mkdir()
    writer = UnitWriter(1, specs, run=str(checkpoint / "publishing/run"), checkpoint=str(checkpoint))
    task = FileLog(tmp_path / "out").open_segment(pa.schema([("n", pa.int64())]))
    task.write(pa.record_batch({"n": [1]}))
    segment = task.close()
    assert segment is not None
    events.clear()
    writer.commit([SinkMessage({0: segment})], 0)
    published = events.index(("name", tmp_path / "out/log/000000000000"))
    # With the mark: without it, a batch that was published may be planned again.
    assert {*FILES, "publishing", "publishing/run.0"} <= synced(events[:published], checkpoint)


def test_entries_are_deleted_after_the_checkpoint_of_their_reader_is_synced(
    checkpoint: Path, tmp_path: Path, events: list[tuple[str, Path]]
) -> None:
    log = FileLog(tmp_path / "log")
    members = tmp_path / "members.json"
    members.write_text(f'{{"writers": {{"a": "{tmp_path / "log"}"}}}}')
    reader = ChannelReader(
        Members(str(members), "unit", "quarantine"),
        None,  # type: ignore[arg-type]
        punctuate=False,
        max_rows=None,
        parallelism=1,
        checkpoint=checkpoint,
    )
    reader.initialOffset()
    for batch in range(3):
        log.append(pa.table({"n": [batch]}), epoch=1, batch=batch)
    events.clear()
    reader.commit({"a": 2})
    assert log.earliest() == 2
    forgotten = events.index(("name", tmp_path / "log/floor.json"))
    assert set(FILES) <= synced(events[:forgotten], checkpoint)


def test_saved_state_is_durable_before_it_is_noted(tmp_path: Path, events: list[tuple[str, Path]]) -> None:
    file = tmp_path / "1.zip"
    file.write_text("state")
    store = StateStore(str(tmp_path / "store"))
    store.put("d/u", {"state/0/0/1.zip": file, "state/0/0/SSTs/a.sst": file})
    home = tmp_path / "store/d/u"
    below = {"state", "state/0", "state/0/0", "state/0/0/1.zip", "state/0/0/SSTs", "state/0/0/SSTs/a.sst"}
    assert {".", *below} <= synced(events, home)
    assert {home.parent, home.parent.parent, tmp_path} <= {path for kind, path in events if kind == "sync"}
    events.clear()
    store.note("d/u", Saved())
    assert [kind for kind, path in events if path == home / ".saved.json"] == ["sync"]
    assert events[-1][0] == "sync" and ("sync", home) in events


def test_an_assembled_checkpoint_is_durable_before_it_is_used(tmp_path: Path, events: list[tuple[str, Path]]) -> None:
    checkpoint = tmp_path / "checkpoints/u"
    checkpoint.mkdir(parents=True)
    store = StateStore(str(tmp_path / "store"))
    saved = Saved(batch=3, conf={"spark.sql.shuffle.partitions": "1"}, sources={"c_x": '{"x@E1":4}'})
    transfer = StateTransfer(unit="u", source_units=("v",), readings=(), shares=())
    places = [InputPosition(name="c_x", positions={"x@E1": 4})]
    events.clear()
    assemble(checkpoint, transfer, store, {"v": "d/v"}, {"v": saved}, places, Path)
    used = events.index(("name", checkpoint))
    draft = checkpoint.with_name(".u.draft")
    note = PurePosixPath(SYNCED)
    files = {str(f.relative_to(checkpoint)) for f in checkpoint.rglob("*")} - {str(note), str(note.parent)}
    assert files == read_note(checkpoint / SYNCED).keys(), "so they are not synced again"
    assert {"offsets/3", "commits/3", "metadata", "carried.json"} < files
    assert files <= synced(events[:used], draft)
    assert ("sync", checkpoint.parent) in events[used:]
