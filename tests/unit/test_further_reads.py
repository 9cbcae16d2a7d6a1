"""A stopped query that is to read an input more often goes on where its first read stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.disk.checkpoint import reads_agree, sources_at
from headwater.disk.furtherreads import begin_further_reads

HEADER = 'v2\n{"batchWatermarkMs":0}'
FURTHER = {"s_a_L1": ["s_a_L1__2", "s_a_L1__3"], "c_b": ["c_b_2"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint that has done batches 3 and 4 with one read of each input."""
    for batch, position in ((3, 6), (4, 7)):
        lines = [f's_a_L1:{{"logOffset":{position}}}', f'c_b:{{"b@E1":{position}}}']
        _write(tmp_path / "offsets" / str(batch), "\n".join([HEADER, *lines]))
        _write(tmp_path / "commits" / str(batch), "v1\n{}")
        _write(tmp_path / "sources" / "s_a_L1" / str(position), _entry(position))
    _write(tmp_path / "offsets" / ".4.crc", "stale")
    return tmp_path


def _entry(batch: int) -> str:
    return f'v1\n{{"path":"file:///in/{batch}.json","timestamp":1,"batchId":{batch}}}'


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_further_reads_begin_where_the_first_read_stands(checkpoint: Path) -> None:
    begin_further_reads(checkpoint, FURTHER)
    for batch, position in (("3", 6), ("4", 7)):
        found = sources_at((checkpoint / "offsets" / batch).read_text())
        files, channels = f'{{"logOffset":{position}}}', f'{{"b@E1":{position}}}'
        assert found == {
            **dict.fromkeys(("s_a_L1", "s_a_L1__2", "s_a_L1__3"), files),
            **dict.fromkeys(("c_b", "c_b_2"), channels),
        }
    assert reads_agree(checkpoint)
    assert not (checkpoint / "offsets" / ".4.crc").exists()  # Spark would refuse the file by its former checksum


def test_the_log_of_an_earlier_read_of_the_name_is_replaced(checkpoint: Path) -> None:
    _write(checkpoint / "sources" / "s_a_L1__2" / "2", _entry(2))
    begin_further_reads(checkpoint, FURTHER)
    assert sorted(f.name for f in (checkpoint / "sources" / "s_a_L1__2").iterdir()) == ["6", "7"]


def test_reads_that_the_checkpoint_knows_stay(checkpoint: Path) -> None:
    newest = checkpoint / "offsets" / "4"
    newest.write_text(newest.read_text() + '\ns_a_L1__2:{"logOffset":9}')
    begin_further_reads(checkpoint, {"s_a_L1": ["s_a_L1__2"]})
    assert sources_at(newest.read_text())["s_a_L1__2"] == '{"logOffset":9}'
    assert not (checkpoint / "sources" / "s_a_L1__2").exists()


def test_a_query_without_batches_begins_at_the_first_record(tmp_path: Path) -> None:
    begin_further_reads(tmp_path, FURTHER)
    assert not list(tmp_path.iterdir())
