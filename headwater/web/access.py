"""Who asks: a bearer token tells whose request it is, and that owner's role what may be asked.

Tokens are made by ``headwater owner NAME --token``; the store keeps hashes of them. While nobody has one, a
server is in *trial mode*: who reaches it may do everything, so it may be reached from its own machine only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.app.stores import existing
from headwater.control.sharing import ROLES, Role
from headwater.control.store import NoStore
from headwater.core.errors import Denied, DeploymentError, HeadwaterError

MOST = 200
"""Characters of a token at most: longer ones are nobody's."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts to listen on that nobody reaches from another machine."""


class NotKnown(HeadwaterError):
    """Nobody can tell who asks: there is no token, or it is nobody's."""


class NotAllowed(Denied):
    """Who asks may not do this."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Somebody who asks. In trial mode it is anybody, without a name."""

    name: str | None
    role: Role
    token: str = field(default="", repr=False)

    @property
    def on_trial(self) -> bool:
        return self.name is None

    def may_act_as(self, role: Role) -> bool:
        """Tell whether this one's role is at least another one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def check(self, role: Role) -> None:
        """Raise NotAllowed where this one's role is less than another one."""
        if not self.may_act_as(role):
            raise NotAllowed(
                f"{self.name} is {_a(self.role)}; this is for {_a(role)}",
                where=f"owner {self.name}",
                hint=f"admin can change that: headwater owner {self.name} --role {role}",
            )


class Access:
    """Who may ask a server over a store; ``loopback``: whether it is reached from its own machine only."""

    def __init__(self, store_url: str | None, *, loopback: bool = True) -> None:
        self._place = store_url
        self._loopback = loopback

    @property
    def on_trial(self) -> bool:
        """Whether nobody has a token, so that nobody is asked for one."""
        try:
            with existing(self._place) as store:
                return not store.is_guarded()
        except NoStore:
            return True

    def check(self) -> None:
        """Raise DeploymentError where a server must not be started: on trial, and reached from elsewhere."""
        if not self._loopback and self.on_trial:
            raise DeploymentError(
                "nobody has a token, so whoever reaches it might do everything",
                where="--listen",
                hint="make a token first (headwater owner admin --token), or listen on 127.0.0.1",
            )

    def asker(self, token: str | None) -> Asker:
        """Give whose token it is; raise NotKnown where it is nobody's, or none where one is needed."""
        try:
            with existing(self._place) as store:
                found = store.owner_by(token) if token and len(token) <= MOST else None
                on_trial = found is None and not store.is_guarded()
        except NoStore:
            found, on_trial = None, True
        if found is not None:
            return Asker(name=found.name, role=found.role, token=token or "")
        if on_trial and self._loopback:
            return Asker(name=None, role="owner")
        raise NotKnown(
            "this token is nobody's" if token else "a token is needed",
            hint="send it as `Authorization: Bearer TOKEN`; `headwater owner NAME --token` makes one",
        )


def _a(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
