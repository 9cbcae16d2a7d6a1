"""The decision on a dataflow: cut edges, and the hosts that run each operator. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, PlainSerializer, TypeAdapter
from pydantic_core import CoreSchema

from headwater.continuum.model import Continuum
from headwater.core.jsonform import custom_schema
from headwater.core.place import zone_named

Edge = tuple[str, str]
"""From operator to operator, by name."""
HostNames = tuple[str, ...]


class Placement:
    """For each operator and location, the hosts that run it, all of one zone. Immutable.

    Several hosts with agents of their own share out the operator's rows by key.

    >>> placement = Placement({"clean": {"L1": ("gw1",)}})
    >>> placement["clean", "L1"]
    ('gw1',)
    """

    __slots__ = ("_hosts",)

    def __init__(self, hosts: Mapping[str, Mapping[str, HostNames]]) -> None:
        self._hosts = {operator: dict(own) for operator, own in hosts.items()}

    def __getitem__(self, key: tuple[str, str]) -> HostNames:
        operator, location = key
        return self._hosts[operator][location]

    def __contains__(self, key: tuple[str, str]) -> bool:
        operator, location = key
        return location in self._hosts.get(operator, {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self._hosts == other._hosts

    def __hash__(self) -> int:
        return hash(tuple((o, tuple(sorted(own.items()))) for o, own in sorted(self._hosts.items())))

    def __repr__(self) -> str:
        return f"Placement({self._hosts!r})"

    def of(self, operator: str) -> Mapping[str, HostNames]:
        """Return an operator's hosts by location; empty if it is not placed."""
        return self._hosts.get(operator, {})

    def replaced(self, changed: Mapping[str, Mapping[str, HostNames]]) -> Placement:
        """Return a copy with other hosts for some operators and locations."""
        return Placement({**self._hosts, **{o: {**self.of(o), **own} for o, own in changed.items()}})

    # ------------------------------------------------------------ JSON

    def to_data(self) -> list[dict[str, list[str]]]:
        """Return the placement as JSON-able data, grouped by equal hosts.

        Equal placements give equal data, independent of their order of construction.
        """
        found: dict[tuple[tuple[str, ...], HostNames], list[str]] = {}
        for operator, own in sorted(self._hosts.items()):
            together: dict[HostNames, list[str]] = {}
            for location, hosts in sorted(own.items()):
                together.setdefault(hosts, []).append(location)
            for hosts, locations in together.items():
                found.setdefault((tuple(locations), hosts), []).append(operator)
        return [
            {"operators": operators, "locations": list(locations), "hosts": list(hosts)}
            for (locations, hosts), operators in sorted(found.items())
        ]

    @classmethod
    def from_data(cls, data: object) -> Placement:
        """Read the data of ``to_data``; raise ValueError if an operator is placed twice."""
        found: dict[str, dict[str, HostNames]] = {}
        for entry in _ENTRIES.validate_python(data):
            for operator in entry["operators"]:
                own = found.setdefault(operator, {})
                for location in entry["locations"]:
                    if own.setdefault(location, entry["hosts"]) is not entry["hosts"]:
                        raise ValueError(f"'{operator}' is placed twice at {location}")
        return cls(found)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, cls.from_data, cls.to_data)


_ENTRIES: TypeAdapter[list[dict[str, tuple[str, ...]]]] = TypeAdapter(list[dict[str, tuple[str, ...]]])


@dataclass(frozen=True)
class Deployment:
    """The decision on a dataflow: edges cut in addition to changes of hosts, and each operator's hosts."""

    cuts: Annotated[frozenset[Edge], PlainSerializer(sorted)]
    placement: Placement


def layers_of(
    placement: Placement, continuum: Continuum, operators: Iterable[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return each operator's place at most locations, and by location the operators in another place.

    It is a layer; or ``zone NAME``, for all locations, where a zone takes rows of a location that it does not cover.
    """
    layers: dict[str, str] = {}
    at: dict[str, dict[str, str]] = {}
    known: dict[tuple[HostNames, str], str] = {}
    for operator in operators:
        found = {}
        for location, hosts in placement.of(operator).items():
            if (hosts, location) not in known:
                known[hosts, location] = continuum.place_of(continuum.host(hosts[0]).zone, location)
            found[location] = known[hosts, location]
        if (zone := next((p for p in found.values() if zone_named(p) is not None), None)) is not None:
            found = dict.fromkeys(found, zone)
        layers[operator] = Counter(found.values()).most_common(1)[0][0]
        for location, layer in found.items():
            if layer != layers[operator]:
                at.setdefault(location, {})[operator] = layer
    return layers, at
