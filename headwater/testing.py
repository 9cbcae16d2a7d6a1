"""The public test kit: bounded sources with failures inside, and the equivalence oracle.

The oracle's law: for any dataflow, cuts, placement and history, the sinks of a drained deployment
hold exactly the rows, as a multiset, that one Spark batch run over the same input gives.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sinks import FileSink, MemorySink
from headwater.errors import HeadwaterError
from headwater.plan.build import build
from headwater.plan.model import Deployment as Decision
from headwater.plan.model import DeploymentPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headwater.continuum import Continuum
    from headwater.runtime.endpoint import LocalEndpoint

RELATIVE = 1e-9
"""How far floating-point values may differ: sums depend on the order of their terms."""


class NotEquivalent(HeadwaterError):
    """A deployment's sink does not hold what the batch run gives."""


@dataclass(frozen=True)
class Difference:
    """Rows of the batch result that are missing, rows too many, and examples of both."""

    lost: int
    duplicated: int
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated)


def compare(expected: pa.Table, got: pa.Table) -> Difference:
    """Compare two tables as multisets of rows; floating-point values to a relative 1e-9."""
    if expected.column_names != got.column_names:
        raise NotEquivalent(
            f"columns differ: {expected.column_names} expected, {got.column_names} found",
            hint="compare the schemas",
        )
    wanted, found = Counter(map(_row, expected.to_pylist())), Counter(map(_row, got.to_pylist()))
    missing, extra = list((wanted - found).elements()), list((found - wanted).elements())
    missing, extra = _pair_off(missing, extra)
    examples = [f"missing {r}" for r in missing[:3]] + [f"too many {r}" for r in extra[:3]]
    return Difference(len(missing), len(extra), tuple(examples))


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(_value(v) for v in row.values())


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _value(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else 0.0 if value == 0 else value
    if hasattr(value, "tzinfo") and value.tzinfo is None:
        from datetime import UTC

        return value.replace(tzinfo=UTC) if hasattr(value, "hour") else value
    return value


def _pair_off(missing: list[Any], extra: list[Any]) -> tuple[list[Any], list[Any]]:
    """Take away pairs of rows that differ only by rounding."""
    left: list[Any] = []
    by_shape: dict[Any, list[Any]] = {}
    for row in extra:
        by_shape.setdefault(_shape(row), []).append(row)
    for row in missing:
        candidates = by_shape.get(_shape(row), [])
        match = next((i for i, other in enumerate(candidates) if _near(row, other)), None)
        if match is None:
            left.append(row)
        else:
            candidates.pop(match)
    return left, [row for rows in by_shape.values() for row in rows]


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_shape(v) for v in value)
    return "float" if isinstance(value, float) else value


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_near(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=RELATIVE)
    return bool(a == b)


# ---------------------------------------------------------------- the batch run


def batch_result(spark: SparkSession, dataflow: Dataflow, continuum: Continuum) -> dict[str, pa.Table]:
    """Run a dataflow as one batch over its bounded sources; give the rows of every sink by name.

    State is computed in another way than in a stream (window functions, whole groups), so the
    comparison is between two implementations.
    """
    from headwater.dataflow import sources
    from headwater.runtime import compile
    from headwater.runtime.sources import can_be_malformed, source_frame, well_formed

    locations = dataflow.locations or continuum.locations
    frames: dict[str, Any] = {}
    for id_ in dataflow.order:
        operator = dataflow[id_]
        if isinstance(operator, sources.Source):
            parts = []
            for location in locations if operator.per_location else locations[:1]:
                part = source_frame(spark, operator, location, name=None)
                parts.append(well_formed(part, operator.schema()) if can_be_malformed(operator) else part)
            frame = parts[0]
            for part in parts[1:]:
                frame = frame.unionByName(part)
            frames[id_] = frame
        else:
            types = [dataflow.types[i] for i in operator.inputs]
            frames[id_] = compile.apply(
                operator, [frames[i] for i in operator.inputs], types, streaming=False
            )
    return {s.id: frames[s.id].toArrow() for s in dataflow.sinks}


# ---------------------------------------------------------------- the oracle


@dataclass(frozen=True)
class Pause:
    """In a bounded source: wait until everything so far is processed."""


@dataclass(frozen=True)
class Kill:
    """In a bounded source: SIGKILL the zone's Spark in the midst of work, and go on from what is on disk."""


@dataclass(frozen=True)
class Stop:
    """In a bounded source: stop at a batch boundary, and start again."""


PAUSE, KILL, STOP = Pause(), Kill(), Stop()
Item = Mapping[str, Any] | Pause | Kill | Stop


class BoundedSource:
    """Rows of a test, by location, that reach the dataflow as JSON files, one file between two events."""

    def __init__(
        self, directory: Path, rows: Mapping[str, Sequence[Item]], *, rows_per_file: int = 50
    ) -> None:
        self.directory = directory
        self._steps = {location: _steps(items, rows_per_file) for location, items in rows.items()}
        for location in rows:
            (directory / location).mkdir(parents=True, exist_ok=True)

    @property
    def path(self) -> str:
        """The path to read, with ``{location}``."""
        return str(self.directory / "{location}")

    def release(self) -> Iterable[Pause | Kill | Stop | None]:
        """Write the files one after another over all locations; give the events between them."""
        longest = max((len(s) for s in self._steps.values()), default=0)
        for number in range(longest):
            events: list[Pause | Kill | Stop] = []
            for location, steps in self._steps.items():
                if number < len(steps):
                    step = steps[number]
                    if isinstance(step, list):
                        self._write(location, number, step)
                    else:
                        events.append(step)
            yield from events or (None,)

    def release_all(self) -> None:
        """Write all files at once."""
        for _ in self.release():
            pass

    def _write(self, location: str, number: int, rows: list[Mapping[str, Any]]) -> None:
        scratch = self.directory / location / f".{number:06d}"
        scratch.write_text("".join(json.dumps(dict(r), default=str) + "\n" for r in rows))
        scratch.rename(self.directory / location / f"{number:06d}.json")


def _steps(items: Sequence[Item], size: int) -> list[list[Mapping[str, Any]] | Pause | Kill | Stop]:
    steps: list[list[Mapping[str, Any]] | Pause | Kill | Stop] = []
    for item in items:
        if isinstance(item, (Pause, Kill, Stop)):
            steps.append(item)
        elif steps and isinstance(steps[-1], list) and len(steps[-1]) < size:
            steps[-1].append(item)
        else:
            steps.append([item])
    return steps


@dataclass(frozen=True)
class Outcome:
    """What a deployment gave and how it differs from the batch run, by sink."""

    plan: DeploymentPlan
    differences: Mapping[str, Difference]
    rows: Mapping[str, int]


def run_to_end(
    plan: DeploymentPlan,
    directory: Path,
    endpoint: LocalEndpoint,
    *,
    source: BoundedSource | None = None,
    trigger: str = "100 milliseconds",
    max_rows_per_batch: int | None = None,
) -> dict[str, pa.Table]:
    """Run a plan until its sources are used up, with the failures that ``source`` holds.

    Gives the rows of every memory and Parquet sink. A Kill ends ``endpoint`` and starts it again.
    """
    from headwater.runtime.deployment import Deployment
    from headwater.runtime.settings import ChannelSettings, UnitSettings

    settings = UnitSettings(
        trigger=trigger, channel=ChannelSettings(fsync=False), max_rows_per_batch=max_rows_per_batch
    )

    def begin() -> Deployment:
        deployment = Deployment(plan, directory, endpoint, settings)
        deployment.start()
        return deployment

    deployment = begin()
    try:
        for event in source.release() if source is not None else ():
            if isinstance(event, Pause):
                deployment.settle()
            elif isinstance(event, Stop):
                deployment.stop()
                deployment = begin()
            elif isinstance(event, Kill):
                endpoint.kill()
                endpoint.restart()
                deployment = begin()
        deployment.drain()
        return {s.id: _sink_table(deployment, s) for s in plan.dataflow.sinks}
    finally:
        deployment.stop()


def _sink_table(deployment: Any, sink: Any) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(sink, MemorySink):
        return deployment.sink_rows(sink.id)
    if isinstance(sink, FileSink) and sink.format == "parquet":
        files = sorted(Path(sink.path.split("{")[0]).rglob("*.parquet"))
        return pa.concat_tables([pq.read_table(f) for f in files if ".headwater" not in f.parts])
    raise NotEquivalent(
        f"sink '{sink.id}' cannot be read back", hint="use write.memory(...) or write.parquet(...)"
    )


def check_equivalent(
    dataflow: Dataflow,
    continuum: Continuum,
    endpoint: LocalEndpoint,
    directory: Path,
    *,
    decision: Decision | None = None,
    source: BoundedSource | None = None,
    trigger: str = "100 milliseconds",
    max_rows_per_batch: int | None = None,
    expected: Mapping[str, pa.Table] | None = None,
) -> Outcome:
    """Hold a deployment against the batch run; raise NotEquivalent with examples where they differ.

    ``expected`` is the batch run's result where it is known, as ``batch_result`` gives it.
    """
    plan = build(dataflow, continuum, decision)
    shutil.rmtree(directory, ignore_errors=True)
    tables = run_to_end(
        plan, directory, endpoint, source=source, trigger=trigger, max_rows_per_batch=max_rows_per_batch
    )
    if expected is None:
        expected = batch_result(endpoint.session(), dataflow, continuum)
    differences = {sink: compare(expected[sink], table) for sink, table in tables.items()}
    wrong = {sink: d for sink, d in differences.items() if d}
    if wrong:
        story = "; ".join(
            f"{s}: lost {d.lost}, too many {d.duplicated}: {d.examples}" for s, d in wrong.items()
        )
        raise NotEquivalent(
            story, where=f"dataflow '{dataflow.name}'", hint=f"the deployment is in {directory}"
        )
    return Outcome(plan, differences, {sink: table.num_rows for sink, table in tables.items()})
