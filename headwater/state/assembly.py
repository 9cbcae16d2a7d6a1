"""Assemble a checkpoint from the saved state of other units.

An operator's state that is taken over whole is copied as files, with its new number and version. State that
is merged from several units, divided, or brought to another number of partitions is rewritten by
Spark (``headwater.state.reshape``).
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from headwater.core.errors import RuntimeFailure
from headwater.disk.durable import sync_directory
from headwater.disk.syncing import note_synced, sync_tree
from headwater.plan.transfer import OperatorTransfer, StateTransfer, TransferSource
from headwater.state.reshape import Reshaping, StatePiece, columns_of, reshape, taken_of
from headwater.state.savedstate import Saved, StateStore

_PARTITIONS = "spark.sql.shuffle.partitions"
_MARK = "carried.json"
_NOTE = "headwater.json"
_CHECKSUMS = shutil.ignore_patterns(".*.crc")


@dataclass(frozen=True, kw_only=True)
class InputPosition:
    """The position from which the new unit reads one input.

    ``name`` is Spark's for the source. A channel's ``positions`` are by its id; a source's position is that in
    the source unit's checkpoint, log of files included; that of ``like`` where it had no such source.
    """

    name: str
    like: str | None = None
    positions: Mapping[str, int] | None = None


def place_of(readers: Iterable[Saved], writers: Iterable[Saved], name: str, wanted: Iterable[str]) -> dict[str, int]:
    """Return the start position of each wanted channel: that of its readers, or its end.

    A channel that no unit has saved is new: it starts at 0.
    """
    at = dict.fromkeys(wanted, 0)
    for one in writers:
        at |= {k: v for k, v in one.outputs.items() if k in at}
    for one in readers:
        if name in one.sources:
            at |= {k: int(v) for k, v in json.loads(one.sources[name]).items() if k in at}
    return at


def event_time(transfer: StateTransfer, known: Mapping[str, Saved]) -> tuple[int, int]:
    """Return a new query's watermarks, in ms: the one before which rows are late, and the one it has passed.

    Rows are late for none of its operators before they are late for all: one of these may still hold back
    rows that another treats as passed.
    """
    keeping, reading = _keeping(transfer, known), _reading(transfer, known)
    joined = any(r.joined for r in transfer.readings)
    merged = joined or any(len(s.source_units) > 1 for s in transfer.shares)
    # One stream of events: the greatest watermark holds for all. Several: the least one holds.
    choose = min if merged or len(reading) > 1 else max
    counted = reading if len(reading) > 1 and not joined else list(known.values())
    late = min(s.watermark for s in keeping) if keeping else choose(s.watermark for s in counted)
    # A new channel may bring rows that other units held back.
    follows = all(r.follows for r in transfer.readings)
    return late, max(late, choose(s.next_watermark for s in counted) if follows else late)


def _keeping(transfer: StateTransfer, known: Mapping[str, Saved]) -> list[Saved]:
    """Return the source units whose state is taken."""
    return [known[d.unit] for s in transfer.shares for d in s.source_units if d.unit in known]


def _reading(transfer: StateTransfer, known: Mapping[str, Saved]) -> list[Saved]:
    """Return the source units whose position in some input is taken."""
    return [known[d] for d in {d: None for r in transfer.readings for d in r.source_units} if d in known]


def assemble(
    checkpoint: Path,
    transfer: StateTransfer,
    store: StateStore,
    names: Mapping[str, str],
    found: Mapping[str, Saved],
    places: Sequence[InputPosition],
    empty: Callable[[], Path],
) -> Saved | None:
    """Make a checkpoint from the state that source units have saved under ``names``; None where it exists.

    ``empty`` makes a checkpoint with the state of scans that have had no rows, if some have had none.
    """
    if (checkpoint / _MARK).exists():
        return None
    draft = checkpoint.with_name(f".{checkpoint.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "parts").mkdir(parents=True)
    made = _Assembly(checkpoint, draft, transfer, store, names, found, empty)
    summary = made.put_together(places)
    shutil.rmtree(draft / "parts")
    if (checkpoint / _NOTE).exists():
        shutil.copy(checkpoint / _NOTE, draft / _NOTE)
    (draft / _MARK).write_text(json.dumps({"from": list(names.values())}))
    sync_tree(draft)  # then the former owners of the state may forget it
    shutil.rmtree(checkpoint, ignore_errors=True)
    os.replace(draft, checkpoint)
    sync_directory(checkpoint.parent)
    note_synced(checkpoint)
    return summary


@dataclass
class _Assembly:
    """One checkpoint under construction in ``draft``; it is moved to ``checkpoint``."""

    checkpoint: Path
    draft: Path
    transfer: StateTransfer
    store: StateStore
    names: Mapping[str, str]
    found: Mapping[str, Saved]
    empty: Callable[[], Path]
    known: Mapping[str, Saved] = field(init=False)
    """Source units that have ever run a batch."""

    def __post_init__(self) -> None:
        alone = {one.unit for one in self.transfer.sinks if one.alone}
        self.known = {d: s for d, s in self.found.items() if s.batch >= 0 and d not in alone}

    def put_together(self, places: Sequence[InputPosition]) -> Saved:
        """Assemble state and logs."""
        if not self.known:
            return Saved()
        slots = [tuple(ss) for _, ss in groupby(self.transfer.shares, key=lambda s: s.number)]
        none = [s.operator for s in self.transfer.shares if not any(d.unit in self.known for d in s.source_units)]
        if none:
            raise RuntimeFailure(
                f"{', '.join(none)} has no state, because it has had no rows yet, while others have some",
                where=f"unit {self.transfer.unit}",
                hint="apply the plan again when rows have come through",
            )
        summary = self._summary()
        _write_logs(self.draft, summary, self._lines(places))
        anew = [r for slot in slots if (r := self._state(slot, summary)) is not None]
        if anew:
            reshape(anew, within=self.draft / "parts")
        for one in anew:
            self._take(one)
        for number in self.transfer.fresh:
            self._begin(number, summary)
        return summary

    def _summary(self) -> Saved:
        """Determine batch, watermarks and partitions of the new query."""
        keeping, reading = _keeping(self.transfer, self.known), _reading(self.transfer, self.known)
        watermark, ahead = event_time(self.transfer, self.known)
        like = max(keeping or self.known.values(), key=lambda s: int(s.conf.get(_PARTITIONS, 0)))
        return Saved(
            batch=max(s.batch for s in self.known.values()),
            watermark=watermark,
            next_watermark=ahead,
            timestamp=max(s.timestamp for s in self.known.values()),
            conf=like.conf,
            bytes=sum(s.bytes for s in self.known.values()),
            rows_in=sum(s.rows_in for s in reading),
            late_rows=sum(self.known[d].late_rows for d in self.transfer.counted if d in self.known),
        )

    def _lines(self, places: Sequence[InputPosition]) -> list[str]:
        """Return each source's line of the offset log; fetch the logs of file sources."""
        lines = []
        for place in places:
            if place.positions is not None:
                lines.append(f"{place.name}:{json.dumps(dict(place.positions))}")
                continue
            for source_unit, saved in self.known.items():
                there = next((n for n in (place.name, place.like) if n in saved.sources), None)
                if there is None:
                    continue
                lines.append(f"{place.name}:{saved.sources[there]}")
                into = self.draft / "sources" / place.name
                for file in saved.files:
                    if file.startswith(f"sources/{there}/"):
                        part = file.removeprefix(f"sources/{there}/")
                        self.store.get(self.names[source_unit], file, into / part)
        return lines

    # ------------------------------------------------------------ state

    def _state(self, shares: Sequence[OperatorTransfer], summary: Saved) -> Reshaping | None:
        """Fetch the state of one operator; return the rewriting that Spark has to do first, where it does not fit.

        Entries of scans that moved elsewhere do no harm: no scan reads their tags.
        """
        number = shares[0].number
        found = dict.fromkeys(d for s in shares for d in s.source_units if d.unit in self.known)
        source_units, partitions = list(found), int(summary.conf[_PARTITIONS])
        equal = all(int(self.known[d.unit].conf[_PARTITIONS]) == partitions for d in source_units)
        if len(source_units) < 2 and equal and all(s.by is None and s.part is None for s in shares):
            for source_unit in source_units:
                self._fetch(source_unit, number, self.draft, self.checkpoint, summary.batch)
            return None
        pieces = []
        for n, source_unit in enumerate(source_units):
            saved, part = self.known[source_unit.unit], self.draft / "parts" / f"{number}-{n}"
            self._fetch(source_unit, number, part, part, saved.batch)
            _write_logs(part, saved, [])
            of_it = [s for s in shares if source_unit in s.source_units]
            takes = " OR ".join(t for s in of_it if (t := taken_of(s)) is not None) or None
            by = tuple(column for s in of_it for column in columns_of(s))
            pieces.append(StatePiece(checkpoint=str(part), batch=saved.batch, takes=takes, by=by))
        return self._anew(number, pieces, summary, partitions) if pieces else None

    def _anew(self, number: int, pieces: list[StatePiece], summary: Saved, partitions: int) -> Reshaping:
        """Make a checkpoint into which Spark writes the state of one operator."""
        target = self.draft / "parts" / f"{number}"
        _write_logs(target, summary, [])
        source = Path(pieces[0].checkpoint) / "state" / str(number)
        place = target / "state" / str(number)
        # Each store has a schema of its own, and a join has four stores.
        schemas = [str(found.relative_to(source)) for found in (source / "0").rglob("_metadata")]
        for kept in ("_metadata", "_stateSchema", *schemas):
            if (source / kept).is_dir():
                shutil.copytree(source / kept, place / kept)
        _describe(place, target, number, partitions)
        return Reshaping(
            checkpoint=str(target), operator=number, batch=summary.batch, partitions=partitions, pieces=pieces
        )

    def _begin(self, number: int, summary: Saved) -> None:
        """Create the empty state of one operator: it is the same in every partition."""
        source, place = self.empty() / "state" / "0", self.draft / "state" / str(number)
        partitions = int(summary.conf[_PARTITIONS])
        for kept in ("_metadata", "_stateSchema"):
            shutil.copytree(source / kept, place / kept, ignore=_CHECKSUMS)
        for partition in range(partitions):
            shutil.copytree(source / "0", place / str(partition), ignore=_CHECKSUMS, dirs_exist_ok=True)
            (place / str(partition) / "1.zip").rename(place / str(partition) / f"{summary.batch + 1}.zip")
        _describe(place, self.checkpoint, number, partitions)

    def _take(self, done: Reshaping) -> None:
        """Copy the state that Spark has rewritten."""
        final = self.draft / "state" / str(done.operator)
        final.parent.mkdir(exist_ok=True)
        shutil.move(Path(done.checkpoint) / "state" / str(done.operator), final)
        for spare in final.rglob(".*.crc"):
            spare.unlink()
        _describe(final, self.checkpoint, done.operator, done.partitions)

    def _fetch(self, source_unit: TransferSource, new: int, into: Path, stands: Path, batch: int) -> None:
        """Fetch an operator's state and give it its new number, and the version that follows a batch."""
        saved, prefix = self.known[source_unit.unit], f"state/{source_unit.number}/"
        place = into / "state" / str(new)
        for file in saved.files:
            if file.startswith(prefix):
                target = place / file.removeprefix(prefix)
                if target.name == f"{saved.batch + 1}.zip":
                    target = target.with_name(f"{batch + 1}.zip")
                if "/_metadata/v2/" in file:
                    target = target.with_name("0")
                self.store.get(self.names[source_unit.unit], file, target)
        _describe(place, stands, new, None)


def _describe(place: Path, checkpoint: Path, number: int, partitions: int | None) -> None:
    """Write an operator's number, path and, if given, partitions into its description."""
    file = place / "_metadata" / "v2" / "0"
    file = file if file.exists() else place / "_metadata" / "metadata"
    version, text = file.read_text().split("\n", 1)
    data: dict[str, Any] = json.loads(text)
    data["operatorInfo"]["operatorId"] = number
    for info in data["stateStoreInfo"]:
        if partitions is not None:
            info["numPartitions"] = partitions
        if "stateSchemaFilePaths" in info:
            info["stateSchemaFilePaths"] = [
                f"file:{checkpoint}/state/{number}/_stateSchema/{p.split('/_stateSchema/', 1)[1]}"
                for p in info["stateSchemaFilePaths"]
            ]
    file.write_text(f"{version}\n{json.dumps(data, separators=(',', ':'))}")


def _write_logs(draft: Path, summary: Saved, lines: Sequence[str]) -> None:
    header = {
        "batchWatermarkMs": summary.watermark,
        "batchTimestampMs": summary.timestamp,
        "conf": dict(summary.conf),
        "sourceMetadataInfo": {},
    }
    text = "\n".join(["v2", json.dumps(header, separators=(",", ":")), *lines])
    commit = json.dumps({"nextBatchWatermarkMs": summary.next_watermark}, separators=(",", ":"))
    for log, content in (("offsets", text), ("commits", f"v1\n{commit}")):
        (draft / log).mkdir(parents=True)
        for number in range(max(0, summary.batch - 1), summary.batch + 1):  # Spark reads the last two
            (draft / log / str(number)).write_text(content)
    # A new query id: two queries with one id cannot run in one Spark.
    (draft / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
