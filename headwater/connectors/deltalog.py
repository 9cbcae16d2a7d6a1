"""The log of a Delta table in a local directory, read as far as the library does not: transactions, and versions.

The log is ``_delta_log/<version>.json``, a line for each action, with checkpoints of all before as Parquet files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater.core.errors import ChannelError

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10})?\.parquet")


def commits(table: Path) -> list[int]:
    """Return the versions whose commits are in the log, oldest first."""
    return sorted(int(m[1]) for file in _files(table) if (m := _COMMIT.fullmatch(file.name)))


def commit_file(table: Path, version: int) -> Path:
    """Return the file of a commit."""
    return table / LOG / f"{version:020d}.json"


def actions(table: Path, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit; raise ChannelError where the file is not whole."""
    file = commit_file(table, version)
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ChannelError(
            "the commit is not readable as JSON",
            where=str(file),
            hint="after a power cut the newest commit may be cut short: remove the file if it is the newest; its "
            "writer writes the batch again",
        ) from error


def transactions(table: Path) -> dict[str, int]:
    """Return the newest version of each application transaction in the log."""
    import pyarrow.parquet as pq

    found: dict[str, int] = {}
    checkpoints = [(int(m[1]), file) for file in _files(table) if (m := _CHECKPOINT.fullmatch(file.name))]
    newest = max((version for version, _ in checkpoints), default=-1)
    for version, file in checkpoints:
        if version == newest and "txn" in pq.read_schema(file).names:
            for txn in pq.read_table(file, columns=["txn"]).column("txn").to_pylist():
                if txn is not None and txn.get("appId") is not None:
                    found[txn["appId"]] = int(txn["version"])
    for version in commits(table):
        if version > newest:
            for action in actions(table, version):
                if (txn := action.get("txn")) is not None:
                    found[txn["appId"]] = int(txn["version"])
    return found


def is_table(table: Path) -> bool:
    """Return whether a directory has a log."""
    return any(_COMMIT.fullmatch(f.name) or _CHECKPOINT.fullmatch(f.name) for f in _files(table))


def _files(table: Path) -> Iterator[Path]:
    directory = table / LOG
    return directory.iterdir() if directory.is_dir() else iter(())
