"""The phases of a deployment and the transitions between them, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headwater.core.errors import DeploymentError

Phase = Literal[
    "wanted",
    "checking",
    "handing_over",
    "changing",
    "running",
    "rolling_back",
    "failed",
    "stopping",
    "stopped",
]
Goal = Literal["run", "stop", "forget", "finish"]
"""Goal of a desired state: run a plan; stop and keep state; stop and delete state; use up all input."""

WAYS: Mapping[Phase, frozenset[Phase]] = {
    # A desired state is stored; the controller has not read it.
    "wanted": frozenset({"checking", "handing_over", "changing", "running", "stopping", "stopped", "failed"}),
    # Units are compiled on their nodes; nothing has changed there.
    "checking": frozenset({"handing_over", "changing", "running", "failed", "wanted"}),
    # State is transferred; until it is complete, the former units can continue.
    "handing_over": frozenset({"changing", "rolling_back", "failed", "wanted"}),
    # Units start, stop, are replaced and get other inputs.
    "changing": frozenset({"running", "rolling_back", "failed", "wanted"}),
    "running": frozenset({"wanted"}),
    # A canary did worse than before, or state could not be transferred: return to the former plan.
    "rolling_back": frozenset({"running", "failed", "wanted"}),
    # A step failed; running units keep running until a newer desired state arrives.
    "failed": frozenset({"wanted"}),
    "stopping": frozenset({"stopped", "failed", "wanted"}),
    "stopped": frozenset({"wanted"}),
}
"""Phases that may follow each phase. A newer desired state leads from any phase to ``wanted``."""

BUSY: frozenset[Phase] = frozenset({"wanted", "checking", "handing_over", "changing", "rolling_back", "stopping"})
"""Phases in which the controller has work."""


def move(now: Phase, to: Phase, *, where: str) -> Phase:
    """Return the new phase; raise DeploymentError where no transition leads there."""
    if to != now and to not in WAYS[now]:
        raise DeploymentError(
            f"cannot go from {now} to {to}",
            where=where,
            hint="report this as a defect; the store holds what was done",
        )
    return to
