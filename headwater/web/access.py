"""Authentication and roles: a bearer token identifies an owner, whose role decides what is allowed.

Tokens are created by ``headwater owner NAME --token``; the store keeps hashes of them. While no owner has one, a server
is in *trial mode*: every caller may do everything, so it listens on its own machine only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.app.stores import existing
from headwater.control.sharing import Role, includes
from headwater.control.tables import NoStore
from headwater.core.errors import Denied, DeploymentError, HeadwaterError

MOST = 200
"""Maximum length of a token; longer ones are refused."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Listening hosts that other machines cannot reach."""


class NotKnown(HeadwaterError):
    """The caller is unknown: there is no token, or no owner has it."""


class NotAllowed(Denied):
    """The caller lacks the role for this."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """A caller. In trial mode anybody, without a name."""

    name: str | None
    role: Role
    token: str = field(default="", repr=False)

    @property
    def on_trial(self) -> bool:
        return self.name is None

    def check(self, role: Role) -> None:
        """Raise NotAllowed where the caller's role does not include another role."""
        if not includes(self.role, role):
            raise NotAllowed(
                f"{self.name} is {_a(self.role)}; this is for {_a(role)}",
                where=f"owner {self.name}",
                hint=f"admin can change that: headwater owner {self.name} --role {role}",
            )


class Access:
    """Access to a server over a store; ``loopback``: whether it is reachable from its own machine only."""

    def __init__(self, store_url: str | None, *, loopback: bool = True) -> None:
        self._place = store_url
        self._loopback = loopback

    @property
    def on_trial(self) -> bool:
        """Whether no owner has a token, so that none is required."""
        try:
            with existing(self._place) as store:
                return not store.is_guarded()
        except NoStore:
            return True

    def check(self) -> None:
        """Raise DeploymentError where a server must not start: in trial mode, and reachable from other machines."""
        if not self._loopback and self.on_trial:
            raise DeploymentError(
                "no owner has a token, so every caller could do everything",
                where="--listen",
                hint="make a token first (headwater owner admin --token), or listen on 127.0.0.1",
            )

    def asker(self, token: str | None) -> Asker:
        """Return the owner of a token; raise NotKnown where no owner has it, or none is given and one is required."""
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
            "unknown token" if token else "a token is needed",
            hint="send it as `Authorization: Bearer TOKEN`; `headwater owner NAME --token` creates one",
        )


def _a(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
