"""Compare Headwater over edge, site and cloud with one Spark, and one Flink, in the cloud and over all zones.

Each system runs each dataflow over the same zones and links (`python -m benchmarks.netlab`), warmed up: bursts for
throughput, processor time and bytes over links, then rows at a steady pace for latency. The rows of every system are
compared with one Spark batch run before its figures count. It needs root and iproute2.

    python -m benchmarks.field [--quick] [--json FILE] [--plot PNG] [--dataflows routes,means] [--link 100mbit/10]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import common, flinkenv
from benchmarks.field import report
from benchmarks.field.feed import Feed, make_feed
from benchmarks.field.stretched_flink import StretchedFlink
from benchmarks.field.trial import Load, Trial
from benchmarks.field.variants import (
    SHAPE,
    CloudFlink,
    CloudSpark,
    Flink,
    Headwater,
    StretchedSpark,
    Variant,
)
from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.workload import bits, continuum_text
from benchmarks.netlab import Lab, ProcessorShares
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.testing import local_spark

ROWS, QUICK_ROWS = 60_000, 1_000  # of a burst
PACED, QUICK_PACED = 24, 2
PACE = 1.5  # seconds between two steps
WARM = 1
Link = tuple[str, int]


def link(text: str) -> Link:
    """Read a link such as `100mbit/10`: bandwidth, and delay one way in milliseconds.

    >>> link("100mbit/10")
    ('100mbit', 10)
    """
    bandwidth, _, delay = text.partition("/")
    try:
        bits(bandwidth)
        return bandwidth, int(delay)
    except (ValueError, HeadwaterError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no link ({error}); write 100mbit/10") from None


def listed(known: list[str]) -> Callable[[str], list[str]]:
    """Return a reader of names that are separated by commas."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return read


def say(text: str) -> None:
    """Print the progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = common.arguments("Headwater beside Spark and Flink", repeats=3)
    made.add_argument("--plot", type=Path, metavar="PNG", help="draw the figures")
    made.add_argument("--dataflows", type=listed(list(WORKLOADS)), default=list(WORKLOADS), metavar="LIST")
    made.add_argument("--systems", type=listed(list(report.NAMES)), default=list(report.NAMES), metavar="LIST")
    made.add_argument("--rows", type=int, metavar="N", help=f"rows of a burst (default {ROWS}; quick {QUICK_ROWS})")
    made.add_argument("--link", type=link, default=("100mbit", 10), metavar="BANDWIDTH/MS", help="of every link")
    made.add_argument("--flink", action="store_true", help="install Flink in the quick form too (700 MB)")
    made.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="of one burst (default 600)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and keep it, for its logs")
    return made


class Comparison:
    """All systems over a lab each, with all dataflows."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        quick = options.quick
        self._options, self._place = options, place
        self.failed = 0
        self._rows = options.rows or (QUICK_ROWS if quick else ROWS)
        self.load = Load(WARM, common.repeats_of(options), QUICK_PACED if quick else PACED, PACE)
        self._continuum = Continuum.from_text(continuum_text(shape=SHAPE))
        self._input: dict[str, tuple[Feed, pa.Table]] = {}

    def prepare(self) -> None:
        """Write the input of each dataflow, and compute its result in one batch run."""
        # Where the class-data archive is missing, the first Spark would write it while others are measured.
        subprocess.run([sys.executable, "-m", "headwater.spark.training"], check=False)
        with local_spark(self._place / "spark") as endpoint:
            for name in self._options.dataflows:
                workload = WORKLOADS[name]
                burst = max(2, round(self._rows / workload.rows_of_step))
                steps = [burst] * (self.load.warm + self.load.bursts) + [1] * self.load.paced
                feed = make_feed(workload, self._place / name / "feed", list(SHAPE.edges.values()), steps)
                self._input[name] = feed, feed.batch(endpoint.session(), self._continuum)
                say(f"{name}: {sum(feed.rows)} rows, {self._input[name][1].num_rows} of results")

    def run(self, system: str, found: Mapping[str, dict[str, Any]], note: Callable[[], None]) -> None:
        """Measure a system with all dataflows, and start it anew after one that fails; call ``note`` after each."""
        rest = list(self._input)
        while rest:
            ran = ""
            try:
                with self._deployed(system) as measure:
                    while rest:
                        ran = rest.pop(0)
                        found[ran][system] = measure(ran)
                        note()
            except HeadwaterError as error:
                if not isinstance(error, Unavailable):  # such as PyFlink without a network
                    self.failed = error.exit_code
                for name in [ran] if ran else rest:
                    say(f"{name}, {system}: {error}")
                    found[name][system] = {"failed": error.what}
                rest = rest if ran else []
                note()

    @contextlib.contextmanager
    def _deployed(self, system: str) -> Iterator[Callable[[str], dict[str, Any]]]:
        """Deploy a system; yield what measures a dataflow with it."""
        with ProcessorShares(str(os.getpid()), SHAPE.cores) as shares, Lab(self._continuum) as lab:
            place = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=self._place)).resolve()
            variant = self._variant(system, lab, place, shares)
            bandwidth, delay = self._options.link

            def measure(name: str) -> dict[str, Any]:
                lab.set_links(bandwidth=None, delay=0.0)
                variant.start(WORKLOADS[name])
                say(f"{name}, {system}: started")
                lab.set_links(bandwidth=bits(bandwidth), delay=delay / 1000)
                trial = Trial(variant, *self._input[name], lab, shares, limit=self._options.limit)
                return trial.run(self.load, lambda text: say(f"{name}, {system}: {text}"))

            try:
                variant.deploy()
                say(f"{system}: deployed")
                yield measure
            finally:
                lab.set_links(bandwidth=None, delay=0.0)
                variant.teardown()

    def _variant(self, system: str, lab: Lab, place: Path, shares: ProcessorShares) -> Variant:
        quick = self._options.quick
        flinks: dict[str, type[Flink]] = {"flink-cloud": CloudFlink, "flink-stretched": StretchedFlink}
        if system in flinks:
            python = flinkenv.python(flinkenv.directory(), install=self._options.flink or not quick)
            return flinks[system](lab, place, shares, python, quick=quick)
        kinds: dict[str, type[Headwater] | type[StretchedSpark]] = {
            "headwater": Headwater,
            "spark-cloud": CloudSpark,
            "spark-stretched": StretchedSpark,
        }
        return kinds[system](lab, place, shares, quick=quick)


def main() -> int:
    """Measure, print the tables, write JSON and figure."""
    options = parser().parse_args()
    common.leave_when_terminated()
    facts = common.facts(quick=options.quick)
    place = options.keep or Path(tempfile.mkdtemp(prefix="headwater-field-"))
    comparison = Comparison(options, place)
    result: dict[str, Any] = {
        **facts,
        "flink": flinkenv.VERSION,
        "link": {"bandwidth": options.link[0], "delay_ms": options.link[1]},
        "zones": {"edges": dict(SHAPE.edges), "sites": dict(SHAPE.sites), "cores": dict(SHAPE.cores)},
        "load": asdict(comparison.load),
        "dataflows": {name: {} for name in options.dataflows},
    }

    def note() -> None:
        """Store the results so far: a later run may be stopped at any time."""
        result["ratios"] = {name: report.ratios(found) for name, found in result["dataflows"].items()}
        common.write_result(options.json, result, facts={})

    try:
        comparison.prepare()
        for system in options.systems:
            comparison.run(system, result["dataflows"], note)
    except HeadwaterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep is None:
            with contextlib.suppress(OSError):
                shutil.rmtree(place)
    print(report.markdown(result))
    if options.plot is not None:
        report.plot(result, options.plot)
    return comparison.failed


if __name__ == "__main__":
    sys.exit(main())
