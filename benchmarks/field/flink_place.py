"""The zones in which the tasks of a Flink query run, where one Flink has a TaskManager in each zone.

Flink's SQL has no way to name the host of a task. Its scheduler does: a slot sharing group may ask for an external
resource, and only the TaskManagers that declare it have slots for the group. Three rules use this:

- The rows of a location come in order, so one instance reads them, beside their files. With it run the operators up to
  the first exchange, aggregates before that exchange among them, as in every job of Flink.
- Operators with a single instance run in the cloud, where results go.
- All others have an instance on each core of all zones, where Flink's scheduler puts them.

This runs in PyFlink's environment: objects are Flink's own, over py4j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CORE, RESULTS = "core", "results"
"""External resources: of a core in any zone, and of the zone where results go."""


def files_of(location: str) -> str:
    """Return the external resource of the zone with a location's files."""
    return f"files-{location}"


def place(environment: Any, locations: Sequence[str], slot: Mapping[str, int]) -> None:
    """Place the tasks of a query that has been attached to a DataStream environment, before it is executed.

    ``slot`` is the memory of each slot in MiB: ``heap`` and ``managed``.
    """
    from pyflink.java_gateway import get_gateway

    java = get_gateway().jvm.org.apache.flink
    inner = environment._j_stream_execution_environment

    def group(name: str, resource: str) -> Any:
        made = java.api.common.operators.SlotSharingGroup.newBuilder(name).setCpuCores(1.0)
        memory = made.setTaskHeapMemoryMB(slot["heap"]).setManagedMemoryMB(slot["managed"])
        return memory.setExternalResource(resource, 1.0).build()

    inner.registerSlotSharingGroup(group("default", CORE))
    (sink,) = inner.getTransformations()
    results, at = group(RESULTS, RESULTS), sink
    while at.getParallelism() == 1 and not _exchange(at):
        at.setSlotSharingGroup(results)
        at = _input(at)
    while not (_exchange(at) and not _exchange_above(at)):
        at = _input(at)
    groups = {location: group(files_of(location), files_of(location)) for location in locations}
    _beside_sources(java.streaming.api.transformations, at, groups)


def _beside_sources(java: Any, exchange: Any, groups: Mapping[str, Any]) -> None:
    """Give each source its group, and a copy of the operators between the union of the sources and an exchange."""
    above, at = [], _input(exchange)
    while len(at.getInputs()) == 1:
        above.append(at)
        at = _input(at)
    ends = []
    for end in at.getInputs():
        chain = [end]
        while chain[-1].getInputs():
            chain.append(_input(chain[-1]))
        group = next(made for location, made in groups.items() if chain[-1].getName().startswith(f"in_{location}["))
        for one in chain:
            one.setParallelism(1)
            one.setSlotSharingGroup(group)
        for one in reversed(above):
            copied = java.OneInputTransformation(end, one.getName(), one.getOperatorFactory(), one.getOutputType(), 1)
            weights = one.getManagedMemoryOperatorScopeUseCaseWeights()
            for use in weights:
                copied.declareManagedMemoryUseCaseAtOperatorScope(use, weights[use])
            copied.setSlotSharingGroup(group)
            end = copied
        ends.append(end)
    field = exchange.getClass().getDeclaredField("input")
    field.setAccessible(True)
    field.set(exchange, java.UnionTransformation(ends))


def _input(transformation: Any) -> Any:
    return transformation.getInputs()[0]


def _exchange(transformation: Any) -> bool:
    return bool(transformation.getClass().getSimpleName() == "PartitionTransformation")


def _exchange_above(transformation: Any) -> bool:
    """Tell whether rows pass an exchange before this operator."""
    above = [one for one in transformation.getTransitivePredecessors() if not one.equals(transformation)]
    return any(map(_exchange, above))
