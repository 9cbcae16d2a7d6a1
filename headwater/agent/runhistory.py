"""The computations that a Spark has run since its start: their code is compiled, and their functions have worked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.dataflow.sinks import Sink
from headwater.plan.model import Unit
from headwater.plan.spec import UnitSpec

if TYPE_CHECKING:
    from headwater.spark.endpoint import Endpoint


class RunHistory:
    """Units, and their operators, that a Spark has run; all are forgotten when it starts again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._units: set[tuple[str, str, tuple[str, ...]]] = set()
        self._operators: set[tuple[str, str]] = set()

    def knows(self, unit: Unit) -> bool:
        """Return whether the Spark has run the computation of a unit."""
        return self._unit(unit) in self._units

    def knows_operators(self, spec: UnitSpec, running: Iterable[UnitSpec]) -> bool:
        """Return whether the Spark has run all operators of a unit but sinks, in whichever units.

        ``running``: units that have done a batch.
        """
        return self._keys(spec) <= self._operators.union(*map(self._keys, running))

    def add(self, spec: UnitSpec) -> None:
        """Record that the Spark has run a unit."""
        self._units.add(self._unit(spec.unit))
        self._operators |= self._keys(spec)

    def _unit(self, unit: Unit) -> tuple[str, str, tuple[str, ...]]:
        return self._endpoint.generation, unit.key, unit.operators

    def _keys(self, spec: UnitSpec) -> set[tuple[str, str]]:
        flow, spark = spec.flow, self._endpoint.generation
        return {(spark, flow.keys[i]) for i in spec.unit.operators if not isinstance(flow[i], Sink)}
