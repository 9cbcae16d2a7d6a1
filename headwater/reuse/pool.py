"""A pool of dataflows that run as one: submissions, shared operators, and their joint deployment. Pure.

A pool holds dataflows of one continuum. Operators of equal content keys are one operator of the shared dataflow, named
after its first submission; a name is never reused. Dataflows of different locations share the operators that treat
each location separately (``located``): these take the rows of all their locations, the others only of their own.
A dataflow that names no location runs at all locations of the continuum, now and later.
Operators that run in zones by name are shared by dataflows that name the same zone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError
from headwater.core.place import zone_named
from headwater.dataflow.fragment import Fragment
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import MemorySink
from headwater.plan.build import in_layers, marked_layers
from headwater.plan.deployment import Deployment, Edge
from headwater.plan.model import DeploymentPlan
from headwater.plan.nodes import locations_of
from headwater.plan.zoned import zones_by_name
from headwater.reuse.commons import Commons, OperatorShape
from headwater.reuse.contain import Contained, served
from headwater.reuse.located import separable
from headwater.reuse.normal import normalized
from headwater.reuse.together import together


@dataclass(frozen=True)
class Submission:
    """A submitted dataflow: as written, and as it runs.

    ``ids``: for each running operator its name in the shared dataflow.
    """

    name: str
    owner: str
    written: Dataflow
    runs: Dataflow
    ids: Mapping[str, str]

    @property
    def sinks(self) -> dict[str, str]:
        """Return for each of its sinks the name of the shared one."""
        return {s.id: self.ids[s.id] for s in self.runs.sinks}


@dataclass(frozen=True)
class _SharedOperator:
    """An operator of the shared dataflow, its inputs there, and the locations named by a dataflow that needs it."""

    name: str
    inputs: frozenset[str]
    locations: frozenset[str]


_Known = dict[str, list[_SharedOperator]]
"""Running operators by key: one for each set of locations that a dataflow runs them for."""


@dataclass(frozen=True)
class Pool:
    """Dataflows that run as one, in order of submission."""

    name: str
    submissions: tuple[Submission, ...] = ()

    @cached_property
    def locations(self) -> tuple[str, ...]:
        """Return the locations of all dataflows; none where one of them runs at all of the continuum."""
        different = {one.runs.locations for one in self.submissions}
        if () in different:
            return ()
        return different.pop() if len(different) == 1 else tuple(sorted({x for own in different for x in own}))

    @cached_property
    def at(self) -> Mapping[str, frozenset[str]]:
        """Return for each operator its locations, without operators that run at all locations of the continuum."""
        found: dict[str, set[str]] = {}
        everywhere: set[str] = set()
        for one in self.submissions:
            everywhere.update(() if one.runs.locations else one.ids.values())
            for shared in one.ids.values():
                found.setdefault(shared, set()).update(one.runs.locations)
        return {shared: frozenset(own) for shared, own in found.items() if shared not in everywhere}

    def __getitem__(self, name: str) -> Submission:
        for one in self.submissions:
            if one.name == name:
                return one
        raise DataflowError(
            f"'{name}' does not run",
            where=f"pool {self.name}",
            hint=f"running dataflows: {', '.join(s.name for s in self.submissions) or 'none'}",
        )

    def __contains__(self, name: object) -> bool:
        return any(s.name == name for s in self.submissions)

    # ------------------------------------------------------------ submissions

    def submit(
        self,
        dataflow: Dataflow,
        owner: str,
        *,
        used: Iterable[str] = (),
        contained: Contained = "windows",
        apart: Collection[str] = (),
    ) -> Pool:
        """Add a dataflow; ``used``: names of former operators of the shared dataflow.

        ``contained``: which of its operators running ones that contain them may serve. ``apart``: running operators
        that it does not share with dataflows of other locations.

        Raises DataflowError if its name is in use.
        """
        if dataflow.name in self:
            raise DataflowError(
                f"'{dataflow.name}' is already running",
                where="submit",
                hint="remove it first, or choose another name",
            )
        return self._joined(dataflow, owner, self._known(), used=used, contained=contained, apart=apart)

    def update(
        self,
        dataflow: Dataflow,
        *,
        used: Iterable[str] = (),
        contained: Contained = "windows",
        apart: Collection[str] = (),
    ) -> Pool:
        """Replace a dataflow by another version of it: operators of both keep their names, and so their state.

        Parameters as for ``submit``. Raises DataflowError if it does not run.
        """
        known, owner = self._known(), self[dataflow.name].owner
        rest = self.remove(dataflow.name)
        return rest._joined(dataflow, owner, known, used=used, contained=contained, apart=apart)

    def _joined(
        self,
        dataflow: Dataflow,
        owner: str,
        known: _Known,
        *,
        used: Iterable[str],
        contained: Contained,
        apart: Collection[str],
    ) -> Pool:
        """Add a dataflow, whose operators may have names among the known ones."""
        runs = normalized(replace(dataflow, locations=self._ordered(dataflow.locations)))
        if self.submissions:
            runs = served(runs, self._shareable(runs.locations, apart), contained)
        taken = {*(one.name for found in known.values() for one in found), *used}
        common = separable(runs)
        ids: dict[str, str] = {}
        keys = _keys(dataflow.name, runs)
        for id_ in runs.order:
            inputs = frozenset(ids[i] for i in runs[id_].inputs)
            alike = known.setdefault(keys[id_], [])
            fitting = [one for one in alike if one.inputs == inputs]
            same = [one for one in fitting if one.locations == frozenset(runs.locations)]
            found = same or [one for one in fitting if id_ in common and one.name not in apart]
            ids[id_] = found[0].name if found else _free(f"{dataflow.name}.{id_}", taken)
            alike.append(_SharedOperator(ids[id_], inputs, frozenset(runs.locations)))
            taken.add(ids[id_])
        return replace(self, submissions=(*self.submissions, Submission(dataflow.name, owner, dataflow, runs, ids)))

    def _ordered(self, locations: tuple[str, ...]) -> tuple[str, ...]:
        """Return locations in the order of a dataflow that runs for the same ones: units keep their first location."""
        running = (one.runs.locations for one in self.submissions)
        return next((own for own in running if set(own) == set(locations)), tuple(sorted(locations)))

    def _shareable(self, locations: tuple[str, ...], apart: Collection[str]) -> Fragment:
        """Return the running operators that a dataflow of some locations can share; ``apart`` as for ``submit``."""
        flow = self.dataflow
        same = {s for one in self.submissions if one.runs.locations == locations for s in one.ids.values()}
        common, found, placed = separable(flow) - set(apart), dict[str, None](), zones_by_name(flow, ())
        for id_ in flow.order:
            # One that is placed by name, and what is behind it, runs where its dataflow wants it.
            shared = (id_ in same or id_ in common) and id_ not in placed
            if shared and found.keys() >= set(flow[id_].inputs):
                found[id_] = None
        return Fragment.of(flow, found, leaving=())

    def remove(self, name: str) -> Pool:
        """Remove a dataflow. Raises DataflowError if it does not run."""
        gone = self[name]
        return replace(self, submissions=tuple(s for s in self.submissions if s is not gone))

    def check_targets(self, name: str) -> None:
        """Raise DataflowError if a dataflow writes other rows to the target of another one's sink."""
        ids = set(self[name].sinks.values())
        others = {sink.target: sink.id for sink in self.dataflow.sinks if sink.id not in ids}
        for sink in self.dataflow.sinks:
            if sink.id in ids and sink.target is not None and sink.target in others:
                raise DataflowError(
                    f"'{sink.id}' writes to {sink.target[-1]}, to which the running '{others[sink.target]}' writes "
                    "other rows",
                    where=f"pool {self.name}",
                    hint="give --append to mix their rows, or write elsewhere",
                )

    # ------------------------------------------------------------ the shared dataflow

    def _known(self) -> _Known:
        """Return the running operators."""
        found: _Known = {}
        for one in self.submissions:
            locations, keys = frozenset(one.runs.locations), _keys(one.name, one.runs)
            for id_, shared in one.ids.items():
                inputs = frozenset(one.ids[i] for i in one.runs[id_].inputs)
                found.setdefault(keys[id_], []).append(_SharedOperator(shared, inputs, locations))
        return found

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Return for each operator of the shared dataflow the dataflows that need it."""
        found: dict[str, list[str]] = {}
        for one in self.submissions:
            for shared in dict.fromkeys(one.ids.values()):
                found.setdefault(shared, []).append(one.name)
        return {shared: tuple(names) for shared, names in found.items()}

    @cached_property
    def dataflow(self) -> Dataflow:
        """Return all dataflows as one."""
        found: dict[str, Operator] = {}
        for one in self.submissions:
            for id_, shared in one.ids.items():
                operator = one.runs[id_]
                if shared in found:
                    requires = found[shared].requires & operator.requires
                    found[shared] = replace(found[shared], requires=requires)
                    continue
                inputs = tuple(one.ids[i] for i in operator.inputs)
                found[shared] = replace(operator, id=shared, inputs=inputs)
        return Dataflow(self.name, tuple(found.values()), self.locations)

    def deployment(self, continuum: Continuum, running: DeploymentPlan | None = None) -> Deployment:
        """Place the shared dataflow: running operators keep their place and cuts; see ``_layers_for``.

        An operator whose layer is no longer in the continuum is placed anew. Raises ErrorList where a dataflow names a
        location that the continuum does not have.
        """
        wanted, free = dict[str, str](), set[Edge]()
        for one in self.submissions:
            locations_of(one.runs, continuum)  # refuses unknown ones
            own = marked_layers(one.runs, continuum)
            for id_, shared in one.ids.items():
                wanted[shared] = min(wanted.get(shared, own[id_]), own[id_], key=continuum.height)
                free |= {(one.ids[p], shared) for p in one.runs[id_].inputs if _is_free(own[p], own[id_], continuum)}
        if running is None:
            return in_layers(self.dataflow, continuum, wanted, only=self.at)
        there = {layer.name for layer in continuum.layers}
        placed = {o: place for o, place in wanted.items() if zone_named(place) is not None}

        def places(*running: Mapping[str, str]) -> dict[str, str]:
            now = {o: layer for own in running for o, layer in own.items() if layer in there}
            return self._layers_for(now | placed, wanted, free, continuum)

        layers = places(running.layers)
        at = {
            x: places(running.layers, running.layers_at[x]) if x in running.layers_at else layers
            for x in self.locations or continuum.locations
        }
        now = running.deployment.placement
        at = together(self.dataflow, continuum, at, only=self.at, free=free, running=now)
        edges = {(p, o.id) for o in self.dataflow.operators for p in o.inputs}
        kept = frozenset(e for e in _cuts(running) & edges if layers[e[0]] == layers[e[1]])
        fresh = in_layers(self.dataflow, continuum, layers, at=at, cuts=kept, only=self.at)
        return Deployment(kept, fresh.placement.replaced(self._staying(fresh, running, continuum)))

    def _staying(
        self, fresh: Deployment, running: DeploymentPlan, continuum: Continuum
    ) -> dict[str, Mapping[str, tuple[str, ...]]]:
        """Return the hosts of running operators that stay in their layer and whose hosts still exist."""
        now, known = running.deployment.placement, {host.name for host in continuum.hosts}

        def stays(operator: str, location: str) -> bool:
            hosts, others = now[operator, location], fresh.placement[operator, location]
            requirement = self.dataflow[operator].requires
            return (
                set(hosts) <= known
                and all(requirement.holds(continuum.host(h).capabilities) for h in hosts)
                and continuum.host(hosts[0]).zone == continuum.host(others[0]).zone
            )

        return {
            o: {x: now[o, x] for x in fresh.placement.of(o) if (o, x) in now and stays(o, x)}
            for o in fresh.placement
            if now.of(o)
        }

    def _layers_for(
        self, now: Mapping[str, str], wanted: Mapping[str, str], free: Collection[Edge], continuum: Continuum
    ) -> dict[str, str]:
        """Return each operator's place, with running ones at ``now``: a new one is as low as any dataflow wants it.

        It is not below its input, unless its layer is given: then the input moves down. Neither holds for ``free``
        edges, over which rows go down or to a zone by name.
        """
        flow, rank = self.dataflow, continuum.height
        layers = {o: now.get(o, wanted[o]) for o in flow.order}
        most = {o: wanted[o] for o in flow.order if o not in now and flow[o].layer}
        for id_ in reversed(flow.order):
            behind = (o for o in flow.consumers[id_] if (id_, o) not in free)
            found = [most[o] for o in (id_, *behind) if o in most]
            if found:
                most[id_] = min(found, key=rank)
                layers[id_] = min(layers[id_], most[id_], key=rank)
        for id_ in flow.order:
            inputs = (layers[p] for p in flow[id_].inputs if (p, id_) not in free)
            layers[id_] = max((layers[id_], *inputs), key=rank)
        return layers

    def check(self) -> None:
        """Check the invariants: every sink of every dataflow runs, and every running operator leads to a sink."""
        commons = Commons()
        for one in self.submissions:
            inputs = {s: tuple(one.ids[i] for i in one.runs[o].inputs) for o, s in one.ids.items()}
            commons.submit(OperatorShape(one.name, inputs, frozenset(one.sinks.values())))
        commons.check(running=self.dataflow.order if self.submissions else ())


def _is_free(before: str, behind: str, continuum: Continuum) -> bool:
    """Return whether rows go down from a place to another one, or between zones of which one is named."""
    named = before != behind and (zone_named(before) or zone_named(behind)) is not None
    return named or continuum.height(behind) < continuum.height(before)


def _cuts(running: DeploymentPlan) -> set[Edge]:
    """Return the edges of a plan's channels."""
    return {
        (channel.operator, id_)
        for channel in running.channels
        for unit in channel.consumers
        for id_ in running.unit(unit).operators
        if channel.operator in running.dataflow[id_].inputs
    }


def _keys(name: str, flow: Dataflow) -> dict[str, str]:
    """Return the content key of each operator, with the zone by name in which it runs.

    The rows of a memory sink belong to its dataflow alone.
    """
    placed = zones_by_name(flow, ())
    found = {id_: f"{flow.keys[id_]} in {placed[id_]}" if id_ in placed else flow.keys[id_] for id_ in flow.order}
    return {id_: f"{key} {name} {id_}" if isinstance(flow[id_], MemorySink) else key for id_, key in found.items()}


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted[:90], 2
    while name in taken:
        name, number = f"{wanted[:90]}.{number}", number + 1
    return name
