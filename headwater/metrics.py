"""What is seen of a running deployment: the one form that terminal, JSON and tests read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["starting", "running", "failed", "finished", "stopped"]


@dataclass(frozen=True, kw_only=True)
class UnitProgress:
    """One unit now. Rows count since the deployment was first started; ``lag`` is in rows."""

    unit: str
    zone: str
    layer: str
    status: Status
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    late_rows: int = 0
    lag: int | None = None
    """Rows in its input channels that it has not read; None for a unit that reads only sources."""
    batch: int = -1
    batch_ms: float | None = None
    """Median of the recent batches that had rows."""
    rows_per_s: float | None = None
    watermark: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class LinkProgress:
    """Rows and bytes (compressed, as stored) that have crossed a link upwards."""

    link: str
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ChannelProgress:
    """A channel: what was written, what waits, what was lost by policy or damage."""

    channel: str
    rows: int = 0
    bytes: int = 0
    unread: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """All of a deployment at one moment; ``seconds`` since this run began."""

    seconds: float
    units: tuple[UnitProgress, ...] = ()
    links: tuple[LinkProgress, ...] = ()
    channels: tuple[ChannelProgress, ...] = ()

    @property
    def failed(self) -> tuple[UnitProgress, ...]:
        return tuple(u for u in self.units if u.status == "failed")

    @property
    def finished(self) -> bool:
        """Tell whether every unit has used up its input."""
        return all(u.status == "finished" for u in self.units)

    def to_data(self) -> dict[str, Any]:
        """Give the progress as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Progress:
        """Read what ``to_data`` gave."""
        return cls(
            seconds=data["seconds"],
            units=tuple(UnitProgress(**u) for u in data["units"]),
            links=tuple(LinkProgress(**x) for x in data["links"]),
            channels=tuple(ChannelProgress(**c) for c in data["channels"]),
        )
