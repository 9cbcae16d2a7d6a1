"""What the controller asks of a zone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.continuum import Zone
from headwater.metrics import Progress
from headwater.plan.carry import Carry
from headwater.plan.model import DeploymentPlan


class ZonePort(Protocol):
    """One zone, as the controller sees it. The deployment is named ``plan.dataflow.name``.

    Every call may be repeated: the second one changes nothing. A port raises Unavailable when the
    zone cannot be reached (the call is made again later), any other HeadwaterError when it cannot
    do what is asked (the change ends). ``unit`` is a unit's id in the plan.
    """

    def check(self, plan: DeploymentPlan, unit: str) -> None:
        """Compile a unit in the zone without starting it; raise what is wrong."""
        ...

    def prepare(self, plan: DeploymentPlan, unit: str, *, joining: Sequence[str] = ()) -> None:
        """Make its output channels, register their readers, set its inputs up.

        ``joining``: of it and its readers those that begin where their inputs end now.

        Readers are only added: those of other plans stay until their unit is forgotten. A unit with
        a new tag begins to read where the one of the same id stood, whose checkpoint is still there.
        Nothing changes for the inputs of a unit that runs.
        """
        ...

    def start(self, plan: DeploymentPlan, unit: str) -> None:
        """Start it, or adopt it when it runs already with the same tag and epoch."""
        ...

    def feed(self, plan: DeploymentPlan, unit: str) -> None:
        """Give a running unit the inputs of this plan without restarting it.

        Inputs that are not among them are read to their end and then left, position included: a
        channel of the same name may come again.
        """
        ...

    def stop(self, plan: DeploymentPlan, unit: str, *, clean: bool = False) -> None:
        """Stop it at a batch boundary; it stays stopped, also when the zone starts again.

        With ``clean`` a batch that was cut off, by whatever, is first brought to its end.
        """
        ...

    def drained(self, plan: DeploymentPlan, unit: str) -> bool:
        """Tell whether the unit has read all that its stopped producers left, retired inputs included."""
        ...

    def survey(self, plan: DeploymentPlan, unit: str) -> None:
        """See whether a unit's state can be saved; raise what stands in the way. Nothing is changed."""
        ...

    def rehearse(self, plan: DeploymentPlan, unit: str, carry: Carry | None, saved: Sequence[str]) -> None:
        """Run a unit on a trifle beside all that counts; raise what is wrong. Nothing is changed.

        With a carry, it begins with what donors kept when they were surveyed.
        """
        ...

    def save(self, plan: DeploymentPlan, unit: str) -> tuple[int, int]:
        """Put a stopped unit's state, and how far it has read and written, where other zones find it.

        Give the bytes of what it kept, and of what had not been put there by the survey.
        """
        ...

    def load(self, plan: DeploymentPlan, unit: str, carry: Carry, saved: Sequence[str]) -> None:
        """Make a prepared unit's checkpoint of what others have saved; ``saved`` names their checkpoints,
        '' for one that never came to run.

        A unit that has a checkpoint already keeps it: it was loaded before.
        """
        ...

    def finish(self, plan: DeploymentPlan, unit: str) -> bool:
        """Let it use up its ended input, close its windows and end its channels; True when it has."""
        ...

    def forget(self, plan: DeploymentPlan, unit: str) -> bool:
        """Delete its state and output channels, and no longer be a reader of its inputs.

        The unit that the zone was last told to prepare or start under this id may be another one (of
        another tag or epoch): then whatever that one uses stays, which with an equal tag is the
        state, and the channels that both write or read. False while a channel that is to be deleted
        has still to be read by a unit that is not forgotten.
        """
        ...

    def progress(self, deployment: str) -> Progress:
        """Give the state of the deployment's units and channels in this zone."""
        ...


OpenZone = Callable[[Zone], ZonePort]
"""How a controller comes to the port of a zone."""
