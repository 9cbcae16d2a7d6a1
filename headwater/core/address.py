"""Addresses of agents and servers, and the decision where TLS is spoken. Pure.

TLS is the rule for every address that other machines can reach; clear text there must be asked for by name.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from headwater.core.errors import DeploymentError

TLS = "grpc+tls://"
PLAIN = "grpc+tcp://"
PLACE = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
"""Form of host and port."""
_PIN = r"#sha256:(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}"
ADDRESS = rf"(?:(?:{re.escape(TLS)})?{PLACE}(?:{_PIN})?|{re.escape(PLAIN)}{PLACE})"
"""Form of an agent's address: ``host:port``, with a scheme, or with the fingerprint of its certificate."""
_FORM = re.compile(rf"(?P<scheme>grpc\+(?:tls|tcp)://)?(?P<place>{PLACE})(?P<pin>{_PIN})?")


def is_loopback(host: str) -> bool:
    """Return whether no other machine can reach a host's address; names other than localhost count as reachable.

    >>> [is_loopback(host) for host in ("127.0.0.2", "[::1]", "localhost", "0.0.0.0", "", "edge-1")]
    [True, True, True, False, False, False]
    """
    bare = host.strip("[]").lower().rstrip(".")
    if bare == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def needs_tls(host: str, asked: bool | None) -> bool:
    """Decide whether a listener at a host speaks TLS: as ``asked``; None: where other machines can reach it.

    >>> needs_tls("127.0.0.1", None), needs_tls("10.0.0.4", None), needs_tls("10.0.0.4", False)
    (False, True, False)
    """
    return not is_loopback(host) if asked is None else asked


@dataclass(frozen=True)
class Address:
    """The address of an agent. ``place`` is host:port; ``pin``: the SHA-256 fingerprint of its certificate.

    >>> [Address.parse(text).encrypted for text in ("127.0.0.1:7070", "10.0.0.4:7070", "grpc+tcp://10.0.0.4:7070")]
    [False, True, False]
    """

    place: str
    scheme: str = ""
    pin: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address; raise DeploymentError for another form, and for a pinned one in clear text."""
        found = _FORM.fullmatch(text)
        if found is None or (found["pin"] and found["scheme"] == PLAIN):
            raise DeploymentError(
                f"{text!r} is not an address",
                where="address",
                hint=f"write host:port, {TLS}host:port, or {PLAIN}host:port for clear text",
            )
        pin = found["pin"]
        return cls(found["place"], found["scheme"] or "", fingerprint_form(pin.partition(":")[2]) if pin else None)

    def __str__(self) -> str:
        return f"{self.scheme}{self.place}{f'#{self.pin}' if self.pin else ''}"

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.place.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.place.rpartition(":")[2])

    @property
    def encrypted(self) -> bool:
        """Whether its clients speak TLS."""
        return self.scheme == TLS or self.pin is not None or (not self.scheme and not is_loopback(self.host))

    @property
    def exposed(self) -> bool:
        """Whether its traffic crosses a network in clear text."""
        return not self.encrypted and not is_loopback(self.host)

    @property
    def location(self) -> str:
        """Its form for Flight, which always names the transport."""
        return f"{TLS if self.encrypted else PLAIN}{self.place}"

    def pinned(self, fingerprint: str) -> Address:
        """Return the address with the fingerprint of its certificate."""
        return replace(self, pin=fingerprint)

    def at(self, place: str) -> Address:
        """Return the address of the same server over another way, as through a tunnel."""
        return replace(self, place=place, scheme=TLS if self.encrypted else PLAIN)


def fingerprint_form(digits: str) -> str:
    """Return the standard form of a SHA-256 fingerprint.

    >>> fingerprint_form("AB:" * 31 + "CD")[:15]
    'sha256:abababab'
    """
    return f"sha256:{digits.replace(':', '').lower()}"
