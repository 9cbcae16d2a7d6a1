"""Sessions: a cookie names a session. They outlive the server's process, and end with the token that they began with.

The store keeps the sessions of owners. In trial mode, where there may be no store, the cookie itself is the proof:
signed with the trial mode's token, it gives no more than that token.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass

from headwater.app import pools
from headwater.control.sharing import Role
from headwater.web.access import Access, Asker, NotKnown

COOKIE = "headwater_session"
LASTS = 12 * 3600.0
"""Seconds after which a session ends."""
MOST = 1000
"""Maximum number of sessions; the oldest is dropped."""
_TRIAL = "trial"
_LONGEST = 200  # characters of a session's name


class Sessions:
    """The sessions of a server with access control."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def begin(self, token: str) -> str:
        """Begin a session and return its name; raise NotKnown for a token that nobody has."""
        if self.access.asker(token).on_trial:
            until = str(int(time.time() + LASTS))
            return f"{_TRIAL}.{until}.{_signature(until, token)}"
        session = pools.begin_session(token, self.access.store_url, seconds=LASTS, most=MOST)
        if session is None:
            raise NotKnown("unknown token")
        return session

    def end(self, name: str | None) -> None:
        """End a session. One of the trial mode ends with its cookie only."""
        if name and len(name) <= _LONGEST and not name.startswith(f"{_TRIAL}."):
            pools.end_session(name, self.access.store_url)

    def asker(self, name: str) -> Asker:
        """Return the caller of a session; raise NotKnown where it is over."""
        kind, _, rest = name.partition(".")
        if len(name) > _LONGEST:
            found = None
        elif kind == _TRIAL:
            found = self.access.asker_on_trial(lambda token: _proves(rest, token))
        else:
            found = self.access.asker_of_session(name)
        if found is None:
            raise NotKnown("the session is over", hint="sign in again")
        return found


@dataclass(frozen=True)
class Visitor:
    """The visitor of an open page. ``sessions``: None where no sign-in is needed."""

    sessions: Sessions | None
    session: str | None

    def asker(self) -> Asker:
        """Return the current caller; raise NotKnown where there is no session, or it is over."""
        if self.sessions is None:
            return Asker(name=None, role="owner")
        if self.session is None:
            raise NotKnown("nobody has signed in", hint="sign in")
        return self.sessions.asker(self.session)

    def check(self, role: Role) -> None:
        """Raise NotKnown or NotAllowed where the visitor lacks a role."""
        self.asker().check(role)


def _signature(until: str, token: str) -> str:
    return hmac.digest(token.encode(), f"headwater session {until}".encode(), hashlib.sha256).hex()


def _proves(text: str, token: str) -> bool:
    until, _, signature = text.partition(".")
    signed = hmac.compare_digest(signature.encode(), _signature(until, token).encode())
    return signed and time.time() < int(until)
