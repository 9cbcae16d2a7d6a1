"""The plan of a lab: names, addresses and routes of zones and links. Pure.

A zone has one address, on its loopback device, not on its links: so its address stays when a
link changes its device. A link is a pair of devices with a /30 of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise

from headwater.continuum.model import Continuum
from headwater.core.errors import ContinuumError

PREFIX = "hwlab-"
_ZONES = IPv4Address("10.77.0.0")
_LINKS = IPv4Address("10.78.0.0")
MOST_ZONES = 2**14  # /30 networks in the links' /16
UP = "above"  # the device towards the parent; a zone has one parent


@dataclass(frozen=True)
class ZoneNet:
    """A zone in the lab: its namespace and its address."""

    name: str
    namespace: str
    address: str


@dataclass(frozen=True)
class LinkNet:
    """A link in the lab; `lower` and `upper` are zones, bandwidth in bit/s, delay in seconds one way."""

    number: int
    lower: str
    upper: str
    bandwidth: float | None
    delay: float

    @property
    def lower_device(self) -> str:
        """Return the child's end."""
        return UP

    @property
    def upper_device(self) -> str:
        """Return the parent's end."""
        return f"below{self.number}"

    @property
    def lower_address(self) -> str:
        """Return the address of the child's end."""
        return str(_LINKS + 4 * self.number + 1)

    @property
    def upper_address(self) -> str:
        """Return the address of the parent's end."""
        return str(_LINKS + 4 * self.number + 2)


@dataclass(frozen=True)
class Route:
    """In the namespace of `zone`: `target` is reached over the link of the zone `link`, up or down."""

    zone: str
    target: str  # an address, or "default"
    link: str
    up: bool


@dataclass(frozen=True)
class Topology:
    """All parts of a lab. Links are known by their lower zone."""

    zones: Mapping[str, ZoneNet]
    links: Mapping[str, LinkNet]
    routes: tuple[Route, ...]


def plan(continuum: Continuum, name: str) -> Topology:
    """Plan the lab `name` for a continuum; raise ContinuumError when it is too large."""
    if len(continuum.zones) > MOST_ZONES:
        raise ContinuumError(
            f"{len(continuum.zones)} zones are more than a lab can address",
            hint=f"use a continuum of at most {MOST_ZONES} zones",
        )
    if continuum.cross_links:
        raise ContinuumError(
            f"a lab has only the links of a tree, and the continuum declares {continuum.cross_links[0].name} beside it",
            hint="use a continuum without links:",
        )
    zones = {
        zone.name: ZoneNet(zone.name, namespace(name, zone.name, at), str(_ZONES + 1 + at))
        for at, zone in enumerate(continuum.zones)
    }
    links = {
        link.lower: LinkNet(at, link.lower, link.upper, link.bandwidth, link.latency)
        for at, link in enumerate(continuum.links)
    }
    return Topology(zones, links, tuple(_routes(continuum, zones)))


def namespace(lab: str, zone: str, number: int) -> str:
    """Return the namespace of a zone; the number distinguishes names that differ in odd characters only.

    >>> namespace("42", "E 1", 3)
    'hwlab-42-3-E-1'
    """
    return f"{PREFIX}{lab}-{number}-{re.sub(r'[^A-Za-z0-9_.]', '-', zone)[:60]}"


def owner(namespace: str) -> int | None:
    """Return the process id in the name of a lab's namespace, None when it is no lab's.

    >>> owner("hwlab-42-3-E1"), owner("hwlab-x-1-E1"), owner("other")
    (42, None, None)
    """
    found = re.match(rf"{PREFIX}(\d+)-", namespace)
    return int(found[1]) if found else None


def _routes(continuum: Continuum, zones: Mapping[str, ZoneNet]) -> list[Route]:
    routes = [Route(zone.name, "default", zone.name, up=True) for zone in continuum.zones if zone.link]
    for zone in continuum.zones:
        path = [zone, *continuum.ancestors(zone.name)]
        # Each zone above knows the way down to it: over the link of the child that the path goes through.
        for below, above in pairwise(path):
            routes.append(Route(above.name, zones[zone.name].address, below.name, up=False))
    return routes
