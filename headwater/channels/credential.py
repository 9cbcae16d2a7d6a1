"""Credentials of agents, derived from the site secret, and grants to read one channel. Pure but for `SiteSecret.read`.

The controller has the site secret. It derives the credential of each agent, so an agent that has only its own can
verify the controller's orders, and can order no other agent. The controller gives the agent of a reader a grant for
each channel, which the agent of the writer verifies with its own credential.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import Denied, DeploymentError

TOKEN_ENV = "HEADWATER_TOKEN"
TOKEN_FILE_ENV = "HEADWATER_TOKEN_FILE"
LEAST_BITS = 128
CREDENTIAL_MARK = "hwz1:"
"""Beginning of an agent's credential; a site secret begins in another way."""
MAKE = "make one with `headwater token --new`"

_FORM = re.compile(r"[!-+\--~]+")  # printable ASCII without blank and comma
_FEWEST = 8  # different characters
_CREDENTIAL = re.compile(r"hwz1:([A-Za-z0-9_.-]+):([A-Za-z0-9_-]{43})")
_READING = frozenset({"earliest", "latest", "frontier", "register", "advance", "unregister"})
"""Requests about a log that a grant covers."""
_ALPHABETS = ((re.compile(r"[0-9]+"), 10), (re.compile(r"[0-9a-f]+|[0-9A-F]+"), 16))


@dataclass(frozen=True)
class Grant:
    """The right of a reader to one log: to read it, and to record its own position."""

    log: str
    reader: str


@dataclass(frozen=True, repr=False)
class ZoneCredential:
    """The keys of one agent: the first one signs, all of them verify."""

    node: str
    keys: tuple[bytes, ...]

    def __str__(self) -> str:
        raise TypeError("a credential is not printed by accident: use `text`")

    @property
    def text(self) -> str:
        """Its form in HEADWATER_TOKEN."""
        return ",".join(f"hwz1:{self.node}:{_encoded(key)}" for key in self.keys)

    @property
    def order_token(self) -> str:
        """The controller's token for requests to this agent."""
        return f"order.{_mac(self.keys[0], 'order', self.node)}"

    def granted(self, grant: Grant) -> str:
        """Return the token of a reader of one of this agent's logs."""
        content = _encoded(json.dumps([grant.log, grant.reader]).encode())
        return f"read.{content}.{_mac(self.keys[0], 'read', content)}"

    def proofs(self, purpose: str, content: str) -> tuple[str, ...]:
        """Sign a content, such as a certificate, with each key of this credential."""
        return tuple(_mac(key, purpose, content) for key in self.keys)

    def proves(self, purpose: str, content: str, proofs: Iterable[str]) -> bool:
        """Return whether one of the keys has signed a content with one of the proofs."""
        return any([self._signed(proof, purpose, content) for proof in proofs])

    def verified(self, token: str) -> Grant | None:
        """Return the grant that a token proves, None for the controller's token; raise Denied for others."""
        kind, _, rest = token.partition(".")
        content, _, mac = rest.rpartition(".")
        if kind == "order" and not content and self._signed(mac, "order", self.node):
            return None
        if kind == "read" and content and self._signed(mac, "read", content):
            try:
                log, reader = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
                return Grant(str(log), str(reader))
            except (ValueError, TypeError, binascii.Error):
                pass
        raise Denied("not a token of this agent's controller, nor a grant for its channels", where=self.node)

    def _signed(self, mac: str, purpose: str, content: str) -> bool:
        given = mac.encode()
        found = [hmac.compare_digest(given, _mac(key, purpose, content).encode()) for key in self.keys]
        return any(found)


@dataclass(frozen=True, repr=False)
class SiteSecret:
    """The secret of a controller and all its agents: the first one is used, agents' credentials are of all."""

    secrets: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, *, where: str) -> SiteSecret:
        """Read one secret, or several separated by commas; raise DeploymentError for one that is too weak."""
        secrets = tuple(part.strip() for part in text.split(","))
        for secret in secrets:
            check_secret(secret, where=where)
        return cls(secrets)

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> SiteSecret:
        """Take the site secret from the environment, or from the file that it names."""
        text, where = read_token(environment)
        return cls.parse(text, where=where)

    def of(self, node: str) -> ZoneCredential:
        """Derive the credential of an agent."""
        keys = [hmac.digest(s.encode(), f"headwater agent {node}".encode(), hashlib.sha256) for s in self.secrets]
        return ZoneCredential(node, tuple(keys))


def check_granted(grant: Grant | None, action: str, body: Mapping[str, Any]) -> None:
    """Raise Denied for a request that a grant does not cover; without a grant the controller asks, and may ask all."""
    if grant is None:
        return
    given = body.get("given") or {}
    reads = action == "read" or (action == "log" and body.get("call") in _READING)
    if not reads or not isinstance(given, dict) or given.get("reader", grant.reader) != grant.reader:
        raise Denied(
            f"{grant.reader} may only read {grant.log}, and record its own position",
            where=f"request {action}",
            hint="orders come from the controller alone",
        )
    if body.get("log") != grant.log:
        raise Denied(f"{grant.reader} may read {grant.log} alone", where=str(body.get("log")))


def read_token(environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the text of HEADWATER_TOKEN, or of the file HEADWATER_TOKEN_FILE, and its place."""
    known = os.environ if environment is None else environment
    if text := known.get(TOKEN_ENV, "").strip():
        return text, TOKEN_ENV
    if file := known.get(TOKEN_FILE_ENV):
        try:
            return Path(file).read_text().strip(), file
        except OSError as error:
            raise DeploymentError(
                f"cannot read the token: {error.strerror}", where=file, hint=f"correct {TOKEN_FILE_ENV}"
            ) from error
    raise DeploymentError(
        f"no token: neither {TOKEN_ENV} nor {TOKEN_FILE_ENV} is set",
        where="environment",
        hint="set one: for an agent to what `headwater token NAME` prints, for a controller to the site secret "
        f"({MAKE})",
    )


def has_token() -> bool:
    """Return whether the environment has a token, or names a file with one."""
    return bool(os.environ.get(TOKEN_ENV, "").strip() or os.environ.get(TOKEN_FILE_ENV))


def own_credential(node: str, environment: Mapping[str, str] | None = None) -> tuple[ZoneCredential, bool]:
    """Return an agent's credential, and whether it was derived from the site secret."""
    text, where = read_token(environment)
    if not text.startswith(CREDENTIAL_MARK):
        return SiteSecret.parse(text, where=where).of(node), True
    keys = []
    for part in text.split(","):
        found = _CREDENTIAL.fullmatch(part.strip())
        if found is None:
            raise DeploymentError(
                "not a whole credential", where=where, hint=f"set it to what `headwater token {node}` prints"
            )
        if found[1] != node:
            raise DeploymentError(
                f"it is the credential of {found[1]}, but this is the agent of {node}",
                where=where,
                hint=f"set it to what `headwater token {node}` prints",
            )
        keys.append(base64.urlsafe_b64decode(found[2] + "="))
    return ZoneCredential(node, tuple(keys)), False


def check_secret(secret: str, *, where: str) -> None:
    """Raise DeploymentError for a secret that is shorter than 128 bits, or of other characters than it may have."""
    if secret.startswith(CREDENTIAL_MARK):
        raise DeploymentError(
            "it is the credential of one zone, and the site secret is needed here", where=where, hint=MAKE
        )
    if not _FORM.fullmatch(secret):
        raise DeploymentError(
            "the site secret has characters other than visible ASCII without commas, or is empty",
            where=where,
            hint=MAKE,
        )
    size = next((size for form, size in _ALPHABETS if form.fullmatch(secret)), 64)
    bits = int(len(secret) * math.log2(size) + 1e-9)
    if bits < LEAST_BITS or len(set(secret)) < _FEWEST:
        raise DeploymentError(
            f"the site secret is too weak: it has at most {bits} bits, and {LEAST_BITS} are needed, with at least "
            f"{_FEWEST} different characters",
            where=where,
            hint=MAKE,
        )


def _mac(key: bytes, purpose: str, content: str) -> str:
    return _encoded(hmac.digest(key, f"headwater {purpose} {content}".encode(), hashlib.sha256))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
