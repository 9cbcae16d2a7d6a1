"""Rows and bytes per second of a dataflow's streams, from a profile or from assumptions. Pure.

Unlike ``Known``, it also has figures for the operators that rewrite rules make, derived from those of the operators
that they come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from headwater.continuum.model import Continuum
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.plan.profile import ASSUMED_CPU_S, Known, OperatorProfile, Profile, row_bytes, value_bytes
from headwater.rewrite.gathering import is_gathering
from headwater.rewrite.semijoins import is_semi_join

ASSUMED: Mapping[type[ops.Operator], float] = {ops.Where: 0.5, stateful.Aggregate: 0.1, stateful.CountWindow: 0.1}
"""Rows out per row in of operators without a profile; 1 for others."""


@dataclass(frozen=True, kw_only=True)
class FlowFigures:
    """FlowFigures of a dataflow that was rewritten from ``known.dataflow``.

    ``origins``: for operators made or changed by rules, the operator whose selectivity they have; '' for selectivity 1.
    """

    dataflow: Dataflow
    continuum: Continuum
    known: Known
    origins: Mapping[str, str] = field(default_factory=dict)

    def after(self, dataflow: Dataflow, origins: Mapping[str, str]) -> FlowFigures:
        """Return the figures of the dataflow that a rule has made of this one."""
        new = {id_: self.origins.get(origin, origin) for id_, origin in origins.items()}
        return replace(self, dataflow=dataflow, origins={**self.origins, **new})

    @cached_property
    def locations(self) -> tuple[str, ...]:
        """The locations of the dataflow."""
        return self.dataflow.locations or self.continuum.locations

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, float]]:
        """By operator and location, the rows per second that leave it."""
        found: dict[str, dict[str, float]] = {}
        for id_ in self.dataflow.order:
            operator = self.dataflow[id_]
            if isinstance(operator, Source):
                places = self.locations if operator.per_location else self.locations[:1]
                came = {x: self.known.rate(operator, x if operator.per_location else None) for x in places}
            else:
                came = {x: sum(found[i].get(x, 0.0) for i in operator.inputs) for x in self.locations}
            if isinstance(operator, ops.ToLocations) and operator.copies:
                came = dict.fromkeys(self.locations, sum(came.values()))
            selectivity = self.selectivity(id_)
            found[id_] = {x: rate * selectivity for x, rate in came.items()}
        return found

    @cached_property
    def cores(self) -> float:
        """The processor load of all operators: core seconds per second."""
        found = 0.0
        for id_ in self.dataflow.order:
            operator = self.dataflow[id_]
            origin = self._work_of(id_)
            cost = self.known.operator(origin).cpu_s if origin else ASSUMED_CPU_S
            came = [sum(self.rows[i].values()) for i in operator.inputs] or [sum(self.rows[id_].values())]
            found += math.fsum(came) * cost
        return found

    def _work_of(self, id_: str) -> str:
        """Return the operator whose work per row an operator does; '' for assumed work.

        A partial aggregate takes the rows that the whole one took.
        """
        if getattr(self.dataflow[id_], "partial", None):
            id_ = self.dataflow.consumers[id_][0]
        return self.origins.get(id_, id_)

    def selectivity(self, id_: str) -> float:
        """Return the rows out per row in of an operator."""
        operator = self.dataflow[id_]
        if isinstance(operator, stateful.Aggregate | stateful.Dedup):
            (above,) = operator.inputs
            if operator.partial:
                return self._partial(operator, self.dataflow.consumers[id_][0])
            before = self.dataflow[above]
            if isinstance(before, stateful.Aggregate | stateful.Dedup) and before.partial:
                return self._own(id_) / (self._partial(before, id_) or 1.0)
        return self._own(id_)

    def _own(self, id_: str) -> float:
        origin = self.origins.get(id_, id_)
        if not origin:
            return 1.0
        profile = self.known.profile
        measured = None if profile is None else profile.operators.get(origin)
        return ASSUMED.get(type(self.dataflow[id_]), 1.0) if measured is None else measured.selectivity

    def _partial(self, partial: stateful.Aggregate | stateful.Dedup, final: str) -> float:
        """Estimate the selectivity of partial results: at most, every zone has all groups that were measured.

        Where the keys tell the locations apart, no group is in two zones; an assumed selectivity is that of each zone.
        Of groups by a further column nothing is measured: their number is taken for the geometric mean of the number of
        rows and that of the final groups.
        """
        located = {c.lower() for c in self.dataflow.types[partial.inputs[0]].located_by}
        profile = self.known.profile
        measured = profile is not None and self.origins.get(final, final) in profile.operators
        together = bool(located & {k.lower() for k in partial.keys}) or not measured
        zones = 1 if together else self._zones(partial.layer)
        groups = self._own(final) * zones * _panes_per_window(self.dataflow[final], partial)
        finer = len(partial.keys) > len(getattr(self.dataflow[final], "keys", ()))
        return min(1.0, math.sqrt(groups) if finer else groups)

    def _zones(self, layer: str | None) -> int:
        """Return the number of zones of a place with the dataflow's locations; without one, of the lowest layer."""
        name = layer or self.continuum.layers[0].name
        zones = {self.continuum.zone_at(name, x) for x in self.locations}
        return max(1, len({zone.name for zone in zones if zone is not None}))

    @cached_property
    def gathering_layer(self) -> str | None:
        """The lowest layer with fewer zones for the dataflow's locations than the lowest one; None if there is none.

        Nothing is gathered in the highest layer: it has no link above it.
        """
        for layer in self.continuum.layers[1:-1]:
            covered = all(self.continuum.covering(layer.name, x) is not None for x in self.locations)
            if covered and self._zones(layer.name) < self._zones(None):
                return layer.name
        return None

    def repeated(self, id_: str) -> float:
        """Return the share of an operator's bytes that other zones' streams repeat: of itself or the nearest before."""
        at = id_
        while True:
            origin = self.origins.get(at, at)
            found = self.known.operator(origin).repeated if origin in self.known.dataflow else None
            if found is not None or not self.dataflow[at].inputs:
                return found or 0.0
            at = self.dataflow[at].inputs[0]

    def _in_one_stream(self, id_: str) -> float:
        """Return the bytes of the streams of all zones in one stream for each gathering zone, as a share.

        A stream has a share r that all repeat: of n streams in one, that is r once, so they take 1 - r (1 - 1/n).
        """
        if self.gathering_layer is None:
            return 1.0
        return 1.0 - self.repeated(id_) * (1.0 - self._zones(self.gathering_layer) / self._zones(None))

    def bytes_out(self, id_: str) -> float:
        """Return the bytes per row of an operator's output; measured ones are scaled to the present columns."""
        if is_semi_join(self.dataflow[id_]):
            return self.bytes_out(self.dataflow[id_].inputs[0])
        if is_gathering(self.dataflow[id_]):
            return self.bytes_out(self.dataflow[id_].inputs[0]) * self._in_one_stream(id_)
        now = row_bytes(self.dataflow.types[id_].schema)
        origin = self.origins.get(id_, id_)
        if origin not in self.known.dataflow or self.known.operator(origin).bytes_out is None:
            origin = self._measured_above(id_)
        measured = self.known.operator(origin).bytes_out if origin else None
        if measured is None:
            return now
        before = row_bytes(self.known.dataflow.types[origin].schema)
        shares = {name.lower(): share for name, share in (self.known.operator(origin).columns or {}).items()}
        if not shares:
            return now * measured / before
        columns = self.dataflow.types[id_].schema.columns
        kept = sum(shares.get(c.name.lower(), value_bytes(c.type) / before) for c in columns)
        # The shares of columns that repeat each other add up to more than a row.
        return measured * (min(1.0, kept) if all(c.name.lower() in shares for c in columns) else kept)

    def _measured_above(self, id_: str) -> str:
        """Return the nearest operator before one of which the bytes per row are measured; '' if there is none."""
        operator = self.dataflow[id_]
        while operator.inputs:
            operator = self.dataflow[operator.inputs[0]]
            if operator.id in self.known.dataflow and self.known.operator(operator.id).bytes_out is not None:
                return operator.id
        return ""

    def profile(self) -> Profile | None:
        """Return the profile of the rewritten dataflow; None without one."""
        profile = self.known.profile
        if profile is None:
            return None
        found = {}
        for id_ in self.dataflow.order:
            origin = self.origins.get(id_, id_)
            if id_ in profile.operators or origin in profile.operators or id_ not in self.known.dataflow:
                measured = profile.operators.get(origin) or OperatorProfile()
                update = {"selectivity": self.selectivity(id_), "bytes_out": self.bytes_out(id_)}
                if (worker := profile.operators.get(self._work_of(id_))) is not None:
                    update["cpu_s"] = worker.cpu_s
                found[id_] = measured.model_copy(update=update)
        return profile.model_copy(update={"operators": found})


def _panes_per_window(final: ops.Operator, partial: ops.Operator) -> float:
    """Return how many panes there are for each window: those of one slide."""
    if not isinstance(final, stateful.Aggregate) or not isinstance(partial, stateful.Aggregate):
        return 1.0
    if not isinstance(final.window, stateful.TimeWindow) or not isinstance(partial.window, stateful.TimeWindow):
        return 1.0
    slide = final.duration(final.window.slide or final.window.size, "slide")
    return slide / partial.duration(partial.window.size, "size")
