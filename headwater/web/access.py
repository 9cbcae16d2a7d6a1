"""Authentication and roles: a bearer token identifies an owner, whose role decides what is allowed.

Tokens are created by ``headwater owner NAME --token``; the store keeps hashes of them. While no owner has one, a server
is in *trial mode*: it listens on its own machine only, and a token in a file that only the server's user can read
permits everything.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headwater.app.stores import existing
from headwater.control.sharing import Role, includes
from headwater.control.tables import NoStore
from headwater.core.errors import Denied, DeploymentError, HeadwaterError

MOST = 200
"""Maximum length of a token; longer ones are refused."""

TRIAL_FILE = "HEADWATER_TRIAL_TOKEN_FILE"
"""The environment variable with the path of the trial mode's token, in place of ``~/.headwater/web-token``."""


def trial_file() -> Path:
    """Return the file with the trial mode's token."""
    given = os.environ.get(TRIAL_FILE)
    return Path(given) if given else Path.home() / ".headwater" / "web-token"


def trial_token() -> str:
    """Return the trial mode's token of this user; create it at first use. Refuse a file that others can read."""
    file = trial_file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(secrets.token_urlsafe(32))
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(draft, file)
        draft.unlink()
    found = file.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise DeploymentError(
            "other users may know this token", where=str(file), hint="delete the file: a new one is made"
        )
    return file.read_text().strip()


class NotKnown(HeadwaterError):
    """The caller is unknown: there is no token, or no owner has it."""


class NotAllowed(Denied):
    """The caller lacks the role for this."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """A caller. In trial mode the server's user, without a name."""

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
        self.store_url = store_url
        self._loopback = loopback

    @property
    def on_trial(self) -> bool:
        """Whether no owner has a token, so that none is required."""
        try:
            with existing(self.store_url) as store:
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
            with existing(self.store_url) as store:
                found = store.owner_by(token) if token and len(token) <= MOST else None
                on_trial = found is None and not store.is_guarded()
        except NoStore:
            found, on_trial = None, True
        if found is not None:
            return Asker(name=found.name, role=found.role, token=token or "")
        hint = "send it as `Authorization: Bearer TOKEN`; `headwater owner NAME --token` creates one"
        if on_trial and self._loopback:
            if token and hmac.compare_digest(token.encode(), trial_token().encode()):
                return Asker(name=None, role="owner", token=token)
            hint = f'while no owner has one: curl -H "Authorization: Bearer $(cat {trial_file()})"'
        raise NotKnown("unknown token" if token else "a token is needed", hint=hint)

    def asker_of_session(self, session: str) -> Asker | None:
        """Return the owner who has begun a session; None where it is over."""
        try:
            with existing(self.store_url) as store:
                found = store.owner_of_session(session)
        except NoStore:
            return None
        return None if found is None else Asker(name=found.name, role=found.role)

    def asker_on_trial(self, proves: Callable[[str], bool]) -> Asker | None:
        """Return the trial mode's caller where ``proves`` accepts its token; None in other modes."""
        if not (self._loopback and self.on_trial and proves(trial_token())):
            return None
        return Asker(name=None, role="owner")


def _a(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
