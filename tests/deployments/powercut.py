"""A power cut as a query's checkpoint sees it: what was not synced is gone, empty, cut short, or there by chance."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from headwater.disk.durable import read_note
from headwater.disk.syncing import SYNCED, stamps

Damage = Callable[[Path, random.Random], None]


def lost(file: Path, rng: random.Random) -> None:
    """Lose the name."""
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink()


def emptied(file: Path, rng: random.Random) -> None:
    """Keep the name, without the text."""
    if file.is_file():
        file.write_bytes(b"")


def any_of_it(file: Path, rng: random.Random) -> None:
    """Lose the name, the text, half of it, or nothing."""
    rng.choice([lost, emptied, halved, lambda file, rng: None])(file, rng)


def halved(file: Path, rng: random.Random) -> None:
    if file.is_file():
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])


DAMAGES: Mapping[str, Damage] = {"lost": lost, "emptied": emptied, "any of it": any_of_it}


def cut_power(root: Path, damage: Damage, rng: random.Random) -> list[str]:
    """Damage all files of a run that are not synced, as its own notes tell; return their names.

    Call it when all its processes have been killed.
    """
    found = []
    for note in root.glob("units/*/pace.json"):
        found.append(str(note.relative_to(root)))  # it is never synced
        damage(note, rng)
    for checkpoint in sorted((root / "checkpoints").iterdir()):
        for file in unsynced(checkpoint):
            found.append(str(file.relative_to(root)))
            damage(file, rng)
        (checkpoint / SYNCED).unlink(missing_ok=True)  # never synced itself
    for log in (root / "channels").iterdir():
        emptied_files = [log / "log.hint", *(log / "readers").glob("*.json")]
        for file in (f for f in emptied_files if f.exists()):
            emptied(file, rng)
    return found


def unsynced(checkpoint: Path) -> Iterator[Path]:
    """Yield the files and directories of a checkpoint that were never synced as they are now; the outermost first."""
    known = read_note(checkpoint / SYNCED)
    for name, stamp in stamps(checkpoint).items():
        if known.get(name) != stamp and name != "headwater.json" and (checkpoint / name).exists():
            yield checkpoint / name
