"""Settings of units and channels: time between batches, limits, delivery."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from headwater.core.quantity import parse_duration

_RARE = 4.0  # seconds between two batches


@dataclass(frozen=True)
class ChannelSettings:
    """Limits of a channel (bytes, seconds), its policy when full, and its delivery guarantee."""

    max_bytes: int = 2**30
    max_age: float | None = None
    when_full: str = "block"
    fsync: bool = True
    delivery: str = "exactly_once"


@dataclass(frozen=True)
class UnitSettings:
    """Settings common to all units of a deployment: ``trigger`` is the time between two batches,
    ``state_store`` the store through which units exchange state (a directory or URI)."""

    trigger: str = "500 milliseconds"
    channel: ChannelSettings = field(default_factory=ChannelSettings)
    max_rows_per_batch: int | None = None
    state_store: str | None = None
    catch_up: bool = True
    """Whether a unit that moves may catch up with the running one before it takes over."""
    measure: bool = True
    """Whether queries count the rows of operators whose count does not follow from others; see ``counting``."""

    @property
    def rare_batches(self) -> bool:
        """Whether batches are so far apart that a slow one, as the first of a query, is not noticed."""
        return parse_duration(self.trigger) > _RARE

    def channel_options(self) -> dict[str, Any]:
        """Return the options of the channels' writers and readers."""
        options = asdict(self.channel)
        if self.max_rows_per_batch is not None:
            options["max_rows_per_batch"] = self.max_rows_per_batch
        return options
