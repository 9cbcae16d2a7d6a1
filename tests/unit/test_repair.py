"""A checkpoint after a power cut: the batches that it holds whole, and the repair of the others."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.disk.checkpoint import sweep_torn
from headwater.disk.repair import Condition, damaged_files, examine, repair, start_positions

BATCHES = 5


def hadoop(file: Path, text: str) -> None:
    """Write a file with its checksums beside it, as Hadoop does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    sums = b"".join(struct.pack(">I", zlib.crc32(text.encode()[n : n + 512])) for n in range(0, len(text), 512))
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + sums)


def image(file: Path, version: int) -> None:
    """Write a version of a partition's state: an archive, and a file that it names."""
    name = f"{version:06d}-a.sst"
    (file.parent / "SSTs").mkdir(parents=True, exist_ok=True)
    (file.parent / "SSTs" / name).write_text("x" * version)
    listed = {"sstFiles": [{"localFileName": "a", "dfsSstFileName": name, "sizeBytes": version}]}
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("metadata", "v1\n" + json.dumps(listed))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint of five batches, the last of them interrupted, with two partitions of state."""
    place = tmp_path / "u"
    hadoop(place / "metadata", '{"id": "1"}')
    info = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}]}
    hadoop(place / "state/0/_metadata/metadata", "v1\n" + json.dumps(info))
    for batch in range(BATCHES):
        plan = {"batchWatermarkMs": batch}
        lines = ["v2", json.dumps(plan), f'c_x:{{"x@E1":{10 * batch}}}', f's_a:{{"logOffset":{batch}}}']
        hadoop(place / f"offsets/{batch}", "\n".join(lines))
        hadoop(place / f"sources/s_a/{batch}", 'v1\n{"path":"file:///a","batchId":0}')
        for partition in range(2):
            image(place / f"state/0/{partition}/{batch + 1}.zip", batch + 1)
        if batch < BATCHES - 1:
            hadoop(place / f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":1}')
    return place


def empty(name: str) -> Callable[[Path], object]:
    return lambda place: (place / name).write_bytes(b"")


def lost(name: str) -> Callable[[Path], object]:
    return lambda place: (place / name).unlink()


def cut(name: str, by: int = 3) -> Callable[[Path], object]:
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:-by])


def altered(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    def alter(place: Path) -> None:
        data = (place / name).read_bytes()
        assert old in data
        (place / name).write_bytes(data.replace(old, new))

    return alter


@pytest.mark.parametrize(
    ("damage", "committed", "planned"),
    [
        ([], 3, 4),
        ([empty("offsets/4")], 3, 3),
        ([lost("offsets/4")], 3, 3),
        ([cut("offsets/4")], 3, 3),
        ([cut("offsets/4", by=2), lost("offsets/.4.crc")], 3, 3),
        ([empty("offsets/.4.crc")], 3, 4),  # Hadoop ignores it
        ([altered("offsets/4", b":40}", b":41}")], 3, 3),
        ([altered("state/0/0/4.zip", b"sizeBytes", b"sizeBites")], 2, 3),
        ([empty("commits/3")], 2, 3),
        ([cut("commits/3", by=1)], 2, 3),
        ([lost("commits/3")], 2, 3),
        ([empty("commits/3"), empty("offsets/4")], 2, 3),
        ([empty("commits/3"), empty("offsets/3")], 2, 2),
        ([empty("offsets/2")], 1, 1),
        ([empty("sources/s_a/4")], 3, 3),
        ([lost("sources/s_a/4")], 3, 3),
        ([empty("sources/s_a/3")], 2, 2),
        ([lost("state/0/1/4.zip")], 2, 3),
        ([empty("state/0/1/4.zip")], 2, 3),
        ([cut("state/0/1/4.zip")], 2, 3),
        ([cut("state/0/0/SSTs/000004-a.sst", by=1)], 2, 3),
        ([lost("state/0/0/SSTs/000004-a.sst")], 2, 3),
        ([empty("state/0/0/5.zip")], 3, 4),  # of the interrupted batch: it is written again
        ([empty("metadata")], 3, 4),
        ([empty("state/0/_metadata/metadata")], -1, 0),
    ],
)
def test_the_newest_whole_batch_is_found_and_the_rest_removed(
    checkpoint: Path, damage: list[Callable[[Path], object]], committed: int, planned: int
) -> None:
    for one in damage:
        one(checkpoint)
    found = examine(checkpoint)
    assert (found.committed, found.planned) == (committed, planned)
    repair(checkpoint, found)
    sweep_torn(checkpoint)
    # What Spark reads at its start is as of these batches, and whole.
    assert examine(checkpoint) == Condition(committed, planned)
    numbers = {log: {int(f.name) for f in (checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")}
    assert max(numbers["offsets"], default=-1) == planned
    assert max(numbers["commits"], default=-1) == committed
    assert json.loads((checkpoint / "metadata").read_text())["id"]
    assert all(f.stat().st_size for f in (checkpoint / "sources/s_a").glob("[0-9]*"))
    # No checksum is left without its file.
    for log in ("offsets", "commits", "sources/s_a"):
        assert all(f.with_name(f.name[1:-4]).exists() for f in (checkpoint / log).glob(".*.crc"))
    positions = {"x@E1": 10 * committed} if committed >= 0 else {}
    assert start_positions(checkpoint, found) == positions


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (empty("offsets/1"), "offsets/1"),
        (altered("commits/0", b"1}", b"2}"), "commits/0"),
        (cut("sources/s_a/2"), "sources/s_a/2"),
        (empty("metadata"), "metadata"),
        (cut("state/0/_metadata/metadata"), "state/0/_metadata/metadata"),
        (altered("state/0/1/_metadata/schema", b"k", b"l"), "state/0/1/_metadata/schema"),
        (cut("state/0/1/2.zip"), "state/0/1/2.zip"),
        (cut("state/0/0/SSTs/000002-a.sst", by=1), "state/0/0/SSTs/000002-a.sst"),
        (lost("state/0/0/SSTs/000002-a.sst"), "state/0/0/SSTs/000002-a.sst"),
        (altered("state/0/0/SSTs/000003-a.sst", b"x", b"y"), "state/0/0/SSTs/000003-a.sst"),
    ],
)
def test_damaged_files_are_named(checkpoint: Path, damage: Callable[[Path], object], named: str) -> None:
    hadoop(checkpoint / "state/0/1/_metadata/schema", "key")
    hadoop(checkpoint / "state/0/0/SSTs/000003-a.sst", "xxx")
    assert damaged_files(checkpoint) == []
    damage(checkpoint)
    assert damaged_files(checkpoint) == [checkpoint / named]


def test_a_state_schema_with_a_flipped_bit_is_none(checkpoint: Path) -> None:
    hadoop(checkpoint / "state/0/1/_metadata/schema", "key")
    assert examine(checkpoint).committed == 3
    altered("state/0/1/_metadata/schema", b"k", b"j")(checkpoint)
    assert examine(checkpoint).committed == -1


def test_nothing_changes_where_all_is_whole(checkpoint: Path) -> None:
    before = {f: f.read_bytes() for f in checkpoint.rglob("*") if f.is_file()}
    repair(checkpoint, examine(checkpoint))
    assert {f: f.read_bytes() for f in checkpoint.rglob("*") if f.is_file()} == before


def test_a_compact_entry_stands_for_those_before_it(checkpoint: Path) -> None:
    log = checkpoint / "sources/s_a"
    (log / "3").rename(log / "3.compact")
    (log / ".3.crc").rename(log / ".3.compact.crc")
    (log / "1").unlink()
    assert examine(checkpoint).planned == 4
    (log / "3.compact").write_bytes(b"")
    found = examine(checkpoint)
    assert (found.committed, found.planned) == (0, 0)


def test_an_entry_of_files_that_no_batch_has_read_stays(checkpoint: Path) -> None:
    hadoop(checkpoint / "sources/s_a/5", 'v1\n{"path":"file:///b","batchId":5}')
    assert examine(checkpoint).spare == ()
    (checkpoint / "sources/s_a/5").write_bytes(b"")
    assert examine(checkpoint).spare == (checkpoint / "sources/s_a/5",)


# ---------------------------------------------------------------- topics of Kafka


@pytest.fixture
def reading(tmp_path: Path) -> Path:
    """Return a checkpoint of a query that reads a topic, interrupted in its first batch, as Spark writes it."""
    place = tmp_path / "k"
    hadoop(place / "metadata", '{"id": "1"}')
    hadoop(place / "offsets/0", "\n".join(["v2", "{}", 's_k:{"logOffset":{"0":7,"1":5}}']))
    hadoop(place / "sources/s_k/0", '\0v1\n{"logOffset":{"0":3,"1":5}}')
    return place


def test_the_start_of_a_topic_stays(reading: Path) -> None:
    assert damaged_files(reading) == []
    assert examine(reading) == Condition(-1, 0)
    hadoop(reading / "commits/0", "v1\n{}")
    assert examine(reading) == Condition(0, 0)


@pytest.mark.parametrize("damage", [empty("sources/s_k/0"), cut("sources/s_k/0"), lost("sources/s_k/0")])
def test_without_its_start_the_first_batch_of_a_topic_is_planned_again(
    reading: Path, damage: Callable[[Path], object]
) -> None:
    damage(reading)
    found = examine(reading)
    assert (found.committed, found.planned) == (-1, -1)
    repair(reading, found)
    assert not (reading / "offsets/0").exists() and not (reading / "sources/s_k/0").exists()


def test_a_later_batch_does_not_need_the_start_of_a_topic(reading: Path) -> None:
    (reading / "sources/s_k/0").write_bytes(b"")
    hadoop(reading / "commits/0", "v1\n{}")
    found = examine(reading)
    assert found == Condition(0, 0, (reading / "sources/s_k/0",))
    repair(reading, found)
    assert examine(reading) == Condition(0, 0)
