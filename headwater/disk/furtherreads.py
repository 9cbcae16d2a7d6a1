"""Further reads of an input in a checkpoint: a query that begins to read an input once more goes on where it was.

A query reads an input once for each of several branches that meet again, and a source once more for dead letters. How
often depends on all its outputs. When outputs come or go and the query goes on from its checkpoint, it may have reads
that the checkpoint does not know. Spark would begin these at the first record.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from headwater.disk.checkpoint import newest_batch, sources_at
from headwater.disk.durable import write_atomically
from headwater.disk.syncing import sync_tree


def begin_further_reads(checkpoint: Path, further: Mapping[str, Sequence[str]]) -> None:
    """Let further reads that a stopped query's newest batch does not know begin where the first read stands.

    ``further``: for Spark's name of the first read of each input, the names of its further ones.
    """
    newest = newest_batch(checkpoint / "offsets")
    if newest < 0:
        return
    last = checkpoint / "offsets" / str(newest)
    known = sources_at(last.read_text(encoding="utf-8"))
    new = {name: first for first, names in further.items() if first in known for name in names if name not in known}
    if not new:
        return
    for name, first in new.items():
        _copy_log(checkpoint / "sources", first, name)
    for file in (checkpoint / "offsets" / str(newest - 1), last):  # the newest decides, and is last
        if file.exists():
            _add(file, new)


def _copy_log(sources: Path, first: str, name: str) -> None:
    """Copy a file source's log of the files that it has read; replace that of an earlier read of the name."""
    shutil.rmtree(sources / name, ignore_errors=True)
    if (sources / first).is_dir():
        shutil.copytree(sources / first, sources / name)
        sync_tree(sources / name)


def _add(file: Path, new: Mapping[str, str]) -> None:
    """Add further reads at the positions of the first ones to a file of the offset log."""
    text = file.read_text(encoding="utf-8")
    known = sources_at(text)
    lines = [f"{name}:{known[first]}" for name, first in new.items() if first in known and name not in known]
    if lines:
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        write_atomically(file, "\n".join([text, *lines]))
