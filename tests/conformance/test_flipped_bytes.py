"""Every byte of every file of a filelog, flipped: the same rows, or an error that names the file; never other rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.channels.filelog import FileLog
from headwater.channels.lifts import read_lifts, write_lifts
from headwater.core.errors import ChannelError
from tests.conformance.conftest import ids, table

BITS = [
    0x01,
    *(pytest.param(bit, marks=pytest.mark.long) for bit in (0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF)),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log with a reader in its middle: two entries are reclaimed, two are unread."""
    log = FileLog(tmp_path_factory.mktemp("whole") / "log", event_time="ts", fsync=False)
    log.create()
    log.register("r")
    for batch in range(4):
        log.append(table([2 * batch, 2 * batch + 1]), epoch=1, batch=batch)
    log.advance("r", 2)
    return log.path


def read(path: Path) -> list[Any]:
    """Use all of a log as reader and as writer; return all that it says."""
    log = FileLog(path, event_time="ts", fsync=False, on_corrupt="stop")
    at = log.register("r")
    found: list[Any] = [at, ids(log, at), log.frontier(log.earliest()), log.frontier(log.latest())]
    found += [log.totals(log.earliest()), log.totals(log.latest())]
    stats = log.stats()
    found += [stats.rows, stats.bytes, stats.dropped_rows, stats.unread["r"].rows]
    log.append(table([100]), epoch=1, batch=4)
    log.advance("r", 3)
    return [*found, ids(log), str(log.schema())]


def flipped(
    whole: Path, to: Path, bit: int, *, use: Callable[[Path], Any], files: str = "*"
) -> Iterator[tuple[Path, Any]]:
    """Yield each file of a log, with the result or the error of its use, for each of its bytes."""
    for file in sorted(p.relative_to(whole) for p in whole.rglob(files) if p.is_file()):
        data = (whole / file).read_bytes()
        for at in range(len(data)):
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(whole, to)
            (to / file).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                yield file, use(to)
            except ChannelError as error:
                yield file, error


@pytest.mark.parametrize("bit", BITS)
def test_a_log_gives_the_same_or_an_error_that_names_the_file(whole: Path, tmp_path: Path, bit: int) -> None:
    shutil.copytree(whole, tmp_path / "sound")
    sound, told = read(tmp_path / "sound"), set()
    assert sound[1] == [4, 5, 6, 7]
    for file, found in flipped(whole, tmp_path / "log", bit, use=read):
        if isinstance(found, ChannelError):
            assert found.where == str(tmp_path / "log" / file) and found.hint
            told.add(file.parts[0])
        else:
            assert found == sound, file
    assert told == {"data", "log", "floor.json", "schema.json"}  # a damaged position keeps more than it must


def test_rows_of_a_damaged_segment_are_counted_as_lost(whole: Path, tmp_path: Path) -> None:
    def count(path: Path) -> tuple[int, int]:
        log = FileLog(path, event_time="ts", fsync=False)
        return len(ids(log)), log.stats().lost_rows

    for _, found in flipped(whole, tmp_path / "log", 0x01, use=count, files="data/*"):
        assert found == (2, 2)


def test_damaged_lifts_are_made_again(tmp_path: Path) -> None:
    """A lift that is too high would make rows late."""
    members = tmp_path / "in.members.json"
    write_lifts(members, {"clean@E1": 1_795_000_000_000_000})
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :])
        assert read_lifts(members) == {}


def test_files_without_a_checksum_are_read(whole: Path, tmp_path: Path) -> None:
    """Earlier versions wrote none."""
    import json

    shutil.copytree(whole, tmp_path / "log")
    shutil.copytree(whole, tmp_path / "sound")
    for name in ("floor.json", "schema.json", "readers/r.json"):
        body = json.loads((tmp_path / "log" / name).read_text())
        assert body.pop("crc32")
        (tmp_path / "log" / name).write_text(json.dumps(body))
    assert read(tmp_path / "log") == read(tmp_path / "sound")
