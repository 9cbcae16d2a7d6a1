"""How units are run: time between batches, and what a channel may hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChannelSettings:
    """How much a channel may hold (bytes, seconds), what happens when it is full, what delivery it has."""

    max_bytes: int = 2**30
    max_age: float | None = None
    when_full: str = "block"
    fsync: bool = True
    delivery: str = "exactly_once"


@dataclass(frozen=True)
class UnitSettings:
    """What all units of a deployment have in common: ``trigger`` is the time between two batches,
    ``state_store`` where units leave state for others (a directory or URI)."""

    trigger: str = "500 milliseconds"
    channel: ChannelSettings = field(default_factory=ChannelSettings)
    max_rows_per_batch: int | None = None
    state_store: str | None = None
    measure: bool = True
    """Whether queries count the rows of operators that nothing else tells of; see ``counting``."""

    def channel_options(self) -> dict[str, Any]:
        """Give what the writers and readers of channels are told."""
        options = asdict(self.channel)
        if self.max_rows_per_batch is not None:
            options["max_rows_per_batch"] = self.max_rows_per_batch
        return options
