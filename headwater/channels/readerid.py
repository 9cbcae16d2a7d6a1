"""Valid ids of a channel's readers: an id becomes a file's name or a key."""

from __future__ import annotations

import re

from headwater.core.errors import ChannelError

_READER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def check_reader(reader: str, where: str) -> str:
    """Return a reader's id, or raise ChannelError where it is invalid."""
    if not _READER.fullmatch(reader):
        raise ChannelError(f"{reader!r} is not a reader id", where=where, hint="use letters, digits and _ . @ - only")
    return reader
