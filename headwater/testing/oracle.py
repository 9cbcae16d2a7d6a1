"""The equivalence oracle: a deployment against one batch run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.dataflow.customs import CustomSink
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.sinks import MemorySink
from headwater.plan.build import build
from headwater.plan.deployment import Deployment as Decision
from headwater.plan.model import DeploymentPlan
from headwater.testing.bounded import BoundedSource, Kill, Pause, StopAfter
from headwater.testing.compare import Difference, NotEquivalent, compare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headwater.continuum.model import Continuum
    from headwater.spark.endpoint import LocalEndpoint


def batch_result(spark: SparkSession, dataflow: Dataflow, continuum: Continuum) -> dict[str, pa.Table]:
    """Run a dataflow as one batch over its bounded sources; return the rows of every sink by name.

    State is computed in another way than in a stream (window functions, whole groups), so two
    implementations are compared.
    """
    frames = batch_frames(spark, dataflow, continuum)
    kept = [frames[id_].persist() for id_ in _computed_once(dataflow)]
    try:
        return {s.id: frames[s.id].toArrow() for s in dataflow.sinks}
    finally:
        for frame in kept:
            frame.unpersist()


def _computed_once(dataflow: Dataflow) -> list[str]:
    """Return the operators whose output Spark is to keep, as it is read more than once and depends on state.

    Without that, Spark computes it anew for each sink.
    """
    readers = Counter(i for id_ in dataflow.order for i in dataflow[id_].inputs)
    stateful: set[str] = set()
    for id_ in dataflow.order:
        if dataflow[id_].stateful or not stateful.isdisjoint(dataflow[id_].inputs):
            stateful.add(id_)
    return [id_ for id_ in dataflow.order if readers[id_] > 1 and id_ in stateful]


def batch_frames(spark: SparkSession, dataflow: Dataflow, continuum: Continuum) -> dict[str, DataFrame]:
    """Return the output of every operator over bounded sources, as DataFrames of a batch."""
    from headwater.connectors.sources import can_be_malformed, source_frame, well_formed
    from headwater.dataflow import sources
    from headwater.query import compile

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
            inputs = [frames[i] for i in operator.inputs]
            frames[id_] = compile.apply(
                operator, inputs, types, streaming=False, locations=locations, tables=partial(_table, spark)
            )
    return frames


def _table(spark: SparkSession, lookup: Lookup) -> DataFrame:
    """Read a reference table; a file in the dataflow is written for it."""
    import tempfile

    from headwater.query.tables import rows_of_table

    with tempfile.TemporaryDirectory(prefix="headwater-oracle-") as scratch:
        frame = rows_of_table(spark, lookup, Path(scratch))
        return spark.createDataFrame(frame.toArrow(), frame.schema)


@dataclass(frozen=True)
class OracleOutcome:
    """A deployment's results and their differences from the batch run, by sink."""

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
    """Run a plan to the end of its sources, with the failures in ``source``.

    Return the rows of every sink that keeps rows: memory, Parquet, Delta, Iceberg; those of the user's own data sources
    are left out. A Kill ends ``endpoint`` and starts it again.
    """
    from headwater.app.local import LocalRun
    from headwater.disk.settings import ChannelSettings, UnitSettings

    settings = UnitSettings(
        trigger=trigger, channel=ChannelSettings(fsync=False), max_rows_per_batch=max_rows_per_batch
    )

    def begin() -> LocalRun:
        deployment = LocalRun(plan, directory, endpoint, settings)
        deployment.start()
        return deployment

    deployment = begin()
    try:
        for event in source.release() if source is not None else ():
            if isinstance(event, Pause):
                deployment.settle()
            elif isinstance(event, StopAfter):
                deployment.stop()
                deployment = begin()
            elif isinstance(event, Kill):
                endpoint.kill()
                endpoint.restart()
                deployment = begin()
        deployment.drain()
        return {
            s.id: _sink_table(deployment, s, plan.dataflow)
            for s in plan.dataflow.sinks
            if not isinstance(s, CustomSink)
        }
    finally:
        deployment.stop()


def _sink_table(deployment: Any, sink: Any, flow: Dataflow) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    from headwater.connectors.sparktypes import spark_schema
    from headwater.testing.readback import rows_in

    if isinstance(sink, MemorySink):
        return deployment.sink_rows(sink.id)
    return rows_in(sink, to_arrow_schema(spark_schema(flow.types[sink.id].schema.columns), timezone="UTC"))


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
) -> OracleOutcome:
    """Compare a deployment with the batch run; raise NotEquivalent with examples where they differ.

    ``expected`` is the batch run's result from ``batch_result``, if it is known already.
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
        story = "; ".join(f"{s}: lost {d.lost}, too many {d.duplicated}: {d.examples}" for s, d in wrong.items())
        raise NotEquivalent(story, where=f"dataflow '{dataflow.name}'", hint=f"the deployment is in {directory}")
    return OracleOutcome(plan, differences, {sink: table.num_rows for sink, table in tables.items()})
