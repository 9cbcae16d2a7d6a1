"""Faults that were put into the product to show that the simulation finds them: each is a patch of its code.

``python -m tests.simulation --bug NAME`` plays histories with one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headwater.agent.tasks import NodeTasks
from headwater.agent.units import Units
from headwater.channels.channel_spark import ChannelReader
from headwater.channels.log import Log
from headwater.control.database import DatabaseWriter
from headwater.plan.port import Fence
from headwater.plan.spec import UnitSpec


def _no_fence(fence: Fence, stamp: Any, unit: str | None = None) -> None:
    """A node carries out orders of a lease that has ended."""


def _early_floor(reader: ChannelReader, start: Any, end: Any) -> Any:
    """A channel releases a batch's input when it is planned, and not when it is committed."""
    found = _real_partitions(reader, start, end)
    reader.commit(end)
    return found


_real_partitions = ChannelReader.partitions


def _any_epoch(log: Log, last: Any, epoch: int) -> None:
    """A channel takes batches of a writer that another has replaced."""


def _repeated(log: Log, last: Any, epoch: int, batch: int) -> bool:
    """A channel takes a batch again that it holds."""
    return False


def _lease_for_all(writer: DatabaseWriter, row: Any) -> bool:
    """A controller takes the lease of another one that is alive."""
    return True


def _lost_query(units: Units, spec: UnitSpec) -> None:
    """An order to stop a unit does not find the query that an earlier agent has left."""


def _state_of_nothing(tasks: NodeTasks, spec: UnitSpec, *, clean: bool = False) -> None:
    """A unit is stopped in the middle of a batch before its state is saved."""
    tasks.end(spec.id)


BUGS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "no fence": (Fence, "admit", _no_fence),
    "early floor": (ChannelReader, "partitions", _early_floor),
    "any epoch": (Log, "_refuse_zombie", _any_epoch),
    "repeated batch": (Log, "_is_in", _repeated),
    "lease for all": (DatabaseWriter, "_is_silent", _lease_for_all),
    "lost query": (Units, "adopt", _lost_query),
    "cut batch": (NodeTasks, "stop", _state_of_nothing),
}


@contextlib.contextmanager
def bug(name: str | None) -> Iterator[None]:
    """Put a fault into the product."""
    if name is None:
        yield
        return
    owner, attribute, wrong = BUGS[name]
    right = getattr(owner, attribute)
    setattr(owner, attribute, wrong)
    try:
        yield
    finally:
        setattr(owner, attribute, right)
