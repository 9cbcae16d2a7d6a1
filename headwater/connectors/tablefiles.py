"""What the writers of Delta and Iceberg tables share: libraries by demand, rows in the table's types, small files."""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from headwater.core.errors import ChannelError, RuntimeFailure, Unavailable
from headwater.disk.durable import sync_directory

TARGET_BYTES = 32 * 2**20
"""Files of this size are not compacted: the rows of a new file are in memory, some ten times as large."""

TRIES = 30
"""Commits that other writers may forestall before a batch fails, and is repeated by Spark."""


def library(name: str, *, where: str) -> Any:
    """Import a module of the extra ``tables``; raise Unavailable where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise Unavailable(
            f"the package {package} is missing: {error}",
            where=where,
            hint="pip install 'headwater[tables]' where the unit runs",
        ) from None


def out_of_date(epoch: int, newest: int, *, where: str) -> ChannelError:
    """Return the error of a writer of an older epoch."""
    return ChannelError(
        f"this writer of epoch {epoch} is out of date: epoch {newest} has taken over",
        where=where,
        hint="stop this writer; its unit runs elsewhere now",
    )


def forestalled(*, where: str) -> Unavailable:
    """Return the error of a batch that other writers have kept from the table."""
    return Unavailable(
        f"other writers have committed before this one {TRIES} times",
        where=where,
        hint="the batch is written again when the unit starts again; let fewer units write to the table, or larger "
        "batches",
    )


def not_written(error: Exception, *, where: str) -> RuntimeFailure:
    """Return the error of a commit that failed, in one line."""
    text = str(error).strip() or type(error).__name__
    return RuntimeFailure(
        f"the table was not written: {text.splitlines()[0]}",
        where=where,
        hint="the batch is written again when the unit starts again; check that the table has the columns of the rows, "
        "with these types and partitions, or write to another table",
    )


def wait_for_turn(turn: int) -> None:
    """Wait for a moment before another try, at random, so that writers do not meet again."""
    time.sleep(random.uniform(0, min(0.02 * 2**turn, 1.0)))


def bytes_to_compact(files: Iterable[tuple[Hashable, int]], least: int) -> int | None:
    """Return the size in bytes of the file that the smallest files of a partition give, if there are enough of them.

    ``files`` are partitions and sizes; at least ``least`` files of similar size must be in one partition. As only files
    of similar size, and smaller ones, are put together, a row is written again a few times in all, not each time.
    """
    tiers: dict[tuple[int, Hashable], list[int]] = {}
    for partition, size in files:
        if size < TARGET_BYTES:
            tiers.setdefault((_tier(size), partition), []).append(size)
    full = [(tier, partition) for (tier, partition), sizes in tiers.items() if len(sizes) >= max(least, 2)]
    if not full:
        return None
    lowest = min(tier for tier, _ in full)
    sums = [
        sum(sum(sizes) for (tier, there), sizes in tiers.items() if there == partition and tier <= lowest)
        for of, partition in full
        if of == lowest
    ]
    return min(max(sums), TARGET_BYTES)


def _tier(size: int) -> int:
    """Return 0 for the smallest files; each tier has files up to 8 times as large."""
    return max(size, 1).bit_length() // 3


def sync_files(files: Iterable[Path], root: Path) -> None:
    """Make files durable, and the names of all directories between them and ``root``."""
    directories: set[Path] = set()
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        for directory in file.parents:
            directories.add(directory)
            if directory == root:
                break
    for directory in directories:
        sync_directory(directory)
