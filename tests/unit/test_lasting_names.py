"""Names that last: each directory that is made is synced into the one above it, and so are visible files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.channels.filelog import FileLog
from headwater.connectors import filewriter
from headwater.connectors.filewriter import FileSinkWriter
from headwater.disk import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were synced, each with the names that were in it then."""
    found: list[str] = []
    real = durable.sync_directory

    def sync(path: Path) -> None:
        real(path)
        found.extend(os.path.join(path, name) for name in os.listdir(path))

    for module in (durable, filewriter):
        monkeypatch.setattr(module, "sync_directory", sync)
    return found


def directories(top: Path) -> set[str]:
    """Return a directory and those below it."""
    return {str(top), *(os.path.join(place, name) for place, names, _ in os.walk(top) for name in names)}


def test_a_new_directory_lasts_with_those_above_it(tmp_path: Path, synced: list[str]) -> None:
    durable.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [str(tmp_path / part) for part in ("a", "a/b", "a/b/c")]
    durable.make_directory(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
    durable.make_directory(tmp_path / "d", fsync=False)
    assert len(synced) == 3 and (tmp_path / "d").is_dir()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        durable.make_directory(tmp_path / "a")


def test_the_directories_of_channels_and_file_sinks_last(tmp_path: Path, synced: list[str]) -> None:
    FileLog(tmp_path / "run" / "channels" / "c").create()
    FileSinkWriter({"path": tmp_path / "out", "format": "json", "name": "w"}, 1).fence(1)
    assert directories(tmp_path / "run") | directories(tmp_path / "out") <= set(synced)


def test_a_committed_file_lasts_under_its_visible_name(tmp_path: Path, synced: list[str]) -> None:
    """Its unit may have finished: no later batch would find it in staging."""
    writer = FileSinkWriter({"path": tmp_path / "out", "format": "json", "name": "w"}, 1)
    task = writer.open()
    task.write(pa.RecordBatch.from_pylist([{"id": 1}]))
    segment = task.close()
    assert segment is not None
    writer.commit([segment], 0)
    (file,) = (tmp_path / "out").glob("*.json")
    assert str(file) in synced
