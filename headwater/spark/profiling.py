"""Measure each operator's cost and selectivity: on Spark, one after the other, over a sample of its input.

A query reads the output of the previous operators from files, applies the operator, and discards the result;
a second query only reads. The difference of their processor times, of Spark and its Python workers together,
is the operator's. Queries are streams that end with the sample, so that state is kept as in a deployment.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.channels.repetition import repeated_share, split_by
from headwater.connectors.sources import can_be_malformed, source_frame, well_formed
from headwater.connectors.sparksql import column_of
from headwater.connectors.sparktypes import WINDOW_MARK
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import FileSource, Source
from headwater.dataflow.stateful import WINDOW_TYPE
from headwater.plan.profile import ASSUMED_CPU_S, OperatorProfile, Profile
from headwater.query import compile
from headwater.query.tables import rows_of_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_ROWS = 1_000
"""Fewer rows cost less processor time than the start of a query, and give no result."""
_COMPARED_ROWS = 5_000
"""Rows of each location that are compared with those of other locations."""
_SECONDS = 600
"""Timeout in seconds of a query over a sample."""


Sample = Mapping[str, str]
"""Paths of a source's sample, by location."""


@dataclass(frozen=True)
class ProfiledOperator:
    """Measurements of one operator. ``seconds`` of a core for all rows."""

    operator: str
    rows_in: int
    rows_out: int
    seconds: float

    @property
    def cpu_s(self) -> float | None:
        """Seconds of a core per row; None where there were too few rows."""
        return max(0.0, self.seconds) / self.rows_in if self.rows_in >= _LEAST_ROWS else None


def profile(
    spark: SparkSession,
    dataflow: Dataflow,
    samples: Mapping[str, Sample],
    directory: Path,
    *,
    repeats: int = 3,
    observe: Callable[[ProfiledOperator], None] = lambda seen: None,
) -> Profile:
    """Measure all operators of a dataflow; ``directory`` is scratch.

    Raises RuntimeFailure where a source has no sample, or a query over one fails.
    """
    places = dataflow.locations or tuple(sorted({place for sample in samples.values() for place in sample}))
    work = _Work(spark, dataflow, directory, repeats, places)
    operators: dict[str, OperatorProfile] = {}
    rates: dict[str, Mapping[str, float]] = {}
    for name in dataflow.order:
        operator = dataflow[name]
        try:
            if isinstance(operator, Source):
                seen = work.source(operator, samples)
                if found := work.rates(operator, samples):
                    rates[name] = found
            else:
                seen = work.operator(operator)
        except PySparkException as error:
            raise RuntimeFailure(
                f"'{name}' fails over its sample: {str(error).splitlines()[0]}", where=operator.where
            ) from error
        rows, leaves = max(1, seen.rows_in), seen.rows_out > 0 and not isinstance(operator, Sink)
        operators[name] = OperatorProfile(
            cpu_s=ASSUMED_CPU_S if seen.cpu_s is None else seen.cpu_s,
            selectivity=1.0 if isinstance(operator, Source) else seen.rows_out / rows,
            bytes_out=work.bytes_out(name) if leaves else None,
            columns=work.columns(name) if leaves else None,
            repeated=work.repeated(name) if leaves else None,
            state_bytes=work.state_bytes.get(name, 0.0),
        )
        observe(seen)
    return Profile(dataflow=dataflow.name, operators=operators, rates=rates)


class _Work:
    """Files with each operator's output, and the queries over them."""

    def __init__(
        self, spark: SparkSession, dataflow: Dataflow, directory: Path, repeats: int, locations: tuple[str, ...]
    ) -> None:
        self._spark, self._dataflow, self._directory = spark, dataflow, directory
        self._repeats, self._locations = repeats, locations
        self._rows: dict[str, int] = {}
        self._reading: dict[str, float] = {}
        self._runs = 0
        self.state_bytes: dict[str, float] = {}

    def source(self, source: Source, samples: Mapping[str, Sample]) -> ProfiledOperator:
        """Read a source's sample, and keep its rows."""
        if source.id not in samples:
            raise RuntimeFailure(
                f"source '{source.id}' has no sample",
                where=source.where,
                hint=f"give one: --sample {source.id}=PATH",
            )
        self._run(self._whole(source, samples[source.id]), into=self._place(source.id))
        count = self._count(source.id)
        if not count:
            raise RuntimeFailure(
                f"the sample of '{source.id}' has no rows",
                where=source.where,
                hint=f"put rows into {', '.join(samples[source.id].values())}",
            )
        # The first run has warmed Spark up. The cost of an empty query is not the source's.
        times = [self._run(self._whole(source, samples[source.id]))[0] for _ in range(self._repeats)]
        return ProfiledOperator(source.id, count, count, median(times) - self._starting())

    def _starting(self) -> float:
        """Return the processor time of a query over one row."""
        place = self._directory / "one"
        if not place.exists():
            self._spark.range(1).write.parquet(str(place))
        times = []
        for _ in range(self._repeats):
            reader: Any = self._spark.readStream.name(self._name())
            times.append(self._run(reader.schema("id bigint").parquet(str(place)))[0])
        return median(times)

    def _whole(self, source: Source, sample: Sample) -> DataFrame:
        frames = [self._sampled(source, path, location) for location, path in sample.items()]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        return frame

    def _sampled(self, source: Source, path: str, location: str) -> DataFrame:
        if isinstance(source, FileSource):
            from_sample = replace(source, path=path)
            frame = source_frame(self._spark, from_sample, location, name=self._name())
            return well_formed(frame, source.schema()) if can_be_malformed(source) else frame
        raise RuntimeFailure(
            f"'{source.id}' reads {source.kind}: only files can be sampled",
            where=source.where,
            hint="record some of its rows to files, and profile the dataflow with read.json over them",
        )

    def rates(self, source: Source, samples: Mapping[str, Sample]) -> Mapping[str, float]:
        """Return the rows/s of a sample by event time; empty where no event time is declared after the source."""
        time = _event_time(self._dataflow, source.id)
        if time is None:
            return {}
        found = self._batch(source.id).agg(F.count("*"), F.max(column_of(time)), F.min(column_of(time))).first()
        rows, last, first = found if found is not None else (0, None, None)
        span = (last - first).total_seconds() if last is not None and first is not None else 0.0
        return {"*": rows / span / len(samples[source.id])} if span > 0 else {}

    def operator(self, operator: Operator) -> ProfiledOperator:
        """Run an operator over the output of the ones before it."""
        types = [self._dataflow.types[i] for i in operator.inputs]
        rows_in = sum(self._rows[i] for i in operator.inputs)
        if isinstance(operator, Sink):
            return ProfiledOperator(operator.id, rows_in, rows_in, 0.0)

        def frame() -> DataFrame:
            frames = [self._watermarked(i) if operator.stateful else self._read(i) for i in operator.inputs]
            return compile.apply(operator, frames, types, streaming=True, locations=self._locations, tables=self._table)

        times = []
        for _ in range(self._repeats if rows_in else 0):
            seconds, state = self._run(frame())
            times.append(seconds)
            self.state_bytes[operator.id] = max(state, self.state_bytes.get(operator.id, 0.0))
        # A batch run also outputs windows that are still open: later operators are measured over all of them.
        frames = [self._batch(i) for i in operator.inputs]
        whole = compile.apply(operator, frames, types, streaming=False, locations=self._locations, tables=self._table)
        whole.write.mode("overwrite").parquet(str(self._place(operator.id)))
        reading = sum(self._reading_of(i) for i in operator.inputs)
        seconds = median(times) - reading if times else 0.0
        return ProfiledOperator(operator.id, rows_in, self._count(operator.id), seconds)

    def _table(self, lookup: Lookup) -> DataFrame:
        return rows_of_table(self._spark, lookup, self._directory / f"table-{lookup.id}")

    def bytes_out(self, name: str) -> float:
        """Return the bytes of a row in files, compressed."""
        size = sum(p.stat().st_size for p in self._place(name).glob("*.parquet"))
        return size / max(1, self._rows[name])

    def columns(self, name: str) -> dict[str, float]:
        """Return the share of each column in the bytes of rows in files, compressed."""
        import pyarrow.parquet as pq

        found: defaultdict[str, float] = defaultdict(float)
        for path in self._place(name).glob("*.parquet"):
            with pq.ParquetFile(path) as file:
                groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
                for part in (group.column(n) for group in groups for n in range(group.num_columns)):
                    found[part.path_in_schema.partition(".")[0]] += part.total_compressed_size
        total = sum(found.values())
        return {column: size / total for column, size in found.items()}

    def repeated(self, name: str) -> float | None:
        """Return the share of a location's bytes that other locations repeat; None where no column tells them apart."""
        import pyarrow.parquet as pq

        if not (located := sorted(self._dataflow.types[name].located_by)):
            return None
        rows = pq.read_table(self._place(name), coerce_int96_timestamp_unit="us")
        return repeated_share(split_by(rows, located, _COMPARED_ROWS))

    def _reading_of(self, name: str) -> float:
        """Return the processor time of reading an operator's output, a query's start included."""
        if name not in self._reading:
            self._reading[name] = median(self._run(self._read(name))[0] for _ in range(self._repeats))
        return self._reading[name]

    def _place(self, name: str) -> Path:
        return self._directory / name

    def _name(self) -> str:
        self._runs += 1
        return f"sample{self._runs}"

    def _batch(self, name: str) -> DataFrame:
        schema = self._dataflow.types[name].schema
        frame = self._spark.read.schema(schema.text).parquet(str(self._place(name)))
        # Files do not record that a struct is a window.
        windows = {c.name for c in schema.columns if c.type == WINDOW_TYPE}
        mark = {WINDOW_MARK: True}
        columns = [column_of(n).alias(n, metadata=mark if n in windows else {}) for n in schema.names]
        return frame.select(*columns)

    def _read(self, name: str) -> DataFrame:
        reader: Any = self._spark.readStream.name(self._name())
        schema = self._dataflow.types[name].schema.text
        frame: DataFrame = reader.schema(schema).parquet(str(self._place(name)))
        return compile.mark(frame, self._dataflow.types[name])

    def _watermarked(self, name: str) -> DataFrame:
        frame, time = self._read(name), self._dataflow.types[name].event_time
        if time is None or self._dataflow.types[name].schema.column(time.column).type.text != "timestamp":
            return frame
        return frame.withWatermark(time.column, f"{time.delay} seconds")

    def _count(self, name: str) -> int:
        self._rows[name] = self._batch(name).count()
        return self._rows[name]

    def _run(self, frame: DataFrame, into: Path | None = None) -> tuple[float, float]:
        """Run a stream to the end of its sample; return processor seconds and bytes of state."""
        checkpoint = self._directory / "checkpoints" / self._name()
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer = writer.format("noop") if into is None else writer.format("parquet").option("path", str(into))
        before = cpu_seconds()
        query = writer.start()
        try:
            if not query.awaitTermination(_SECONDS):
                raise RuntimeFailure(f"a sample takes more than {_SECONDS} s", hint="use a smaller one")
        finally:
            query.stop()
        seconds = cpu_seconds() - before
        state = 0.0
        for progress in query.recentProgress:
            state = max(state, sum(float(s.memoryUsedBytes) for s in progress.stateOperators))
        shutil.rmtree(checkpoint, ignore_errors=True)
        return seconds, state


def _event_time(dataflow: Dataflow, source: str) -> str | None:
    """Return the source's column that a later operator declares as event time, unchanged."""
    names = {n.lower(): n for n in dataflow.types[source].schema.names}
    todo, seen = [source], set()
    while todo:
        name = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        time = dataflow.types[name].event_time
        if time is not None and time.column.lower() in names:
            kind = dataflow.types[source].schema.column(time.column).type.text
            return names[time.column.lower()] if kind == "timestamp" else None
        todo += dataflow.consumers[name]
    return None


def cpu_seconds() -> float:
    """Sum the processor time of all descendants of this process."""
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(_times(pid) for pid in _below(os.getpid())) / ticks


def _below(root: int) -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry))
    todo = list(parents.get(root, ()))
    while todo:
        pid = todo.pop()
        yield pid
        todo += parents.get(pid, ())


def _times(pid: int) -> int:
    """Return a process's own time, and that of its children that have ended."""
    fields = _stat(pid)
    return 0 if fields is None else sum(int(fields[n]) for n in (11, 12, 13, 14))


def _stat(pid: int) -> list[str] | None:
    """Return the fields after a process's name: state, parent, and so on; None where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
