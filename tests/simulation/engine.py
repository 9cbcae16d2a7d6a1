"""A row engine in place of Spark: micro-batches in plain Python, with the product's own source, sink and checkpoint.

A query keeps Spark's order of effects: the offset log, the tasks' output in staging, the state's new version, the
sink's commit, the commit log; the batch before is released when the next one is planned. Its checkpoint has the
form of Spark's, so the product saves it, puts it together and reads its positions. Its writes are taken to be on disk.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.channels.channel_spark import ChannelReader, Members
from headwater.connectors.sparktypes import spark_schema
from headwater.core.errors import HeadwaterError
from headwater.dataflow import operators as ops
from headwater.dataflow import sources, stateful
from headwater.dataflow.graph import Graph
from headwater.dataflow.sinks import Sink
from headwater.disk.checkpoint import newest_batch
from headwater.disk.layout import Layout
from headwater.plan.state import kept_state
from headwater.query.counting import Counting
from headwater.query.names import name_of_channels, names_of_source
from headwater.query.unit import CompiledUnit, UnitCompiler
from headwater.query.writer import HeadwaterSink, SinkMessage
from headwater.state.reshape import Reshaping
from tests.simulation.kernel import Kernel, Killed, Process

Row = dict[str, Any]
CONF = {"spark.sql.shuffle.partitions": "1"}
NO_FILES = {"logOffset": -1}
RETAINED = 10
"""Batches of which the checkpoint keeps the logs and the state."""


# ---------------------------------------------------------------- a Spark


class SimulatedSpark:
    """The Spark of a node: a process with queries, which outlives its agent."""

    def __init__(self, kernel: Kernel, start: Callable[[], Process]) -> None:
        self.kernel = kernel
        self._start = start
        self.process = start()
        self.starts = 1
        self.queries: list[Query] = []

    def begin_again(self) -> None:
        """Start the process again."""
        self.process = self._start()
        self.starts += 1
        self.queries = []

    @property
    def active(self) -> list[Query]:
        return [q for q in self.queries if q.isActive]


class SimulatedEndpoint:
    """An agent's connection to its node's Spark: an ``Endpoint``."""

    cores = 1
    processes: tuple[int, ...] = ()

    def __init__(self, spark: SimulatedSpark, directory: Path) -> None:
        self._spark = spark
        self.directory = directory
        self.attached = spark.process.alive
        self.streams = spark
        if not self.attached:
            spark.begin_again()

    @property
    def generation(self) -> str:
        return f"{self._spark.process.name} {self._spark.starts}"

    def session(self) -> SimulatedEndpoint:
        """Return the session: itself, whose ``streams`` are the queries."""
        return self

    @property
    def alive(self) -> bool:
        return self._spark.process.alive

    def restart(self) -> None:
        """Start Spark again."""
        self._spark.kernel.sleep(0.5)
        if not self._spark.process.alive:
            self._spark.begin_again()

    def stop(self) -> None:
        """End Spark."""
        self._spark.kernel.kill(self._spark.process)


# ---------------------------------------------------------------- compiling


class RowCompiler(UnitCompiler):
    """Compile a unit for the row engine; the sink writers' descriptions are the product's."""

    def __init__(
        self,
        spec: Any,
        spark: Any,
        layout: Layout,
        channel: Any,
        cores: int,
        *,
        tables: Any,
        measure: bool,
        catches_up: bool,
    ) -> None:
        assert not catches_up, "the engine of rows repeats no other unit's batches"
        super().__init__(spec, spark, layout, channel, cores, tables=tables, measure=False)

    def compile(self) -> CompiledUnit:
        """Return the unit's frame and its sink writers."""
        writers = tuple(self._sink_writer(tag, id_) for tag, id_ in enumerate(self._unit.outputs))
        frame: Any = Frame(self._spark, self._spec, self._layout, self._channel)
        return CompiledUnit(frame, writers, None, False, {}, 1, Counting(), frozenset())


@dataclass
class Frame:
    """A compiled unit, and the builder of its query."""

    session: SimulatedEndpoint
    spec: Any
    layout: Layout
    channel: Mapping[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def isStreaming(self) -> bool:  # noqa: N802 (as in PySpark)
        return True

    @property
    def writeStream(self) -> Frame:  # noqa: N802 (as in PySpark)
        return Frame(self.session, self.spec, self.layout, self.channel)

    def format(self, name: str) -> Frame:
        return self.option("format", name)

    def queryName(self, name: str) -> Frame:  # noqa: N802 (as in PySpark)
        return self.option("name", name)

    def outputMode(self, mode: str) -> Frame:  # noqa: N802 (as in PySpark)
        return self

    def option(self, name: str, value: Any) -> Frame:
        self.options[name] = value
        return self

    def trigger(self, *, processingTime: str) -> Frame:  # noqa: N803 (as in PySpark)
        return self

    def start(self) -> Query:
        """Start the query in Spark's process."""
        spark = self.session.streams
        query = Query(spark, self, self.options["name"])
        spark.queries.append(query)
        query.begin()
        return query


# ---------------------------------------------------------------- inputs


class ChannelInput:
    """The channels of an operator, read by the product's reader."""

    def __init__(self, spec: Any, layout: Layout, operator: str) -> None:
        self.name = name_of_channels(spec, operator)
        self.operator = operator
        file = str(layout.members(spec.unit, operator))
        schema = spark_schema(spec.flow.types[operator].schema.columns)
        members = Members(file, spec.unit.checkpoint, "quarantine")
        self._reader = ChannelReader(members, schema, punctuate=False, max_rows=None, parallelism=1, at_once=True)

    def begin(self) -> dict[str, int]:
        return self._reader.initialOffset()

    def newest(self, start: dict[str, int]) -> dict[str, int]:
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())

    def rows(self, start: dict[str, int] | None, end: dict[str, int]) -> Iterator[Row]:
        begin = start if start is not None else self.begin()
        for partition in self._reader.partitions(begin, end):
            for batch in self._reader.read(partition):
                yield from batch.to_pylist()

    def release(self, end: dict[str, int]) -> None:
        self._reader.commit(end)


class FileInput:
    """The files of a source at a location; its list of files has the form of Spark's."""

    def __init__(self, spec: Any, checkpoint: Path, operator: str, location: str, name: str) -> None:
        source = spec.flow[operator]
        self.name = name
        self.operator = operator
        self._source, self._location = source, location
        self._directory = Path(source.path.replace("{location}", location))
        self._log = checkpoint / "sources" / name
        self._listed: dict[int, list[Path]] = {}
        for file in sorted(self._log.glob("[0-9]*"), key=lambda f: int(f.name)):
            entries = [json.loads(line) for line in file.read_text().splitlines()[1:]]
            self._listed[int(file.name)] = [Path(e["path"].removeprefix("file://")) for e in entries]

    def begin(self) -> dict[str, int]:
        return NO_FILES

    def newest(self, start: dict[str, int]) -> dict[str, int]:
        seen = {p for files in self._listed.values() for p in files}
        newest = max(self._listed, default=-1)
        fresh = sorted(p for p in self._directory.glob("*.json") if p not in seen)
        if fresh:
            newest += 1
            entries = [
                json.dumps({"path": f"file://{p}", "timestamp": int(p.stat().st_mtime * 1000), "batchId": newest})
                for p in fresh
            ]
            write(self._log / str(newest), "\n".join(["v1", *entries]))
            self._listed[newest] = fresh
        return {"logOffset": newest}

    def rows(self, start: dict[str, int] | None, end: dict[str, int]) -> Iterator[Row]:
        for number in range((start or self.begin())["logOffset"] + 1, end["logOffset"] + 1):
            for file in self._listed[number]:
                for line in file.read_text().splitlines():
                    yield {**json.loads(line), self._source.location_as: self._location}

    def release(self, end: dict[str, int]) -> None:
        pass


# ---------------------------------------------------------------- operators


def evaluate(
    flow: Graph, operators: Sequence[str], given: Mapping[str, list[Row]], state: dict[str, dict[str, Any]]
) -> dict[str, list[Row]]:
    """Compute the rows of operators from given ones; ``state`` holds that of scans, by operator and key."""
    found = dict(given)
    for id_ in operators:
        if id_ in found:
            continue
        operator = flow[id_]
        inputs = [found[i] for i in operator.inputs]
        match operator:
            case sources.Source():
                found[id_] = []
            case ops.Where():
                found[id_] = [r for r in inputs[0] if eval(operator.condition, {}, r)]
            case ops.Union():
                found[id_] = [r for rows in inputs for r in rows]
            case stateful.Scan():
                found[id_] = list(_scanned(operator, inputs[0], state.setdefault(id_, {})))
            case Sink():
                found[id_] = inputs[0]
            case _:
                raise NotImplementedError(operator.kind)
    return found


def _scanned(operator: stateful.Scan, rows: Iterable[Row], state: dict[str, Any]) -> Iterator[Row]:
    function = operator.function.load()
    for row in sorted(rows, key=lambda r: [r[c] for c in operator.order_by]):
        key = json.dumps({k: row[k] for k in operator.keys})
        state[key], out = function(state.get(key, json.loads(operator.initial)), row)
        if out is not None:
            yield out


# ---------------------------------------------------------------- a query


class Query:
    """A streaming query: the part of PySpark's ``StreamingQuery`` that the product uses."""

    def __init__(self, spark: SimulatedSpark, frame: Frame, name: str) -> None:
        self.name = name
        self.spec = frame.spec
        self.id = str(uuid.uuid4())
        self.runId = str(uuid.uuid4())
        self.recentProgress: list[dict[str, Any]] = []
        self._spark, self._frame = spark, frame
        self._kernel, self._process = spark.kernel, spark.process
        self._checkpoint = Path(frame.options["checkpointLocation"])
        self._stopped = False
        self._error: str | None = None
        self._busy = False
        self._looks = 0
        """Rounds that have found nothing to do since the last batch."""
        self._began = False

    def begin(self) -> None:
        """Start the query's thread."""
        self._kernel.tell(f"query {self.name} of epoch {self.spec.unit.epoch} starts")
        self._kernel.spawn(self._process, self._run, f"query {self.name}")

    # -- PySpark's interface

    @property
    def isActive(self) -> bool:  # noqa: N802 (as in PySpark)
        return self._process.alive and not self._stopped and self._error is None

    @property
    def status(self) -> dict[str, Any]:
        message = "Initializing sources" if not self._began else "Waiting" if not self._busy else "Processing"
        return {"message": message, "isTriggerActive": self._busy}

    def exception(self) -> str | None:
        return self._error

    def stop(self) -> None:
        """End the query; what its thread does from now on has no effect."""
        self._kernel.tell(f"query {self.name} of epoch {self.spec.unit.epoch} stops")
        self._stopped = True

    def processAllAvailable(self) -> None:  # noqa: N802 (as in PySpark)
        """Wait until nothing is left to do."""
        before = self._looks
        while self.isActive and self._looks < before + 2:
            self._kernel.sleep(0.2)

    # -- batches

    def _run(self) -> None:
        try:
            self._work()
        except Stopped:
            pass
        except Killed:
            raise
        except HeadwaterError as error:
            self._error = f"headwater.core.errors.{type(error).__name__}: {error}"
        except Exception as error:
            import traceback

            where = traceback.extract_tb(error.__traceback__)[-1]
            self._error = f"Traceback (most recent call last):\n{where}\n{type(error).__name__}: {error}"
            if not isinstance(error, OSError):
                self._kernel.failures.append(f"{self.name}: {self._error}")

    def _go_on(self) -> None:
        if self._stopped:
            raise Stopped

    def _work(self) -> None:
        spec, layout, checkpoint = self.spec, self._frame.layout, self._checkpoint
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        inputs: list[ChannelInput | FileInput] = [ChannelInput(spec, layout, o) for o in spec.own_readers]
        for id_ in spec.unit.operators:
            if isinstance(source := spec.flow[id_], sources.Source):
                inputs += [
                    FileInput(spec, checkpoint, id_, location, name)
                    for location, name in names_of_source(spec, source).items()
                ]
        planned, done = newest_batch(checkpoint / "offsets"), newest_batch(checkpoint / "commits")
        at = self._offsets(done)
        self._begun_states(done)
        self._began = True
        if planned > done:
            ends = self._offsets(planned)
            self._batch(planned, inputs, at, ends)
            at = ends
            done = planned
        while True:
            self._go_on()
            starts = {i.name: at.get(i.name) for i in inputs}
            ends = {i.name: i.newest(s if (s := starts[i.name]) is not None else i.begin()) for i in inputs}
            ends = {name: end for name, end in ends.items() if end != NO_FILES}
            self._go_on()
            if any(end != starts[name] for name, end in ends.items()):
                self._busy = True
                self._plan(done + 1, ends)
                for one in inputs if done >= 0 else ():
                    if (end := at.get(one.name)) is not None:
                        one.release(end)
                self._batch(done + 1, inputs, at, ends)
                done, at, self._looks = done + 1, ends, 0
            self._busy = False
            self._looks += 1
            self._kernel.sleep(TRIGGER)

    def _offsets(self, batch: int) -> dict[str, dict[str, int]]:
        if batch < 0:
            return {}
        lines = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        return {name: json.loads(text) for name, _, text in (line.partition(":") for line in lines)}

    def _plan(self, batch: int, ends: Mapping[str, dict[str, int]]) -> None:
        header = {"batchWatermarkMs": 0, "batchTimestampMs": int(self._kernel.time() * 1000), "conf": CONF}
        lines = [f"{name}:{json.dumps(end)}" for name, end in ends.items()]
        write(self._checkpoint / "offsets" / str(batch), "\n".join(["v2", json.dumps(header), *lines]))
        for log in ("offsets", "commits"):
            if (old := self._checkpoint / log / str(batch - RETAINED)).exists():
                old.unlink(missing_ok=True)

    def _batch(
        self,
        batch: int,
        inputs: Sequence[ChannelInput | FileInput],
        at: Mapping[str, dict[str, int]],
        ends: Mapping[str, dict[str, int]],
    ) -> None:
        """Execute a planned batch."""
        self._busy = True
        began = self._kernel.time()
        spec = self.spec
        sink = HeadwaterSink({"config": self._frame.options["config"]})
        outputs = spec.unit.outputs
        schemas = [spec.flow.types[o].schema for o in outputs]
        writer = sink.streamWriter(_sink_schema(len(outputs), schemas), False)
        given: dict[str, list[Row]] = {}
        counts = {}
        for one in inputs:
            if one.name not in ends:
                continue
            rows = list(one.rows(at.get(one.name), ends[one.name]))
            counts[one.name] = len(rows)
            given.setdefault(one.operator, []).extend(rows)
        self._go_on()
        state = self._state(batch)
        rows_of = evaluate(
            spec.flow, spec.unit.operators, {**{operator: [] for operator in spec.own_readers}, **given}, state
        )
        segments = {}
        tasks = {tag: w.open() for tag, w in writer._sink_writers().items()}
        for tag, id_ in enumerate(outputs):
            arrow = to_arrow_schema(spark_schema(schemas[tag].columns), timezone="UTC")
            if rows_of[id_]:
                tasks[tag].write(pa.RecordBatch.from_pylist(rows_of[id_], schema=arrow))
            if (segment := tasks[tag].close()) is not None:
                segments[tag] = segment
        self._go_on()
        self._keep_state(batch, state)
        self._go_on()
        # The process that publishes outlives the query for a moment: a stopped query may still commit.
        writer.commit([SinkMessage(segments)], batch)
        self._go_on()
        write(self._checkpoint / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
        took = (self._kernel.time() - began) * 1000
        self.recentProgress = [
            *self.recentProgress[-29:],
            {
                "batchId": batch,
                "timestamp": datetime.fromtimestamp(began, UTC).isoformat(),
                "durationMs": {"addBatch": took, "triggerExecution": took},
                "sources": [
                    {
                        "description": one.name,
                        "endOffset": ends.get(one.name),
                        "numInputRows": counts.get(one.name, 0),
                    }
                    for one in inputs
                ],
                "stateOperators": [],
            },
        ]

    # -- state, in files like those of Spark's stores

    def _begun_states(self, done: int) -> None:
        for number in sorted({k.number for k in kept_state(self.spec.flow, self.spec.unit)}):
            describe_state(self._checkpoint, number)

    def _state(self, batch: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for kept in kept_state(self.spec.flow, self.spec.unit):
            image = state_file(self._checkpoint, kept.number, batch)
            whole = read_state(image) if batch > 0 else {}
            found[kept.operator] = whole.get(str(kept.tag), {})
        return found

    def _keep_state(self, batch: int, state: Mapping[str, dict[str, Any]]) -> None:
        images: dict[int, dict[str, Any]] = {}
        for kept in kept_state(self.spec.flow, self.spec.unit):
            images.setdefault(kept.number, {})[str(kept.tag)] = state[kept.operator]
        for number, image in images.items():
            write_state(state_file(self._checkpoint, number, batch + 1), image)
            if (old := state_file(self._checkpoint, number, batch + 1 - RETAINED)).exists():
                old.unlink(missing_ok=True)


class Stopped(Exception):
    """The query was stopped."""


TRIGGER = 0.5


def _sink_schema(count: int, schemas: Sequence[Any]) -> StructType:
    from pyspark.sql.types import IntegerType, StructField

    if count == 1:
        return spark_schema(schemas[0].columns)
    fields = [StructField(f"o{n}", spark_schema(s.columns)) for n, s in enumerate(schemas)]
    return StructType([StructField("__out", IntegerType()), *fields])


def write(file: Path, text: str | bytes) -> None:
    """Write a file of a checkpoint: whole and lasting, as the engine is taken to do it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    with open(draft, "wb") as out:
        out.write(text.encode() if isinstance(text, str) else text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def state_file(checkpoint: Path, number: int, version: int) -> Path:
    return checkpoint / "state" / str(number) / "0" / f"{version}.zip"


def describe_state(checkpoint: Path, number: int) -> None:
    """Write the description of a stateful operator, unless there is one."""
    file = checkpoint / "state" / str(number) / "_metadata" / "v2" / "0"
    if not file.exists():
        data = {
            "operatorInfo": {"operatorId": number, "operatorName": "scan"},
            "stateStoreInfo": [{"numPartitions": 1}],
        }
        write(file, f"v2\n{json.dumps(data)}")


def read_state(image: Path) -> dict[str, Any]:
    with zipfile.ZipFile(image) as packed:
        return json.loads(packed.read("rows"))


def write_state(image: Path, rows: Mapping[str, Any]) -> None:
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("metadata", 'v1\n{"sstFiles":[],"logFiles":[]}')
        packed.writestr("rows", json.dumps(rows))
    write(image, out.getvalue())


# ---------------------------------------------------------------- in place of Spark's own tools


def taken(share: Any) -> str | None:
    """In place of ``reshape.taken_of``: the condition that selects a share's entries, as JSON."""
    return json.dumps({"tag": share.tag, "by": share.by, "values": list(share.values)})


def reshaped(wanted: Sequence[Reshaping], *, within: Path) -> None:
    """In place of ``reshape.reshape``: write the state of the pieces that their conditions select as one."""
    for one in wanted:
        whole: dict[str, dict[str, Any]] = {}
        for piece in one.pieces:
            found = read_state(state_file(Path(piece.checkpoint), one.operator, piece.batch + 1))
            for text in (piece.takes or "").split(" OR "):
                share = json.loads(text)
                for key, value in found.get(str(share["tag"]), {}).items():
                    if share["by"] is None or str(json.loads(key)[share["by"]]) in share["values"]:
                        whole.setdefault(str(share["tag"]), {})[key] = value
        write_state(state_file(Path(one.checkpoint), one.operator, one.batch + 1), whole)


def emptied(spark: Any, place: Path, flow: Graph, operators: Iterable[str]) -> Path:
    """In place of ``empty_state``: the state of scans that have had no rows."""
    made = place / "checkpoint"
    describe_state(made, 0)
    write_state(state_file(made, 0, 1), {})
    (made / "state" / "0" / "_stateSchema").mkdir(exist_ok=True)
    return made
