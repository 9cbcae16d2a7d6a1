"""Who is signed in: a cookie names a session, and a session holds the token that was entered. In memory only.

The token is looked up anew before everything that changes something, so that a role that is taken away is
gone at once; a server that is started again knows nobody.
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
"""Seconds after which somebody has to sign in again."""
MOST = 1000
"""Sessions at once; the oldest makes room."""


class Sessions:
    """Tokens by the names of sessions."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def begin(self, token: str) -> str:
        """Begin a session and give its name."""
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
        """Give the token of a session; None where there is none, or it is over."""
        with self._alone:
            token, until = self._open.get(name or "", ("", 0.0))
            return token if token and time.monotonic() < until else None


@dataclass(frozen=True)
class Visitor:
    """Whoever has a page open. ``access``: None where nobody is asked."""

    access: Access | None
    sessions: Sessions
    session: str | None

    def asker(self) -> Asker:
        """Give who it is now; raise NotKnown where nobody can tell."""
        if self.access is None:
            return Asker(name=None, role="owner")
        token = self.sessions.token(self.session)
        if self.session is not None and token is None and not self.access.on_trial:
            raise NotKnown("the session is over", hint="sign in again")
        return self.access.asker(token)

    def check(self, role: Role) -> None:
        """Raise NotKnown or NotAllowed where what needs this role may not be done."""
        self.asker().check(role)
