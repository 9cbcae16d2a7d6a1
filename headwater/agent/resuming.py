"""Prepare the files of a unit for its query's start: nothing outside its checkpoint may be ahead of it.

After a power cut on a disk that loses synced data, or after a checkpoint was put back from a backup, sinks may hold
batches that the checkpoint does not know. They would take the next, other batches for repetitions and leave their rows
out. In the same way entries may be deleted that the query has not read. Such a unit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.channels.base import BEGUN
from headwater.channels.log import Log
from headwater.connectors.writers import open_sink_writer
from headwater.core.errors import DeploymentError
from headwater.disk.checkpoint import has_begun, newest_batch, positions_in, sweep_torn
from headwater.disk.durable import write_atomically
from headwater.disk.furtherreads import begin_further_reads
from headwater.disk.repair import Condition, damaged_files, examine, has_forgotten, repair, start_positions
from headwater.plan.content import is_stateful
from headwater.plan.model import Channel
from headwater.plan.realtime import real_time_sink
from headwater.plan.spec import UnitSpec
from headwater.query.names import further_reads

_HINT = (
    "put back its checkpoint as it was when it wrote them, or all of the deployment's directory and its sinks from one "
    "backup; to begin again without the state, give `headwater run` --fresh and other or empty sinks, or stop the "
    "deployment and apply it under another name"
)
_FORMATS = ("v1", "v2")
"""Versions of Spark's log of commits: in batches, and in real-time mode."""
_SHOWN = 3  # damaged files in a message


def resume(
    spec: UnitSpec,
    checkpoint: Path,
    sink_writers: Sequence[Mapping[str, Any]],
    log: Callable[[Channel], Log],
) -> None:
    """Repair a stopped unit's checkpoint; raise DeploymentError where others are ahead of it, and change nothing."""
    sweep_torn(checkpoint)
    for described in sink_writers:  # a batch too large for the disk would otherwise fill it for good
        open_sink_writer(described, spec.unit.epoch).sweep()
    if not has_begun(checkpoint):
        return
    found = examine(checkpoint)
    _refuse_published(spec, checkpoint, found, sink_writers)
    _refuse_deleted(spec, checkpoint, found, log)
    repair(checkpoint, found)


def set_state_format(spec: UnitSpec, checkpoint: Path) -> None:
    """Let a stopped query go on in the mode of its spec: real-time mode has another format of state than batches.

    Without state the format is a mark in the checkpoint; raise DeploymentError for state in the other format.
    """
    commits, newest = checkpoint / "commits", newest_batch(checkpoint / "commits")
    if newest < 0:
        return
    wanted = _FORMATS[real_time_sink(spec.flow, spec.unit.operators) is not None]
    for number in range(max(0, newest - 1), newest + 1):  # Spark reads the last two; the newest, which decides, is last
        file = commits / str(number)
        if not file.exists():
            continue
        found, _, content = file.read_text(encoding="utf-8").partition("\n")
        if found == wanted:
            continue
        if is_stateful(spec.flow, spec.unit):
            raise DeploymentError(
                "its state cannot change between real-time mode and batches",
                where=f"unit {spec.id}",
                hint="apply it under another name, or reset its state: --reset-state",
            )
        _rewrite(file, f"{wanted}\n{content}")


def continue_reads(spec: UnitSpec, checkpoint: Path, reads: Mapping[str, int]) -> None:
    """Let a stopped query that reads an input more often than before go on where it was with all its reads.

    ``reads``: how often it reads each of its sources and channels.
    """
    further: dict[str, list[str]] = {}
    for id_, times in reads.items():
        further |= further_reads(spec, id_, times)
    begin_further_reads(checkpoint, further)


def _rewrite(file: Path, text: str) -> None:
    """Replace a file of a checkpoint, and drop the checksum that real-time mode has written beside it."""
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    write_atomically(file, text)


def _refuse_published(
    spec: UnitSpec, checkpoint: Path, found: Condition, sink_writers: Sequence[Mapping[str, Any]]
) -> None:
    for described in sink_writers:
        batch = open_sink_writer(described, spec.unit.epoch).newest()
        if batch is not None and batch > found.planned:
            where = described.get("table") or described.get("path") or described.get("topic")
            newest = f"batch {found.planned} is the newest in its checkpoint"
            known = newest if found.planned >= 0 else "its checkpoint holds none"
            missing = batch - found.planned
            raise DeploymentError(
                f"its output goes up to batch {batch}, but {known}: "
                f"{missing} {'batch is' if missing == 1 else 'batches are'} missing there{_damaged(checkpoint)}",
                where=f"unit {spec.id}, {where}",
                hint=_HINT,
            )


def _refuse_deleted(spec: UnitSpec, checkpoint: Path, found: Condition, log: Callable[[Channel], Log]) -> None:
    at = start_positions(checkpoint, found)
    forgotten = has_forgotten(checkpoint, found)
    first = positions_in(checkpoint, 0) if found.planned == 0 else {}
    for channel in spec.inputs:
        if channel.id not in at and not forgotten:
            continue
        floor = log(channel).floor()
        if floor.dropped_rows:  # the policy of a full channel may have deleted them
            continue
        if forgotten and not _has_first(first, channel.id, floor.seq):
            raise DeploymentError(
                f"its checkpoint holds none of its batches whole, but the entries of {channel.id} before entry "
                f"{floor.seq} are deleted{_damaged(checkpoint)}",
                where=f"unit {spec.id}",
                hint=_HINT,
            )
        if not forgotten and floor.seq > at[channel.id]:
            missing = floor.seq - at[channel.id]
            raise DeploymentError(
                f"its checkpoint has read {channel.id} up to entry {at[channel.id]}, but those before entry "
                f"{floor.seq} are deleted: {missing} {'entry is' if missing == 1 else 'entries are'} missing"
                f"{_damaged(checkpoint)}",
                where=f"unit {spec.id}",
                hint=_HINT,
            )


def _has_first(ends: Mapping[str, int], channel: str, floor: int) -> bool:
    """Return whether a channel still has all entries of a unit's first batch, which ends at these positions.

    Entries are deleted batch by batch, so it has all of them or none. The first batch may have had nothing to read.
    """
    end = ends.get(channel, 0)
    return floor == 0 or floor < end or (floor == end and BEGUN in ends)


def _damaged(checkpoint: Path) -> str:
    """Return the end of a message that names damaged files, if there are any."""
    names = [str(file.relative_to(checkpoint)) for file in damaged_files(checkpoint)]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"; damaged or missing in {checkpoint}: {shown}" if names else ""
