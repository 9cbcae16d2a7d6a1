"""A query's checkpoint on disk: what Headwater keeps beside what Spark does."""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater.errors import DeploymentError
from headwater.runtime.durable import write_atomically

_NUMBER_FILE = "headwater.json"


def checkpoint_number(checkpoint: str, *, where: str | None = None) -> int:
    """Give a checkpoint's own number, drawn by chance when it is first used.

    Raise DeploymentError for a checkpoint that has run without one: what it has written could
    not be told from what others have.
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
        return int(json.loads(file.read_text())["number"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"damaged: {error}",
            where=str(file),
            hint="restore it; a table's batch column has it: value >> 32",
        ) from None
    if any((directory / "offsets").glob("[0-9]*")):
        raise DeploymentError(
            "the checkpoint has no number for its batches",
            where=str(file),
            hint=f"copy {_NUMBER_FILE} along with a checkpoint; a table's batch column has it: value >> 32",
        )
    number = secrets.randbelow(2**31 - 1) + 1
    write_atomically(file, json.dumps({"number": number}))
    return number


def positions(checkpoint: Path) -> dict[str, int]:
    """Tell how far a stopped query's committed batches have read each channel."""
    try:
        newest = max(int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit())
        lines = (checkpoint / "offsets" / str(newest)).read_text().splitlines()
    except (OSError, ValueError):
        return {}
    found: dict[str, int] = {}
    for line in lines[2:]:
        _, brace, rest = line.partition("{")
        with contextlib.suppress(ValueError):
            offset = json.loads(brace + rest)
            if isinstance(offset, dict) and all("@" in k for k in offset):
                found |= {k: int(v) for k, v in offset.items()}
    return found


def sweep_torn(directory: Path) -> None:
    """Delete what a killed query left half written in its logs of offsets and commits.

    Spark refuses to begin a first batch beside such a file.
    """
    for log in (directory / "offsets", directory / "commits"):
        if not log.is_dir():
            continue
        for file in log.iterdir():
            number = file.name[1:].removesuffix(".crc")
            if file.name.startswith(".") and not (number.isdigit() and (log / number).exists()):
                file.unlink(missing_ok=True)
