"""A directory of ordinary files (parquet, csv, JSON lines) that users read with any tool.

Tasks write whole files into ``<path>/.headwater/staging``, which every reader skips. A commit
records the batch in ``.headwater/log`` and then renames its files to their visible names,
``[<name>-]part-<batch>-<n>-<epoch>[-<run>].<ext>``. Several writers share a directory by
name. The record commits the batch: after a crash before the rename, the next writer rolls forward,
and a replayed batch finds its record and adds nothing.
Spark's own ``_spark_metadata`` cannot do this: its batches must begin at 0.

With ``target_bytes`` small files wait in ``.headwater/<name>/held`` (see ``heldfiles``): the record of a batch commits
them, too, and lists all that wait. A later record puts several of them together as
``[<name>-]whole-<record>-<n>.<ext>``. That one is written before its record, and renamed after it; then the files that
it was made of are deleted.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.channels.journal import Journal
from headwater.channels.segments import Segment
from headwater.connectors.fileformats import FORMATS
from headwater.connectors.filetasks import INDEX, FileTask, PartitionedTask
from headwater.connectors.heldfiles import HeldFile, due, held_in, joined
from headwater.core.errors import ChannelError
from headwater.disk.durable import make_directory, sweep, sweep_staged, sync_directory

_KEPT = 100  # records kept for inspection; only the newest is needed


class FileSinkWriter:
    """Write files: ``path``, ``format`` (parquet, csv, json), ``partition_by``, ``fsync`` and the writer's ``name``.

    ``lineage`` names the numbering of the batches (a checkpoint): a batch that another epoch has recorded
    under the same lineage and number is a repetition. Output of another lineage in the same epoch is refused.
    ``target_bytes``: files of fewer bytes wait and are put together, for at most ``max_age`` seconds; 0: none waits.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        self._epoch = epoch
        self._format = str(spec.get("format", "parquet"))
        if self._format not in FORMATS:
            raise ChannelError(
                f"unknown file format {self._format!r}",
                where=str(spec["path"]),
                hint="use parquet, csv or json",
            )
        self._fsync = bool(spec.get("fsync", True))
        self.path = Path(spec["path"])
        self._partition_by: tuple[str, ...] = tuple(spec.get("partition_by") or ())
        self._name = str(spec.get("name", ""))
        self._lineage: str | None = spec.get("lineage")
        home = self.path / ".headwater" / self._name
        self._target = int(spec.get("target_bytes", 0))
        self._age = float(spec.get("max_age", math.inf))
        self._staging, self._held = home / "staging", home / "held"
        self._journal = Journal(home / "log", scratch=self._staging, fsync=self._fsync)

    def open(self) -> FileTask | PartitionedTask:
        """Start a file in staging, or one for each partition."""
        if self._partition_by:
            return PartitionedTask(self._staging, self._format, self._partition_by, fsync=self._fsync)
        return FileTask(self._staging, self._format, fsync=self._fsync)

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Record a batch, then make its files visible."""
        self._journal.create()
        while True:
            last, number = self._last()
            self._refuse_zombie(last)
            self._refuse_other(last)
            if last and self._is_in(last, batch):
                self.recover()
                self.abort(segments)
                return
            files = [p for p in segments if p.file]
            if not files:
                return
            rows = sum(p.rows for p in files)
            run = int((last or {}).get("run", 0))
            staged = [(name, below) for p in files for name, below in self._staged_of(str(p.file)).items()]
            shown, held = {}, held_in(last)
            if self._target:
                held += [self._new(name, below) for name, below in staged]
            else:
                shown = {name: os.path.join(b, self._visible_name(batch, n, run)) for n, (name, b) in enumerate(staged)}
            record = {
                "epoch": self._epoch,
                "batch": batch,
                "rows": rows,
                "total_rows": rows + (last["total_rows"] if last else 0),
                **_of_former_runs(last),
                **({"lineage": self._lineage} if self._lineage else {}),
            }
            if self._publish_with(number + 1, record, shown, held):
                for p in files:
                    if str(p.file).endswith(INDEX):
                        (self._staging / str(p.file)).unlink(missing_ok=True)
                return

    def publish_held(self, *, everything: bool) -> None:
        """Make files that wait visible: those whose time has come, or all. A newer writer's files are left alone."""
        while True:
            last, number = self._last()
            held = held_in(last)
            if last is None or last["epoch"] > self._epoch or not self._due(held, everything=everything):
                return
            try:
                if self._show(last, number, everything=everything):
                    return
            except FileNotFoundError:  # batches written since then have swept the draft of the record
                if self._last()[1] == number:
                    raise

    def _show(self, last: Mapping[str, Any], number: int, *, everything: bool) -> bool:
        """Publish a record like the newest one that makes files visible; return False where another was first."""
        kept = {key: value for key, value in last.items() if key not in ("files", "held", "merged")}
        # A batch may be written meanwhile: what its tasks have staged is not to be swept.
        return self._publish_with(
            number + 1, {**kept, "rows": 0}, {}, held_in(last), everything=everything, sweeping=False
        )

    def _publish_with(
        self,
        number: int,
        record: Mapping[str, Any],
        shown: Mapping[str, str],
        held: Sequence[HeldFile],
        *,
        everything: bool = False,
        sweeping: bool = True,
    ) -> bool:
        """Publish a record that makes files visible, and those of ``held`` that are due; False where one was first."""
        if held:
            self.recover()  # else another process may move a file on to where it waits, while it is read here
        prefix, files, merged, made = f"{self._name}-" if self._name else "", dict(shown), list[str](), list[Path]()
        for group in self._due(held, everything=everything):
            paths = [self._place_of(file.name) for file in group]
            try:
                new = joined(paths, self._staging, fsync=self._fsync) if len(group) > 1 else paths
            except FileNotFoundError:
                _delete(made)
                if self._last()[1] >= number:  # another process has put them together
                    return False
                raise
            if len(group) > 1:
                made += new
                merged += [file.name for file in group]
            for path in new:
                name = f"{prefix}whole-{number:08d}-{len(files)}{path.suffix}"
                files[path.name] = os.path.join(group[0].below, name)
        waiting = {f.name: f.to_data() for f in held if f.name not in files and f.name not in merged}
        whole = {**record, "files": files, **({"held": waiting} if waiting else {})}
        if self._publish(number, {**whole, "merged": merged} if merged else whole, sweeping=sweeping):
            return True
        _delete(made)
        return False

    def _due(self, held: Sequence[HeldFile], *, everything: bool = False) -> list[list[HeldFile]]:
        at_once = everything or not self._target
        return due(held, target=0 if at_once else self._target, age=self._age, now=time.time())

    def _new(self, name: str, below: str) -> HeldFile:
        return HeldFile(name=name, below=below, size=(self._staging / name).stat().st_size, since=time.time())

    def _place_of(self, name: str) -> Path:
        """Return where a file is that is not visible yet."""
        held = self._held / name
        return held if held.exists() else self._staging / name

    def _staged_of(self, file: str) -> dict[str, str]:
        """Return the staged files of a segment, and the directory of each below that of the sink."""
        if not file.endswith(INDEX):
            return {file: ""}
        try:
            found: dict[str, str] = json.loads((self._staging / file).read_text(encoding="utf-8"))
        except FileNotFoundError:  # the segment was committed, or aborted, before
            return {}
        return found

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts."""
        self._journal.create()
        while True:
            last, number = self._last()
            if last and last["epoch"] >= epoch:
                self._refuse_zombie(last, epoch)
                break
            record: dict[str, Any] = {
                "epoch": epoch,
                "batch": -1,
                "files": {},
                "rows": 0,
                "total_rows": last["total_rows"] if last else 0,
                "previous": _counts(last),
                **({"held": last["held"]} if last and "held" in last else {}),
                **_of_former_runs(last),
                **({"lineage": last["lineage"]} if last and "lineage" in last else {}),
            }
            last = record
            if self._publish(number + 1, record):
                break
        counts = _counts(last)
        return (counts[0], counts[1]) if counts else None

    def append(self) -> None:
        """Let another lineage go on after the rows that are there; its files get names of their own."""
        self._journal.create()
        while True:
            last, number = self._last()
            if last is None:
                return
            if last.get("held"):
                self._show(last, number, everything=True)
                continue
            record = {
                "epoch": -1,
                "batch": -1,
                "files": {},
                "rows": 0,
                "total_rows": 0,
                "run": int(last.get("run", 0)) + 1,
                "former_rows": self.all_rows(),
            }
            if self._publish(number + 1, record):
                return

    def abort(self, segments: Sequence[Segment]) -> None:
        """Delete the staged files of a failed batch; one that was recorded has not failed, and keeps its files."""
        last, _ = self._last()
        recorded = {name for what in ("files", "held", "merged") for name in (last or {}).get(what, ())}
        for segment in segments:
            if segment.file:
                for file in {*self._staged_of(segment.file), segment.file} - recorded:
                    (self._staging / file).unlink(missing_ok=True)

    def recover(self) -> None:
        """Make the newest record's files visible, if a crash prevented that, and let their names last.

        A unit that has finished makes no further batch that would find them.
        """
        last, _ = self._last()
        moved = set()
        for name in self._staged_among((last or {}).get("held", {})):
            with contextlib.suppress(FileNotFoundError):
                make_directory(self._held, fsync=self._fsync)
                os.rename(self._staging / name, self._held / name)
                moved.add(self._held)
        for staged, visible in (last["files"] if last else {}).items():
            source, target = self._place_of(staged), self.path / visible
            with contextlib.suppress(FileNotFoundError):
                if target.parent != self.path and source.exists():
                    make_directory(target.parent, fsync=self._fsync)
                os.rename(source, target)
                moved.add(target.parent)
        if self._fsync:
            for directory in moved:
                sync_directory(directory)
        for name in (last or {}).get("merged", ()):
            _delete([self._held / name, self._staging / name])

    def _staged_among(self, names: Mapping[str, Any]) -> set[str]:
        return set(names) & set(os.listdir(self._staging)) if names else set()

    def sweep(self) -> None:
        """Delete what interrupted batches have left in staging."""
        self.recover()
        sweep_staged(self._staging)

    def newest(self) -> int | None:
        """Return the newest batch of its lineage in the directory."""
        last, _ = self._last()
        counts = _counts(last)
        return counts[1] if counts and self._lineage and last and last.get("lineage") == self._lineage else None

    def rows(self) -> int:
        """Return the number of rows committed since the directory, or this run in it, began."""
        last, _ = self._last()
        return int(last["total_rows"]) if last else 0

    def all_rows(self) -> int:
        """Return the number of rows committed, those of former runs included."""
        last, _ = self._last()
        return self.rows() + int((last or {}).get("former_rows", 0))

    def _publish(self, number: int, record: Mapping[str, Any], *, sweeping: bool = True) -> bool:
        self.recover()
        before = self._journal.modified(number - 1) if number else None
        if self._fsync:
            sync_directory(self.path)
            sync_directory(self._staging)
        if not self._journal.publish(number, record):
            return False
        self.recover()
        if sweeping:
            sweep(self._staging, before)
        if number >= _KEPT:
            self._journal.discard(number - _KEPT, number - _KEPT + 1)
        return True

    def _last(self) -> tuple[dict[str, Any] | None, int]:
        number = self._journal.last()
        return (self._journal.get(number) if number >= 0 else None), number

    def _is_in(self, last: Mapping[str, Any], batch: int) -> bool:
        if last["epoch"] == self._epoch and last["batch"] >= batch:
            return True
        counts = _counts(last)
        same = self._lineage is not None and last.get("lineage") == self._lineage
        return same and counts is not None and counts[1] >= batch

    def _refuse_zombie(self, last: Mapping[str, Any] | None, epoch: int | None = None) -> None:
        epoch = self._epoch if epoch is None else epoch
        if last and last["epoch"] > epoch:
            other = self._lineage and last.get("lineage") not in (None, self._lineage)
            raise ChannelError(
                f"the writer of epoch {epoch} is out of date: epoch {last['epoch']} has taken over",
                where=str(self.path),
                hint="stop this writer; its unit runs elsewhere now"
                + (", or write to another path if this is output of another run" if other else ""),
            )

    def _refuse_other(self, last: Mapping[str, Any] | None) -> None:
        """Refuse batches of another numbering: those already written would be taken for them, and these be lost."""
        if last is None or last["epoch"] != self._epoch or last["batch"] < 0:
            return
        if last.get("lineage") not in (None, self._lineage):
            raise ChannelError(
                "the directory holds output of another run: of another state directory, deployment or dataflow",
                where=str(self.path),
                hint="write to another path, or remove the directory with its .headwater if its rows may go",
            )

    def _visible_name(self, batch: int, part: int, run: int) -> str:
        prefix = f"{self._name}-" if self._name else ""
        later = f"-{run}" if run else ""
        return f"{prefix}part-{batch:08d}-{part}-{self._epoch}{later}.{self._format}"


def committed_rows(path: Path, name: str | None = None) -> int:
    """Count the rows a writer has committed to a directory; 0 where there is none."""
    if not (path / ".headwater" / (name or "") / "log").is_dir():
        return 0
    return FileSinkWriter({"path": path, "name": name or ""}, 0).rows()


def writers_in(path: Path) -> dict[str, int]:
    """Return the writers with output in a directory, and the numbers of their rows."""
    names = [log.parent.name for log in (path / ".headwater").glob("*/log")]
    rows = {name: FileSinkWriter({"path": path, "name": name}, 0).all_rows() for name in sorted(names)}
    return {name: count for name, count in rows.items() if count}


def remove_output(path: Path) -> None:
    """Remove all files that writers made in a directory, and no other file."""
    for name in writers_in(path):
        numbers = r"(part-\d{8,}-\d+-\d+(-\d+)?|whole-\d{8,}-\d+)"
        ours = re.compile(rf"{re.escape(name)}-{numbers}\.({'|'.join(FORMATS)})")
        _remove_files(path, ours)
        # The records last: after a crash they still tell that there is something to remove.
        shutil.rmtree(path / ".headwater" / name)


def _remove_files(path: Path, names: re.Pattern[str]) -> None:
    """Remove the files with some names in a directory and its partitions, and partitions that are empty then."""
    for at, below, files in os.walk(path):
        below[:] = [name for name in below if "=" in name]
        for file in files:
            if names.fullmatch(file):
                os.unlink(os.path.join(at, file))
    for at, _, _ in os.walk(path, topdown=False):
        if "=" in os.path.basename(at) and at != str(path):
            with contextlib.suppress(OSError):  # others' files are in it
                os.rmdir(at)


def _delete(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _of_former_runs(record: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (record or {}).items() if key in ("run", "former_rows")}


def _counts(record: Mapping[str, Any] | None) -> list[int] | None:
    if record is None:
        return None
    return [record["epoch"], record["batch"]] if record["batch"] >= 0 else record.get("previous")
