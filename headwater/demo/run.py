"""``headwater demo``: run Acme over continuing input, and compare it with one batch run."""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.app import running
from headwater.continuum.model import Continuum
from headwater.core.metrics import Progress
from headwater.dataflow.sensors import SensorModel, anomaly_windows
from headwater.demo.data import FileWritten, Series, nab_series, sensor_series, write_steps
from headwater.demo.flow import CONTINUUM, LOCATIONS, acme
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType

    from headwater.app.local import LocalRun
    from headwater.spark.endpoint import LocalEndpoint

DAYS = 60.0
MACHINES = 2
FILES = 5  # per location, written one after the other while the demo runs
MALFORMED = 0.002
_HALF_HOUR = 1_800_000_000


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of the demonstration; ``seconds`` is the duration of new input."""

    seconds: float = 20.0
    days: float | None = None
    seed: int = 2
    files: int = FILES
    nab: Path | None = None
    labels: Path | None = None

    def model(self) -> SensorModel:
        """Return the generator of the readings."""
        return SensorModel(seed=self.seed, machines=MACHINES)

    def series(self) -> tuple[Series, ...]:
        """Make all readings, or take NAB's."""
        if self.nab is None or self.labels is None:
            return sensor_series(self.model(), LOCATIONS, days=self.days or DAYS)
        return nab_series(self.nab, self.labels, locations=LOCATIONS, days=self.days)


@dataclass(frozen=True)
class _Findings:
    """Results read from the deployment before its Spark ends."""

    sinks: dict[str, pa.Table]
    expected: dict[str, pa.Table]
    dead_letters: int


def run_demo(
    settings: DemoSettings,
    directory: Path,
    *,
    stop: threading.Event,
    observe: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda text: None,
    wait: Callable[[str], None] = lambda text: None,
    endpoint: Callable[[], LocalEndpoint],
) -> dict[str, Any] | None:
    """Run the demonstration below ``directory``; return its summary as JSON data, None if it was stopped.

    ``say`` reports finished steps, ``wait`` the start of long ones; ``endpoint`` returns the Spark to use.
    """
    begun = time.monotonic()
    series = settings.series()
    data = directory.resolve() / "input"
    shutil.rmtree(data, ignore_errors=True)
    for location in LOCATIONS:
        (data / location).mkdir(parents=True)
    plan = build(acme(str(data)), Continuum.from_yaml(CONTINUUM))
    written: list[FileWritten] = []

    files = write_steps(data, series, files=settings.files, malformed=MALFORMED, seed=settings.seed)
    written += islice(files, len(series))  # the first units find input at once

    def feed(give_up: threading.Event) -> None:
        pause = settings.seconds / settings.files
        while not give_up.wait(pause) and (new := list(islice(files, len(series)))):
            written.extend(new)
        if give_up.is_set():
            return
        say(f"all input is written: {sum(f.lines for f in written):,} lines; draining")

    def at_end(deployment: LocalRun, spark: LocalEndpoint) -> _Findings:
        letters = sum(1 for _ in deployment.dead_letters())
        if stop.is_set():
            return _Findings({}, {}, letters)
        say("drained; running the same dataflow once more as one batch, to compare")
        wait("running one batch")
        sinks = {sink.id: deployment.sink_rows(sink.id) for sink in plan.dataflow.sinks}
        return _Findings(sinks, _batch(spark, plan), letters)

    outcome = running.run(
        plan,
        running.RunSettings(
            directory=directory / "deployment",
            until_drained=True,
            fresh=True,
            trigger="250 milliseconds",
            every=2.0,
        ),
        stop=stop,
        observe=observe,
        feed=feed,
        at_end=at_end,
        endpoint=endpoint,
    )
    if not outcome.drained:
        return None
    assert isinstance(outcome.found, _Findings)
    return _summary(
        settings,
        plan,
        outcome.progress,
        outcome.found,
        written,
        series,
        data,
        seconds=time.monotonic() - begun,
    )


def _batch(spark: LocalEndpoint, plan: DeploymentPlan) -> dict[str, pa.Table]:
    from headwater.testing import batch_result

    expected: dict[str, pa.Table] = batch_result(spark.session(), plan.dataflow, plan.continuum)
    return expected


# ---------------------------------------------------------------- the summary


def _summary(
    settings: DemoSettings,
    plan: DeploymentPlan,
    progress: Progress,
    found: _Findings,
    written: Sequence[FileWritten],
    series: Sequence[Series],
    data: Path,
    *,
    seconds: float,
) -> dict[str, Any]:
    from headwater.testing import compare

    differences = {name: compare(found.expected[name], got) for name, got in found.sinks.items()}
    compressed, raw = link_bytes_without_edge(plan, written, directory=data.parent / "baseline")
    anomalies, alarms = judge(settings, series, found.sinks["alarm_list"])
    inputs = {u.id for u in plan.units if not plan.inputs(u)}
    sinks = {u.id for u in plan.units if not plan.outputs(u)}
    return {
        "zones": len(plan.continuum.zones),
        "units": len(plan.units),
        "rows_in": sum(u.rows_in for u in progress.units if u.unit in inputs),
        "rows_out": sum(u.rows_out for u in progress.units if u.unit in sinks),
        "lost": sum(d.lost for d in differences.values()),
        "duplicated": sum(d.duplicated for d in differences.values()),
        "link_bytes": {link.link: link.bytes for link in progress.links},
        "link_bytes_all_to_cloud": compressed,
        "anomalies": anomalies,
        "link_bytes_all_to_cloud_as_csv": raw,
        "alarms": alarms,
        "false_alarms": alarms["outside"],
        "malformed_written": sum(len(f.malformed) for f in written),
        "malformed_found": found.dead_letters,
        "lines_written": sum(f.lines for f in written),
        "dead_letters": found.dead_letters,
        "late_rows": sum(u.late_rows for u in progress.units),
        "batch_rows": {name: table.num_rows for name, table in found.expected.items()},
        "units_detail": [
            {
                "unit": u.unit,
                "zone": u.zone,
                "layer": u.layer,
                "operators": list(plan.unit(u.unit).operators),
                "rows_in": u.rows_in,
                "rows_out": u.rows_out,
                "dead_letters": u.dead_letters,
                "late_rows": u.late_rows,
                "batches": u.batch + 1,
                "batch_ms": u.batch_ms,
            }
            for u in progress.units
        ],
        "seconds": round(seconds, 1),
        "data": "NAB machine_temperature, shifted per location" if settings.nab else f"generated, seed {settings.seed}",
        "machine": _machine(),
        "spark": _spark_version(),
    }


def link_bytes_without_edge(
    plan: DeploymentPlan, written: Iterable[FileWritten], *, directory: Path
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes on each link if all readings went to the cloud: in channel segments, and as CSV.

    Every file's well-formed lines are written as one segment in the form of channels that cross links, which favours
    this alternative: larger batches compress better.
    """
    from pyarrow import csv

    from headwater.channels.segments import FOR_LINK, SegmentWriter

    continuum = plan.continuum
    links = {
        location: continuum.links_up(zone.name, continuum.root.name)
        for location in LOCATIONS
        if (zone := continuum.covering(continuum.layers[0].name, location))
    }
    compressed = {link.name: 0 for ways in links.values() for link in ways}
    raw = dict(compressed)
    for file in written:
        bad = {line.line for line in file.malformed}
        lines = file.path.read_bytes().splitlines(keepends=True)
        sound = b"".join(line for number, line in enumerate(lines, start=1) if number not in bad)
        segment = None
        if sound:
            table = csv.read_csv(
                _reader(sound), read_options=csv.ReadOptions(column_names=["machine", "ts", "temperature"])
            )
            table = _as_sent(table, file.location)
            writer = SegmentWriter(directory, event_time="ts", fsync=False, compression=FOR_LINK, streamed=True)
            for batch in table.combine_chunks().to_batches():
                writer.write(batch)
            segment = writer.close()
        for link in links[file.location]:
            compressed[link.name] += segment.bytes if segment else 0
            raw[link.name] += sum(map(len, lines))
    shutil.rmtree(directory, ignore_errors=True)
    return compressed, raw


def _reader(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


def _as_sent(table: pa.Table, location: str) -> pa.Table:
    """Return readings with the columns of the source's channel."""
    import pyarrow as pa

    ts = table.column("ts").cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    table = table.set_column(1, "ts", ts).set_column(2, "temperature", table.column("temperature").cast(pa.float64()))
    return table.append_column("location", pa.array([location] * table.num_rows))


def judge(settings: DemoSettings, series: Sequence[Series], alarms: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """Compare alarms with labels: count windows with an alarm of their location, and alarms outside any window.

    An alarm covers half an hour, so it counts as inside when that half hour touches the window.
    The stricter count requires the window's own machine, which only generated data contains.
    """
    at = [(r["location"], r["machine"], _micros(r["ts"])) for r in alarms.to_pylist()]
    windows = [(s.location, start, end) for s in series for start, end in s.windows]

    def inside(moment: int, start: int, end: int) -> bool:
        return start <= moment < end + _HALF_HOUR

    found = sum(any(a[0] == place and inside(a[2], start, end) for a in at) for place, start, end in windows)
    outside = sum(not any(a[0] == place and inside(a[2], start, end) for place, start, end in windows) for a in at)
    counts = {"rows": len(at), "outside": outside}
    if settings.nab is None:
        model = settings.model()
        last = model.readings_in(settings.days or DAYS)
        exact = [w for s in series for w in anomaly_windows(model, s.location, first=0, last=last)]
        counts["windows_found_by_machine"] = sum(
            any(a[1] == w.machine and inside(a[2], w.start, w.end) for a in at) for w in exact
        )
        counts["outside_by_machine"] = sum(
            not any(a[1] == w.machine and inside(a[2], w.start, w.end) for w in exact) for a in at
        )
    return {"labelled": len(windows), "found": found}, counts


def _micros(time_: datetime) -> int:
    aware = time_ if time_.tzinfo else time_.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)


def _machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "architecture": platform.machine(),
        "system": platform.system(),
    }


def _spark_version() -> str:
    import pyspark

    return pyspark.__version__


def summary_view(summary: dict[str, Any]) -> RenderableType:
    """Show the summary on a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from headwater.core.quantity import format_size

    units = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Unit", "Layer", "Operators"):
        units.add_column(column)
    for column in ("Rows in", "Rows out", "Dead", "Late"):
        units.add_column(column, justify="right")
    for unit in summary["units_detail"]:
        numbers = [f"{unit[k]:,}" for k in ("rows_in", "rows_out", "dead_letters", "late_rows")]
        units.add_row(unit["unit"], unit["layer"], " > ".join(unit["operators"]), *numbers)
    links = Table(box=None, pad_edge=False, header_style="bold")
    links.add_column("Link")
    for column in ("Stored for it", "All to cloud", "As CSV", "Saved"):
        links.add_column(column, justify="right")
    for name, sent in summary["link_bytes"].items():
        whole, raw = (summary[k][name] for k in ("link_bytes_all_to_cloud", "link_bytes_all_to_cloud_as_csv"))
        saved = f"{whole / sent:.1f} x" if sent else "all"
        links.add_row(name, format_size(sent), format_size(whole), format_size(raw), saved)
    anomalies, alarms = summary["anomalies"], summary["alarms"]
    exact = summary["lost"] == 0 and summary["duplicated"] == 0
    lines = [
        f"{summary['zones']} zones, {summary['units']} units, {summary['rows_in']:,} rows in, "
        f"{summary['rows_out']:,} rows out, {summary['seconds']:.0f} s",
        f"against one batch run of the same: {summary['lost']} lost, {summary['duplicated']} duplicated",
        f"malformed lines: {summary['malformed_written']:,} written, {summary['malformed_found']:,} found; "
        f"late rows: {summary['late_rows']:,}",
        f"anomalies: {anomalies['found']} of {anomalies['labelled']} labelled windows found; "
        f"{alarms['outside']:,} of {alarms['rows']:,} alarms outside any",
        "'Stored for it': rows as channels store them, which zones send as streams of fewer bytes",
        "'All to cloud': every reading in the same form; 'As CSV': the files as they are",
    ]
    text = [Text(line, style="bold red" if n == 1 and not exact else "") for n, line in enumerate(lines)]
    return Group(Text(""), units, Text(""), links, Text(""), *text)
