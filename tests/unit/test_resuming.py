"""A unit whose outputs or inputs are ahead of its checkpoint is refused; one that is only interrupted goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.agent.resuming import resume
from headwater.channels.filelog import FileLog
from headwater.channels.log import Log
from headwater.connectors.filewriter import FileSinkWriter
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError
from headwater.disk.checkpoint import begin_run
from headwater.plan.build import build
from headwater.plan.model import Channel
from headwater.plan.spec import UnitSpec, spec_of
from tests.unit.test_repair import hadoop

CONTINUUM = """
name: c
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
"""


@pytest.fixture(scope="module")
def spec() -> UnitSpec:
    """Return the spec of a unit that reads one channel."""
    builder = hw.flow("f", locations=["L1"])
    builder.read.json("/in/{location}", "n bigint").to_layer("cloud").where("n > 0").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    return next(spec_of(plan, unit.id) for unit in plan.units if unit.zone == "C1")


class Disk:
    """A unit's checkpoint after batches of one entry each, with its input and an output of each kind."""

    def __init__(self, root: Path, spec: UnitSpec) -> None:
        self.spec = spec
        self.checkpoint = root / "checkpoint"
        self.input = FileLog(root / "input", fsync=False)
        self.input.register("reader")
        self.writers: list[dict[str, Any]] = [
            {"kind": "filelog", "path": str(root / "log"), "lineage": "7", "fsync": False},
            {"kind": "files", "path": str(root / "files"), "name": "w", "format": "json", "lineage": "7"},
        ]

    def run(self, batches: int, *, published: int | None = None, read: int | None = None) -> None:
        """Leave the files of a run whose last batch was interrupted.

        ``published``: the number of batches in the outputs; ``read``: that of entries given up.
        """
        (channel,) = self.spec.inputs
        begin_run(self.checkpoint)
        hadoop(self.checkpoint / "metadata", '{"id": "1"}')
        for batch in range(batches):
            position = json.dumps({channel.id: batch + 1})
            hadoop(self.checkpoint / f"offsets/{batch}", f'v2\n{{"batchWatermarkMs":0}}\nc_x:{position}')
            if batch < batches - 1:
                hadoop(self.checkpoint / f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        for batch in range(batches + 5):
            self.input.append(pa.table({"n": [batch]}), epoch=1, batch=batch)
        for batch in range(batches if published is None else published):
            FileLog(self.writers[0]["path"], fsync=False, lineage="7").append(
                pa.table({"n": [batch]}), epoch=1, batch=batch
            )
            files = FileSinkWriter(self.writers[1], 1)
            task = files.open()
            task.write(pa.record_batch({"n": [batch]}))
            segment = task.close()
            assert segment is not None
            files.commit([segment], batch)
        self.input.advance("reader", batches - 1 if read is None else read)

    def resume(self) -> None:
        def log(channel: Channel) -> Log:
            assert channel in self.spec.inputs
            return self.input

        resume(self.spec, self.checkpoint, self.writers, log)

    def files(self) -> dict[str, bytes]:
        return {str(f.relative_to(self.checkpoint)): f.read_bytes() for f in self.checkpoint.rglob("*") if f.is_file()}


@pytest.fixture
def disk(tmp_path: Path, spec: UnitSpec) -> Disk:
    return Disk(tmp_path, spec)


@pytest.mark.parametrize("published", [0, 3, 4])
def test_an_interrupted_batch_is_repeated(disk: Disk, published: int) -> None:
    disk.run(4, published=published)
    before = disk.files()
    disk.resume()
    assert disk.files() == before


def test_a_plan_that_nobody_has_seen_is_dropped(disk: Disk) -> None:
    disk.run(4, published=3)
    (disk.checkpoint / "offsets/3").write_bytes(b"")
    disk.resume()
    assert sorted(f.name for f in (disk.checkpoint / "offsets").glob("[0-9]*")) == ["0", "1", "2"]
    disk.resume()  # again


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("damage", ["lost", "empty"])
def test_a_batch_in_an_output_without_its_plan_is_refused(disk: Disk, output: int, damage: str) -> None:
    disk.run(4)
    plan = disk.checkpoint / "offsets/3"
    if damage == "lost":
        plan.unlink()
    else:
        plan.write_bytes(b"")
    before = disk.files()
    disk.writers = disk.writers[output : output + 1]
    with pytest.raises(DeploymentError) as caught:
        disk.resume()
    named = f"; damaged or missing in {disk.checkpoint}: offsets/3" if damage == "empty" else ""
    assert caught.value.what == (
        f"its output goes up to batch 3, but batch 2 is the newest in its checkpoint: 1 batch is missing there{named}"
    )
    assert disk.spec.id in str(caught.value.where)
    assert disk.writers[0]["path"] in str(caught.value.where)
    crc = "offsets/.3.crc"  # a checksum without its file tells nothing
    assert {k: v for k, v in disk.files().items() if k != crc} == {k: v for k, v in before.items() if k != crc}


def test_a_checkpoint_that_was_put_back_is_refused(disk: Disk) -> None:
    disk.run(9)
    for batch in range(4, 9):
        for name in (f"offsets/{batch}", f"commits/{batch}"):
            (disk.checkpoint / name).unlink(missing_ok=True)
    with pytest.raises(DeploymentError, match=r"up to batch 8, but batch 4 is the newest .* 4 batches are missing"):
        # Batch 4 is not planned there either, but 3 is done.
        hadoop(disk.checkpoint / "offsets/4", 'v2\n{"batchWatermarkMs":0}')
        disk.resume()
    disk.writers = []  # its outputs do not show it, but its input does
    with pytest.raises(DeploymentError, match="up to entry 4, but those before entry 8 are deleted: 4 entries"):
        disk.resume()


def forget_batches(disk: Disk, *, but_plans: int = 0) -> None:
    """Empty the newest files of a checkpoint, but for some plans: it had batches and holds none whole."""
    for file in (*(disk.checkpoint / "offsets").glob("[0-9]*"), *(disk.checkpoint / "commits").glob("[0-9]*")):
        if file.parent.name == "commits" or int(file.name) >= but_plans:
            file.write_bytes(b"")


def test_a_checkpoint_without_a_whole_batch_is_refused_where_input_is_deleted(disk: Disk) -> None:
    disk.run(4, published=0)
    forget_batches(disk)
    with pytest.raises(DeploymentError, match=r"none of its batches whole, but the entries of .* before entry 3") as it:
        disk.resume()
    assert "offsets/" in it.value.what
    assert sorted(f.name for f in (disk.checkpoint / "offsets").glob("[0-9]*")) == ["0", "1", "2", "3"]


def test_it_begins_again_where_nothing_is_deleted(disk: Disk) -> None:
    disk.run(4, published=0, read=0)
    forget_batches(disk)
    disk.resume()
    assert not list((disk.checkpoint / "offsets").glob("[0-9]*"))


@pytest.mark.parametrize(
    ("read", "begun", "refused"),
    [
        (0, False, False),
        (1, False, True),  # the only entry of the first batch, which ends at 1
        (1, True, False),  # the first batch had nothing to read, and ended where the channel begins
        (2, True, True),
    ],
)
def test_the_first_batch_is_repeated_only_with_its_entries(disk: Disk, read: int, begun: bool, refused: bool) -> None:
    disk.run(4, published=0, read=read)
    (channel,) = disk.spec.inputs
    if begun:
        position = json.dumps({channel.id: 1, "begun@": 1})
        hadoop(disk.checkpoint / "offsets/0", f'v2\n{{"batchWatermarkMs":0}}\nc_x:{position}')
    forget_batches(disk, but_plans=1)
    if refused:
        with pytest.raises(DeploymentError, match="none of its batches whole"):
            disk.resume()
    else:
        disk.resume()
        assert [f.name for f in (disk.checkpoint / "offsets").glob("[0-9]*")] == ["0"]


def test_a_first_batch_that_was_never_done_is_repeated(disk: Disk) -> None:
    """A unit that begins on a channel whose first entries are gone, killed in its first batch."""
    disk.run(1, published=0, read=1)
    disk.resume()
    (disk.checkpoint / "offsets/0").write_bytes(b"")
    disk.resume()


def test_output_of_another_checkpoint_is_none_of_its_own(disk: Disk) -> None:
    disk.run(2, published=9)
    for writer in disk.writers:
        writer["lineage"] = "8"
    disk.resume()


def test_entries_that_a_policy_has_dropped_are_not_missed(disk: Disk) -> None:
    from headwater.channels.base import ChannelLimits

    disk.run(2)
    limits = ChannelLimits(max_bytes=1, when_full="drop_oldest")
    FileLog(disk.input.path, fsync=False, limits=limits).append(pa.table({"n": [1]}), epoch=1, batch=99)
    assert disk.input.earliest() > 2
    disk.resume()


def test_a_unit_that_never_ran_is_not_examined(disk: Disk) -> None:
    disk.run(3)
    for log in ("offsets", "commits", "publishing"):
        (disk.checkpoint / log).rename(disk.checkpoint.parent / log)
    disk.resume()


def test_a_checkpoint_that_lost_all_its_batches_is_refused(disk: Disk) -> None:
    disk.run(3)
    for log in ("offsets", "commits"):
        (disk.checkpoint / log).rename(disk.checkpoint.parent / log)
    with pytest.raises(DeploymentError, match="up to batch 2, but its checkpoint holds none: 3 batches are missing"):
        disk.resume()
