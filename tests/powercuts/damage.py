"""Damage of single files of a checkpoint: a flipped bit, a missing end, no content."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_UNIT = r"run/checkpoints/[^/]+/"
KINDS: Mapping[str, str] = {
    "plan": r"offsets/\d+",
    "commit": r"commits/\d+",
    "id": r"metadata",
    "number": r"headwater\.json",
    "source log": r"sources/[^/]+/\d+(\.compact)?",
    "state": r"state/.*/\d+\.zip",
    "state table": r"state/.*/SSTs/[^.]+\.sst",
    "state schema": r"state/(.*/)?_metadata/schema|state/.*/_stateSchema/.*",
    "state description": r"state/\d+/_metadata/(metadata|v2/\d+)",
    "checksum": r"(.*/)?\.[^/]+\.crc",
    "mark": r"publishing/.+",
}
"""File kinds of a checkpoint, each with a pattern of paths."""


def flip(data: bytes, rng: random.Random) -> bytes:
    """Flip one bit."""
    found = bytearray(data)
    if found:
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def cut_short(data: bytes, rng: random.Random) -> bytes:
    """Keep a drawn number of bytes, fewer than there are."""
    return data[: rng.randrange(len(data))] if data else data


def empty(data: bytes, rng: random.Random) -> bytes:
    """Keep nothing."""
    return b""


DAMAGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {"flip": flip, "cut short": cut_short, "empty": empty}


def files_of(kind: str, disk: Path) -> list[Path]:
    """Return the files of a kind, over all checkpoints of a run."""
    pattern = re.compile(_UNIT + KINDS[kind])
    files = [file for file in sorted(disk.rglob("*")) if file.is_file()]
    return [file for file in files if pattern.fullmatch(str(file.relative_to(disk)))]


def damage(kind: str, how: str, disk: Path, rng: random.Random) -> Path:
    """Damage a drawn file of a kind, often the newest of its directory; return it."""
    files = files_of(kind, disk)
    newest = {file.parent: file for file in sorted(files, key=_number)}
    file = rng.choice(list(newest.values()) if rng.random() < 0.6 else files)
    file.write_bytes(DAMAGES[how](file.read_bytes(), rng))
    return file


def _number(file: Path) -> int:
    found = re.findall(r"\d+", file.name)
    return int(found[0]) if found else 0
