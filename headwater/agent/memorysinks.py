"""Rows of memory sinks go along with a unit that moves: they lie in a log on the disk of its zone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from headwater.channels.filelog import FileLog
from headwater.disk.layout import Layout
from headwater.disk.syncing import sync_tree
from headwater.plan.spec import UnitSpec
from headwater.plan.transfer import SinkTransfer
from headwater.state.savedstate import Saved, StateStore

_FORMER = 0  # the epoch of rows that other units have written: every unit's own is greater


def files_of(layout: Layout, spec: UnitSpec, sink: str) -> dict[str, Path]:
    """Return the files of a sink's log by their places in the state store."""
    directory = layout.sink(sink, spec.tags[sink], spec.unit)
    found = sorted(file for file in directory.rglob("*") if file.is_file())
    return {f"sinks/{sink}/{file.relative_to(directory)}": file for file in found}


def take(
    layout: Layout,
    spec: UnitSpec,
    sinks: Sequence[SinkTransfer],
    store: StateStore,
    names: Mapping[str, str],
    known: Mapping[str, Saved],
) -> None:
    """Write the saved rows of sinks to the logs of a unit, before its own; leave a log that exists as it is.

    ``names``: for each source unit its name in the store.
    """
    for sink in dict.fromkeys(one.sink for one in sinks):
        target = layout.sink(sink, spec.tags[sink], spec.unit)
        if target.exists():
            continue  # they were written before
        draft = target.with_name(f".{target.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        saved = [(names[s.unit], known[s.unit].sinks.get(sink, ())) for s in sinks if s.sink == sink]
        _write(draft, saved, sink, store)
        if draft.exists():
            sync_tree(draft)
            os.replace(draft, target)


def _write(draft: Path, saved: Sequence[tuple[str, Sequence[str]]], sink: str, store: StateStore) -> None:
    """Write the rows of saved logs to one log; there is none where nothing was saved. ``saved``: names and files."""
    fetched, log, batch = draft.with_name(f"{draft.name}.from"), FileLog(draft, fsync=False), 0
    for name, files in saved:
        shutil.rmtree(fetched, ignore_errors=True)
        for place in files:
            store.get(name, place, fetched / place.removeprefix(f"sinks/{sink}/"))
        if not fetched.exists():
            continue
        former = FileLog(fetched)
        for rows in former.read(former.earliest(), former.latest()):
            log.append(pa.Table.from_batches([rows]), epoch=_FORMER, batch=batch)
            batch += 1
    shutil.rmtree(fetched, ignore_errors=True)
