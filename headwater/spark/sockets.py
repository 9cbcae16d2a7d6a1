"""The directory of the sockets between a Spark and its Python processes: only their user may enter it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

SOCKETS_CONF = "spark.python.unix.domain.socket.dir"
_LINK = "sockets"
_PREFIX = "headwater-"
_RANDOM = 8  # characters that mkdtemp appends to the prefix
_NAME = 43  # characters of a socket's name with its slash
_PATH = 103  # characters of a socket's path, on macOS the least


def make_sockets(directory: Path) -> Path:
    """Make a directory for the sockets of the Spark in ``directory``, and a link to it there.

    The paths of sockets are limited to about 100 bytes; those of zones are not.
    """
    remove_sockets(directory)
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) + 1 + len(_PREFIX) + _RANDOM + _NAME > _PATH:
        place = "/tmp"
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    (directory / _LINK).symlink_to(made)
    return made


def remove_sockets(directory: Path) -> None:
    """Remove the sockets that the last Spark in ``directory`` has left."""
    link = directory / _LINK
    if link.is_symlink():
        target = Path(os.readlink(link))
        if target.name.startswith(_PREFIX):
            shutil.rmtree(target, ignore_errors=True)
        link.unlink(missing_ok=True)
