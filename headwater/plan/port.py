"""What the controller asks of a node, and in which term. Pure.

A controller that was paused does not know that another has taken over. Each taking of the lease begins a new
*term*; an agent that has seen a term takes no order of an older one of that store. Within a term orders are
numbered, so that one which was given up and comes late does not undo a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headwater.continuum.model import Node
from headwater.core.errors import Fenced
from headwater.core.metrics import Progress
from headwater.plan.spec import UnitSpec
from headwater.plan.steps import Incarnation
from headwater.plan.transfer import StateTransfer


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Where an order comes from: the store, the term of its lease, and the order's number in that term."""

    store: str
    term: int
    number: int


TakeStamp = Callable[[], Stamp]
"""Gives the stamp of the next order."""


class Fence:
    """What a node has seen of terms and orders; not to be used by two threads at once.

    ``keep`` writes terms down before an order of a new one is taken, so that a restart does not forget them.
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
        """Take an order, for a ``unit`` if it is for one; raise Fenced where a newer one was taken."""
        known = self._terms.get(stamp.store, 0)
        if stamp.term < known:
            raise Fenced(
                f"an order of term {stamp.term}, where term {known} has begun: another controller acts",
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
                f"order {stamp.number} comes after order {last[2]}: it was given up, and came late",
                where=unit,
            )
        self._numbers[unit] = [stamp.store, stamp.term, stamp.number]


Wanted = Literal["prepared", "running", "stopped", "finished"]


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """What a node has: how far deployments are there, by name, and what it was told last of each unit."""

    progress: Mapping[str, Progress]
    units: Mapping[str, Mapping[Incarnation, Wanted]]


class NodePort(Protocol):
    """One node, as the controller sees it.

    Every call may be repeated: the second one changes nothing. A port raises Unavailable when the
    node cannot be reached (the call is made again later), Fenced when another controller has taken over, any
    other HeadwaterError when it cannot do what is asked (the change ends).
    """

    def check(self, spec: UnitSpec) -> None:
        """Compile a unit on the node without starting it; raise what is wrong, or what its host lacks."""
        ...

    def prepare(self, spec: UnitSpec, *, joining: Sequence[str] = ()) -> None:
        """Make its output channels, register their readers, set its inputs up.

        ``joining``: of it and its readers those that begin where their inputs end now.

        Readers are only added: those of other plans stay until their unit is forgotten. A unit with
        a new tag begins to read where the one of the same id stood, whose checkpoint is still there.
        Nothing changes for the inputs of a unit that runs.
        """
        ...

    def start(self, spec: UnitSpec) -> None:
        """Start it, or adopt it when it runs already with the same tag and epoch."""
        ...

    def update_inputs(self, spec: UnitSpec) -> None:
        """Give a running unit the inputs of this description without restarting it.

        Inputs that are not among them are read to their end and then left, position included: a
        channel of the same name may come again.
        """
        ...

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        """Stop it at a batch boundary; it stays stopped, also when the node starts again.

        With ``clean`` a batch that was cut off, by whatever, is first brought to its end.
        """
        ...

    def drained(self, spec: UnitSpec) -> bool:
        """Tell whether the unit has read all that its stopped producers left, retired inputs included."""
        ...

    def preflight(self, spec: UnitSpec) -> None:
        """See whether a unit's state can be saved; raise what stands in the way. Nothing is changed."""
        ...

    def warm_up(self, spec: UnitSpec, transfer: StateTransfer | None, saved: Sequence[str]) -> None:
        """Run a unit on a trifle beside all that counts; raise what is wrong. Nothing is changed.

        With a carry, it begins with what donors kept when they were surveyed.
        """
        ...

    def save(self, spec: UnitSpec) -> tuple[int, int]:
        """Put a stopped unit's state, and how far it has read and written, where other nodes find it.

        Give the bytes of what it kept, and of what had not been put there by the survey.
        """
        ...

    def load(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> None:
        """Make a prepared unit's checkpoint of what others have saved; ``saved`` names their checkpoints,
        '' for one that never came to run.

        A unit that has a checkpoint already keeps it: it was loaded before.
        """
        ...

    def finish(self, spec: UnitSpec) -> bool:
        """Let it use up its ended input, close its windows and end its channels; True when it has."""
        ...

    def forget(self, spec: UnitSpec) -> bool:
        """Delete its state and output channels, and no longer be a reader of its inputs.

        The unit that the node was last told to prepare or start under this id may be another one (of
        another tag or epoch): then whatever that one uses stays, which with an equal tag is the
        state, and the channels that both write or read. False while a channel that is to be deleted
        has still to be read by a unit that is not forgotten.
        """
        ...

    def end(self, deployment: str, unit: str) -> None:
        """Stop whatever runs under a unit's id: nobody wants it."""
        ...

    def report(self) -> NodeReport:
        """Give the state of all deployments on this node, and make the caller's term known to it."""
        ...


OpenNode = Callable[[Node, TakeStamp], NodePort]
"""How a controller comes to the port of a node; orders are stamped by what is given."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came of a dead letter that a node was asked to replay.

    ``target``: the file or topic that its record went to; ``at``: when.

    ``unknown``: there is no such letter here.
    """

    id: str
    outcome: Literal["replayed", "refused", "unknown"]
    reason: str | None = None
    at: str | None = None
    target: str | None = None
    zone: str | None = None
