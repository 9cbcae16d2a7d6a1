"""Repair a stopped query's checkpoint after a power cut: find the batches that it holds whole, and drop the others.

After a power cut the newest files of a checkpoint may be missing, empty or cut short. Spark does not start beside
such a file. A batch whose files are whole can be the last one; batches after it are planned again, if nobody has
seen their output or deleted their input.
"""

from __future__ import annotations

import json
import shutil
import struct
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.disk.checkpoint import needed_of, newest_batch, positions_in
from headwater.disk.durable import sync_directory, write_atomically

_CRC_HEADER = 8  # bytes: "crc", a zero, and the number of bytes per checksum
_FIRST_LINES = ("v1", "v2")
_FIRST_START = "\0v1"
"""The first line of the file with the offsets at which a source of Kafka began; Spark writes the zero for Spark 2.0."""


@dataclass(frozen=True)
class Condition:
    """The batches that a stopped query's checkpoint holds whole.

    ``committed``: the newest batch that is done, -1 for none. ``planned``: the batch after it where its plan is whole,
    which Spark repeats with the same rows; else ``committed``. ``spare``: damaged files, and those of later batches.
    """

    committed: int
    planned: int
    spare: tuple[Path, ...] = ()


def examine(checkpoint: Path) -> Condition:
    """Determine the newest whole batches of a checkpoint."""
    plans, offsets = checkpoint / "offsets", _log(checkpoint / "offsets", _is_plan)
    commits = _log(checkpoint / "commits", _is_record)
    operators = sorted((checkpoint / "state").glob("[0-9]*"))
    sources = {place.name: _SourceLog(place) for place in sorted((checkpoint / "sources").glob("*"))}

    def is_planned(batch: int) -> bool:
        read = _files_read(plans / str(batch)) if offsets.get(batch) else None
        return read is not None and all(name in sources and sources[name].reaches(at) for name, at in read.items())

    def is_done(batch: int) -> bool:
        # Spark reads the plan of the batch before, too.
        is_known = commits[batch] and is_planned(batch) and (batch == 0 or offsets.get(batch - 1, False))
        return is_known and all(_has_version(place, batch + 1) for place in operators)

    def is_first_known() -> bool:
        # Spark repeats the first batch from the offsets at which a topic's source began.
        return all(name in sources and sources[name].is_start for name in _topics_read(plans / "0"))

    committed = next((batch for batch in sorted(commits, reverse=True) if is_done(batch)), -1)
    is_whole = is_planned(committed + 1) and (committed >= 0 or is_first_known())
    planned = committed + 1 if is_whole else committed
    spare = [plans / str(batch) for batch in offsets if batch > planned or not offsets[batch]]
    spare += [checkpoint / "commits" / str(batch) for batch in commits if batch > committed or not commits[batch]]
    read = _files_read(plans / str(planned)) if planned >= 0 else {}
    for name, log in sources.items():
        if log.is_start:
            continue  # where a topic's source began: as long as no batch is done, it begins there again
        spare += [file for file in log.files if _number(file) > read.get(name, -1) and not log.reaches(_number(file))]
    if not _is_whole(metadata := checkpoint / "metadata", _is_object) and metadata.exists():
        spare.append(metadata)
    for place in operators:
        if committed < 0:
            spare.append(place)  # the first batch makes it anew
        elif (versions := _descriptions(place)) and len(versions) > 1:
            spare += [file for file in versions if not _is_whole(file, _is_record)]
    return Condition(committed, planned, tuple(spare))


def repair(checkpoint: Path, found: Condition) -> None:
    """Delete the files that are damaged or belong to no whole batch, durably."""
    for file in found.spare:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
    for place in {file.parent for file in found.spare}:
        sync_directory(place)
    if not (checkpoint / "metadata").exists() and (checkpoint / "offsets").is_dir():
        # Spark refuses a checkpoint that has batches and no id; any id will do.
        write_atomically(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))


def start_positions(checkpoint: Path, found: Condition) -> dict[str, int]:
    """Return the position in each channel from which the query reads on."""
    return positions_in(checkpoint, found.committed)


def has_forgotten(checkpoint: Path, found: Condition) -> bool:
    """Return whether a checkpoint has had batches that were done, and holds none of them whole."""
    newest = max(newest_batch(checkpoint / log) for log in ("offsets", "commits"))
    return found.committed < 0 and newest > 0


def damaged_files(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint that are not whole, also those that nothing needs any more."""
    logs = [(checkpoint / "offsets", _is_plan), (checkpoint / "commits", _is_record)]
    logs += [(place, _is_log_or_start) for place in sorted((checkpoint / "sources").glob("*"))]
    found = [file for place, is_whole in logs for file in needed_of(place) if not _is_whole(file, is_whole)]
    if (metadata := checkpoint / "metadata").exists() and not _is_whole(metadata, _is_object):
        found.append(metadata)
    for place in sorted((checkpoint / "state").glob("[0-9]*")):
        found += [file for file in _descriptions(place) if not _is_whole(file, _is_record)]
        found += [file for file in _schemas(place) if not _is_schema(file)]
        for image in sorted(place.rglob("[0-9]*.zip")):
            found += [file for file in _missed(image) if file not in found]
    return found


# ---------------------------------------------------------------- logs


def _log(place: Path, is_whole: Callable[[str], bool]) -> dict[int, bool]:
    """Return whether each file of a log is whole, by its number."""
    return {_number(file): _is_whole(file, is_whole) for file in needed_of(place)}


def _number(file: Path) -> int:
    return int(file.name.partition(".")[0])


def _is_whole(file: Path, is_whole: Callable[[str], bool]) -> bool:
    try:
        data = file.read_bytes()
        return _fits_checksum(file, data) and is_whole(data.decode())
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _fits_checksum(file: Path, data: bytes) -> bool:
    """Return whether a file has the checksums that Hadoop has stored beside it, if it has."""
    try:
        stored = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return True
    if not stored.startswith(b"crc\0") or len(stored) < _CRC_HEADER:
        return True  # Hadoop ignores such a file, too
    (size,) = struct.unpack(">I", stored[4:_CRC_HEADER])
    sums = b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))
    return stored[_CRC_HEADER:] == sums


def _lines(text: str) -> list[str] | None:
    """Return the lines after a log's version; None where there is none."""
    first, *lines = text.splitlines() or [""]
    return lines if first in _FIRST_LINES and lines else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_record(text: str) -> bool:
    lines = _lines(text)
    return lines is not None and all(map(_is_object, lines))


def _is_plan(text: str) -> bool:
    """Return whether a text is that of a planned batch: a header, and a line for each source."""
    lines = _lines(text)
    return lines is not None and _is_object(lines[0]) and all(_is_position(line) for line in lines[1:])


def _is_position(line: str) -> bool:
    name, _, position = line.partition(":")
    return bool(name and position) and (not position.startswith("{") or _is_object(position))


def _is_log(text: str) -> bool:
    """Return whether a text is that of a source's log; a batch without files is its first line alone."""
    return text.splitlines()[:1] in [[first] for first in _FIRST_LINES] and all(map(_is_object, text.splitlines()[1:]))


def _is_start(text: str) -> bool:
    """Return whether a text is that of the offsets at which a source of Kafka began."""
    first, _, offsets = text.partition("\n")
    return first == _FIRST_START and _is_object(offsets)


def _is_log_or_start(text: str) -> bool:
    return _is_log(text) or _is_start(text)


class _SourceLog:
    """The log of a file source: an entry names the files of a batch, a compact one also those of all before."""

    def __init__(self, place: Path) -> None:
        self.files = needed_of(place)
        self._whole = _log(place, _is_log)
        self.is_start = [file.name for file in self.files] == ["0"] and _is_whole(self.files[0], _is_start)
        self._compact = {_number(file) for file in self.files if file.suffix == ".compact"}

    def reaches(self, entry: int) -> bool:
        """Return whether all entries that tell the files up to one are whole."""
        while entry >= 0:
            if not self._whole.get(entry):
                return False
            if entry in self._compact:
                break
            entry -= 1
        return True


def _files_read(plan: Path) -> dict[str, int]:
    """Return the entry in its log up to which a planned batch reads each file source."""
    found: dict[str, int] = {}
    for line in plan.read_text().splitlines()[2:]:
        name, _, position = line.partition(":")
        offset = json.loads(position) if position.startswith("{") else {}
        if isinstance(entry := offset.get("logOffset"), int):  # a topic of this name has offsets by partition
            found[name] = entry
    return found


def _topics_read(plan: Path) -> list[str]:
    """Return the sources of a planned batch that read topics: their offsets are by topic and partition."""
    found = []
    for line in plan.read_text().splitlines()[2:]:
        name, _, position = line.partition(":")
        offset = json.loads(position) if position.startswith("{") else {}
        if offset and all(isinstance(by_partition, dict) for by_partition in offset.values()):
            found.append(name)
    return found


# ---------------------------------------------------------------- state


def _has_version(place: Path, version: int) -> bool:
    """Return whether all partitions of a stateful operator have a version of its state, whole."""
    described = next((_second_line(file) for file in _descriptions(place) if _is_whole(file, _is_record)), None)
    if described is None or not all(map(_is_schema, _schemas(place))):
        return False
    images = sorted(place.rglob(f"{version}.zip"))
    wanted = sum(int(info["numPartitions"]) for info in described.get("stateStoreInfo", ()))
    return len(images) >= wanted and all(_is_image(image) for image in images)


def _descriptions(place: Path) -> list[Path]:
    """Return the files that describe an operator, the newest first."""
    versions = sorted((place / "_metadata" / "v2").glob("[0-9]*"), key=_number, reverse=True)
    return versions or [place / "_metadata" / "metadata"]


def _second_line(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text().splitlines()[1])
    return found


def _schemas(place: Path) -> Iterator[Path]:
    """Yield the files that hold the schemas of an operator's state."""
    for directory in (place / "_stateSchema", *place.glob("[0-9]*/**/_metadata")):
        yield from (file for file in directory.rglob("*") if file.is_file() and not file.name.startswith("."))


def _is_schema(file: Path) -> bool:
    return file.stat().st_size > 0 and _is_sound(file)


def _is_sound(file: Path) -> bool:
    return _fits_checksum(file, file.read_bytes())


def _is_image(image: Path) -> bool:
    """Return whether a version of one partition's state is whole, with the files that it names."""
    return next(_missed(image), None) is None


def _missed(image: Path) -> Iterator[Path]:
    """Yield the files of a version of one partition's state that are missing or damaged."""
    try:
        with zipfile.ZipFile(image) as packed:
            if packed.testzip() is not None or not _is_sound(image):
                yield image
                return
            listed = json.loads(packed.read("metadata").decode().split("\n", 1)[1])
            named = list(_named(image.parent, listed))
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, IndexError):
        yield image
        return
    for file, size in named:
        if not file.exists() or file.stat().st_size != size or not _is_sound(file):
            yield file


def _named(store: Path, listed: Mapping[str, Any]) -> Iterator[tuple[Path, int]]:
    for entry in listed.get("sstFiles", ()):
        yield store / "SSTs" / entry["dfsSstFileName"], int(entry["sizeBytes"])
    for entry in listed.get("logFiles", ()):
        yield store / "logs" / entry["dfsLogFileName"], int(entry["sizeBytes"])
