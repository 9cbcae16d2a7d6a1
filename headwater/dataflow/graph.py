"""The dataflow as a value: validated, immutable, with a lossless JSON form and content keys."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema

from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.core.jsonform import custom_schema, problem
from headwater.core.requirement import Requirement
from headwater.core.rules import FileName, Refused
from headwater.dataflow import operators as ops
from headwater.dataflow import sinks, sources, stateful, tablesinks, tablesources
from headwater.dataflow.backfill import backfill_problems
from headwater.dataflow.customs import CustomSink, CustomSource
from headwater.dataflow.httpsource import HttpSource
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.opcua import OpcuaSink, OpcuaSource
from headwater.dataflow.settings import MOST_LOCATIONS, MOST_OPERATORS
from headwater.dataflow.sparkplug import SparkplugSource
from headwater.dataflow.types import StreamType
from headwater.dataflow.updates import update_problems

FORMAT = 1
MAX_JSON_BYTES = 64 * 2**20
_NAME = FileName()
_TITLE: TypeAdapter[str] = TypeAdapter(str)
_LOCATIONS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
_ENTRIES: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])

KINDS: Mapping[str, type[ops.Operator]] = {
    c.kind: c
    for c in (
        sources.FileSource, sources.RateSource, sources.SensorSource, sources.MqttSource, KafkaSource,
        HttpSource, OpcuaSource, SparkplugSource,
        tablesources.DeltaSource, tablesources.IcebergSource, CustomSource,
        ops.Where, ops.Select, ops.Explode, ops.Union, ops.ToLocations, Lookup,
        ops.MapBatches, ops.Transform, ops.Watermark,
        stateful.Aggregate, stateful.Dedup, stateful.Join, stateful.CountWindow, stateful.Scan,
        sinks.FileSink, sinks.ConsoleSink, sinks.MemorySink, sinks.CallbackSink, sinks.KafkaSink,
        sinks.RealTimeKafkaSink, sinks.MqttSink, sinks.JdbcSink,
        tablesinks.DeltaSink, tablesinks.IcebergSink, tablesinks.PostgresSink, OpcuaSink, CustomSink,
    )
}  # fmt: skip


class Graph(Protocol):
    """Connected operators: a whole dataflow, or the fragment of it that one unit runs."""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the operators, inputs first."""
        ...

    @property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator the names of its readers."""
        ...

    @property
    def types(self) -> Mapping[str, StreamType]:
        """The types of all streams that operators write or read."""
        ...

    def __getitem__(self, id_: str) -> ops.Operator: ...

    def __contains__(self, id_: object) -> bool: ...


@dataclass(frozen=True)
class Dataflow:
    """A directed graph of operators from sources to sinks, and the locations it runs for.

    Raises ErrorList with a DataflowError for each problem.
    """

    name: str
    operators: tuple[ops.Operator, ...]
    locations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = _size_problems(self) or [*_name_problems(self), *_shape_problems(self.operators)]
        if not problems:
            problems = self._type_problems() or [
                *update_problems(self._by_id, self.consumers, self.types),
                *backfill_problems(self._by_id),
            ]
        if problems:
            raise ErrorList(problems)

    def __getitem__(self, id_: str) -> ops.Operator:
        return self._by_id[id_]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._by_id

    @cached_property
    def _by_id(self) -> Mapping[str, ops.Operator]:
        return {o.id: o for o in self.operators}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of the operators, inputs first, in a stable order."""
        sorter = _sorter(self.operators)
        sorter.prepare()
        found, ready = [], list(sorter.get_ready())
        heapify(ready)
        while ready:
            found.append(id_ := heappop(ready))
            sorter.done(id_)
            for free in sorter.get_ready():
                heappush(ready, free)
        return tuple(found)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator the names of its readers."""
        found: dict[str, list[str]] = {o.id: [] for o in self.operators}
        for id_ in self.order:
            for parent in dict.fromkeys(self[id_].inputs):
                found[parent].append(id_)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def types(self) -> Mapping[str, StreamType]:
        """The type of every operator's output stream."""
        types: dict[str, StreamType] = {}
        for id_ in self.order:
            operator = self[id_]
            types[id_] = operator.output(tuple(types[i] for i in operator.inputs))
        return types

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """Content keys: equal keys mean equal output streams."""
        keys: dict[str, str] = {}
        for id_ in self.order:
            keys[id_] = key_over(self, id_, [keys[i] for i in self[id_].inputs])
        return keys

    @property
    def sources(self) -> tuple[sources.Source, ...]:
        return tuple(o for o in self.operators if isinstance(o, sources.Source))

    @property
    def sinks(self) -> tuple[sinks.Sink, ...]:
        return tuple(o for o in self.operators if isinstance(o, sinks.Sink))

    def _type_problems(self) -> list[HeadwaterError]:
        """Check every operator whose inputs are valid, so that one mistake gives one message."""
        types: dict[str, StreamType] = {}
        problems: list[HeadwaterError] = []
        for id_ in self.order:
            operator = self[id_]
            if all(i in types for i in operator.inputs):
                try:
                    types[id_] = operator.output(tuple(types[i] for i in operator.inputs))
                except HeadwaterError as error:
                    problems.append(error)
        return problems

    # ------------------------------------------------------------ JSON

    def to_data(self) -> dict[str, Any]:
        """Return the graph as JSON-able data; ``from_data`` returns an equal graph."""
        return {
            "headwater": FORMAT,
            "name": self.name,
            "locations": list(self.locations),
            "operators": [operator_to_data(o) for o in self.operators],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_data(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Dataflow:
        """Read a graph from JSON. Executes nothing; code in it stays pickled."""
        if len(text) > MAX_JSON_BYTES:
            raise DataflowError(f"the JSON is larger than {MAX_JSON_BYTES} bytes", hint="split the dataflow")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataflowError(f"not JSON: {error}", hint="write it with Dataflow.to_json()") from error
        return cls.from_data(data)

    @classmethod
    def from_data(cls, data: Any) -> Dataflow:
        """Build a graph from ``to_data``'s form; refuse unknown kinds, settings and types."""
        if not isinstance(data, dict) or type(data.get("headwater")) is not int or data["headwater"] != FORMAT:
            raise DataflowError(
                "not a Headwater dataflow of format 1", hint='the top level needs {"headwater": 1, ...}'
            )
        unknown = set(data) - {"headwater", "name", "locations", "operators"}
        if unknown:
            raise DataflowError(f"unknown settings: {', '.join(sorted(map(str, unknown)))}", hint="remove them")
        try:
            locations = _LOCATIONS.validate_python(data.get("locations", ()))
            entries = _ENTRIES.validate_python(data.get("operators"))
            name = _TITLE.validate_python(data.get("name"), strict=True)
        except ValidationError as error:
            raise DataflowError(problem(error), hint="write it with Dataflow.to_json()") from error
        return cls(name, tuple(operator_from_data(e) for e in entries), locations)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_schema(cls, cls.from_data, cls.to_data)

    def with_operators(self, changed: Iterable[ops.Operator]) -> Dataflow:
        """Return the graph with operators of these names replaced."""
        by_id = {o.id: o for o in changed}
        return replace(self, operators=tuple(by_id.get(o.id, o) for o in self.operators))


def own_content(flow: Graph, id_: str) -> Any:
    """Return the content of one operator without its inputs: kind and config, functions by fingerprint."""
    operator = flow[id_]
    config = _content(operator.content(tuple(flow.types[i] for i in operator.inputs)))
    return [operator.kind, config]


def key_over(flow: Graph, id_: str, parents: list[str]) -> str:
    """Return an operator's content key, given the keys of its inputs."""
    ordered = parents if flow[id_].ordered_inputs else sorted(parents)
    content = json.dumps([*own_content(flow, id_), ordered], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _content(value: Any) -> Any:
    """Drop the parts of a config without influence on the output: a function's pickled bytes and name."""
    if isinstance(value, dict):
        if set(value) == {"name", "fingerprint", "pickled"}:
            return value["fingerprint"]
        return {k: _content(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_content(v) for v in value]
    return value


def operator_to_data(operator: ops.Operator) -> dict[str, Any]:
    """Return an operator as JSON-able data."""
    return {
        "id": operator.id,
        "kind": operator.kind,
        "inputs": list(operator.inputs),
        "layer": operator.layer,
        "requires": operator.requires.text,
        **operator.config(),
    }


def operator_from_data(entry: Mapping[str, Any]) -> ops.Operator:
    """Read the data of ``operator_to_data``; raise DataflowError if it is invalid."""
    kind = entry.get("kind")
    where = f"operator {entry.get('id')!r}"
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DataflowError(f"unknown kind {kind!r}", where=where, hint=f"use one of {', '.join(KINDS)}")
    settings = {k: v for k, v in entry.items() if k != "kind"}
    unknown = set(settings) - {f.name for f in fields(cls)}
    if unknown:
        raise DataflowError(f"unknown settings: {', '.join(sorted(unknown))}", where=where, hint="remove them")
    requires = settings.pop("requires", "")
    if not isinstance(requires, str):
        raise DataflowError("'requires' is not text", where=where, hint="write it as 'gpu = true and n_cpu >= 4'")
    try:
        # Strict as JSON: "5" and true are not numbers; an array is a tuple.
        operator: ops.Operator = _reader(cls.kind).validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        raise DataflowError(problem(error), where=where, hint="correct this setting") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DataflowError(f"not JSON: {error}", where=where, hint="use JSON values only") from error
    return replace(operator, requires=Requirement.parse(requires, where=where))


@cache
def _reader(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])


def _sorter(operators: tuple[ops.Operator, ...]) -> TopologicalSorter[str]:
    return TopologicalSorter({o.id: o.inputs for o in operators})


def _size_problems(flow: Dataflow) -> list[HeadwaterError]:
    """Check the numbers of operators and locations, before anything looks at each of them."""
    counts = (("operators", len(flow.operators), MOST_OPERATORS), ("locations", len(flow.locations), MOST_LOCATIONS))
    return [
        DataflowError(f"{count} {what}", hint=f"a dataflow has at most {most} {what}: write several dataflows")
        for what, count, most in counts
        if count > most
    ]


def _name_problems(flow: Dataflow) -> list[HeadwaterError]:
    problems: list[HeadwaterError] = []
    names = [("dataflow", flow.name), *(("operator", o.id) for o in flow.operators)]
    names += [("location", x) for x in flow.locations]
    for what, name in names:
        try:
            _NAME.check(name, f"{what} name")
        except Refused as error:
            problems.append(DataflowError(error.what, hint=error.hint))
    for location in (x for x, count in Counter(flow.locations).items() if count > 1):
        problems.append(DataflowError(f"location {location} is named twice", hint="name it once"))
    return problems


def _shape_problems(operators: tuple[ops.Operator, ...]) -> list[HeadwaterError]:
    problems: list[HeadwaterError] = []
    ids = [o.id for o in operators]
    for id_ in sorted(i for i, count in Counter(ids).items() if count > 1):
        problems.append(
            DataflowError(f"two operators are called '{id_}'", hint="give each its own name with .named(...)")
        )
    known = set(ids)
    read: set[str] = set()
    for operator in operators:
        low, high = operator.arity
        count = len(operator.inputs)
        if count < low or (high is not None and count > high):
            wanted = str(low) if high == low else f"{low} or more"
            problems.append(operator.error(f"has {count} inputs, needs {wanted}", "connect its inputs"))
        for parent in operator.inputs:
            read.add(parent)
            if parent not in known:
                problems.append(operator.error(f"reads unknown operator '{parent}'", "add it or correct the name"))
    if not operators:
        problems.append(DataflowError("the dataflow is empty", hint="read a source and write it to a sink"))
    for operator in operators:
        if isinstance(operator, sinks.Sink) and operator.id in read:
            problems.append(operator.error("a sink has no output to read", "read the sink's input instead"))
        if not isinstance(operator, sinks.Sink) and operator.id not in read:
            problems.append(operator.error("nothing reads its output", "end it in a sink: .write...., or remove it"))
    if not problems:
        try:
            _sorter(operators).prepare()
        except CycleError as error:
            path = " -> ".join(error.args[1])
            problems.append(DataflowError(f"the operators form a cycle: {path}", hint="a dataflow has no loops"))
    return problems
