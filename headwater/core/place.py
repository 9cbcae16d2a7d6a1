"""The text that says where an operator runs: the name of a layer, or ``zone NAME``.

A layer stands for its zone that covers the location of the rows; a zone takes the rows of all locations. No layer's
name has a space, so both are told apart.
"""

from __future__ import annotations

_ZONE = "zone "


def place_of_zone(zone: str) -> str:
    """Return the place of a zone.

    >>> place_of_zone("C2")
    'zone C2'
    """
    return _ZONE + zone


def zone_named(place: str | None) -> str | None:
    """Return the zone that a place names, None for a layer or no place.

    >>> zone_named("zone C2"), zone_named("cloud")
    ('C2', None)
    """
    return place.removeprefix(_ZONE) if place is not None and place.startswith(_ZONE) else None


def in_words(place: str) -> str:
    """Return a place for a message.

    >>> in_words("zone C2"), in_words("cloud")
    ('zone C2', 'layer cloud')
    """
    return place if zone_named(place) is not None else f"layer {place}"
