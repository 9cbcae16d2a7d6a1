"""Units in Spark's real-time mode: which operators can run in one, and why others cannot. Pure.

The mode reads Kafka, passes rows on one by one without Python, and writes Kafka. Its batches last for seconds, with a
task for each partition of the topics; at the end of a batch its offsets are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.core.errors import PlacementError
from headwater.core.quantity import parse_duration
from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Graph
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.sinks import RealTimeKafkaSink
from headwater.dataflow.sources import Source
from headwater.dataflow.stateful import Aggregate, SessionWindow

_BY_ROW = (*ops.STATELESS_SQL, ops.Explode, ops.Union, ops.Watermark, Lookup)


def real_time_sink(flow: Graph, operators: tuple[str, ...]) -> RealTimeKafkaSink | None:
    """Return the sink of a unit that runs in real-time mode; None for a unit of batches."""
    return next((o for i in operators if isinstance(o := flow[i], RealTimeKafkaSink)), None)


def real_time_of(flow: Graph, operators: tuple[str, ...]) -> float:
    """Return the seconds that a batch of a unit lasts in real-time mode; 0 for a unit in other batches."""
    sink = real_time_sink(flow, operators)
    return 0.0 if sink is None else parse_duration(sink.real_time)


def refused_operators(flow: Graph, operators: tuple[str, ...]) -> list[PlacementError]:
    """Return an error for each operator of a unit in real-time mode that this mode does not run."""
    sink = real_time_sink(flow, operators)
    if sink is None:
        return []
    return [
        PlacementError(f"cannot run in real-time mode, which '{sink.id}' asks for: {why}", where=where, hint=hint)
        for where, why, hint in _reasons(flow, operators, sink)
    ]


_BATCHES = "leave real_time= out of the sink, so that it is written in batches"


def _reasons(flow: Graph, operators: tuple[str, ...], sink: RealTimeKafkaSink) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the reason and the remedy."""
    inside = [flow[i] for i in operators]
    aggregates = [o for o in inside if isinstance(o, Aggregate)]
    for operator in inside:
        for input_ in operator.inputs:
            if input_ not in operators:
                yield (
                    operator.where,
                    f"it reads '{input_}' from a channel, and the mode reads Kafka topics alone",
                    f"place and cut nothing between the topic and '{sink.id}', and read the topic once for each sink",
                )
        if (found := _reason(operator, bool(aggregates))) is not None:
            yield operator.where, *found
    if aggregates and "key" not in {c.name.lower() for c in flow.types[sink.inputs[0]].schema.columns}:
        yield (
            sink.where,
            "the rows of an aggregate change, and without a key no reader knows which row is the newest of a group",
            "give the sink key=, an expression of the group's columns",
        )
    if len(aggregates) > 1:
        yield aggregates[-1].where, "the mode runs one aggregate in a query", _BATCHES
    for operator in inside:
        if isinstance(operator, ops.Union | ops.Where) and _is_behind(flow, aggregates, operator):
            why = "no union can be" if isinstance(operator, ops.Union) else "a result once written would stay"
            yield operator.where, f"it is behind an aggregate: {why}", "move it before the aggregate"


def _reason(operator: ops.Operator, is_stateful: bool) -> tuple[str, str] | None:
    match operator:
        case KafkaSource() if operator.ending is not None:
            return "a topic that is read up to an end is no live stream", _BATCHES
        case KafkaSource() if operator.is_binary:
            return f"values of {operator.format} are decoded in Python", f"{_BATCHES}, or send JSON or CSV"
        case KafkaSource() if is_stateful and operator.format != "raw":
            return (
                "a malformed record cannot be passed around an aggregate",
                'read the topic with format="raw", and its values by from_json(CAST(value AS string), ...)',
            )
        case KafkaSource() | RealTimeKafkaSink():
            return None
        case Source():
            return f"the mode reads Kafka topics alone, not {operator.kind}", _BATCHES
        case Aggregate(window=SessionWindow()):
            return "the mode has no session windows", f"{_BATCHES}, or use windows of time"
        case Aggregate():
            return None
        case _ if isinstance(operator, _BY_ROW):
            return None
    return f"the mode has no {operator.kind}", _BATCHES


def _is_behind(flow: Graph, before: list[Aggregate], operator: ops.Operator) -> bool:
    names, todo = {o.id for o in before}, list(operator.inputs)
    while todo:
        id_ = todo.pop()
        if id_ in names:
            return True
        todo += flow[id_].inputs if id_ in flow else ()
    return False
