"""The phases of a deployment and the ways between them, as data. Pure."""

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
"""What is wanted of a deployment: run a plan; stop, keeping state; stop and delete it; use up all input."""

WAYS: Mapping[Phase, frozenset[Phase]] = {
    # Stored by an entrance; the controller has not looked yet.
    "wanted": frozenset({"checking", "handing_over", "changing", "running", "stopping", "stopped", "failed"}),
    # Units are compiled in their zones; nothing has changed there.
    "checking": frozenset({"handing_over", "changing", "running", "failed", "wanted"}),
    # State goes from units to others; until it is all there, the former ones can go on.
    "handing_over": frozenset({"changing", "rolling_back", "failed", "wanted"}),
    # Units start, stop, are replaced and fed.
    "changing": frozenset({"running", "rolling_back", "failed", "wanted"}),
    "running": frozenset({"wanted"}),
    # A canary did worse than before, or state could not be handed over: back to the plan that ran.
    "rolling_back": frozenset({"running", "failed", "wanted"}),
    # Something cannot be done; whatever runs goes on running, and a newer desired state is waited for.
    "failed": frozenset({"wanted"}),
    "stopping": frozenset({"stopped", "failed", "wanted"}),
    "stopped": frozenset({"wanted"}),
}
"""From each phase to those that may follow. A newer desired state leads from anywhere to ``wanted``."""

BUSY: frozenset[Phase] = frozenset({"wanted", "checking", "handing_over", "changing", "rolling_back", "stopping"})
"""Phases in which the controller has something to do."""


def move(now: Phase, to: Phase, *, where: str) -> Phase:
    """Give the new phase, or raise DeploymentError where no way leads there."""
    if to != now and to not in WAYS[now]:
        raise DeploymentError(
            f"cannot go from {now} to {to}",
            where=where,
            hint="report this as a defect; the store holds what was done",
        )
    return to
