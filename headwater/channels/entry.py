"""One entry of a log, and the floor below which entries are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headwater.channels.base import END
from headwater.channels.segments import Segment
from headwater.core.compatible import known


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One published batch, or a mark (end of stream, fence) that holds no rows.

    ``batch`` is -1 for a mark made before the epoch's first batch; ``previous`` is then the
    last (epoch, batch) of the writer before. ``high`` is the greatest event time seen.
    """

    seq: int
    epoch: int
    batch: int
    segments: tuple[Segment, ...] = ()
    rows: int = 0
    bytes: int = 0
    total_rows: int = 0
    total_bytes: int = 0
    dropped_rows: int = 0
    high: int | None = None
    ended_by: int | None = None
    previous: tuple[int, int] | None = None
    written: float = 0.0
    lineage: str | None = None
    """The checkpoint that numbered the last batch that counts; a writer with the same one may repeat batches."""
    ingested: tuple[float, float] | None = None
    """Ingest times of the oldest and the newest row that led to it, in seconds since 1970."""
    trace: str | None = None
    """The ``traceparent`` of its publication; None where its batch is not traced."""

    @property
    def end(self) -> bool:
        """Return whether the stream has ended at this entry."""
        return self.ended_by is not None

    @property
    def frontier(self) -> int | None:
        """Return the event-time frontier after this entry."""
        return END if self.end else self.high

    @property
    def counts(self) -> tuple[int, int] | None:
        """Return the last (epoch, batch) whose rows are in the log."""
        return (self.epoch, self.batch) if self.batch >= 0 else self.previous

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form; optional fields are left out when they are not set."""
        record = asdict(self)
        for name in ("lineage", "ingested", "trace"):
            if record[name] is None:
                del record[name]
        for segment in record["segments"]:
            for name in ("offsets", "level"):
                if segment[name] is None:
                    del segment[name]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Entry:
        """Rebuild an entry from its JSON form (``to_record``), without fields that a newer version has added."""
        values = dict(record)
        segments = (known(Segment, s) for s in values["segments"])
        values["segments"] = tuple(
            Segment(**{**s, "offsets": tuple(s["offsets"])} if s.get("offsets") else s) for s in segments
        )
        values["previous"] = tuple(values["previous"]) if values["previous"] else None
        # Older entries hold the ingest times as "born".
        if (ingested := values.pop("born", None) or values.get("ingested")) is not None:
            values["ingested"] = (float(ingested[0]), float(ingested[1]))
        return cls(**known(cls, values))


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The first readable position, the totals before it, and the position up to which deletion is complete."""

    seq: int = 0
    swept: int = 0
    rows: int = 0
    bytes: int = 0
    frontier: int | None = None
    dropped_rows: int = 0
