"""A query's checkpoint on disk: Headwater's files in it beside Spark's, and what Spark's logs record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater.core.errors import ChannelError, DeploymentError
from headwater.disk.durable import (
    make_directory,
    read_note,
    read_sealed,
    sealed,
    sweep,
    write_atomically,
    write_first,
)

AGAIN = "__"
"""In Spark's name of a source, separates the number of a further read."""

_CHANNELS_AGAIN = re.compile(r"(c_\w+)_\d+")
"""Spark's name of a further read of channels: that of the first one, and a number."""
_NUMBER_FILE = "headwater.json"
_REWRITTEN = (
    'write {"number": N} into it: N is the "lineage" in the newest file of the log of its output, '
    "and value >> 32 of a table's batch column"
)
_MARKS = "publishing"
_RUN_FILE = "run"
_ANNOUNCED_FILE = "announced"
_TAKEN = "taken back"
_STALE = 3600.0  # seconds after which no process reads a mark any more


def checkpoint_number(checkpoint: str, *, where: str | None = None) -> int:
    """Return a checkpoint's own number, drawn at random when it is first used.

    Raise DeploymentError for a checkpoint that has run without one: its written batches could
    not be distinguished from those of others.
    """
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        raise DeploymentError(
            f"the checkpoint {checkpoint} is not on this machine",
            where=where,
            hint="use a local checkpoint, or at-least-once delivery (JDBC: batch_column=None)",
        )
    directory = Path(unquote(parts.path) if parts.scheme else checkpoint)
    file = directory / _NUMBER_FILE
    try:
        if (body := read_sealed(file, ("number",))) is not None:
            return int(body["number"])
    except (ChannelError, KeyError, ValueError, TypeError) as error:
        what = error.what if isinstance(error, ChannelError) else repr(error)
        raise DeploymentError(
            f"damaged: {what}",
            where=str(file),
            hint=f"restore it, or {_REWRITTEN}",
        ) from None
    if is_unnumbered(directory):
        raise DeploymentError(
            "the checkpoint has no number for its batches",
            where=str(file),
            hint=f"copy {_NUMBER_FILE} along with a checkpoint, or {_REWRITTEN}",
        )
    number = secrets.randbelow(2**31 - 1) + 1
    write_atomically(file, sealed({"number": number}))
    return number


def is_unnumbered(checkpoint: Path) -> bool:
    """Return whether a checkpoint has batches and no number: it lost it, or is older than numbers."""
    return not (checkpoint / _NUMBER_FILE).exists() and any((checkpoint / "offsets").glob("[0-9]*"))


def clear(checkpoint: Path) -> None:
    """Delete the batches and the state of a checkpoint whose output nobody has seen; its number stays."""
    if not checkpoint.is_dir():
        return
    for child in checkpoint.iterdir():
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        elif child.name != _NUMBER_FILE:
            child.unlink(missing_ok=True)


def newest_batch(log: Path) -> int:
    """Return the newest batch in a checkpoint's log of offsets or commits; -1 for none."""
    try:
        return max((int(name) for name in os.listdir(log) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def cut_off(checkpoint: Path) -> bool:
    """Return whether a stopped query's last batch was interrupted."""
    return newest_batch(checkpoint / "offsets") > newest_batch(checkpoint / "commits")


def begin_run(checkpoint: Path) -> str:
    """Record the start of a query; return the run that marks its batches when they publish."""
    marks = checkpoint / _MARKS
    make_directory(marks)
    sweep(marks, time.time() - _STALE)
    run = secrets.token_hex(8)
    planned = newest_batch(checkpoint / "offsets")
    write_atomically(marks / _RUN_FILE, json.dumps({"run": run, "planned": planned}), fsync=False)
    return str(marks / run)


def has_begun(checkpoint: Path) -> bool:
    """Return whether a query has ever been started with a checkpoint, or one was assembled for it."""
    return (checkpoint / _MARKS / _RUN_FILE).exists() or (checkpoint / "offsets").exists()


def begin_to_publish(run: str, batch: int) -> None:
    """Mark a batch of a run before any of it is visible; raise ChannelError where it was taken back."""
    mark = Path(f"{run}.{batch}")
    if not write_first(mark, "", fsync=False) and mark.read_text() == _TAKEN:
        raise ChannelError(
            "the batch was taken back", where=str(mark), hint="let this query end: it was stopped before"
        )
    Path(f"{run}.{batch - 1}").unlink(missing_ok=True)


def has_written_nothing(checkpoint: Path) -> bool:
    """Return whether a query's newest batch has surely not begun to publish its output.

    Spark publishes after all tasks, and a task with state ends by storing its new version. So while one of
    these is missing, nothing is published. Without state, the batch's mark decides.
    """
    batch = newest_batch(checkpoint / "offsets")
    stores = {image.parent for image in (checkpoint / "state").rglob("*.zip")}
    if stores:
        return not all((store / f"{batch + 1}.zip").exists() for store in stores)
    mark = _mark_of(checkpoint, batch)
    return mark is not None and not mark.exists()


def _mark_of(checkpoint: Path, batch: int) -> Path | None:
    """Return the path of a batch's mark if the newest run was the first to plan the batch; else None."""
    note = read_note(checkpoint / _MARKS / _RUN_FILE)
    if not isinstance(note.get("run"), str) or not isinstance(note.get("planned"), int):
        return None
    return checkpoint / _MARKS / f"{note['run']}.{batch}" if batch > note["planned"] else None


def announce(checkpoint: Path, batch: int) -> None:
    """Record that another unit may repeat a planned batch by now: it is not taken back."""
    make_directory(checkpoint / _MARKS)
    write_atomically(checkpoint / _MARKS / _ANNOUNCED_FILE, json.dumps({"batch": batch}), fsync=False)


def may_be_taken_back(checkpoint: Path) -> bool:
    """Return whether a query's newest batch has written nothing, and no other unit repeats it."""
    announced = read_note(checkpoint / _MARKS / _ANNOUNCED_FILE).get("batch")
    return announced != newest_batch(checkpoint / "offsets") and has_written_nothing(checkpoint)


def take_back(checkpoint: Path) -> bool:
    """Unplan a stopped query's interrupted batch, if it surely wrote nothing; return whether none is left.

    The process that publishes it may outlive the query for a moment: the first to create the mark wins.
    """
    if not cut_off(checkpoint):
        return True
    if not may_be_taken_back(checkpoint):
        return False
    batch = newest_batch(checkpoint / "offsets")
    mark = _mark_of(checkpoint, batch)
    if mark is not None and not write_first(mark, _TAKEN, fsync=False):
        return False
    for file in (f".{batch}.crc", str(batch)):
        (checkpoint / "offsets" / file).unlink(missing_ok=True)
    return True


def sources_at(text: str) -> dict[str, str]:
    """Read every named source's offset from a file of Spark's offset log (of version 2)."""
    parts = (line.partition(":") for line in text.splitlines()[2:])
    return {name: offset for name, colon, offset in parts if colon}


def reads_agree(checkpoint: Path) -> bool:
    """Return whether a query that reads an input more than once has equal offsets in all its reads.

    It reads a source once more for dead letters, and an input once for each of several branches that meet again. Each
    read determines its end offset by itself, the second a moment later.
    """
    try:
        at = sources_at((checkpoint / "offsets" / str(newest_batch(checkpoint / "commits"))).read_text())
    except FileNotFoundError:
        return True
    for name, position in at.items():
        first = name.rpartition(AGAIN)[0]
        if not first and (channels := _CHANNELS_AGAIN.fullmatch(name)) is not None:
            first = channels[1]
        if first in at and _files_read(checkpoint, name, position) != _files_read(checkpoint, first, at[first]):
            return False
    return True


def _files_read(checkpoint: Path, name: str, position: str) -> object:
    """Return the files that a source has read up to a position; the position itself for other inputs."""
    offset = json.loads(position) if position.startswith("{") else None
    if not isinstance(offset, dict):
        return position
    if not isinstance(offset.get("logOffset"), int):
        return offset
    found = set()
    for file in needed_of(checkpoint / "sources" / name):
        entries = _entries(file, file.stat().st_mtime_ns)
        found |= {path for batch, path in entries if batch <= offset["logOffset"]}
    return found


@lru_cache(maxsize=128)
def _entries(log: Path, changed: int) -> tuple[tuple[int, str], ...]:
    """Read a file of a file source's log: batches and their input files."""
    entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return tuple((entry["batchId"], entry["path"]) for entry in entries)


def needed_of(log: Path) -> list[Path]:
    """Return the files of a source's log that it still needs.

    Spark deletes files that it has compacted into one only after a while. The last two compact
    files tell Spark its interval of compaction.
    """
    named = ((f.name.partition(".")[0], f) for f in log.glob("[0-9]*"))
    files = sorted((int(number), file) for number, file in named if number.isdigit())
    compact = [number for number, file in files if file.suffix == ".compact"]
    first = compact[-2] if len(compact) > 1 else -1
    return [file for number, file in files if number >= first]


def positions(checkpoint: Path) -> dict[str, int]:
    """Return the position in each channel that a query's committed batches have reached with all reads."""
    return positions_in(checkpoint, newest_batch(checkpoint / "commits"))


def positions_in(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return the position in each channel at the end of a planned batch; empty for a batch that is missing."""
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except (OSError, ValueError):
        return {}
    found: dict[str, int] = {}
    for line in lines[2:]:
        _, brace, rest = line.partition("{")
        with contextlib.suppress(ValueError):
            offset = json.loads(brace + rest)
            if isinstance(offset, dict) and all("@" in k for k in offset):
                found |= {k: min(int(v), found.get(k, int(v))) for k, v in offset.items()}
    return found


def committed_watermark(checkpoint: Path) -> int:
    """Return the watermark of the newest committed batch, in microseconds; 0 without one."""
    newest = newest_batch(checkpoint / "commits")
    try:
        planned = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return int(planned.get("batchWatermarkMs", 0)) * 1000


def advances_watermark(checkpoint: Path, batch: int) -> bool:
    """Return whether a committed batch has advanced the watermark: only the next batch is planned with it.

    Raise FileNotFoundError for a batch that Spark has forgotten.
    """
    planned = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])
    committed = json.loads((checkpoint / "commits" / str(batch)).read_text().splitlines()[1])
    return int(committed.get("nextBatchWatermarkMs", 0)) > int(planned.get("batchWatermarkMs", 0))


def sweep_torn(directory: Path) -> None:
    """Delete files that a killed query left half written in its logs, and checksums without their files.

    Spark refuses to start a first batch beside such a file.
    """
    for log in (directory / "offsets", directory / "commits", *(directory / "sources").glob("*")):
        if not log.is_dir():
            continue
        for file in log.iterdir():
            name = file.name[1:].removesuffix(".crc")
            if file.name.startswith(".") and not (name[:1].isdigit() and (log / name).exists()):
                file.unlink(missing_ok=True)
