"""The plan of a deployment: units, and the channels that join them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from pydantic import Field

from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.types import StoredTime
from headwater.plan.deployment import Deployment, layers_of
from headwater.plan.written import Written


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

    ``node``: where it runs. ``hosts``: the hosts of the node that it may use.
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
    """With name and zone it names the unit's checkpoint: of its key, or of the unit that it continues."""
    epoch: int = 1
    """Counts the writers of its outputs: a replacement gets a higher epoch."""
    part: Part | None = None
    """Its share of the input rows; None: all rows."""
    read_for: Annotated[Mapping[str, str], Field(exclude_if=operator.not_)] = field(default_factory=dict, hash=False)
    """For sources without locations, the location in the names of their reads, where it is not the first one."""

    @property
    def id(self) -> str:
        return f"{self.name}{self.suffix}@{self.node}"

    @property
    def suffix(self) -> str:
        """Distinguishes the parts of a unit in names."""
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
    """With its place it names the stored data; a place that is left and taken again gets another tag."""
    producer: str
    routes: Mapping[str, tuple[str, ...]]
    """For each reader, the links that its data crosses, lowest first; empty inside a zone."""
    event_time: StoredTime
    part: Part | None = None
    """The part of its unit that writes it."""
    broker: str | None = None
    """The zone whose Kafka broker holds it; None: a filelog on its producer's disk."""
    located: Annotated[Mapping[str, str], Field(exclude_if=operator.not_)] = field(default_factory=dict)
    """For each reader that takes only the rows of its own locations, the column that names a row's location."""

    @property
    def id(self) -> str:
        """Its name, storage included: a channel that moves is a new one, and the old one is read to its end."""
        return f"{self.operator}-{self.tag}{self._suffix}@{self.node}"

    @property
    def place(self) -> str:
        """Operator, zone and storage: a plan has at most one channel per place."""
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
    """Units and channels of a deployment on a continuum; units in topological order."""

    dataflow: Dataflow
    continuum: Continuum
    deployment: Deployment
    units: tuple[Unit, ...]
    channels: tuple[Channel, ...]
    tags: Mapping[str, str]
    """Each operator's tag, the start of its key when its data was created: names its sinks, the sources of a
    checkpoint and, at first, its channels."""
    warnings: tuple[str, ...] = ()
    pooled: bool = False
    """Whether the plan merges several dataflows that come and go: a new one starts at the current end of the
    stream, and a removed one gives its state up."""
    written: Annotated[Written | None, Field(exclude_if=operator.not_)] = None
    """What the dataflow was rewritten from; None where it runs as it was written."""

    @cached_property
    def locations(self) -> tuple[str, ...]:
        """The locations of the plan."""
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
        """Return the layer in which an operator takes the rows of a location."""
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
        """Return the index of a unit among all units."""
        return self._positions[id_]

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {u.id: n for n, u in enumerate(self.units)}

    @cached_property
    def heights(self) -> Mapping[str, int]:
        """By unit, its layer's index; behind a unit of another zone at least that one's, and one more."""
        found: dict[str, int] = {}
        for unit in self.units:
            writers = [self.unit(c.producer) for c in self.inputs(unit)]
            least = [found[w.id] + (w.zone != unit.zone) for w in writers]
            found[unit.id] = max([self.continuum.layer_index(unit.layer), *least])
        return found

    def serving(self, locations: Iterable[str]) -> tuple[Unit, ...]:
        """Units that take rows of any of these locations, in their order."""
        return tuple(self.units[n] for n in sorted({n for x in locations for n in self._at.get(x, ())}))

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
