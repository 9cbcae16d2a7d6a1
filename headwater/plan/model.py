"""The deployment as a value: cuts and layers, and the plan of units and channels they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headwater.continuum import Continuum, Link
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.types import EventTime

Edge = tuple[str, str]
"""From operator to operator, by name."""


@dataclass(frozen=True)
class Deployment:
    """What is decided about a dataflow: each operator's layer, and edges cut beyond layer changes."""

    layers: Mapping[str, str]
    cuts: frozenset[Edge] = frozenset()
    spread: bool = False
    """Whether hosts of a zone that differ share out the units that several of them may run."""
    at: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By location, the operators whose layer there is not that of ``layers``; only these."""
    shared: bool = False
    """Whether several dataflows are one here, which come and go: what one of them brings begins where the
    stream stands, and what it takes along gives its state up."""

    def __post_init__(self) -> None:
        found = {
            location: {o: layer for o, layer in sorted(own.items()) if self.layers.get(o) != layer}
            for location, own in sorted(self.at.items())
        }
        object.__setattr__(self, "at", {location: own for location, own in found.items() if own})

    def layer(self, operator: str, location: str) -> str:
        """Give the layer in which an operator takes the rows of a location."""
        return self.at.get(location, {}).get(operator) or self.layers[operator]


@dataclass(frozen=True)
class Part:
    """One share of a unit's rows: those whose value of ``column`` hashes to ``index`` of ``count``."""

    index: int
    count: int
    column: str

    def __str__(self) -> str:
        return f"{self.index + 1}of{self.count}"


@dataclass(frozen=True)
class Unit:
    """One streaming query in one zone: a connected piece of the dataflow between cuts."""

    name: str
    zone: str
    layer: str
    operators: tuple[str, ...]
    outputs: tuple[str, ...]
    """Operators whose stream leaves the unit: sinks, and producers of channels."""
    locations: tuple[str, ...]
    hosts: tuple[str, ...]
    key: str
    """Hash of what it computes."""
    tag: str
    """With name and zone it names the unit's checkpoint: of its key, or of the unit it goes on from."""
    epoch: int = 1
    """Counts the writers of its outputs: whoever takes its place gets a higher one."""
    part: Part | None = None
    """What it takes of its inputs' rows; None: all."""

    @property
    def id(self) -> str:
        return f"{self.name}{self.suffix}@{self.zone}"

    @property
    def suffix(self) -> str:
        """What tells the parts of a unit apart in names."""
        return "" if self.part is None else f".{self.part}"

    @property
    def checkpoint(self) -> str:
        """The name of the unit's checkpoint directory."""
        return f"{self.name}-{self.tag}{self.suffix}@{self.zone}"


@dataclass(frozen=True)
class Channel:
    """A durable stream from one operator in one zone to the units that read it."""

    operator: str
    zone: str
    tag: str
    """With its place it names what is stored; a place that is left and taken again gets another one."""
    producer: str
    routes: Mapping[str, tuple[Link, ...]]
    """For each unit that reads it, the links its data crosses, lowest first; none inside a zone."""
    event_time: EventTime | None
    part: Part | None = None
    """Which part of its unit writes it."""
    broker: str | None = None
    """The zone whose Kafka broker holds it; None where it is a filelog on its producer's disk."""

    @property
    def id(self) -> str:
        """Its name; kept elsewhere it is another channel, so that one that moves is read to its end."""
        return f"{self.operator}-{self.tag}{self._suffix}@{self.zone}"

    @property
    def place(self) -> str:
        """What a plan has at most one channel for: whose rows it takes, where, and where it is kept."""
        return f"{self.operator}{self._suffix}@{self.zone}"

    @property
    def _suffix(self) -> str:
        suffix = "" if self.part is None else f".{self.part}"
        return suffix if self.broker is None else f"{suffix}.via.{self.broker}"

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self.routes)

    @property
    def links(self) -> tuple[Link, ...]:
        """All links that any reader's data crosses."""
        return tuple(dict.fromkeys(link for links in self.routes.values() for link in links))


def _grouped(named: Iterable[tuple[str, Channel]]) -> Mapping[str, tuple[Channel, ...]]:
    found: dict[str, list[Channel]] = {}
    for unit, channel in named:
        found.setdefault(unit, []).append(channel)
    return {unit: tuple(channels) for unit, channels in found.items()}


@dataclass(frozen=True)
class DeploymentPlan:
    """Units and channels that carry a dataflow out on a continuum; units in topological order."""

    dataflow: Dataflow
    continuum: Continuum
    deployment: Deployment
    units: tuple[Unit, ...]
    channels: tuple[Channel, ...]
    tags: Mapping[str, str]
    """For each operator what its sinks, a checkpoint's sources and, at first, its channels are named by: the
    start of its key, or of the key that it had when they were made."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def _units(self) -> Mapping[str, Unit]:
        return {u.id: u for u in self.units}

    @cached_property
    def _inputs(self) -> Mapping[str, tuple[Channel, ...]]:
        return _grouped((unit, c) for c in self.channels for unit in c.routes)

    @cached_property
    def _outputs(self) -> Mapping[str, tuple[Channel, ...]]:
        return _grouped((c.producer, c) for c in self.channels)

    def unit(self, id_: str) -> Unit:
        return self._units[id_]

    def inputs(self, unit: Unit) -> tuple[Channel, ...]:
        """Channels that a unit reads."""
        return self._inputs.get(unit.id, ())

    def outputs(self, unit: Unit) -> tuple[Channel, ...]:
        """Channels that a unit writes."""
        return self._outputs.get(unit.id, ())

    def to_data(self) -> dict[str, Any]:
        """Give the plan as JSON-able data."""
        return {
            "dataflow": self.dataflow.name,
            "locations": list(self.dataflow.locations),
            "layers": dict(self.deployment.layers),
            **({"at": {x: dict(own) for x, own in at.items()}} if (at := self.deployment.at) else {}),
            **({"shared": True} if self.deployment.shared else {}),
            "cuts": sorted(list(c) for c in self.deployment.cuts),
            "units": [
                {
                    "id": u.id,
                    "zone": u.zone,
                    "layer": u.layer,
                    "operators": list(u.operators),
                    "locations": list(u.locations),
                    "hosts": list(u.hosts),
                    "key": u.key,
                    "tag": u.tag,
                    "epoch": u.epoch,
                    "reads": [c.id for c in self.inputs(u)],
                    "writes": [c.id for c in self.outputs(u)],
                    "sinks": [o for o in u.outputs if o in {s.id for s in self.dataflow.sinks}],
                }
                for u in self.units
            ],
            "channels": [
                {
                    "id": c.id,
                    "operator": c.operator,
                    "from": c.producer,
                    "to": list(c.consumers),
                    "schema": self.dataflow.types[c.operator].schema.text,
                    "links": [link.name for link in c.links],
                    "kind": "filelog" if c.broker is None else "kafka",
                    **({} if c.broker is None else {"broker": c.broker}),
                }
                for c in self.channels
            ],
            "links": {
                name: [c.id for c in self.channels if name in {link.name for link in c.links}]
                for name in dict.fromkeys(link.name for c in self.channels for link in c.links)
            },
            "warnings": list(self.warnings),
        }
