"""Orders of the controller to a node, and the fencing of old controllers by terms. Pure.

A paused controller does not know that another has taken over. Each acquisition of the lease begins a new
*term*; an agent that has seen a term refuses orders of older terms of that store. Orders are numbered within a
term, so a cancelled order that arrives late does not undo a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headwater.continuum.model import Node
from headwater.core.errors import Fenced
from headwater.core.metrics import Progress
from headwater.plan.spec import UnitSpec
from headwater.plan.steps import FormerOutputChoice, Incarnation
from headwater.plan.transfer import StateTransfer


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Origin of an order: the store, the term of its lease, and the order's number in that term."""

    store: str
    term: int
    number: int


TakeStamp = Callable[[], Stamp]
"""Return the stamp of the next order."""


class Fence:
    """Terms and orders seen by a node; not thread-safe.

    ``keep`` persists a new term before its first order is accepted, so that a restart does not forget it.
    """

    def __init__(
        self,
        terms: Mapping[str, int],
        keep: Callable[[Mapping[str, int]], None],
        numbers: dict[str, Sequence[Any]] | None = None,
    ) -> None:
        self._terms = dict(terms)
        self._keep = keep
        self._numbers: dict[str, Sequence[Any]] = {} if numbers is None else numbers
        """By unit: store, term and number of its newest order."""

    def admit(self, stamp: Stamp, unit: str | None = None) -> None:
        """Accept an order, for a ``unit`` if given; raise Fenced if a newer order was accepted before."""
        known = self._terms.get(stamp.store, 0)
        if stamp.term < known:
            raise Fenced(
                f"the order has term {stamp.term}, but term {known} has begun: another controller is active",
                where=unit,
                hint="run one controller per store",
            )
        if stamp.term > known:
            terms = {**self._terms, stamp.store: stamp.term}
            self._keep(terms)
            self._terms = terms
        if unit is None:
            return
        last = self._numbers.get(unit)
        if last is not None and tuple(last[:2]) == (stamp.store, stamp.term) and stamp.number < last[2]:
            raise Fenced(
                f"order {stamp.number} arrived after order {last[2]}: it was cancelled before",
                where=unit,
            )
        self._numbers[unit] = [stamp.store, stamp.term, stamp.number]


Wanted = Literal["prepared", "running", "stopped", "finished"]


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """State of a node: its deployments by name, and the last order of each unit.

    ``agent`` and ``spark`` identify its processes; '' where there is none, or it is not known. ``ending``: how its
    Spark ended last by itself. ``former``: the agent before this one; ``resumed``: the deployments that it left.
    """

    progress: Mapping[str, Progress]
    units: Mapping[str, Mapping[Incarnation, Wanted]]
    agent: str = ""
    former: str = ""
    resumed: frozenset[str] = frozenset()
    spark: str = ""
    ending: str = ""


class NodePort(Protocol):
    """One node, as the controller sees it.

    Every call is idempotent. A port raises Unavailable if the node cannot be reached (the call is retried later),
    Fenced if another controller has taken over, and any other HeadwaterError if the call fails (the change ends).
    """

    def former_output(self, spec: UnitSpec, choice: FormerOutputChoice, sinks: Sequence[str] = ()) -> None:
        """Refuse, keep or remove other runs' output in sinks of a unit that have no rows yet; none stands for all."""
        ...

    def check(self, spec: UnitSpec) -> None:
        """Compile a unit on the node without starting it; raise its errors and missing capabilities."""
        ...

    def prepare(self, spec: UnitSpec, *, joining: Sequence[str] = ()) -> None:
        """Create its output channels, register their readers, set up its inputs.

        ``joining``: the unit or its readers that start at the current end of their inputs.

        Readers are only added: those of other plans stay until their unit is forgotten. A unit with a new tag
        starts at the position of the unit of the same id, whose checkpoint still exists. The inputs of a
        running unit do not change.
        """
        ...

    def start(self, spec: UnitSpec) -> None:
        """Start the unit, or adopt it if it already runs with the same tag and epoch."""
        ...

    def update_inputs(self, spec: UnitSpec) -> None:
        """Give a running unit the inputs of this spec without a restart.

        Other inputs are read to their end and then removed, position included: a channel of the same name may
        be added again.
        """
        ...

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        """Stop the unit at a batch boundary; it stays stopped after a restart of the node.

        ``clean`` first completes a batch that was interrupted.
        """
        ...

    def drained(self, spec: UnitSpec) -> bool:
        """Return whether the unit has read all rows of its stopped producers, retired inputs included."""
        ...

    def preflight(self, spec: UnitSpec, *, batches_only: bool = False) -> None:
        """Check that a unit's state can be saved, and copy it; raise the obstacle. Changes nothing.

        ``batches_only``: after a first call, note only which batches the unit has planned since, for ``catch_up``.
        """
        ...

    def warm_up(self, spec: UnitSpec, transfer: StateTransfer | None, saved: Sequence[str]) -> None:
        """Run a unit on a sample and discard its output; raise its errors. Changes nothing.

        With a transfer, it starts with the state that its source units had at their preflight.
        """
        ...

    def catch_up(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> int | None:
        """Run a prepared unit on the batches of the running unit that it replaces, and discard its output.

        It begins with the state that this unit had at its preflight. Return the number of batches that the unit had
        done more by its last preflight; None where the unit does not catch up, and its state is to be loaded.
        """
        ...

    def save(self, spec: UnitSpec, *, sinks: Sequence[str] = ()) -> tuple[int, int]:
        """Save a stopped unit's state and positions where other nodes find them, and the rows of memory ``sinks``.

        Returns the bytes of its state, and the bytes that the preflight had not saved.
        """
        ...

    def load(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> bool:
        """Make a prepared unit's checkpoint from saved state; ``saved`` names the checkpoints of its source units,
        '' for one that never ran. Return True for a unit that has caught up, and stands there already.

        A unit that already has a checkpoint keeps it: it was loaded before.
        """
        ...

    def finish(self, spec: UnitSpec) -> bool:
        """Let the unit finish its ended input, close its windows and end its channels; return whether it is done."""
        ...

    def forget(self, spec: UnitSpec) -> bool:
        """Delete its state and output channels, and unregister it as a reader of its inputs.

        If the unit last prepared or started under this id is another one (of another tag or epoch), all data
        that it uses is kept: the state if the tags are equal, and the channels that both write or read. Returns
        False while a unit that is not forgotten has still to read a channel.
        """
        ...

    def end(self, deployment: str, unit: str) -> None:
        """Stop the query that runs under a unit's id, if any."""
        ...

    def report(self) -> NodeReport:
        """Return the state of all deployments on this node, and make the caller's term known to it."""
        ...


OpenNode = Callable[[Node, TakeStamp], NodePort]
"""Open the port of a node; the given function stamps the orders."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Result of a request to a node to replay a dead letter.

    ``target``: the file or topic to which its record was written; ``at``: the time.

    ``unknown``: the node has no such dead letter.
    """

    id: str
    outcome: Literal["replayed", "refused", "unknown"]
    reason: str | None = None
    at: str | None = None
    target: str | None = None
    zone: str | None = None
