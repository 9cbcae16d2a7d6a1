"""The plan that a deployment leads to: units, and the channels that join them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headwater.continuum import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.types import EventTime
from headwater.plan.deployment import Deployment, layers_of


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
    """One streaming query on one node: a connected piece of the dataflow between cuts.

    ``node``: where it runs. ``hosts``: those of the node that it may use.
    """

    name: str
    node: str
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
        return f"{self.name}{self.suffix}@{self.node}"

    @property
    def suffix(self) -> str:
        """What tells the parts of a unit apart in names."""
        return "" if self.part is None else f".{self.part}"

    @property
    def checkpoint(self) -> str:
        """The name of the unit's checkpoint directory."""
        return f"{self.name}-{self.tag}{self.suffix}@{self.node}"


@dataclass(frozen=True)
class Channel:
    """A durable stream from one operator on one node to the units that read it."""

    operator: str
    node: str
    zone: str
    tag: str
    """With its place it names what is stored; a place that is left and taken again gets another one."""
    producer: str
    routes: Mapping[str, tuple[str, ...]]
    """For each unit that reads it, the links its data crosses, lowest first; none inside a zone."""
    event_time: EventTime | None
    part: Part | None = None
    """Which part of its unit writes it."""
    broker: str | None = None
    """The zone whose Kafka broker holds it; None where it is a filelog on its producer's disk."""

    @property
    def id(self) -> str:
        """Its name; kept elsewhere it is another channel, so that one that moves is read to its end."""
        return f"{self.operator}-{self.tag}{self._suffix}@{self.node}"

    @property
    def place(self) -> str:
        """What a plan has at most one channel for: whose rows it takes, where, and where it is kept."""
        return f"{self.operator}{self._suffix}@{self.node}"

    @property
    def _suffix(self) -> str:
        suffix = "" if self.part is None else f".{self.part}"
        return suffix if self.broker is None else f"{suffix}.via.{self.broker}"

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self.routes)

    @property
    def links(self) -> tuple[str, ...]:
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
    pooled: bool = False
    """Whether several dataflows are one here, which come and go: what one of them brings begins where the
    stream stands, and what it takes along gives its state up."""

    @cached_property
    def locations(self) -> tuple[str, ...]:
        """The locations the plan is for."""
        return self.dataflow.locations or self.continuum.locations

    @cached_property
    def _layers(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        return layers_of(self.deployment.placement, self.continuum, self.dataflow.order)

    @property
    def layers(self) -> Mapping[str, str]:
        """Each operator's layer: that of most locations."""
        return self._layers[0]

    @property
    def layers_at(self) -> Mapping[str, Mapping[str, str]]:
        """By location, the layers of operators that are in another one there."""
        return self._layers[1]

    def layer(self, operator: str, location: str) -> str:
        """Give the layer in which an operator takes the rows of a location."""
        return self.layers_at.get(location, {}).get(operator) or self.layers[operator]

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

    def position(self, id_: str) -> int:
        """Tell where a unit stands among all."""
        return self._positions[id_]

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {u.id: n for n, u in enumerate(self.units)}

    def meeting(self, locations: Iterable[str]) -> tuple[Unit, ...]:
        """Units that take rows of any of these locations, in their order."""
        return tuple(self.units[n] for n in sorted({n for x in locations for n in self._at.get(x, ())}))

    def taking(self, location: str) -> Iterator[Unit]:
        """Units that take rows of a location, in their order."""
        return (self.units[n] for n in self._at.get(location, ()))

    @cached_property
    def _at(self) -> Mapping[str, list[int]]:
        """By location, the positions of the units that take its rows."""
        found: dict[str, list[int]] = {}
        for n, unit in enumerate(self.units):
            for location in unit.locations:
                found.setdefault(location, []).append(n)
        return found

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
            "layers": dict(self.layers),
            **({"at": {x: dict(own) for x, own in at.items()}} if (at := self.layers_at) else {}),
            **({"shared": True} if self.pooled else {}),
            "cuts": sorted(list(c) for c in self.deployment.cuts),
            "units": [
                {
                    "id": u.id,
                    "node": u.node,
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
                    "links": list(c.links),
                    "kind": "filelog" if c.broker is None else "kafka",
                    **({} if c.broker is None else {"broker": c.broker}),
                }
                for c in self.channels
            ],
            "links": {
                name: [c.id for c in crossing]
                for name, crossing in _grouped((x, c) for c in self.channels for x in c.links).items()
            },
            "warnings": list(self.warnings),
        }
