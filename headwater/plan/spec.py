"""The spec of a unit, as sent to a node's agent: all it needs to run it, without the dataflow and the planner.

A spec names no operators of other units: it holds the names by which readers read its channels.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from headwater.continuum.broker import Broker
from headwater.continuum.model import Continuum, Node
from headwater.core.compatible import surplus
from headwater.core.errors import DeploymentError
from headwater.core.jsonform import ONE_VERSION, dump, load
from headwater.core.requirement import Requirement
from headwater.dataflow.fragment import Fragment
from headwater.dataflow.operators import ToLocations
from headwater.dataflow.sinks import Sink
from headwater.dataflow.types import stream_type
from headwater.plan.content import direct_time, is_stateful, reads, source_locations
from headwater.plan.model import Channel, DeploymentPlan, Unit


@dataclass(frozen=True, kw_only=True)
class ChannelConsumer:
    """A unit that reads a channel: its id, checkpoint and node, and how often its query reads it."""

    unit: str
    checkpoint: str
    node: str
    zone: str
    times: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which its query reads a channel."""
        return (self.checkpoint, *(f"{self.checkpoint}_{n}" for n in range(2, self.times + 1)))


@dataclass(frozen=True, kw_only=True)
class UnitSpec:
    """A unit of a deployment, as its node receives it.

    ``inputs`` and ``outputs``: its channels; ``readers``: the readers by channel id, itself among them for
    inputs. ``brokers``: the brokers that hold these, by zone. ``tags``: for its operators and inputs, the names of
    their sinks and sources. ``direct_time``: whether the newest row written marks the progress of event time.
    ``node``: where it runs, with the capabilities that the plan relies on. ``bandwidths``: of the links that its
    outputs cross, in bits per second, where they are declared.
    """

    deployment: str
    unit: Unit
    node: Node
    flow: Fragment
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    readers: Mapping[str, tuple[ChannelConsumer, ...]]
    brokers: Mapping[str, Broker]
    tags: Mapping[str, str]
    direct_time: bool
    bandwidths: Annotated[Mapping[str, float], Field(exclude_if=operator.not_)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = [c.id for c in (*self.inputs, *self.outputs) if c.id not in self.readers]
        missing += [o for o in (*self.unit.operators, *self.flow.given) if o not in self.tags]
        missing += [c.id for c in self.inputs if self.id not in {r.unit for r in self.readers.get(c.id, ())}]
        if missing or self.flow.order != self.unit.operators:
            raise DeploymentError(f"not a unit's spec: {', '.join(missing) or 'its operators'}")

    @property
    def id(self) -> str:
        return self.unit.id

    @property
    def named(self) -> Mapping[str, object]:
        """What a log message about the unit names."""
        return {"deployment": self.deployment, "unit": self.id, "epoch": self.unit.epoch}

    @cached_property
    def requires(self) -> Requirement:
        """The requirements of all the unit's operators on a host."""
        return Requirement.all_of(o.requires for o in self.flow.operators)

    @cached_property
    def own_readers(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator whose channels the unit reads, the reader names of the unit."""
        found = {}
        for channel in self.inputs:
            own = next(r for r in self.readers[channel.id] if r.unit == self.id)
            found[channel.operator] = own.names
        return found

    def readers_left_by(self, successor: UnitSpec | None) -> Mapping[str, tuple[str, ...]]:
        """For each operator whose channels the unit reads, the reader names that its successor does not have.

        The successor has the unit's state, and may read a channel fewer times.
        """
        kept = {} if successor is None else {c.id: successor.own_readers[c.operator] for c in successor.inputs}
        return {
            c.operator: tuple(name for name in self.own_readers[c.operator] if name not in kept.get(c.id, ()))
            for c in self.inputs
        }

    @cached_property
    def located(self) -> Mapping[str, str]:
        """For each operator of whose channels the unit takes only the rows of its locations, the column."""
        return {c.operator: c.located[self.id] for c in self.inputs if self.id in c.located}

    def is_punctuated(self, operator: str) -> bool:
        """Return whether the rows of an operator's channels come with punctuation."""
        return self.needs_watermark and self.flow.types[operator].event_time is not None

    @cached_property
    def needs_watermark(self) -> bool:
        """Whether Spark must track event time: for state, or for the frontier of later units."""
        timed = any(c.event_time is not None for c in self.outputs)
        return is_stateful(self.flow, self.unit) or (timed and not self.direct_time)

    @cached_property
    def digest(self) -> str:
        """The id of the spec: a hash of its content."""
        text = json.dumps(dump(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The content that decides whether the unit must restart: its own computation, not its inputs' origin.

        Names of inner operators count as little as layers: an output is identified by its name and by its
        computation from the unit's inputs.
        """
        unit, keys, types = self.unit, self.flow.keys, self.flow.types
        places = source_locations(self.flow, unit)
        given = self.located or any(isinstance(o, ToLocations) for o in self.flow.operators)
        return {
            **({"rows of": [dict(self.located), sorted(unit.locations)]} if given else {}),
            "outputs": {id_: keys[id_] for id_ in unit.outputs},
            "types": {id_: stream_type(types[id_]) for id_ in unit.outputs},
            "locations": sorted([keys[s], list(found)] for s, found in places.items()),
            "frontier": self._frontier,
            "kept": {c.operator: self.kept_at(c) for c in self.outputs},
            "part": None if unit.part is None else [unit.part.index, unit.part.count, unit.part.column],
        }

    @property
    def _frontier(self) -> dict[str, Any]:
        """How a stateless unit tracks event time: a second input needs another query."""
        if is_stateful(self.flow, self.unit):
            return {}
        timed = {c.operator: c.event_time.delay for c in self.outputs if c.event_time is not None}
        return {id_: delay if self.direct_time else None for id_, delay in timed.items()}

    def slowest_link(self, channel: Channel) -> float | None:
        """Return the least declared bandwidth of the links that a channel's rows cross, in bits per second."""
        return min((self.bandwidths[name] for name in channel.links if name in self.bandwidths), default=None)

    def kept_at(self, channel: Channel) -> list[str]:
        """Return where a channel is kept: the broker's zone and address, or nothing for its producer's disk."""
        return [] if channel.broker is None else [channel.broker, self.brokers[channel.broker].servers]


def read_spec(data: object, *, where: str) -> UnitSpec:
    """Read a spec from its JSON form, of which every field must be known: a skipped one would run another unit.

    So a field added later is left out where it has its default, and older agents accept every spec without it. Raises
    DeploymentError.
    """
    what = "a unit's description"
    spec: UnitSpec = load(UnitSpec, data, what=what)
    if (path := surplus(data, dump(spec))) is not None:
        raise DeploymentError(
            f"{what} that this version cannot carry out: it does not know {path}", where=where, hint=ONE_VERSION
        )
    return spec


def spec_of(plan: DeploymentPlan, id_: str) -> UnitSpec:
    """Return the spec of a plan's unit, cached with the plan."""
    known: dict[str, UnitSpec] = plan.__dict__.setdefault("_specs", {})
    if id_ not in known:
        known[id_] = _described(plan, plan.unit(id_))
    return known[id_]


def _described(plan: DeploymentPlan, unit: Unit) -> UnitSpec:
    inputs, outputs = plan.inputs(unit), plan.outputs(unit)
    fragments: dict[tuple[tuple[str, ...], ...], Fragment] = plan.__dict__.setdefault("_fragments", {})
    part = unit.operators, unit.outputs
    if part not in fragments:
        leaving = [o for o in unit.outputs if not isinstance(plan.dataflow[o], Sink)]
        fragments[part] = Fragment.of(plan.dataflow, unit.operators, leaving)
    fragment = fragments[part]
    zones = {c.broker for c in (*inputs, *outputs)} - {None}
    brokers = {zone: plan.continuum.zone(zone).broker for zone in zones if zone is not None}
    return UnitSpec(
        deployment=plan.dataflow.name,
        unit=unit,
        node=plan.continuum.node(unit.node),
        flow=fragment,
        inputs=tuple(_routed(c, unit.id) for c in inputs),
        outputs=outputs,
        readers={
            **{c.id: (_reader(plan, unit.id, c.operator),) for c in inputs},
            **{c.id: tuple(_reader(plan, r, c.operator) for r in c.consumers) for c in outputs},
        },
        brokers={zone: broker for zone, broker in brokers.items() if broker is not None},
        tags={o: plan.tags[o] for o in (*unit.operators, *fragment.given)},
        direct_time=direct_time(plan, unit),
        bandwidths=_bandwidths(plan.continuum, outputs),
    )


def _bandwidths(continuum: Continuum, channels: tuple[Channel, ...]) -> dict[str, float]:
    links = (continuum.link(name) for channel in channels for name in channel.links)
    return {link.name: link.bandwidth for link in links if link.bandwidth is not None}


def _routed(channel: Channel, unit: str) -> Channel:
    """Return an input without its other readers."""
    located = {unit: channel.located[unit]} if unit in channel.located else {}
    return replace(channel, routes={unit: channel.routes[unit]}, located=located)


def _reader(plan: DeploymentPlan, id_: str, operator: str) -> ChannelConsumer:
    unit = plan.unit(id_)
    times = reads(plan.dataflow, unit)[operator]
    return ChannelConsumer(unit=id_, checkpoint=unit.checkpoint, node=unit.node, zone=unit.zone, times=times)
