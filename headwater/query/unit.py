"""A unit as one streaming query: its inputs, its operators, its outputs in one pass.

Event time crosses zones as follows. A channel's log carries a *frontier*: no row after it has an event
time up to it. A unit that reads several logs gets, once per batch, a punctuation row with the
least frontier of them all, and takes its watermark from that column alone (``__wm``), not from
the rows: a fast zone's rows cannot make a slow zone's late. Likewise each location that a unit reads has a
watermark of its own, and the least of them counts. When all its input has ended, the frontier is the end of
time, and every window closes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.adapt.model import waits_for_time
from headwater.channels.catchupinput import CatchUpInput
from headwater.channels.channel_spark import ChannelSource
from headwater.channels.channelspec import lineage_of
from headwater.connectors.marks import CORRUPT
from headwater.connectors.sources import (
    can_be_malformed,
    dead_letter_columns,
    every_field_parsed,
    source_frame,
    well_formed,
)
from headwater.connectors.sparkformats import own_format
from headwater.connectors.sparksql import column_of, expression, items
from headwater.connectors.writers import DEAD_LETTERS
from headwater.dataflow import operators as ops
from headwater.dataflow import sources, stateful
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.sinks import JdbcSink, RealTimeKafkaSink, Sink
from headwater.dataflow.types import StreamType
from headwater.disk.layout import Layout
from headwater.plan.content import source_locations
from headwater.plan.onepass import one_pass, steps
from headwater.plan.realtime import real_time_sink
from headwater.plan.spec import UnitSpec
from headwater.query import compile
from headwater.query.corrupt import DEAD, GOOD, PASSED, past, read_whole
from headwater.query.counting import (
    TAGS,
    Counting,
    Read,
    WatermarkInput,
    lag_of,
    rejects_of,
    rows_of,
    time_of,
)
from headwater.query.fanout import tagged
from headwater.query.ingest import Inputs
from headwater.query.late import late_of, rows_by_close
from headwater.query.latency import LatencyTracking
from headwater.query.names import (
    apart,
    lift_file,
    name_of_channels,
    names_of_source,
    replayed_of,
    source_name,
)
from headwater.query.observed import observed_operators
from headwater.query.realtime import letters_alone, to_topics
from headwater.query.sinkwriters import described
from headwater.query.writer import TAG, tag_column
from headwater.sql.lexer import quote_string, quoted
from headwater.tracing.spans import sampled_share

WATERMARK = "__wm"
_BY_ROW = (*ops.STATELESS_SQL, ops.Explode, ops.MapBatches, ops.Transform, Lookup)
BEGINNING_OF_TIME, END_OF_TIME = "1970-01-01T00:00:00Z", "9999-01-01T00:00:00Z"


@dataclass(frozen=True)
class CompiledUnit:
    """A unit's frame, ready to be started, and its sink writers."""

    frame: DataFrame
    sink_writers: tuple[dict[str, Any], ...]
    spark_sink: JdbcSink | RealTimeKafkaSink | None
    controlled: bool
    """Whether the end of its input must be signalled through its control directory."""
    reads: Mapping[str, int]
    """How often it reads each of its sources and channels."""
    scans: int
    """How often it reads its sources at most."""
    counting: Counting
    """Counters of its operators' rows."""
    replayed: frozenset[str]
    """The sources whose replayed records it reads."""
    updates: bool = False
    """Whether it outputs results as they change."""
    one_channel: bool = False
    """Whether it reads one channel once and nothing else, so that this source can tell when a batch begins."""


class UnitCompiler:
    """Compile one unit to a streaming query."""

    def __init__(
        self,
        spec: UnitSpec,
        spark: SparkSession,
        layout: Layout,
        channel: dict[str, Any],
        parallelism: int,
        *,
        tables: Mapping[str, Path],
        measure: bool = True,
        catches_up: bool = False,
    ) -> None:
        """``catches_up``: the unit first repeats the batches of another; see ``disk.catchup``."""
        self._spec = spec
        self._flow = spec.flow
        self._unit = spec.unit
        self._spark = spark
        self._layout = layout
        self._channel = channel
        self._parallelism = parallelism
        self._tables = tables
        self._controlled = False
        self._reads: Counter[str] = Counter()
        self._replayed: set[str] = set()
        self._measure = measure
        self._catches_up = catches_up
        self._counting = Counting()
        self._late: set[str] = set()
        self._served = one_pass(spec.flow, spec.unit.operators, spec.unit.outputs)
        scans = frozenset(self._served.scans) if self._served is not None else frozenset[str]()
        self._points = observed_operators(spec, scans=scans, past=self._past()) if measure else frozenset()
        times = (spec.flow.types[i].event_time for i in (*spec.flow.given, *spec.unit.operators))
        self._is_real_time = real_time_sink(spec.flow, spec.unit.operators) is not None
        self._may_idle = any(time is not None and time.idle_after is not None for time in times)

    def compile(self) -> CompiledUnit:
        """Compile inputs, operators and outputs."""
        outputs = self._unit.outputs
        last = self._flow[outputs[0]]
        frame: DataFrame
        sink_writers: list[dict[str, Any]] = []
        sink: JdbcSink | RealTimeKafkaSink | None = None
        if isinstance(last, JdbcSink):
            frame, sink = self._frame(last.inputs[0]), last
        else:
            if isinstance(last, RealTimeKafkaSink):
                frame, sink = self._real_time(last), last
            else:
                frame, sink_writers = self._routed()
            self._counting.outputs = list(outputs)
        counting = self._counting if self._measure else Counting(inputs=self._counting.inputs)
        replayed = frozenset(self._replayed)
        updates = any(stateful.updates(self._flow[i]) for i in self._unit.operators)
        return CompiledUnit(
            frame,
            tuple(sink_writers),
            sink,
            controlled=self._controlled,
            reads={id_: times for id_, times in self._reads.items() if self._is_input(id_)},
            scans=self._scans(),
            counting=counting,
            replayed=replayed,
            updates=updates,
            one_channel=not self._controlled and [read.location for read in counting.reads] == [None],
        )

    def _is_input(self, id_: str) -> bool:
        return id_ not in self._flow or isinstance(self._flow[id_], sources.Source)

    def _scans(self) -> int:
        return max((self._reads[s.id] for s in self._sources()), default=1)

    # ------------------------------------------------------------ counters

    def _count(self, frame: DataFrame, name: str, *conditions: str) -> DataFrame:
        """Make the query count a frame's rows: all, or for each condition those that meet it."""
        if not self._measure:
            return frame
        counts = [F.count_if(expression(c)) for c in conditions] or [F.count(F.lit(1))]
        return frame.observe(name, *(count.alias(f"c{n}") for n, count in enumerate(counts)))

    # ------------------------------------------------------------ inputs and operators

    def _frame(self, id_: str, *, whole: bool = False) -> DataFrame:
        """Return the stream of an operator, computed or read from a channel, with its rows counted once.

        ``whole``: also the rows of other locations, where it is read from a channel.
        """
        frame = self._made(id_) if id_ in self._flow else self._read_channel(id_, whole=whole)
        if id_ not in self._points or id_ in self._counting.observed:
            return frame
        self._counting.observed.append(id_)
        return self._count(frame, rows_of(id_))

    def _made(self, id_: str) -> DataFrame:
        """Build the stream of an operator.

        Where two branches meet again, each has its own copy of their common part, down to the reads:
        a Spark query over Connect cannot use one read twice.
        """
        operator = self._flow[id_]
        if isinstance(operator, sources.Source):
            return _united(self._read_parts(operator))
        if isinstance(operator, ops.Watermark):
            parts, begin = [], len(self._counting.reads)
            for part in self._by_read(operator.inputs[0]):
                parts.append(self._watermark(operator, part, begin))
                begin = len(self._counting.reads)
            return _united(parts)
        frames = [self._frame(i, whole=isinstance(operator, ops.ToLocations)) for i in operator.inputs]
        types = [self._flow.types[i] for i in operator.inputs]
        if isinstance(operator, stateful.Aggregate):
            frames = [self._with_late(operator, frames[0], types[0])]
        made = self._applied(operator, frames, types)
        keeps_columns = isinstance(operator, stateful.Aggregate | stateful.Join)
        return compile.whole(made, self._flow.types[id_]) if keeps_columns else made

    def _applied(self, operator: ops.Operator, frames: list[DataFrame], types: list[StreamType]) -> DataFrame:
        def rows(lookup: Lookup) -> DataFrame:
            return self._spark.read.parquet(str(self._tables[lookup.id]))

        here = self._unit.locations
        return compile.apply(operator, frames, types, streaming=True, locations=here, tables=rows)

    def _with_late(self, operator: stateful.Aggregate, frame: DataFrame, type_: StreamType) -> DataFrame:
        """Observe the late rows in front of an aggregate; behind another stateful operator no row is late."""
        above = [i for i in operator.inputs if i in self._flow]
        for id_ in above:
            above += [i for i in self._flow[id_].inputs if i in self._flow and i not in above]
        if not self._measure or operator.id in self._late or any(self._flow[i].stateful for i in above):
            return frame
        self._late.add(operator.id)
        return frame.observe(late_of(operator.id), rows_by_close(operator, type_).alias("rows"))

    def _by_read(self, id_: str) -> Iterator[DataFrame]:
        """Yield the stream of an operator, split by the reads of sources that it comes from.

        Each part gets a watermark of its own, and Spark takes their minimum: rows of one location are not late
        because another location is ahead. Operators on several rows, and rows read from a channel, are not
        split.
        """
        if id_ not in self._flow or not isinstance(self._flow[id_], (sources.Source, ops.Union, *_BY_ROW)):
            yield self._frame(id_)
            return
        operator = self._flow[id_]
        if isinstance(operator, sources.Source):
            parts = self._read_parts(operator)
        elif isinstance(operator, ops.Union):
            parts = (part for i in operator.inputs for part in self._by_read(i))
        else:
            types = [self._flow.types[operator.inputs[0]]]
            parts = (self._applied(operator, [f], types) for f in self._by_read(operator.inputs[0]))
        if id_ not in self._points or id_ in self._counting.observed:
            yield from parts
            return
        self._counting.observed.append(id_)
        for number, part in enumerate(parts):
            yield self._count(part, rows_of(id_, number))

    def _again(self, id_: str) -> str:
        """Count another read of a source or channel; return the suffix of its name."""
        self._reads[id_] += 1
        return "" if self._reads[id_] == 1 else f"_{self._reads[id_]}"

    def _raw_sources(self, source: sources.Source) -> Iterator[tuple[str, DataFrame]]:
        """Yield the source's stream at each location the unit covers, malformed records included."""
        again = self._again(source.id)
        for location, name in names_of_source(self._spec, source).items():
            spool = self._layout.spool(source.id, self._spec.tags[source.id], location) / "members.json"
            name += apart(again)
            counts = not again and source.id not in self._points
            self._counting.reads.append(Read(source.id, location, counts))
            replayed = replayed_of(self._layout, source)
            if replayed is not None:
                self._replayed.add(source.id)
                self._counting.reads.append(Read(source.id, location, counts, replayed=True))
            frame = source_frame(
                self._spark,
                source,
                location,
                name=name,
                spool=spool,
                synced=self._synced(),
                replayed=replayed,
                limit=None if self._is_real_time else self._channel.get("max_rows_per_batch"),
                lag=lag_of(source.id, location) if self._is_real_time and not again else None,
            )
            yield location, frame

    def _read_parts(self, source: sources.Source) -> Iterator[DataFrame]:
        """Yield the well-formed records of a source at each location."""
        for _, frame in self._raw_sources(source):
            yield well_formed(frame, source.schema()) if can_be_malformed(source) else frame

    def _read_channel(self, id_: str, *, whole: bool) -> DataFrame:
        type_ = self._flow.types[id_]
        again = self._again(id_)
        punctuate = self._spec.is_punctuated(id_)
        counts = not again and not punctuate and id_ not in self._points
        self._counting.reads.append(Read(id_, counts=counts))
        reader = (
            self._spark.readStream.name(name_of_channels(self._spec, id_) + again)
            .format(own_format(self._spark, ChannelSource))
            .option("members", str(self._layout.members(self._unit, id_)))
            .option("reader", f"{self._unit.checkpoint}{again}")
            .option("schema", type_.schema.text)
            .option("parallelism", str(self._parallelism))
            .option("punctuate", str(punctuate).lower())
            .option("at_once", "true")
            .option("again", str(punctuate and not self._needs_state()).lower())
            .option("lifted", str(punctuate and self._may_idle).lower())
        )
        if "max_rows_per_batch" in self._channel:
            reader = reader.option("max_rows_per_batch", str(self._channel["max_rows_per_batch"]))
        if (synced := self._synced()) is not None:
            reader = reader.option("checkpoint", str(synced))
        if len(self._reads) == 1 and not again:  # it waits for the begin of a batch on behalf of all
            reader = reader.option("pace", str(self._layout.pace(self._unit)))
        if self._catches_up:
            reader = reader.option("catch_up", self._catch_up(id_, again))
        frame = reader.load()
        frame = self._timed(frame, type_, "0 seconds") if punctuate else compile.mark(frame, type_)
        part = self._unit.part
        if part is not None:
            # After the watermark: every part needs the punctuation.
            share = f"pmod(xxhash64({quoted(part.column)}), {part.count}) = {part.index}"
            frame = frame.where(expression(share))
        if not whole and (column := self._spec.located.get(id_)) is not None:
            frame = frame.where(expression(compile.at_locations(column, self._unit.locations)))
        return frame

    def _catch_up(self, id_: str, again: str) -> str:
        """Describe the input to the reader of a unit that repeats the batches of another one."""
        layout, unit = self._layout, self._unit
        name = name_of_channels(self._spec, id_) + again
        return CatchUpInput.option(layout.catch_up(unit), layout.checkpoint(unit), name)

    def _synced(self) -> Path | None:
        """Return the checkpoint if it is to be synced before input is deleted."""
        return self._layout.checkpoint(self._unit) if self._channel.get("fsync", True) else None

    def _watermark(
        self, operator: ops.Watermark, frame: DataFrame, begin: int, also: tuple[str, ...] = ()
    ) -> DataFrame:
        """Take the watermark from the rows' own event time, and from the signals in the control directory.

        Signals are read with the columns of the stream, which they lack. From columns that are a literal NULL in a
        batch, Spark infers that rows on the other side of a join can be left out, also those that belong to its state.

        ``begin``: the number of the first read that the frame comes from. ``also``: columns beside those of the stream.
        """
        if not self._spec.needs_watermark:
            return frame
        if self._is_real_time:
            return frame.withWatermark(operator.column, compile.span(operator.duration(operator.delay, "delay")))
        self._controlled = True
        directory = self._layout.control(self._unit)
        directory.mkdir(parents=True, exist_ok=True)
        files = "end-*,again-*"
        if self._may_idle or operator.history is not None:
            input_ = self._watermark_input(operator, begin)
            files += f",{lift_file(input_, '*')}"
            if self._may_idle:
                newest = F.max(F.unix_micros(column_of(operator.column)))
                frame = frame.observe(time_of(input_.name), newest.alias("newest"))
        type_ = self._flow.types[operator.id]
        end = (
            self._spark.readStream.name(source_name(f"e_{self._spec.tags[operator.id]}{self._again(operator.id)}"))
            .schema(f"{type_.schema.text}, {quoted(WATERMARK)} timestamp")
            .option("columnNameOfCorruptRecord", CORRUPT)
            .option("pathGlobFilter", f"{{{files}}}.json")
            .json(str(directory))
        )
        self._counting.reads.append(Read(operator.id, counts=False))
        unordered = operator.history == "unordered"
        own_time = F.lit(None).cast("timestamp") if unordered else column_of(operator.column)
        timed = frame.withColumn(WATERMARK, own_time)
        both = timed.unionByName(end, allowMissingColumns=bool(also))
        delay = compile.span(operator.duration(operator.delay, "delay"))
        return self._timed(both, type_, delay, also)

    def _watermark_input(self, operator: ops.Watermark, begin: int) -> WatermarkInput:
        """Describe the input that the watermark's frame comes from."""
        reads = range(begin, len(self._counting.reads))
        first = self._counting.reads[begin]
        location = first.location or first.operator
        time = self._flow.types[operator.id].event_time
        assert time is not None
        name = source_name(f"{operator.id}_{first.operator}_{location}")
        known = {i.name for i in self._counting.inputs}
        while name in known:  # a stream that is read again, behind the same watermark
            name += "_"
        source = None
        if operator.history is not None:
            read = self._flow[operator.inputs[0]]
            assert isinstance(read, sources.Source) and first.location is not None
            source = names_of_source(self._spec, read)[first.location]
        input_ = WatermarkInput(name, location, tuple(reads), time.delay, time.idle_after, source)
        self._counting.inputs.append(input_)
        return input_

    def _timed(self, frame: DataFrame, type_: StreamType, delay: str, also: tuple[str, ...] = ()) -> DataFrame:
        """Take the watermark from ``__wm``, drop punctuation, and mark the event-time column for Spark.

        The condition stays where it is because it is not deterministic to Spark's optimizer, and so
        does every filter after it: pushed below the watermark, they would drop the punctuation.
        """
        kept = (
            f"({WATERMARK} IS NULL OR {WATERMARK} < timestamp'{END_OF_TIME}') "
            f"AND NOT ({self._is_punctuation(type_)}) AND spark_partition_id() >= 0"
        )
        rows = frame.withWatermark(WATERMARK, delay).where(expression(kept))
        return compile.mark(rows.drop(WATERMARK), type_, also)

    def _is_punctuation(self, type_: StreamType) -> str:
        assert type_.event_time is not None
        return f"{quoted(WATERMARK)} IS NOT NULL AND {quoted(type_.event_time.column)} IS NULL"

    # ------------------------------------------------------------ outputs

    def _routed(self) -> tuple[DataFrame, list[dict[str, Any]]]:
        """Return the frame of tagged rows, and the sink writers' descriptions."""
        outputs = self._unit.outputs
        sink_writers = [self._sink_writer(tag, id_) for tag, id_ in enumerate(outputs)]
        texts = [s for s in self._sources() if can_be_malformed(s)]
        if texts:
            sink_writers.append(
                {
                    "tag": len(outputs),
                    "kind": DEAD_LETTERS,
                    "path": str(self._layout.dead_letters(self._unit)),
                    "unit": self._unit.id,
                    "zone": self._unit.zone,
                    "lineage": lineage_of(self._layout.checkpoint(self._unit)),
                    "options": {s.id: dict(s.record_options) for s in texts},
                }
            )
        if len(sink_writers) == 1:
            return self._only(outputs[0]), sink_writers
        way = self._past()
        if way is not None:
            return self._in_one_read(texts[0], way), sink_writers
        frame = self._fan_out()
        for source in texts:
            for location, raw in self._raw_sources(source):
                dead = self._rejected(self._dead(source, location, raw), source, location, tag_column(len(outputs)))
                frame = frame.unionByName(dead, allowMissingColumns=True)
        return frame, sink_writers

    def _real_time(self, sink: RealTimeKafkaSink) -> DataFrame:
        """Return the rows of a sink in real-time mode, and dead letters, with their topics."""
        schema = self._flow.types[sink.inputs[0]].schema
        texts = [s for s in self._sources() if can_be_malformed(s)]
        way = self._past()
        if way is not None:
            routed = self._passed_around(texts[0], way)
            return to_topics(self._rejected_everywhere(routed, texts[0], quoted(DEAD)), sink, schema)
        frame = to_topics(self._frame(sink.inputs[0]), sink, schema)
        for source in texts:
            for location, raw in self._raw_sources(source):
                letters = letters_alone(read_whole(raw, source, location), schema)
                letters = self._rejected(letters, source, location, quoted(DEAD))
                frame = frame.unionByName(to_topics(letters, sink, schema))
        return frame

    def _sources(self) -> list[sources.Source]:
        return [o for i in self._unit.operators if isinstance(o := self._flow[i], sources.Source)]

    def _fan_out(self) -> DataFrame:
        """Tag the rows of each output, computed from the trunk in one pass."""
        outputs, served = self._unit.outputs, self._served
        if served is None or (len(outputs) == 1 and not served.scans):
            names = self._flow.types[outputs[0]].schema.names
            return self._frame(outputs[0]).select(F.lit(0).alias(TAG), _whole(names).alias(tag_column(0)))
        base = self._frame(served.root)
        routed = tagged(self._flow, served, outputs, base, self._counted)
        return self._tags_counted(routed)

    def _only(self, output: str) -> DataFrame:
        """Return the rows of a single output, without a tag."""
        if self._served is None or not self._served.scans:
            return self._frame(output)
        return self._fan_out().select(f"{tag_column(0)}.*")

    def _counted(self, frame: DataFrame, scan: str, condition: str) -> DataFrame:
        """Make the query count the rows of one of several scans."""
        self._counting.observed.append(scan)
        return self._count(frame, rows_of(scan), condition)

    def _rejected(self, frame: DataFrame, source: sources.Source, location: str, letter: str) -> DataFrame:
        """Make the query count the malformed records of a source at a location; ``letter``: their column."""
        self._counting.rejects.append((source.id, location))
        condition = f"{letter}.location = {quote_string(location)}"
        return self._count(frame, rejects_of(source.id, location), condition)

    def _rejected_everywhere(self, frame: DataFrame, source: sources.Source, letter: str) -> DataFrame:
        """Make the query count the malformed records of a source at each location that it has read."""
        for place in dict.fromkeys(r.location for r in self._counting.reads if r.operator == source.id):
            frame = self._rejected(frame, source, str(place), letter)
        return frame

    def _past(self) -> list[ops.Operator] | None:
        """Return the operators from a single text source to the root, if malformed records can be passed around all."""
        own = self._sources()
        if self._served is None or len(own) != 1 or not can_be_malformed(own[0]):
            return None
        return steps(self._flow, own[0].id, self._served.root, beside=PASSED)

    def _in_one_read(self, source: sources.Source, way: list[ops.Operator]) -> DataFrame:
        """Route rows and malformed records of a single text source with one read."""
        assert self._served is not None
        frame = self._passed_around(source, way)
        outputs = self._unit.outputs
        routed = tagged(self._flow, self._served, outputs, frame, self._counted, corrupt=True)
        if len(outputs) > 1:
            routed = self._tags_counted(routed)
        return self._rejected_everywhere(routed, source, tag_column(len(outputs)))

    def _passed_around(self, source: sources.Source, way: list[ops.Operator]) -> DataFrame:
        """Pass malformed records of a single text source around the operators of a way."""
        # The steps up to the watermark are taken for each location by itself, as in ``_by_read``.
        timed = next((n + 1 for n, step in enumerate(way) if isinstance(step, ops.Watermark)), 0)
        parts, begin = [], len(self._counting.reads)
        for number, (location, raw) in enumerate(self._raw_sources(source)):
            part = read_whole(raw, source, location)
            for step in way[:timed]:
                part = self._step(step, part, number, begin)
            parts.append(part)
            begin = len(self._counting.reads)
        frame = _united(parts)
        for step in way[timed:]:
            frame = self._step(step, frame)
        return frame

    def _step(self, step: ops.Operator, frame: DataFrame, number: int = 0, begin: int = 0) -> DataFrame:
        """Take an operator's step with the rows of one read, past malformed records."""
        if isinstance(step, ops.Watermark):
            frame = self._watermark(step, frame, begin, also=(CORRUPT, DEAD))
        elif not isinstance(step, Sink):
            frame = past(step, frame, self._flow.types[step.inputs[0]].schema)
        if step.id not in self._points:
            return frame
        if number == 0:
            self._counting.observed.append(step.id)
        return self._count(frame, rows_of(step.id, number), GOOD)

    def _tags_counted(self, routed: DataFrame) -> DataFrame:
        return self._count(routed, TAGS, *(f"{TAG} = {tag}" for tag in range(len(self._unit.outputs))))

    def _needs_state(self) -> bool:
        return any(self._flow[i].stateful for i in self._unit.operators)

    def _dead(self, source: sources.Source, location: str, raw: DataFrame) -> DataFrame:
        tag = len(self._unit.outputs)
        every = every_field_parsed(source.schema())
        bad = raw.where(expression(f"{CORRUPT} IS NOT NULL AND {every}"))
        row = f"struct({', '.join(dead_letter_columns(source, location))})"
        return bad.select(*items(f"{tag} AS {TAG}", f"{row} AS {tag_column(tag)}"))

    def _sink_writer(self, tag: int, id_: str) -> dict[str, Any]:
        """Describe the sink writer of an output."""
        return {"tag": tag, **described(self._spec, id_, self._layout, self._channel)}


def tracking_of(spec: UnitSpec, layout: Layout) -> LatencyTracking:
    """Return the latency tracking of a unit's query: its inputs, and its file."""
    unit = spec.unit
    members = [layout.members(unit, id_) for id_ in spec.own_readers]
    for id_, locations in source_locations(spec.flow, unit).items():
        if isinstance(spec.flow[id_], sources.BridgedSource):
            members += [layout.spool(id_, spec.tags[id_], at) / "members.json" for at in locations]
    late = any(waits_for_time(spec.flow[o]) for o in unit.operators)
    inputs = Inputs(layout.checkpoint(unit), tuple(members))
    return LatencyTracking(inputs, layout.passed(unit), late, f"{spec.deployment}/{unit.id}", sampled_share())


def _united(frames: Iterable[DataFrame]) -> DataFrame:
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def _whole(columns: Sequence[str]) -> Any:
    return F.struct(*(column_of(c) for c in columns))
