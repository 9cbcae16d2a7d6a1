"""The input of a comparison as files, one for each location and release, and the rows that it gives in one batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.field.workloads import Workload, event_time
from headwater.testing import batch_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.continuum.model import Continuum


@dataclass(frozen=True)
class Feed:
    """Releases of a workload's rows: `files` by release and location, `rows` of each release, `times` after it.

    `times` are event times in seconds: of each release the newest that all locations have reached.
    """

    workload: Workload
    place: Path
    files: list[dict[str, Path]]
    rows: list[int]
    times: list[float]

    def batch(self, spark: SparkSession, continuum: Continuum) -> pa.Table:
        """Return the result of one batch run of the dataflow over all releases."""
        flow = self.workload.dataflow(f"{self.place}/{{location}}", str(self.place / "none"), list(self.files[0]))
        return batch_result(spark, flow, continuum)["result"]

    def closed(self, wanted: pa.Table, release: int) -> pa.Table:
        """Return the rows of the windows that have ended when a release and all before it have been read."""
        return wanted.filter(pc.less_equal(wanted["ends"], pa.scalar(int(self.times[release]))))

    def release_of(self, ends: int) -> int:
        """Return the release that ends a window."""
        return next(number for number, time in enumerate(self.times) if time >= ends)


def make_feed(workload: Workload, place: Path, locations: Sequence[str], steps: Sequence[int]) -> Feed:
    """Write the files of a feed; `steps` are the steps of event time of each release."""
    source = workload.steps(locations)
    files: list[dict[str, Path]] = []
    rows: list[int] = []
    times: list[float] = []
    for number, count in enumerate(steps):
        lines: dict[str, list[str]] = {location: [] for location in locations}
        for step in islice(source, count):
            for location, those in step.items():
                lines[location] += those
        files.append({})
        for location, those in lines.items():
            file = place / location / f"{number:05d}.csv"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in those))
            files[-1][location] = file
        rows.append(sum(map(len, lines.values())))
        times.append(min(event_time(those[-1], workload.time) for those in lines.values()))
    return Feed(workload, place, files, rows, times)


def lay(file: Path, directory: Path) -> None:
    """Copy a file into a directory under a hidden name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f".{file.name}").write_bytes(file.read_bytes())


def show(name: str, directory: Path) -> None:
    """Give a hidden file its name, and the present time: systems read files in this order."""
    hidden = directory / f".{name}"
    os.utime(hidden)
    hidden.rename(directory / name)
