"""Where things of a deployment are on a zone's disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headwater.plan.model import Channel, Unit
from headwater.plan.spec import UnitSpec


@dataclass(frozen=True)
class Layout:
    """The directories of one deployment below ``root``."""

    root: Path

    @property
    def plan(self) -> Path:
        """What `headwater run` of versions before 0.2 noted of its plan."""
        return self.root / "plan.json"

    @property
    def spark(self) -> Path:
        """The embedded Spark server's log and scratch files."""
        return self.root / "spark"

    def channel(self, channel: Channel) -> Path:
        return self.root / "channels" / channel.id

    def spool(self, operator: str, tag: str, location: str) -> Path:
        """The log in which messages of a broker wait."""
        return self.root / "channels" / f"{operator}-{tag}@{location}"

    def members(self, unit: Unit, operator: str) -> Path:
        """The file that tells a unit the logs of one input."""
        return self.root / "units" / unit.checkpoint / f"{operator}.members.json"

    def control(self, unit: Unit) -> Path:
        """The directory through which a unit is told that its input has ended."""
        return self.root / "units" / unit.checkpoint / "control"

    def state(self, unit: Unit) -> Path:
        """What is known of a unit across restarts: totals, whether it has finished."""
        return self.root / "units" / unit.checkpoint / "unit.json"

    def passed(self, unit: Unit) -> Path:
        """What has gone through a unit of late, and when (see passage)."""
        return self.root / "units" / unit.checkpoint / "passed"

    def checkpoint(self, unit: Unit) -> Path:
        return self.root / "checkpoints" / unit.checkpoint

    def sink(self, sink: str, tag: str, unit: Unit) -> Path:
        """The log of a sink that is read back, and the scratch directory of one that calls a function."""
        return self.root / "sinks" / sink_name(sink, tag, unit)

    def sinks(self, spec: UnitSpec) -> set[Path]:
        """Where a unit stores what it does for its outputs."""
        return {self.sink(o, spec.tags[o], spec.unit) for o in spec.unit.outputs}

    def dead_letters(self, unit: Unit) -> Path:
        return self.root / "deadletters" / unit.checkpoint

    @property
    def all_dead_letters(self) -> Path:
        return self.root / "deadletters"


def sink_name(sink: str, tag: str, unit: Unit) -> str:
    """Name what a unit stores for a sink."""
    return f"{sink}-{tag}{unit.suffix}@{unit.node}"


def full_path(path: str) -> str:
    """Make a user's relative path whole: Spark's processes have other working directories than the user."""
    return path if "://" in path else os.path.abspath(path)
