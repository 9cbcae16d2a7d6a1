"""Sessions: a cookie names a session, which holds the visitor's token. In memory only.

The token is checked again before every change, so that a revoked role has no effect any longer; a restarted server has
no sessions.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from headwater.control.sharing import Role
from headwater.web.access import Access, Asker, NotKnown

COOKIE = "headwater_session"
LASTS = 12 * 3600.0
"""Seconds after which a session ends."""
MOST = 1000
"""Maximum number of sessions; the oldest is dropped."""


class Sessions:
    """Tokens by session name."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def begin(self, token: str) -> str:
        """Begin a session and return its name."""
        name = secrets.token_urlsafe(32)
        with self._alone:
            self._open[name] = (token, time.monotonic() + LASTS)
            while len(self._open) > MOST:
                self._open.popitem(last=False)
        return name

    def end(self, name: str | None) -> None:
        """End a session."""
        with self._alone:
            self._open.pop(name or "", None)

    def token(self, name: str | None) -> str | None:
        """Return the token of a session; None where there is none, or it has ended."""
        with self._alone:
            token, until = self._open.get(name or "", ("", 0.0))
            return token if token and time.monotonic() < until else None


@dataclass(frozen=True)
class Visitor:
    """The visitor of an open page. ``access``: None where no sign-in is needed."""

    access: Access | None
    sessions: Sessions
    session: str | None

    def asker(self) -> Asker:
        """Return the current caller; raise NotKnown where the session is over."""
        if self.access is None:
            return Asker(name=None, role="owner")
        token = self.sessions.token(self.session)
        if self.session is not None and token is None:
            raise NotKnown("the session is over", hint="sign in again")
        return self.access.asker(token)

    def check(self, role: Role) -> None:
        """Raise NotKnown or NotAllowed where the visitor lacks a role."""
        self.asker().check(role)
