"""Small durable files: replaced atomically, synced on demand, read back or refused."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from headwater.core.errors import ChannelError

_SEAL = "crc32"


def sync_directory(path: Path) -> None:
    """Make the file names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(
    path: Path, text: str | bytes, *, scratch: Path | None = None, fsync: bool = True, mode: int = 0o666
) -> None:
    """Replace a small file so that a reader sees the old or the new text, never a part.

    ``scratch`` is a directory on the same disk; without one the new text is written beside the file,
    under a hidden name, and the file's directory is created if it is missing. ``mode``: its permissions, less the
    process's umask.
    """
    if scratch is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path, text, scratch=scratch, fsync=fsync, mode=mode) as temp:
        os.replace(temp, path)
    if fsync:
        sync_directory(path.parent)


def write_first(path: Path, text: str, *, scratch: Path | None = None, fsync: bool = True, mode: int = 0o666) -> bool:
    """Write a small file whole if there is none; False where another process was first, whose text stays.

    ``scratch`` as for `write_atomically`; ``mode``: its permissions, less the process's umask.
    """
    first = True
    with _draft(path, text, scratch=scratch, fsync=fsync, mode=mode) as temp:
        try:
            os.link(temp, path)
        except FileExistsError:
            first = False
    if fsync:  # also for another process's file: it may not have synced yet, and the caller relies on it
        sync_directory(path.parent)
    return first


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the system that do not, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def _draft(path: Path, text: str | bytes, *, scratch: Path | None, fsync: bool, mode: int = 0o666) -> Iterator[Path]:
    """Write a text under a temporary name on the same disk; remove that name in the end."""
    temp = (scratch or path.parent) / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with naming(path), open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(text.encode() if isinstance(text, str) else text)
            if fsync:
                out.flush()
                os.fsync(out.fileno())
        yield temp
    finally:
        temp.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a small JSON object; None when there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ChannelError(
            f"the file is not readable as JSON ({len(text)} characters)",
            where=str(path),
            hint="the file was damaged outside Headwater: restore it from a backup",
        )
    return value


def checksum(body: Mapping[str, Any]) -> int:
    """Return the checksum of a JSON object; the order of its keys makes no difference."""
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def sealed(body: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return a small JSON object as text, with its checksum; `read_sealed` reads it."""
    return json.dumps({**body, _SEAL: checksum(body)}, indent=indent)


def read_sealed(path: Path, keys: Collection[str]) -> dict[str, Any] | None:
    """Read a small JSON object that has these keys and a checksum; None when there is no such file.

    Files of earlier versions have no checksum.
    """
    body = read_object(path)
    if body is None:
        return None
    seal = body.pop(_SEAL, None)
    if not set(body) <= set(keys) or (seal is not None and seal != checksum(body)):
        raise ChannelError(
            "the file does not match its checksum" if seal is not None else "the file has unknown keys",
            where=str(path),
            hint="the file was damaged outside Headwater: restore it from a backup",
        )
    return body


def read_note(path: Path) -> dict[str, Any]:
    """Read a small JSON object whose loss costs little; empty when it is missing or damaged.

    Other errors are raised: a process without a free file descriptor must not take the note for a missing one.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sweep_staged(directory: Path) -> None:
    """Delete all staged files of a directory; small files that are being written are hidden, and stay."""
    for file in directory.glob("[!.]*"):
        file.unlink(missing_ok=True)


def is_fresh(file: Path, seconds: float) -> bool:
    """Return whether a file was written less than ``seconds`` ago; not where the clock was set back since."""
    return 0 <= time.time() - file.stat().st_mtime < seconds


def sweep(directory: Path, before: float | None, *, but: Collection[str] = ()) -> None:
    """Delete a directory's files last written before a time of the file system's clock; None deletes none."""
    if before is None:
        return
    with os.scandir(directory) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                if file.name not in but and file.stat().st_mtime < before:
                    os.unlink(file.path)
