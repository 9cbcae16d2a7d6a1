"""The resources of a zone that dataflows may use: allow-lists of paths, of hosts, and of names of secrets.

Matching is by text alone; `connectors/permitted.py` resolves paths first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

SECRET_PREFIX = "HEADWATER_SECRET_"
"""The prefix of the environment variables that dataflows may name as secrets."""

ANY = "*"
_CONNECT = re.compile(r"(?:[A-Za-z0-9._*-]+|\[[0-9A-Fa-f:.]+\])(?::(?:\d{1,5}|\*))?")
_SECRET = re.compile(r"[A-Za-z0-9_.*-]+")
_ROOT = re.compile(r"/.*|[A-Za-z][A-Za-z0-9+.-]*://.+|\*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """Allow-lists of a zone. An empty list allows nothing.

    ``read`` and ``write``: directories, or URLs, with all below them; ``connect``: ``host:port``, where the host may
    have ``*`` and the port may be left out; ``secrets``: names, perhaps with ``*``. ``*`` alone allows all.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def may_connect(self, host: str, port: int) -> bool:
        """Return whether a connection is allowed.

        >>> found = Permissions(connect=("*.plant:5432", "broker"))
        >>> found.may_connect("db.plant", 5432), found.may_connect("db.plant", 22), found.may_connect("broker", 9)
        (True, False, True)
        """
        for allowed in self.connect:
            name, at = _host_and_port(allowed)
            if fnmatchcase(host.lower(), name.lower()) and at in ("*", str(port)):
                return True
        return False

    def may_know(self, secret: str) -> bool:
        """Return whether dataflows may use a secret; a name is that of its variable, with or without the prefix."""
        short = secret.removeprefix(SECRET_PREFIX)
        return any(fnmatchcase(short, allowed.removeprefix(SECRET_PREFIX)) for allowed in self.secrets)


OPEN = Permissions(read=(ANY,), write=(ANY,), connect=(ANY,), secrets=(ANY,))
"""Permissions for the user's own machine: all that the user may do; Headwater's own files stay out of reach."""

KINDS = tuple(f.name for f in fields(Permissions))


def malformed(kind: str, entry: str) -> str | None:
    """Return how to write an entry of an allow-list that is not well-formed; None where it is.

    >>> malformed("connect", "broker:1883"), malformed("connect", "tcp://broker")
    (None, "write HOST:PORT, such as broker:1883 or '*.plant:5432'")
    """
    match kind:
        case "connect":
            good, hint = _CONNECT, "write HOST:PORT, such as broker:1883 or '*.plant:5432'"
        case "secrets":
            good, hint = _SECRET, "write the name of a secret, such as DB_PASSWORD"
        case _:
            good, hint = _ROOT, "write an absolute path or a URL, such as /data/in or s3a://bucket/in"
    return None if good.fullmatch(entry) else hint


def is_below(path: str, roots: tuple[str, ...]) -> bool:
    """Return whether a path is one of the roots, or below one.

    >>> is_below("/data/in/x", ("/data/in",)), is_below("/data/inner", ("/data/in",)), is_below("/x", ("/",))
    (True, False, True)
    """
    for root in roots:
        stem = root.rstrip("/")
        if root == ANY or path == (stem or "/") or (path.startswith(f"{stem}/") and ("://" in path) == ("://" in root)):
            return True
    return False


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":") or "*"
    host, _, port = text.partition(":")
    return host, port or "*"
