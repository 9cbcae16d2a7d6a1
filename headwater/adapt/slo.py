"""Service level objective of a deployment: limits, and the mode of decisions. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headwater.core.errors import PlacementError
from headwater.core.jsonform import Unbounded

Mode = Literal["off", "advise", "auto"]
"""``off``: no decisions; ``advise``: changes are proposed to a person; ``auto``: changes are applied."""
MODES: tuple[Mode, ...] = ("off", "advise", "auto")


@dataclass(frozen=True, kw_only=True)
class SLO:
    """Limits of a deployment, and the pace of changes.

    ``max_latency``: seconds from an event's arrival to its result, for 95 of 100 at every sink.
    ``max_bandwidth``: bytes/s over links into the top layer. ``max_cost``: RU, see ``placement.usage``.
    ``headroom``: the share of a host's cores that stays free; None: any load is allowed. ``gain``: the relative fall of
    the cost that justifies a change without a broken limit. ``cool_down``: seconds between changes, unless a limit is
    broken. ``settle``: seconds after which a change is judged. Raises PlacementError for invalid values.
    """

    mode: Mode = "advise"
    max_latency: Unbounded = math.inf
    max_bandwidth: Unbounded = math.inf
    max_cost: Unbounded = math.inf
    headroom: float | None = 0.2
    gain: float = 0.1
    cool_down: float = 60.0
    settle: float = 20.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlacementError(f"unknown mode '{self.mode}'", hint=f"the modes are {', '.join(MODES)}")
        for name in ("max_latency", "max_bandwidth", "max_cost"):
            if not getattr(self, name) > 0:
                raise PlacementError(f"{name} is {getattr(self, name)}", hint="give more than 0, or no limit")
        for name, most in (("headroom", 1.0), ("gain", 1.0), ("cool_down", math.inf), ("settle", math.inf)):
            value = getattr(self, name)
            if value is None and name == "headroom":
                continue
            if not 0 <= value < most:
                raise PlacementError(f"{name} is {value}", hint=f"give 0 up to below {most:g}")
