"""Write the Acme demonstration's files: readings as CSV, anomaly labels, malformed lines.

Layout under the output folder::

    {location}/readings-0001.csv ...   machine,ts,temperature   (no header; ts is "YYYY-MM-DD HH:MM:SS" UTC)
    labels.json                        location -> [[start, end], ...]   first and last reading of each window
    malformed.json                     [{"file", "line", "kind", "text"}, ...]   written last

The readings come from ``headwater.dataflow.sensors``, or from NAB's machine-temperature file: every location
then gets the whole series, shifted by ``NAB_SHIFT_DAYS`` more than the one before it, so that the four
failures of the locations do not coincide. (A rotation would keep one common span, but add a false jump.)
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from headwater.core.errors import HeadwaterError
from headwater.dataflow.sensors import SensorModel, anomaly_windows, readings, stream_key, uniform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MalformedKind = Literal["temperature", "fields", "timestamp"]
MALFORMED_KINDS: tuple[MalformedKind, ...] = get_args(MalformedKind)
NAB_SHIFT_DAYS = 5
_TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, eq=False)
class Series:
    """All readings of one location; ``ts`` in microseconds UTC, ``machine_index`` points to the name."""

    location: str
    machines: tuple[str, ...]
    machine_index: NDArray[np.int64]
    ts: NDArray[np.int64]
    temperature: NDArray[np.float64]
    windows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Malformed:
    """One line that does not parse: its file (relative to the output folder), number from 1, kind and text."""

    file: str
    line: int
    kind: MalformedKind
    text: str


@dataclass(frozen=True)
class FileWritten:
    """One complete file: its path, the number of its lines and its malformed lines."""

    path: Path
    location: str
    lines: int
    malformed: tuple[Malformed, ...]


@dataclass(frozen=True)
class WrittenFiles:
    """All files of one run."""

    files: tuple[FileWritten, ...]

    @property
    def lines(self) -> int:
        """Return the number of lines, malformed ones included."""
        return sum(file.lines for file in self.files)

    @property
    def malformed(self) -> tuple[Malformed, ...]:
        """Return every malformed line."""
        return tuple(line for file in self.files for line in file.malformed)


def sensor_series(model: SensorModel, locations: Sequence[str], *, days: float) -> tuple[Series, ...]:
    """Return the model's readings of ``days`` days for each location."""
    count = model.readings_in(days)
    found = []
    for location in locations:
        part = readings(model, location, first=0, last=count)
        windows = anomaly_windows(model, location, first=0, last=count)
        found.append(
            Series(
                location=location,
                machines=part.machines,
                machine_index=part.machine_index,
                ts=part.ts,
                temperature=part.temperature,
                windows=tuple((window.start, window.end) for window in windows),
            )
        )
    return tuple(found)


def nab_series(file: Path, labels: Path, *, locations: Sequence[str], days: float | None = None) -> tuple[Series, ...]:
    """Return NAB's series (its first ``days``) for each location, shifted in time from one to the next.

    ``labels`` is NAB's combined_windows.json; the key that ends with the file's name selects the windows.
    """
    import numpy as np

    with file.open(newline="") as source:
        rows = [(_micros(ts), float(value)) for ts, value in list(csv.reader(source))[1:]]
    until = rows[0][0] + int(86_400_000_000 * days) if days is not None else rows[-1][0] + 1
    rows = [row for row in rows if row[0] < until]
    named = [windows for key, windows in json.loads(labels.read_text()).items() if key.endswith(file.name)]
    if not named:
        raise HeadwaterError(f"no windows of {file.name}", where=str(labels), hint="give NAB's combined_windows.json")
    windows = [(_micros(start), _micros(end)) for start, end in named[0]]
    ts, value = np.array([t for t, _ in rows], dtype=np.int64), np.array([v for _, v in rows])
    found = []
    for number, location in enumerate(locations):
        shift = number * NAB_SHIFT_DAYS * 86_400_000_000
        found.append(
            Series(
                location=location,
                machines=(f"{location}-m0",),
                machine_index=np.zeros(len(rows), dtype=np.int64),
                ts=ts + shift,
                temperature=value,
                windows=tuple((start + shift, end + shift) for start, end in windows if start < until),
            )
        )
    return tuple(found)


def write_steps(
    out: Path, series: Sequence[Series], *, files: int = 8, malformed: float = 0.0, seed: int = 0
) -> Iterator[FileWritten]:
    """Write ``files`` files per location and yield after each, so that a live demo sets their pace.

    The labels come first, then the first file of every location, then the second, and so on in the order of
    time. A file appears whole: it is written under a hidden name and renamed. A share ``malformed`` of the
    lines, chosen by ``seed``, is malformed: such a line replaces its reading.
    """
    if files < 1 or not 0 <= malformed <= 1:
        raise HeadwaterError(
            f"files is {files}, malformed is {malformed}",
            hint="give at least 1 file and a share between 0 and 1",
        )
    out.mkdir(parents=True, exist_ok=True)
    labels = {one.location: [[_text(start), _text(end)] for start, end in one.windows] for one in series}
    _write_whole(out / "labels.json", json.dumps(labels, indent=2) + "\n")
    spoilt: list[Malformed] = []
    for number in range(files):
        for one in series:
            count = len(one.ts)
            name = f"{one.location}/readings-{number + 1:04d}.csv"
            lines, bad = _lines(
                one,
                first=count * number // files,
                last=count * (number + 1) // files,
                name=name,
                malformed=malformed,
                seed=seed,
            )
            _write_whole(out / name, "".join(f"{line}\n" for line in lines))
            spoilt.extend(bad)
            yield FileWritten(path=out / name, location=one.location, lines=len(lines), malformed=tuple(bad))
    _write_whole(out / "malformed.json", json.dumps([vars(line) for line in spoilt], indent=2) + "\n")


def _lines(
    one: Series, *, first: int, last: int, name: str, malformed: float, seed: int
) -> tuple[list[str], list[Malformed]]:
    """Return the lines of readings [first, last), and the malformed ones among them."""
    import numpy as np

    index = np.arange(first, last, dtype=np.int64)
    spoil = uniform(stream_key("malformed", seed, one.location), index) < malformed
    kinds = (uniform(stream_key("malformed kind", seed, one.location), index) * len(MALFORMED_KINDS)).astype(int)
    times = np.datetime_as_string(one.ts[first:last].astype("datetime64[us]").astype("datetime64[s]"))
    lines, bad = [], []
    for at in range(last - first):
        machine = one.machines[one.machine_index[first + at]]
        ts, temperature = times[at].replace("T", " "), f"{one.temperature[first + at]:.6f}"
        if not spoil[at]:
            lines.append(f"{machine},{ts},{temperature}")
            continue
        kind = MALFORMED_KINDS[kinds[at]]
        match kind:
            case "temperature":
                text = f"{machine},{ts},ERR"
            case "fields":
                text = f"{machine},{ts}"
            case "timestamp":
                text = f"{machine},{ts[:5]}13-45 25:61:00,{temperature}"
        lines.append(text)
        bad.append(Malformed(file=name, line=at + 1, kind=kind, text=text))
    return lines, bad


def _write_whole(path: Path, text: str) -> None:
    """Write a file under a hidden name, which readers of the folder skip, and rename it when complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.part")
    hidden.write_text(text)
    os.replace(hidden, path)


def _micros(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


def _text(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).strftime(_TIME)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the demonstration's files from the command line."""
    default = SensorModel()
    parser = argparse.ArgumentParser(
        prog="examples.acme.generate",
        description="Write machine readings, labels and malformed lines as CSV files.",
    )
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--locations", default="L1,L2", help="names, separated by commas (default %(default)s)")
    parser.add_argument("--days", type=float, help="length of the series (default 30; with --nab: all of it)")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--machines", type=int, default=default.machines, help="machines per location")
    parser.add_argument("--interval", type=float, default=default.interval_s, help="seconds between two readings")
    parser.add_argument("--start", default=default.start, help="instant of the first reading, ISO 8601")
    parser.add_argument("--anomaly-every", type=int, default=default.anomaly_every, help="readings per anomaly")
    parser.add_argument("--anomaly-length", type=int, default=default.anomaly_length, help="readings per window")
    parser.add_argument("--malformed", type=float, default=0.0, help="share of the lines that do not parse")
    parser.add_argument("--files", type=int, default=8, help="files per location")
    parser.add_argument("--every", type=float, default=0.0, help="seconds to wait after each round of files")
    parser.add_argument("--nab", type=Path, help="take the readings from NAB's machine-temperature file")
    parser.add_argument("--labels", type=Path, help="NAB's combined_windows.json (with --nab)")
    given = parser.parse_args(arguments)
    locations = [name.strip() for name in given.locations.split(",") if name.strip()]
    if not locations:
        parser.error("--locations names no location")
    if (given.nab is None) != (given.labels is None):
        parser.error("--nab and --labels go together")
    try:
        if given.nab is not None:
            series = nab_series(given.nab, given.labels, locations=locations, days=given.days)
        else:
            model = SensorModel(
                seed=given.seed,
                interval_s=given.interval,
                machines=given.machines,
                start=given.start,
                anomaly_every=given.anomaly_every,
                anomaly_length=given.anomaly_length,
            )
            series = sensor_series(model, locations, days=30 if given.days is None else given.days)
        files = []
        for file in write_steps(given.out, series, files=given.files, malformed=given.malformed, seed=given.seed):
            files.append(file)
            if given.every and len(files) % len(series) == 0:
                time.sleep(given.every)
    except HeadwaterError as error:
        parser.exit(error.exit_code, f"{error}\n")
    written = WrittenFiles(tuple(files))
    print(f"{written.lines} lines in {len(files)} files under {given.out}, {len(written.malformed)} malformed")
    for line in written.malformed[:20]:
        print(f"  {line.file}:{line.line}: {line.kind}: {line.text}")
    if len(written.malformed) > 20:
        print("  ... all of them in malformed.json")
    return 0
