"""Headwater's changes to a query's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from headwater.channels.channelspec import lineage_of
from headwater.core.errors import ChannelError, DeploymentError
from headwater.disk.checkpoint import (
    begin_run,
    begin_to_publish,
    checkpoint_number,
    cut_off,
    has_written_nothing,
    reads_agree,
    sweep_torn,
    take_back,
)


def test_only_what_is_half_written_is_swept(tmp_path: Path) -> None:
    kept = ["offsets/0", "offsets/.0.crc", "offsets/1", "commits/0", "metadata", ".metadata.crc"]
    torn = ["offsets/.2.5d3c.tmp", "offsets/..2.5d3c.tmp.crc", "offsets/.2.crc", "commits/.1.77aa.tmp"]
    for name in (*kept, *torn):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    sweep_torn(tmp_path)
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()) == sorted(kept)
    sweep_torn(tmp_path / "absent")


def checkpoint_of(place: Path, *, batches: int, committed: int, stored: Mapping[str, int]) -> Path:
    """Create a checkpoint's logs, and the versions of its state for each store."""
    for log, count in (("offsets", batches), ("commits", committed)):
        (place / log).mkdir(parents=True)
        for batch in range(count):
            (place / log / str(batch)).write_text("v2\n{}")
    for store, newest in stored.items():
        (place / "state" / store).mkdir(parents=True)
        for version in range(1, newest + 1):
            (place / "state" / store / f"{version}.zip").touch()
    return place


@pytest.mark.parametrize(
    ("stored", "back"),
    [
        ({"0/0": 3, "1/0": 3}, True),  # no task of batch 3 had ended
        ({"0/0": 4, "1/0": 3}, True),  # one task had ended
        ({"0/0": 4, "1/0": 4}, False),  # all tasks had ended: the batch may have published
        ({}, False),  # without state, the result is unknown
    ],
)
def test_a_batch_is_taken_back_only_where_it_surely_wrote_nothing(
    tmp_path: Path, stored: Mapping[str, int], back: bool
) -> None:
    checkpoint = checkpoint_of(tmp_path, batches=4, committed=3, stored=stored)
    (checkpoint / "offsets/.3.crc").touch()
    assert take_back(checkpoint) is back
    assert cut_off(checkpoint) is not back
    assert (checkpoint / "offsets/.3.crc").exists() is not back


def planned(checkpoint: Path, batch: int) -> None:
    (checkpoint / "offsets" / str(batch)).write_text("v2\n{}")


def test_without_state_a_batch_is_taken_back_that_was_not_begun_to_be_published(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, batches=3, committed=3, stored={})
    run = begin_run(checkpoint)
    planned(checkpoint, 3)
    assert has_written_nothing(checkpoint)
    begin_to_publish(run, 3)
    begin_to_publish(run, 3)  # again, after an error
    assert not has_written_nothing(checkpoint)
    assert not take_back(checkpoint)
    (checkpoint / "commits/3").touch()
    planned(checkpoint, 4)
    assert take_back(checkpoint)
    assert not cut_off(checkpoint)
    with pytest.raises(ChannelError, match="taken back"):
        begin_to_publish(run, 4)  # by a process that outlived its query
    run = begin_run(checkpoint)
    planned(checkpoint, 4)
    begin_to_publish(run, 4)
    assert len(list((checkpoint / "publishing").glob(f"{Path(run).name}.*"))) == 1


def test_a_batch_of_an_earlier_run_is_not_taken_back(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, batches=4, committed=3, stored={})
    begin_run(checkpoint)  # batch 3 may have been published before a power failure
    assert not has_written_nothing(checkpoint)
    assert not take_back(checkpoint)


def test_what_is_complete_stays(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, batches=3, committed=3, stored={"0/0": 2})
    assert take_back(checkpoint)
    assert (checkpoint / "offsets/2").exists()


def file_log(checkpoint: Path, name: str, batches: list[list[str]]) -> None:
    """Write the log of a file source."""
    (checkpoint / "sources" / name).mkdir(parents=True)
    for number, files in enumerate(batches):
        lines = [json.dumps({"path": f, "timestamp": 1, "batchId": number}) for f in files]
        (checkpoint / "sources" / name / str(number)).write_text("\n".join(["v1", *lines]))


@pytest.mark.parametrize(
    ("second", "at", "agree"),
    [
        ([["a"], ["b"], ["c"]], 1, True),
        ([["a", "b"], ["c"]], 0, True),  # the same files in fewer batches
        ([["a"], ["b"], ["c"]], 2, False),  # one more file
        ([["a"], ["b"]], 0, False),
    ],
)
def test_two_reads_agree_when_they_have_read_the_same_files(
    tmp_path: Path, second: list[list[str]], at: int, agree: bool
) -> None:
    checkpoint = checkpoint_of(tmp_path, batches=1, committed=1, stored={})
    file_log(checkpoint, "s_x_L1", [["a"], ["b"], ["c"]])
    file_log(checkpoint, "s_x_L1__2", second)
    lines = [
        "v2",
        "{}",
        's_x_L1:{"logOffset":1}',
        f's_x_L1__2:{{"logOffset":{at}}}',
        's_y_L1:{"logOffset":9}',
    ]
    (checkpoint / "offsets/0").write_text("\n".join(lines))
    assert reads_agree(checkpoint) is agree


def test_the_number_of_a_checkpoint_is_sealed(tmp_path: Path) -> None:
    number = checkpoint_number(str(tmp_path))
    file = tmp_path / "headwater.json"
    text = file.read_text()
    digit = str(number)[-1]
    other = str(number)[:-1] + ("1" if digit != "1" else "2")
    file.write_text(text.replace(str(number), other, 1))
    with pytest.raises(DeploymentError, match=r"damaged: .* checksum"):
        checkpoint_number(str(tmp_path))
    with pytest.raises(DeploymentError, match=r"headwater\.json"):
        lineage_of(tmp_path)
    file.write_text(f'{{"number": {number}}}')  # as earlier versions wrote it
    assert checkpoint_number(str(tmp_path)) == number
    assert lineage_of(tmp_path) == str(number)
    file.write_text("")
    with pytest.raises(DeploymentError, match="damaged"):
        lineage_of(tmp_path)
    file.unlink()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").touch()
    assert lineage_of(tmp_path) is None  # a checkpoint older than numbers
