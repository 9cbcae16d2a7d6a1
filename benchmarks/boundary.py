"""Bytes over each link: all to the cloud, by the dataflow's marks, as the optimiser chooses, and the least possible.

Dataflows run to their end on one Spark, in the same process, over zones whose links are metered, and declared as thin
(``BANDWIDTH``), so that channels choose the smallest encoding whatever else the machine does: the Acme
demonstration, the taxi query, the pipeline of the FlowUnits paper, the Nexmark queries (in the quick form, a few), and
a dataflow of ``riot21`` (others by ``--flows``), with marks that put parsing and filters beside the sensors. The
optimiser knows how many rows each operator takes and gives, and how many bytes they take in a channel. The sinks of
every variant are compared with one batch run before a figure counts.

* ``all_to_cloud``: sources and declarations of event time below, everything else in the cloud
* ``by_marks``: layers as marked; ``marks_rewritten``: the same with ``--rewrite`` (not in the quick form)
* ``optimised``: without marks, with ``--rewrite``
* ``bound``: what the cloud must at least be told: the rows of the sink from which all results follow, in one batch for
  each link, as they come or sorted, in the smaller of two forms: Arrow's, compressed by zstd at its highest level, and
  a channel's blocks at that level. No placement sends less without knowing the data. A row crosses the links above its
  location: results have a column of that name, or are those of each location by itself put together. Others have no
  bound for a single link: all of them cross each level of the tree, wherever they are from.

    python -m benchmarks.boundary [--quick] [--json FILE] [--flows NAME ...]

The JSON has a row for each dataflow and link, and one for all links (``"link": "all"``).
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common
from benchmarks.reuse.workloads import workload
from examples.nexmark.flow import QUERIES
from headwater.channels.blocks import encode_block
from headwater.channels.linkstream import LEVELS
from headwater.channels.repetition import repeated_share, split_by
from headwater.channels.segments import conformed
from headwater.continuum.model import Continuum
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Operator, Watermark
from headwater.dataflow.sinks import MemorySink, Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.stateful import Scan
from headwater.plan.build import build, in_layers
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import optimise
from headwater.plan.profile import OperatorProfile, Profile
from headwater.rewrite.rules import RULES

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.filelog import FileLog
    from headwater.spark.endpoint import LocalEndpoint

VARIANTS = ("all_to_cloud", "by_marks", "marks_rewritten", "optimised")
LEVEL = 19  # of zstd
BANDWIDTH = "10kbit/s"  # of all links
SAMPLE = 20_000  # rows of an operator whose bytes in a channel are measured
BLOCKS = 15  # of these rows: three files of each of five locations
READER = "benchmark"
"""Keeps the entries of the channels that cross links."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A dataflow with its zones, and the sinks from which all results follow."""

    flow: Dataflow
    continuum: Continuum
    tells: tuple[str, ...]

    @property
    def locations(self) -> tuple[str, ...]:
        """The locations of the dataflow."""
        return self.flow.locations or self.continuum.locations


def acme(place: Path, *, quick: bool) -> Case:
    """Return the Acme demonstration over generated readings."""
    from headwater.dataflow.sensors import SensorModel
    from headwater.demo import flow as demo
    from headwater.demo.data import sensor_series, write_steps

    series = sensor_series(SensorModel(seed=2, machines=2), demo.LOCATIONS, days=7 if quick else 60)
    for location in demo.LOCATIONS:
        (place / location).mkdir(parents=True)
    for _ in write_steps(place, series, files=3):
        pass
    return Case(
        flow=demo.acme(str(place)),
        continuum=Continuum.from_yaml(demo.CONTINUUM),
        tells=("alarm_list",),
    )


def taxi(place: Path, *, quick: bool) -> Case:
    """Return StrIoT's query over generated trips."""
    from examples.taxi.flow import HERE
    from examples.taxi.flow import taxi as query
    from examples.taxi.generate import write_files

    (place / "nyc").mkdir(parents=True)
    for _ in write_files(place / "nyc", rows=10_000 if quick else 100_000, per_file=5_000 if quick else 25_000):
        pass
    return Case(
        flow=query(str(place), None, name="taxi"),
        continuum=Continuum.from_yaml(HERE / "continuum.yaml"),
        tells=("result",),
    )


def flowunits(place: Path, *, quick: bool) -> Case:
    """Return the paper's pipeline over numbers, its results in memory."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.flowunits.flow import pipeline
    from benchmarks.flowunits.workload import EDGES, Burst, continuum_text, whole

    burst = Burst(0, whole(60_000 if quick else 1_200_000))
    for edge, location in EDGES.items():
        first, count = burst.share(edge)
        (place / location).mkdir(parents=True)
        parts = np.array_split(np.arange(first, first + count, dtype="int64"), 3)
        for number, part in enumerate(parts):
            file = place / location / f"{number}.parquet"
            pq.write_table(pa.table({"i": part}), file)
            os.utime(file, (number, number))  # Spark reads files in the order of their times: windows count rows
    return Case(
        flow=pipeline(str(place / "{location}"), lambda found: found.write.memory("result"), batch_rows=burst.rows),
        continuum=Continuum.from_text(continuum_text()),
        tells=("result",),
    )


def nexmark(query: str, place: Path, *, quick: bool) -> Case:
    """Return one of the Nexmark queries over generated events."""
    from examples.nexmark.flow import HERE
    from examples.nexmark.flow import nexmark as dataflow
    from examples.nexmark.generate import Workload, write_files

    workload = Workload()
    for at, file in enumerate(write_files(place, 20_000 if quick else 200_000, workload, files=3)):
        os.utime(file, (at, at))
    return Case(
        flow=dataflow(str(place), [query], bounds=workload.bounds, name=f"nexmark-{query}"),
        continuum=Continuum.from_yaml(HERE / "continuum.yaml"),
        tells=(query,),
    )


CITY = """
name: city
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [city]}
"""


def riot(name: str, place: Path, *, quick: bool) -> Case:
    """Return a dataflow of ``riot21`` over generated packs, its results in memory."""
    from benchmarks.reuse.city import PackFeed, dataflow

    (graph,) = (one for one in workload("riot21") if one.name == name)
    feed = PackFeed(place / "in", 1.0)
    for stream in sorted({kind.removeprefix("source:") for kind, _ in graph.tasks.values() if kind[:7] == "source:"}):
        for number in range(1, 4):
            feed.write(stream, number, 400 if quick else 4_000, 1_783_000_000.0 + 60 * number)
            os.utime(place / "in" / stream / f"{number:08d}.json", (number, number))
    flow = dataflow(graph, place)
    found: list[Operator] = []
    for operator in flow.operators:
        made = MemorySink(id=operator.id, inputs=operator.inputs) if isinstance(operator, Sink) else operator
        above = isinstance(operator, Sink | Scan)  # as an author marks: parsing and filters beside the sensors
        found.append(replace(made, layer="cloud" if above else None))
    return Case(
        flow=flow.with_operators(found),
        continuum=Continuum.from_text(CITY),
        tells=tuple(sink.id for sink in flow.sinks),
    )


CASES: Mapping[str, Callable[..., Case]] = {
    **{"acme": acme, "taxi": taxi, "flowunits": flowunits},
    **{f"nexmark-{query}": partial(nexmark, query) for query in QUERIES},
    **{graph.name: partial(riot, graph.name) for graph in workload("riot21")},
}
_OF_PAPERS = ("acme", "taxi", "flowunits", "riot21-18-taxi-stats-avg")
IN_QUICK = (*_OF_PAPERS, "nexmark-q8")
USUAL = (*_OF_PAPERS, *(f"nexmark-{query}" for query in QUERIES))


def usual_plans(case: Case) -> dict[str, DeploymentPlan]:
    """Return the plans without the optimiser."""
    flow, continuum = case.flow, case.continuum
    below = {o.id for o in flow.operators if isinstance(o, Source | Watermark)}
    for id_ in reversed(flow.order):
        below |= {id_} if any(isinstance(flow[c], Watermark) for c in flow.consumers[id_]) else set()
    lowest, top = continuum.layers[0].name, continuum.root.layer
    raw = in_layers(flow, continuum, {id_: lowest if id_ in below else top for id_ in flow.order})
    return {"all_to_cloud": build(flow, continuum, raw), "by_marks": build(flow, continuum)}


def chosen_plans(case: Case, profile: Profile, *, quick: bool) -> dict[str, DeploymentPlan]:
    """Return the plans that the optimiser chooses."""
    found = {}
    unmarked = replace(case.flow, operators=tuple(replace(o, layer=None) for o in case.flow.operators))
    starts = {"optimised": unmarked} if quick else {"marks_rewritten": case.flow, "optimised": unmarked}
    for name, start in starts.items():
        chosen = optimise(start, case.continuum, profile, RULES)
        for line in chosen.rewriting.words:
            say(f"{name}: {line}")
        found[name] = build(chosen.dataflow, case.continuum, chosen.deployment)
    return found


def profile_of(case: Case, endpoint: LocalEndpoint) -> Profile:
    """Return the selectivity of each operator, counted in one batch, and the bytes of its rows in a channel.

    Where a column tells the locations apart, also the share of bytes that they repeat of each other.
    """
    from headwater.testing.oracle import batch_frames

    flow = case.flow
    frames = {id_: frame.persist() for id_, frame in batch_frames(endpoint.session(), flow, case.continuum).items()}
    rows = {id_: frame.count() for id_, frame in frames.items()}
    operators = {}
    for id_ in flow.order:
        came = sum(rows[i] for i in flow[id_].inputs)
        selectivity, every = rows[id_] / came if came else 1.0, frames[id_].toArrow()
        operators[id_] = OperatorProfile(selectivity=selectivity)
        if every.num_rows:
            seen, located = every.slice(0, SAMPLE), sorted(flow.types[id_].located_by)
            size = bytes_of_row(seen)
            columns = {name: bytes_of_row(seen.select([name])) / size for name in seen.column_names}
            repeated = repeated_share(split_by(every, located, SAMPLE // 5)) if located else None
            operators[id_] = OperatorProfile(
                selectivity=selectivity, bytes_out=size, columns=columns, repeated=repeated
            )
    for frame in frames.values():
        frame.unpersist()
    return Profile(dataflow=flow.name, operators=operators)


def bytes_of_row(rows: pa.Table) -> float:
    """Return the bytes that a row takes in a channel, which gets a block for each location and batch."""
    rows, size = conformed(rows), math.ceil(rows.num_rows / BLOCKS)
    blocks = [rows.slice(begin, size) for begin in range(0, rows.num_rows, size)]
    return sum(len(encode_block(block.combine_chunks(), level=LEVELS[-1])) for block in blocks) / rows.num_rows


def measure(
    plan: DeploymentPlan, directory: Path, endpoint: LocalEndpoint, expected: Mapping[str, pa.Table]
) -> dict[str, int]:
    """Run a plan to its end; return the bytes over each link. Raise RuntimeFailure if its results are wrong.

    A run on one machine has no links: the bytes are those of the streams that another zone would get.
    """
    from headwater.app.local import LocalRun
    from headwater.app.running import RunSettings, run
    from headwater.channels.filelog import FileLog
    from headwater.disk.layout import Layout
    from headwater.testing import compare

    layout = Layout(directory.resolve())
    crossing = {channel.id: FileLog(layout.channel(channel)) for channel in plan.channels if channel.links}
    for log in crossing.values():
        log.register(READER)

    def at_end(deployment: LocalRun, spark: LocalEndpoint) -> dict[str, pa.Table]:
        return {sink.id: deployment.sink_rows(sink.id) for sink in plan.dataflow.sinks}

    settings = RunSettings(directory=directory, until_drained=True, trigger="100 milliseconds")
    outcome = run(plan, settings, endpoint=lambda: endpoint, at_end=at_end)
    assert isinstance(outcome.found, dict)
    for sink, rows in outcome.found.items():
        if difference := compare(expected[sink], rows):
            raise RuntimeFailure(
                f"'{sink}' differs from one batch run: {difference.examples}", where=plan.dataflow.name
            )
    found: dict[str, int] = {}
    operators = {channel.id: channel.operator for channel in plan.channels}
    sent = {id_: bytes_of_stream(log, plan.dataflow, operators[id_]) for id_, log in crossing.items()}
    for channel in plan.channels:
        for link in channel.links:
            found[link] = found.get(link, 0) + sent[channel.id]
    return found


def bytes_of_stream(log: FileLog, flow: Dataflow, operator: str) -> int:
    """Return the bytes of all rows of a log as another zone gets them: in one stream, from the beginning on."""
    from headwater.agent.relays import described_columns
    from headwater.channels.entrysender import EntrySender
    from headwater.channels.followed import Begin
    from headwater.channels.linkstream import description
    from headwater.channels.streamhistory import ReceivedHistory, SentHistories

    asked = ReceivedHistory(described_columns(flow, operator)).next_stream()
    schema = log.schema()
    history = SentHistories().begin(READER, asked, b"" if schema is None else description(schema))
    sender = EntrySender(expands=True, history=history)
    assert log.earliest() == 0, "entries are missing"
    messages = (m for entry in log.entries(0, log.latest()) for m in sender.send(log, entry, Begin()))
    return sum(len(m.part.data) for m in messages if m.part is not None)


def bounds(case: Case, links: list[str], rows: pa.Table, own: Mapping[str, pa.Table] | None) -> dict[str, int]:
    """Return the compressed bytes of the rows that come over each link, and over all of them.

    ``own``: the rows of each location; None if a row belongs to no single one.
    """
    import pyarrow as pa

    if own is None:
        lowest, root = case.continuum.layers[0].name, case.continuum.root.name
        zones = [case.continuum.covering(lowest, location) for location in case.locations]
        levels = {len(case.continuum.links_up(zone.name, root)) for zone in zones}
        assert len(levels) == 1, "locations of several depths"
        return {"all": levels.pop() * compressed(rows)}
    found = {}
    for zone in case.continuum.zones:
        if zone.link is not None:
            here = [own[location] for location in case.continuum.covered(zone.name) if location in own]
            found[zone.link.name] = compressed(pa.concat_tables([rows.slice(0, 0), *here]))
    return {**found, "all": sum(found.values())}


def rows_of_locations(
    case: Case, endpoint: LocalEndpoint, expected: Mapping[str, pa.Table]
) -> dict[str, dict[str, pa.Table]]:
    """Return the rows of each location, for each sink in ``tells`` of which a row belongs to a single one."""
    import pyarrow as pa

    from headwater.testing import batch_result, compare

    located = all("location" in expected[sink].column_names for sink in case.tells)
    alone = {
        location: batch_result(endpoint.session(), replace(case.flow, locations=(location,)), case.continuum)
        for location in (() if located else case.locations)
    }
    found = {}
    for sink in case.tells:
        rows = expected[sink]
        if "location" in rows.column_names:
            found[sink] = {name: rows.filter(pa.compute.equal(rows["location"], name)) for name in case.locations}
        else:
            own = {name: tables[sink].cast(rows.schema) for name, tables in alone.items()}
            if not compare(rows, pa.concat_tables(own.values())):
                found[sink] = own
    return found


def compressed(rows: pa.Table) -> int:
    """Return the least bytes of the rows, as they come or sorted, compressed."""
    import pyarrow as pa

    if not rows.num_rows:
        return 0
    sizes = []
    for ordered in (rows, rows.sort_by([(name, "ascending") for name in rows.column_names])):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ordered.schema) as writer:
            writer.write_table(ordered.combine_chunks())
        sizes.append(int(pa.Codec("zstd", LEVEL).compress(sink.getvalue()).size))
        sizes.append(len(encode_block(conformed(ordered), level=LEVEL)))
    return min(sizes)


def thin(continuum: Continuum) -> Continuum:
    """Return a continuum whose links have the bandwidth of this benchmark."""
    data: dict[str, Any] = dict(continuum.to_data())
    for zone in data["zones"].values():
        if "parent" in zone:
            zone["link"] = {**zone.get("link", {}), "bandwidth": BANDWIDTH}
    return Continuum.from_data(data)


def run_case(name: str, place: Path, endpoint: LocalEndpoint, *, quick: bool) -> list[dict[str, Any]]:
    """Run all variants of a dataflow; return one row for each link, and one for all of them."""
    from headwater.testing import batch_result

    case = CASES[name](place / "in", quick=quick)
    case = replace(case, continuum=thin(case.continuum))
    expected = batch_result(endpoint.session(), case.flow, case.continuum)
    if not all(table.num_rows for table in expected.values()):
        raise RuntimeFailure("a sink has no rows, which proves nothing", where=name)
    found: dict[str, dict[str, int]] = {}

    chosen = chosen_plans(case, profile_of(case, endpoint), quick=quick)
    for variant, plan in {**usual_plans(case), **chosen}.items():
        found[variant] = measure(plan, place / variant, endpoint, expected)
        say(f"{name} {variant}: {sum(found[variant].values()):,} bytes over all links, results right")
    links = [zone.link.name for zone in case.continuum.zones if zone.link is not None]
    own = rows_of_locations(case, endpoint, expected)
    of_sinks = [bounds(case, links, expected[sink], own.get(sink)) for sink in case.tells]
    least = {link: sum(of[link] for of in of_sinks) for link in (*links, "all") if all(link in of for of in of_sinks)}
    rows = []
    for link in links:
        sent = {variant: of.get(link, 0) for variant, of in found.items()}
        rows.append({"flow": name, "link": link, **sent, **({"bound": least[link]} if link in least else {})})
    total = {variant: sum(of.values()) for variant, of in found.items()}
    return [*rows, {"flow": name, "link": "all", **total, "bound": least["all"]}]


def say(text: str) -> None:
    """Print the progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the bytes."""
    names = [name for name in (*VARIANTS, "bound") if any(name in row for row in rows)]
    lines = [f"{'flow':<28} {'link':<10} " + " ".join(f"{name:>15}" for name in names)]
    for row in rows:
        shown = (f"{row[name]:>15,}" if name in row else f"{'-':>15}" for name in names)
        lines.append(f"{row['flow']:<28} {row['link']:<10} " + " ".join(shown))
    return "\n".join(lines)


def main() -> int:
    """Measure, print a table, write JSON."""
    made = common.arguments("Bytes over links, as marked and as the optimiser chooses", repeats=1)
    made.add_argument("--flows", nargs="+", choices=list(CASES), help="only these")
    options = made.parse_args()
    flows = options.flows or (IN_QUICK if options.quick else USUAL)
    facts = common.facts(quick=options.quick)
    rows: list[dict[str, Any]] = []
    from headwater.spark.endpoint import LocalEndpoint

    with tempfile.TemporaryDirectory(prefix="headwater-boundary-") as directory:
        place = Path(directory)
        root = (str(common.ROOT),)
        conf = {"spark.sql.shuffle.partitions": "1"}
        endpoint = LocalEndpoint.start(place / "spark", memory_mb=2048, python_path=root, extra_conf=conf, quick=True)
        try:
            for name in flows:
                rows += run_case(name, place / name, endpoint, quick=options.quick)
                common.write_result(options.json, {"rows": rows}, facts=facts)
        finally:
            endpoint.stop()
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
