"""Paths of a deployment's files on a zone's disk."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from headwater.plan.model import Channel, Unit
from headwater.plan.spec import UnitSpec

_FILE_URI = re.compile(r"file:(?://[^/]*)?(/.*)", re.DOTALL | re.IGNORECASE)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
REPLAYED = "replayed-records"
"""The directory of all files of replayed dead letters, below a deployment's."""
RUN_STORE = "run.db"
"""File name of the store of `headwater run`, in the directory of its deployment."""


@dataclass(frozen=True)
class Layout:
    """The directories of one deployment below ``root``."""

    root: Path

    @property
    def plan(self) -> Path:
        """The plan's file of `headwater run` before version 0.2."""
        return self.root / "plan.json"

    @property
    def spark(self) -> Path:
        """The embedded Spark server's log and scratch files."""
        return self.root / "spark"

    def channel(self, channel: Channel) -> Path:
        return self.root / "channels" / channel.id

    def spool(self, operator: str, tag: str, location: str) -> Path:
        """The log that spools messages of a broker."""
        return self.root / "channels" / f"{operator}-{tag}@{location}"

    def members(self, unit: Unit, operator: str) -> Path:
        """The members file of one input of a unit: its logs."""
        return self.root / "units" / unit.checkpoint / f"{operator}.members.json"

    def control(self, unit: Unit) -> Path:
        """The directory that signals the end of input to a unit."""
        return self.root / "units" / unit.checkpoint / "control"

    def state(self, unit: Unit) -> Path:
        """A unit's file that survives restarts: totals, whether it has finished."""
        return self.root / "units" / unit.checkpoint / "unit.json"

    def catch_up(self, unit: Unit) -> Path:
        """The batches of another unit that a unit repeats before it takes over."""
        return self.root / "units" / unit.checkpoint / "catch_up.json"

    def pace(self, unit: Unit) -> Path:
        """When the next batch of a unit may begin, where its source waits for that instead of Spark."""
        return self.root / "units" / unit.checkpoint / "pace.json"

    def passed(self, unit: Unit) -> Path:
        """The file of a unit's latency tracking."""
        return self.root / "units" / unit.checkpoint / "passed"

    def table(self, unit: Unit, name: str) -> Path:
        """The versions of a reference table that a unit joins with."""
        return self.root / "units" / unit.checkpoint / "tables" / name

    def checkpoint(self, unit: Unit) -> Path:
        return self.root / "checkpoints" / unit.checkpoint

    def sink(self, sink: str, tag: str, unit: Unit) -> Path:
        """The log of a sink that is read back, and the scratch directory of one that calls a function."""
        return self.root / "sinks" / sink_name(sink, tag, unit)

    def sinks(self, spec: UnitSpec) -> set[Path]:
        """The directories of a unit's outputs."""
        return {self.sink(o, spec.tags[o], spec.unit) for o in spec.unit.outputs}

    def dead_letters(self, unit: Unit) -> Path:
        return self.root / "deadletters" / unit.checkpoint

    def replayed(self, operator: str) -> Path:
        """The files of replayed dead letters of a file source: below it, each at the path that the source reads."""
        return self.root / REPLAYED / operator

    @property
    def all_dead_letters(self) -> Path:
        return self.root / "deadletters"


def writer_name(tag: str, unit: Unit) -> str:
    """Name a unit among the writers of a file sink's directory."""
    return f"{unit.node}-{tag}{unit.suffix}"


def sink_name(sink: str, tag: str, unit: Unit) -> str:
    """Name a unit's directory for a sink."""
    return f"{sink}-{tag}{unit.suffix}@{unit.node}"


def sink_directory(path: str, unit: Unit) -> str:
    """Return the directory of a file sink whose path may name the zone, as a unit writes it."""
    return full_path(path.replace("{zone}", unit.zone))


def full_path(path: str) -> str:
    """Make a user's path absolute: Spark's processes have other working directories than the user.

    >>> full_path("/in/../x"), full_path("file://localhost/in"), full_path("s3a://bucket/in")
    ('/x', '/in', 's3a://bucket/in')
    """
    if (local := _FILE_URI.fullmatch(path)) is not None:
        return os.path.abspath(local[1])
    return path if _URI.match(path) else os.path.abspath(path)
