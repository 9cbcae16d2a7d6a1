"""The note of the newest batch that a sink without transactions has sent, so that it is not sent again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headwater.disk.durable import read_note, write_atomically

_SENT = "sent.json"


@dataclass(frozen=True)
class SentBatches:
    """The note in a unit's directory for a sink; batches of another ``lineage`` do not count."""

    directory: Path
    lineage: str

    def __contains__(self, batch: int) -> bool:
        sent = read_note(self.directory / _SENT)
        return sent.get("lineage") == self.lineage and int(sent.get("batch", -1)) >= batch

    def add(self, batch: int) -> None:
        """Note a batch, durably."""
        write_atomically(self.directory / _SENT, json.dumps({"lineage": self.lineage, "batch": batch}))
