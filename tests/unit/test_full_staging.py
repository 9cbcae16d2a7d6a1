"""A batch that is too large for the disk leaves nothing on it, and the next one finds room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.channels.filelog import FileLog
from headwater.connectors.writers import open_sink_writer
from headwater.query.writer import TAG, UnitWriter, tag_column

SIZE = 4 << 20
ROWS = 100_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk; skip where this user may not."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def noise(rows: int) -> pa.Array:
    """Return numbers that cannot be compressed."""
    return pa.array(np.random.default_rng(1).integers(0, 1 << 62, rows))


def specs(disk: Path) -> dict[int, dict[str, Any]]:
    return {
        0: {"kind": "filelog", "path": str(disk / "log")},
        1: {"kind": "files", "path": str(disk / "json"), "name": "a", "format": "json"},
        2: {"kind": "files", "path": str(disk / "parquet"), "name": "b", "format": "parquet"},
        3: {"kind": "files", "path": str(disk / "csv"), "name": "c", "format": "csv"},
        4: {"kind": "callback", "path": str(disk / "callback"), "function": ""},
    }


def routed(rows: int) -> pa.RecordBatch:
    """Return rows of which each of five outputs gets a part."""
    tags = pa.array(np.arange(rows, dtype=np.int32) % 5)
    struct = pa.StructArray.from_arrays([noise(rows)], names=["n"])
    return pa.RecordBatch.from_arrays([tags, *[struct] * 5], names=[TAG, *map(tag_column, range(5))])


def staged(disk: Path) -> list[Path]:
    return [f for f in disk.rglob("*") if f.is_file() and not f.name.startswith(".") and f.name != "schema.json"]


def test_a_batch_that_fills_the_disk_is_removed_from_all_outputs(disk: Path) -> None:
    writer = UnitWriter(1, specs(disk))
    with pytest.raises(OSError, match="space"):
        writer.write(iter([routed(ROWS) for _ in range(50)]))
    assert staged(disk) == []
    # Once there is room for a batch, it is written.
    message = writer.write(iter([routed(1000)]))
    assert sorted(message.segments) == [0, 1, 2, 3, 4]
    del writer._specs[4]  # its function is not called here
    writer.commit([message], 0)
    assert FileLog(disk / "log").stats().rows == 200


@pytest.mark.parametrize("tag", range(5))
def test_what_a_killed_batch_left_is_swept_and_what_was_published_stays(tmp_path: Path, tag: int) -> None:
    spec = {**specs(tmp_path)[tag], "operator": "o", "fsync": False}
    writer = open_sink_writer(spec, 1)
    batch = pa.record_batch({"n": noise(10)})
    task = writer.open()
    task.write(batch)
    segment = task.close()
    assert segment is not None
    if spec["kind"] != "callback":
        writer.commit([segment], 0)
    published = staged(tmp_path) if spec["kind"] != "callback" else []
    left = writer.open()
    left.write(batch)
    left.close()
    killed = writer.open()
    killed.write(batch)  # its file is not finished
    assert len(staged(tmp_path)) > len(published)
    writer.sweep()
    assert staged(tmp_path) == published
    killed.abandon()  # only to close the file


def test_a_published_segment_that_is_still_in_staging_stays(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", fsync=False)
    log.append(pa.table({"n": [1, 2]}), epoch=1, batch=0)
    (data,) = (tmp_path / "log/data").iterdir()
    data.rename(tmp_path / "log/staging" / data.name)  # as after a kill right after the publication
    log.sweep()
    assert [b.to_pydict() for b in log.read(0, log.latest())] == [{"n": [1, 2]}]
