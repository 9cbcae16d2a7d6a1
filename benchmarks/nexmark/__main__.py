"""Rows per second of the Nexmark queries: Headwater over zones and in one unit, plain Spark, and Flink.

The same generated files are read to their end, on the cores of this machine, and each query is run on its own:

* ``zones``: units over eight zones as the queries are marked (five edges, two sites, a cloud), on one Spark
* ``one_unit``: the same dataflow as one unit
* ``plain``: hand-written Structured Streaming on the same Spark (``plain.py``)
* ``flink``: the published statements on a mini-cluster of PyFlink, installed below the user's cache (``flinkjob.py``)

The results of every variant are compared with one batch run before a figure counts. Each runs once to warm up, over
few events, but in the quick form on Spark. The seconds have start and end of the query in them. Rows are those of the
streams that the query reads. Headwater and plain Spark commit every batch, Flink checkpoints every second.

    python -m benchmarks.nexmark [--quick] [--json FILE] [--repeats N] [--events N] [--queries q0 ...] [--flink]
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common, flinkenv
from benchmarks.nexmark import flink, plain
from examples.nexmark.flow import HERE, QUERIES, nexmark
from examples.nexmark.generate import Workload, events, write_files
from examples.nexmark.streams import KINDS, Bounds
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build, one_unit
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare

if TYPE_CHECKING:
    import pyarrow as pa

FULL, QUICK = 200_000, 20_000  # events; the full form warms up with those of the quick one
FILES, QUICK_FILES = 20, 4  # of each stream and location
BATCHES = 4  # in which they are read, at least
# In the quick form: a projection, windows, a join of windows, winning bids, each with all variants.
FEW = ("q1", "q5", "q8", "q9")
CONTINUUM = Continuum.from_yaml(HERE / "continuum.yaml")


@dataclass(frozen=True)
class Input:
    """Generated files in the forms of all variants, with the rows of each stream and the expected results."""

    place: Path
    rows: Mapping[str, int]
    bounds: Bounds
    files_per_batch: int
    expected: Mapping[str, pa.Table]

    @property
    def data(self) -> Path:
        """The files by location."""
        return self.place / "data"


def write(place: Path, count: int, workload: Workload, files: int) -> dict[str, int]:
    """Write the events by location, by stream, and in one file of each stream; return the rows of each stream."""
    data = place / "data"
    for at, file in enumerate(write_files(data, count, workload, files=files)):
        os.utime(file, (at, at))  # Spark reads files in the order of their times
    lines: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for event in events(count, workload):
        lines[event.kind].append(event.line)
    for kind in KINDS:
        for form in ("by_stream", "in_order"):
            (place / form / kind).mkdir(parents=True)
        for file in data.glob(f"*/{kind}/*.csv"):
            os.link(file, place / "by_stream" / kind / f"{file.parts[-3]}-{file.name}")
        (place / "in_order" / kind / "all.csv").write_text("".join(f"{line}\n" for line in lines[kind]))
        end = place / "end" / kind / "end.csv"
        end.parent.mkdir(parents=True)
        end.write_text(plain.END[kind].format(time=f"{workload.start + timedelta(days=2):%Y-%m-%d %H:%M:%S}") + "\n")
    return {kind: len(found) for kind, found in lines.items()}


def prepare(place: Path, count: int, queries: Sequence[str], endpoint: LocalEndpoint, *, files: int) -> Input:
    """Write the input, and compute the expected results in one batch run."""
    workload = Workload()
    rows = write(place, count, workload, files)
    flow = nexmark(str(place / "data"), queries, bounds=workload.bounds)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)
    if empty := [query for query in queries if not expected[query].num_rows]:
        raise RuntimeFailure(f"no results of {', '.join(empty)}, which proves nothing", hint="give more --events")
    return Input(place, rows, workload.bounds, -(-files // BATCHES), expected)


def headwater(shape: str) -> Callable[[str, Input, Path, LocalEndpoint], float]:
    """Return the run of a query over the zones, or as one unit."""

    def run(query: str, given: Input, place: Path, endpoint: LocalEndpoint) -> float:
        begun = time.monotonic()
        flow = nexmark(
            str(given.data),
            [query],
            write=lambda stream, _: stream.write.json(str(place / "out")),
            bounds=given.bounds,
            files_per_batch=given.files_per_batch,
        )
        decision = one_unit(flow, CONTINUUM) if shape == "one_unit" else None
        plan = build(flow, CONTINUUM, decision)
        assert (len(plan.units) == 1) == (shape == "one_unit")
        deployment = LocalRun(plan, place / "run", endpoint, UnitSettings(trigger="0 seconds"))
        deployment.start()
        try:
            deployment.drain()
        finally:
            deployment.stop()
        return time.monotonic() - begun

    return run


def by_hand(query: str, given: Input, place: Path, endpoint: LocalEndpoint) -> float:
    """Run the hand-written query."""
    return plain.run(query, given.place, place, endpoint, given.bounds, files_per_batch=given.files_per_batch)


VARIANTS: Mapping[str, Callable[[str, Input, Path, LocalEndpoint], float]] = {
    "zones": headwater("zones"),
    "one_unit": headwater("one_unit"),
    "plain": by_hand,
}

ALL = (*VARIANTS, "flink")


def check(query: str, out: Path, given: Input, endpoint: LocalEndpoint, variant: str) -> None:
    """Raise RuntimeFailure if the rows in JSON files differ from the batch run's."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = given.expected[query]
    types = from_arrow_schema(wanted.schema)
    files = [str(f) for f in out.rglob("*") if f.is_file() and not any(p[0] in "._" for p in f.relative_to(out).parts)]
    texts = ", ".join(f"{name} string" for name in wanted.column_names)
    read = endpoint.session().read.schema(texts).json(files)
    found = read.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in types)).toArrow()
    if query == "q4" and variant == "flink":  # it has a row for each category, and no former ones
        wanted = final_means(wanted)
    if difference := compare(wanted, found):
        raise RuntimeFailure(f"{query} of {variant} differs from the batch run: {difference.examples}")


def final_means(table: pa.Table) -> pa.Table:
    """Return the row of query 4 with the most auctions of each category."""
    rows = sorted(table.to_pylist(), key=lambda row: row["auctions"])
    return table.from_pylist(list({row["category"]: row for row in rows}.values()), table.schema)


def on_spark(
    query: str, variants: Sequence[str], given: Input, endpoint: LocalEndpoint, turn: int, errors: dict[str, str]
) -> dict[str, float]:
    """Run the variants on Spark in turn; return their seconds, and add the errors of those that have none."""
    found: dict[str, float] = {}
    written = plain.statements(given.bounds)
    names = [name for name in variants if name in VARIANTS and (name != "plain" or query in written)]
    first = turn % max(1, len(names))
    for name in names[first:] + names[:first]:
        place = Path(tempfile.mkdtemp(prefix=f"{query}-{name}-", dir=given.place))
        try:
            seconds = VARIANTS[name](query, given, place, endpoint)
            check(query, place / "out", given, endpoint, name)
        except Exception as error:  # the other figures still count
            failed(errors, query, name, str(error))
        else:
            found[name] = seconds
            say(f"{query:<4} {name:<9} {seconds:7.2f} s, result right")
        shutil.rmtree(place)
    return found


def on_flink(
    python: Path,
    queries: Sequence[str],
    inputs: Sequence[Input],
    endpoint: LocalEndpoint,
    errors: dict[str, str],
) -> dict[str, list[float]]:
    """Run all queries on Flink, over the first input to warm up; return the seconds of each, and add errors."""
    taken: dict[str, list[float]] = {query: [] for query in queries}
    for turn, data in enumerate(inputs):
        out = Path(tempfile.mkdtemp(prefix="flink-", dir=data.place))
        order = {
            "data": str(data.place / "by_stream"),
            "in_order": str(data.place / "in_order"),
            "side": str(data.data / "side_input.csv"),
            "out": str(out),
            "cores": len(os.sched_getaffinity(0)),
        }
        rest = [query for query in queries if query not in flink.UNSUPPORTED]
        for query, row in flink.run(python, order, list(rest), data.place / "flink.log"):
            rest.remove(query)
            try:
                if "error" in row:
                    raise RuntimeFailure(row["error"])
                check(query, out / query, data, endpoint, "flink")
            except Exception as error:  # the other figures still count
                failed(errors, query, "flink", str(error))
                continue
            say(f"{query:<4} flink     {row['s']:7.2f} s, result right")
            if turn:
                taken[query].append(row["s"])
        for query in rest:
            failed(errors, query, "flink", "the mini-cluster ended before this query")
        shutil.rmtree(out)
    return taken


def failed(errors: dict[str, str], query: str, variant: str, why: str) -> None:
    """Note why a query has no figure."""
    errors[f"{query} {variant}"] = why
    say(f"{query:<4} {variant:<9} FAILED: {why[:300]}")


def say(text: str) -> None:
    """Print the progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


TITLES = {"zones": "over zones", "one_unit": "one unit", "plain": "plain Spark", "flink": "Flink"}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of rows per second, with the ratio to plain Spark in brackets."""
    names = [name for name in ALL if any(name in row["rows_per_s"] for row in rows)]
    lines = [f"| query | rows | {' | '.join(TITLES[name] for name in names)} |", f"|---|{'---:|' * (len(names) + 1)}"]
    for row in rows:
        speeds = row["rows_per_s"]
        cells = [f"{speeds[name]:,}{beside(name, speeds)}" if name in speeds else "–" for name in names]
        lines.append(f"| {row['query']} | {row['rows']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def beside(name: str, speeds: Mapping[str, int]) -> str:
    """Return how many times as fast as plain Spark a variant is, in brackets; nothing where there is no such ratio."""
    return f" ({speeds[name] / speeds['plain']:.2f}×)" if name != "plain" and speeds.get("plain") else ""


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = common.arguments("rows per second of the Nexmark queries", repeats=1)
    parser.add_argument("--events", type=int, metavar="N", help="events of the input")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), help="only these")
    parser.add_argument("--flink", action="store_true", help="install Flink in the quick form too (700 MB)")
    parser.add_argument("--variants", nargs="+", choices=ALL, default=ALL, help="only these")
    options = parser.parse_args()
    common.leave_when_terminated()
    facts = common.facts(quick=options.quick)
    queries = options.queries or (list(FEW) if options.quick else list(QUERIES))
    repeats, count = common.repeats_of(options), options.events or (QUICK if options.quick else FULL)
    taken: dict[str, dict[str, list[float]]] = {query: {} for query in queries}
    python, missing = None, "left out"
    if "flink" in options.variants:
        try:
            python = flinkenv.python(flinkenv.directory(), install=options.flink or not options.quick)
            missing = ""
        except Unavailable as error:
            missing = str(error)
    errors: dict[str, str] = {}

    def result() -> dict[str, Any]:
        return result_of(queries, given, taken, errors, repeats=repeats, flink_is=missing or flinkenv.VERSION)

    endpoint = None
    place = Path(tempfile.mkdtemp(prefix="headwater-nexmark-"))
    try:
        conf = {"spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0)))}
        root = (str(common.ROOT),)
        endpoint = LocalEndpoint.start(
            place / "spark", memory_mb=2048, python_path=root, extra_conf=conf, quick=options.quick
        )
        given = prepare(place / "input", count, queries, endpoint, files=QUICK_FILES if options.quick else FILES)
        warm = given if options.quick else prepare(place / "warm", QUICK, queries, endpoint, files=QUICK_FILES)
        for query, turn in itertools.product(queries, range(0 if options.quick else -1, repeats)):
            seconds = on_spark(query, options.variants, given if turn >= 0 else warm, endpoint, turn, errors)
            for name, s in seconds.items() if turn >= 0 else ():
                taken[query].setdefault(name, []).append(s)
            common.write_result(options.json, result(), facts=facts)  # a later query may be stopped at any time
        if python is None:
            say(f"flink: {missing}")
        else:
            by_flink = on_flink(python, queries, [warm, *[given] * repeats], endpoint, errors)
            for query, s in by_flink.items():
                taken[query].update({"flink": s} if s else {})
    finally:
        if endpoint is not None:
            endpoint.stop()
        shutil.rmtree(place, ignore_errors=True)
    common.write_result(options.json, result(), facts=facts)
    print(markdown({**facts, **result()}))
    return 1 if errors else 0


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table, the conditions, and why figures are missing."""
    machine = result["machine"]
    conditions = (
        f"Rows per second of {result['events']:,} events, each query by itself from start to end, on "
        f"{machine['cores']} cores ({machine['processor']}); runs of each: {result['repeats']}. Spark "
        f"{result['spark']}, Flink {result['flink']}, commit {result['commit']}. In brackets: divided by plain Spark's."
    )
    names = [row["query"] for row in result["queries"]]
    missing = {"plain Spark": plain.MISSING, "Flink": flink.UNSUPPORTED}
    notes = [
        f"No {query} on {where}: {why}."
        for where, those in missing.items()
        for query, why in those.items()
        if query in names
    ]
    notes += [f"No figure of {name}: {why.splitlines()[0]}" for name, why in result["errors"].items()]
    return "\n\n".join([table(result["queries"]), conditions, *notes])


def result_of(
    queries: Sequence[str],
    given: Input,
    taken: Mapping[str, Mapping[str, Sequence[float]]],
    errors: Mapping[str, str],
    *,
    repeats: int,
    flink_is: str,
) -> dict[str, Any]:
    """Return the figures of all queries; a query that was wrong once has none."""
    right = {q: {name: s for name, s in taken[q].items() if f"{q} {name}" not in errors} for q in queries}
    return {
        "events": sum(given.rows.values()),
        "repeats": repeats,
        "queries": [row_of(query, given, right[query]) for query in queries],
        "flink": flink_is,
        "errors": dict(errors),
    }


def row_of(query: str, given: Input, taken: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the figures of a query."""
    read = set(nexmark(str(given.data), [query], bounds=given.bounds).order) & set(KINDS)
    rows = sum(given.rows[kind] for kind in read)
    middles = {name: common.middle(s) for name, s in taken.items()}
    per_second = {name: round(rows / s) for name, s in middles.items()}
    return {"query": query, "rows": rows, "seconds": middles, "rows_per_s": per_second}


if __name__ == "__main__":
    sys.exit(main())
