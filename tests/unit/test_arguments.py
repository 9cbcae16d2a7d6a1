"""Bad values of arguments: each is refused with words and a hint, or accepted and planned; nothing else happens."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.core.rules import ANYTHING, Number, Span, Whole, rule_of
from headwater.dataflow.builder import DataflowBuilder, Reader
from headwater.dataflow.graph import KINDS, Dataflow
from headwater.dataflow.grouped import Grouped
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.rowwindows import Counted, Windowed
from headwater.dataflow.stream import Stream
from headwater.dataflow.windowmakers import ChopTime, Complete, SlidingTime
from headwater.dataflow.writer import Writer, WrittenStream
from headwater.plan.build import build
from headwater.sql.lexer import quoted

SCHEMA = "machine string, ts timestamp, v double, tags array<string>"
PLACES = Continuum.from_text("""
name: plant
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
""")
WINDOW = hw.window("ts", "1 minute")


def fold(state: Any, row: Any) -> Any:
    return state, row


def one(rows: Any) -> Any:
    return rows


def stream() -> Stream:
    return hw.flow("f", locations=["L1"]).read.json("in/{location}", SCHEMA).with_watermark("ts", "1 s")


# ---------------------------------------------------------------- all arguments of the public API

OWNERS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "hw": (hw, lambda: hw),
    "builder": (DataflowBuilder, lambda: stream().named("readings").builder),
    "read": (Reader, lambda: hw.flow("f", locations=["L1"]).read),
    "stream": (Stream, stream),
    "grouped": (Grouped, lambda: stream().group_by(WINDOW, "machine")),
    "counted": (Counted, lambda: stream().count_window(3, order_by="ts")),
    "windowed": (Windowed, lambda: stream().windowed(hw.chop_time("1 minute"), order_by="ts")),
    "write": (Writer, lambda: stream().select("machine", "ts", "v").write),
    "reference": (ReferenceTable, lambda: hw.flow("f").table.json("machines/*.json", SCHEMA)),
    "written": (WrittenStream, lambda: stream().write.memory("m")),
}
"""The classes of the fluent API, and one object of each."""


def frames() -> list[Any]:
    """Return a DataFrame of a job for plain PySpark."""
    found: list[Any] = []
    hw.from_pyspark("f", lambda spark: found.append(spark.readStream.schema(SCHEMA).json("in")))
    return found


GOOD: dict[str, Any] = {
    "job": lambda spark: None, "frame": frames()[0],
    "name": "n", "path": "in/{location}", "schema": SCHEMA, "format": "json", "broker": "b:1883", "topic": "t",
    "layer": "edge", "condition": "v > 1", "expression": "tags", "alias": "tag", "function": one, "column": "ts",
    "delay": "1 s", "size": "1 minute", "gap": "1 minute", "time_column": "ts", "order_by": "ts", "k": 3, "by": "v",
    "on": "machine", "keys": "machine", "url": "jdbc:postgresql://h/d", "table": "t", "bootstrap_servers": "b:9092",
    "initial": 0, "step": lambda state, row: state, "keep": lambda state, row: True, "per": "machine",
    "maker": hw.complete("v > 1"), "until": "v > 1", "text": "SELECT machine, ts, v FROM readings",
    "existing": "v", "new": "value", "names": {"v": "value"}, "columns": {"twice": "v * 2"},
    "pattern": "a b", "measures": {"n": "count(*)"}, "catalog": "sqlite:////d/c.db", "warehouse": "/d/warehouse",
}  # fmt: skip
"""A good value of each required argument, by its name."""
MODEL = tempfile.NamedTemporaryFile(suffix=".onnx")  # noqa: SIM115 - it is there while the tests run
ALSO: dict[str, dict[str, Any]] = {
    "stream.predict": {"model": MODEL.name, "columns": "v", "type": "double"},
    "stream.count_window": {"size": 3},
    "stream.top_k": {"per": "ts"},
    "stream.scan": {"function": fold},
    "stream.join": {"within": "1 minute"},
    "stream.with_watermark": {"column": "ts"},
    "stream.withColumn": {"column": "v * 2"},
    "write.for_each_batch": {"function": fold},
    "read.iceberg": {"table": "plant.readings"},
    "write.iceberg": {"table": "plant.readings"},
    "write.opcua": {"url": "opc.tcp://plc:4840", "node": "ns=2;s=Speed", "value": "v"},
    "read.opcua": {"url": "opc.tcp://plc:4840", "nodes": ["ns=2;s=Speed"]},
    "read.http": {"address": "127.0.0.1:8080/rows"},
}
INTERNAL = {"new_id", "add_sink", "replace_sink", "add_name"}  # between the classes of the API


def _members(cls: type) -> list[tuple[str, Any]]:
    """Return the methods of a class, also of its parts that are in files of their own."""
    parts = [one for one in reversed(cls.__mro__) if one.__module__.startswith("headwater.dataflow.")]
    found = {name: member for one in parts for name, member in vars(one).items()}
    return list(found.items())


ARGUMENTS = [
    (owner, name, parameter)
    for owner, (cls, _) in OWNERS.items()
    for name, member in ([(n, getattr(cls, n)) for n in hw.__all__] if cls is hw else _members(cls))
    if inspect.isfunction(member) and not name.startswith("_") and name not in INTERNAL
    for parameter in inspect.signature(member).parameters
    if parameter != "self"
]


def call(owner: str, name: str, parameter: str, value: Any) -> Any:
    """Call a method with good values, but one."""
    target = OWNERS[owner][1]()
    name = getattr(type(target), name).__name__ if owner != "hw" else name  # PySpark's name of the same method
    if (owner, name) == ("stream", "with_watermark"):
        target = hw.flow("f", locations=["L1"]).read.json("in/{location}", SCHEMA)
    method = getattr(target, name)
    args: list[Any] = []
    named: dict[str, Any] = {}
    for one_ in inspect.signature(method).parameters.values():
        if one_.kind is one_.VAR_POSITIONAL:
            if one_.name == parameter:
                args = list(value) if isinstance(value, list) and len(value) > 9 else [value]
        elif one_.kind is one_.VAR_KEYWORD:
            if one_.name == parameter:
                named["added"] = value
        elif one_.name == parameter:
            named[one_.name] = value
        elif one_.name in (also := ALSO.get(f"{owner}.{name}", {})):
            named[one_.name] = also[one_.name]
        elif one_.name == "other":
            named["other"] = target.select("machine", "ts" if name == "zip" else "ts AS at", "v AS w")
        elif one_.name == "history":
            named["history"] = target.builder.read.json("old/{location}", SCHEMA)
        elif one_.default is one_.empty:
            assert one_.name in GOOD, f"give GOOD a value for the argument {one_.name} of {owner}.{name}"
            named[one_.name] = GOOD[one_.name]
    return method(*args, **named)


def planned(result: Any) -> None:
    """Finish a dataflow that begins with the result of a call, and plan it."""
    if isinstance(result, DataflowBuilder):
        result = result.read.rate()
    elif type(result).__name__.endswith("Window"):
        result = stream().group_by(result)
    elif isinstance(result, Complete | ChopTime | SlidingTime):
        result = stream().windowed(result, order_by="ts")
    if isinstance(result, ReferenceTable):
        key = next((c for c in result.columns if result.schema.column(c).type.text == "string"), result.columns[0])
        result = stream().select(f"machine AS {quoted(key)}").join(result, key)
    if isinstance(result, Grouped | Counted | Windowed):
        result = result.agg(n="count(*)")
    if isinstance(result, Stream):
        result = result.write.memory("m")
    if isinstance(result, WrittenStream):
        flow: Any = result.stream.builder
        made = flow.build()
        assert Dataflow.from_json(made.to_json()) == made, "its JSON form is accepted too"
        build(made, PLACES)


class Hostile:
    """An object of which nothing can be asked."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    __hash__ = None  # type: ignore[assignment]


def endless() -> Iterator[int]:
    return itertools.count()


NUMBERS = [0, -1, 1, 3, 2**31, 2**63, 10**30, 10**400, 10**5000, 1.5, -0.0, 1e308, math.nan, math.inf, -math.inf]
OTHERS = [None, True, False, b"x", 1j, Decimal(3), [], (), {}, {"a": 1}, [[]], ["v", 5], object, object(), one]
TEXTS = [
    "", " ", "\0", "a\0b", "a\nb", "a\x1b[31mb", "\u2028", "\udcff", "ä", "a/b", "..", "5", "v", "ts", "machine", "NaN",
    "a" * 10_000_000, "a" * 5_000, "1 ns", "0.0000001 s", "100000000000 days", "106751992 days", "-5 minutes", "0 s",
    "1e400 s", "9" * 500 + " s", "300000000 years", "1 month", "soon", "[bold]", "{location}", "{0}", "%s", "`", "'",
]  # fmt: skip
BAD: list[Any] = [
    *NUMBERS, *OTHERS, *TEXTS, np.int64(3), np.float32(1.5), np.array([1, 2]), np.bool_(True), Hostile(), [Hostile()],
    ["v"] * 20_000, [f"c{n}" for n in range(20_000)], json.loads("[" * 900 + "]" * 900),
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(BAD),
    st.builds(endless),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.lists(st.one_of(st.text(max_size=5), st.integers(), st.none()), max_size=3),
)


def outcome(owner: str, name: str, parameter: str, value: Any) -> str:
    """Return the words for a refused value; an accepted one is planned."""
    try:
        planned(call(owner, name, parameter, value))
    except HeadwaterError as error:
        for found in error.errors if isinstance(error, ErrorList) else (error,):
            assert found.hint, f"no hint: {found}"
            assert len(str(found)) < 3_000, "the message can be read"
        return str(error)
    return "accepted"


WORST = [None, True, -1, 10**5000, math.nan, "", "a\nb", "\udcff", "a" * 10_000_000, [], [Hostile()], Hostile()]


@pytest.mark.parametrize(("owner", "name", "parameter"), ARGUMENTS, ids=map(".".join, ARGUMENTS))
def test_bad_values_of_every_argument(owner: str, name: str, parameter: str) -> None:
    for value in [*WORST, endless()]:
        outcome(owner, name, parameter, value)


@pytest.mark.long
@pytest.mark.parametrize(("owner", "name", "parameter"), ARGUMENTS, ids=map(".".join, ARGUMENTS))
def test_more_bad_values_of_every_argument(owner: str, name: str, parameter: str) -> None:
    for value in BAD:
        outcome(owner, name, parameter, value)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=200)
@given(argument=st.sampled_from(ARGUMENTS), value=VALUES)
@example(argument=("stream", "to_layer", "layer"), value=5)
def test_drawn_values_of_every_argument(argument: tuple[str, str, str], value: Any) -> None:
    outcome(*argument, value)


def test_every_argument_has_a_rule() -> None:
    """The first state of a fold is taken as it is, and a data source: the operator, and the method, check them."""
    free = set()
    for owner, name, parameter in ARGUMENTS:
        function = inspect.unwrap(getattr(OWNERS[owner][0], name))
        assert hasattr(getattr(OWNERS[owner][0], name), "__wrapped__"), f"{owner}.{name} is not checked"
        if rule_of(get_type_hints(function, include_extras=True)[parameter]) == ANYTHING:
            free.add(parameter)
    assert free == {"initial", "source"}


def test_bounds_are_documented_and_the_same_for_the_operator() -> None:
    """Each bound of a number stands in the docstring of its method."""
    found = 0
    for owner, name, parameter in ARGUMENTS:
        function = inspect.unwrap(getattr(OWNERS[owner][0], name))
        hint = get_type_hints(function, include_extras=True)[parameter]
        for rule in (rule_of(hint), *getattr(rule_of(hint), "rules", ())):
            if isinstance(rule, Whole | Number) and 2 < rule.most < 2**62:
                found += 1
                assert f"{rule.most:.15g}" in str(inspect.getdoc(function)), f"{owner}.{name}: {parameter}"
    assert found >= 6
    for kind, setting, most in (
        ("count_window", "size", 1_000_000), ("console", "rows", 10_000), ("rate", "rows_per_second", 10**9),
        ("sensors", "machines", 100_000),
    ):  # fmt: skip
        assert rule_of(get_type_hints(KINDS[kind], include_extras=True)[setting]) == Whole(1, most)
    span = get_type_hints(KINDS["watermark"], include_extras=True)["delay"]
    assert rule_of(span) == Span(least=0)


def test_every_setting_of_every_operator_has_a_rule() -> None:
    for kind, cls in KINDS.items():
        hints = get_type_hints(cls, include_extras=True)
        assert all(rule_of(hints[f.name]) != ANYTHING for f in fields(cls)), kind


# ---------------------------------------------------------------- named values and their messages

NAMED: list[tuple[str, str, str, Any, str]] = [
    ("stream", "top_k", "k", 10**30, "k is 1000000000000000000000000000000 -> give a whole number of at least 1 and at "
     "most 100000"),
    ("stream", "top_k", "k", 10**400, "k is a number of 401 digits -> give a whole number of at least 1"),
    ("stream", "top_k", "k", 100_001, "k is 100001 -> give a whole number of at least 1 and at most 100000"),
    ("stream", "top_k", "k", 1.5, "k is 1.5 -> give a whole number"),
    ("stream", "top_k", "k", True, "k is True -> give a whole number"),
    ("stream", "top_k", "k", math.nan, "k is nan -> give a whole number"),
    ("stream", "top_k", "k", None, "k is None -> give a whole number"),
    ("stream", "top_k", "k", "3", "k is '3' -> give a whole number"),
    ("stream", "count_window", "size", 10**30, "size is 1000000000000000000000000000000 -> give a whole number of at "
     "least 1 and at most 1000000"),
    ("stream", "count_window", "size", 1.5, "size is 1.5 -> give a whole number"),
    ("stream", "count_window", "slide", True, "slide is True -> give a whole number"),
    ("stream", "count_window", "slide", 4, "window of 3 rows every 4 -> 1 <= slide <= size"),
    ("write", "console", "rows", 10**30, "rows is 1000000000000000000000000000000 -> give a whole number"),
    ("write", "console", "rows", math.nan, "rows is nan -> give a whole number"),
    ("read", "rate", "rows_per_second", 2**63, "rows_per_second is 9223372036854775808 -> give a whole number of at "
     "least 1 and at most 1000000000"),
    ("read", "sensors", "seed", None, "seed is None -> give a whole number"),
    ("read", "sensors", "machines", 10**30, "machines is 1000000000000000000000000000000 -> give a whole number"),
    ("read", "sensors", "rows", -1, "rows is -1 -> give a whole number of at least 0"),
    ("read", "sensors", "rows_per_second", math.inf, "rows_per_second is inf -> give a finite number of at least 0 and "
     "at most 1000000000"),
    ("read", "sensors", "interval", "0 seconds", "interval is too short: '0 seconds' -> write it as '5 minutes'"),
    ("read", "mqtt", "qos", 3, "qos is 3 -> use 0, 1 or 2"),
    ("read", "mqtt", "qos", True, "qos is True -> use 0, 1 or 2"),
    ("read", "mqtt", "tls", "yes", "tls is 'yes', a str -> use True or False"),
    ("read", "mqtt", "topic", "", "topic is empty -> write at least one letter"),
    ("hw", "window", "size", "1 ns", "size is too short: '1 ns' -> write it as '5 minutes': at least a microsecond"),
    ("hw", "window", "size", "0.0000001 s", "size is too short: '0.0000001 s' -> "),
    ("hw", "window", "size", "100000000000 days", "size is not a duration: '100000000000 days' -> write at most 365250 "
     "days, a thousand years"),
    ("hw", "window", "slide", "", "slide is not a duration: '' -> write it as '30 seconds'"),
    ("hw", "window", "slide", "1 ns", "slide is too short: '1 ns' -> "),
    ("hw", "session_window", "gap", "106751992 days", "gap is not a duration: '106751992 days' -> write at most"),
    ("hw", "session_window", "gap", "1 ns", "gap is too short: '1 ns' -> "),
    ("stream", "with_watermark", "delay", "1 ns", "delay is too short: '1 ns' -> write it as '5 minutes': at least a "
     "microsecond, or '0 seconds'"),
    ("stream", "with_watermark", "delay", "0 seconds", "accepted"),
    ("stream", "with_watermark", "idle_after", "1 ns", "idle_after is too short: '1 ns' -> "),
    ("stream", "with_watermark", "idle_after", None, "accepted"),
    ("stream", "join", "within", "1 ns", "within is too short: '1 ns' -> write at least a microsecond, or 0"),
    ("stream", "join", "within", "1 month", "accepted"),
    ("stream", "join", "within", "300000000 years", "within: interval '300000000 years' is too large -> write at most "
     "1000 years"),
    ("stream", "to_layer", "layer", 5, "layer is an int where text is wanted -> write it as text, in quotes"),
    ("stream", "to_layer", "layer", "", "layer is empty -> write at least one letter"),
    ("stream", "to_layer", "layer", "a\x1b[31mb", "layer has a control character at position 1: 'a\\x1b[31mb' -> write "
     "it without line ends, tabs and escapes"),
    ("stream", "to_layer", "layer", "a" * 10_000_000, "layer has 10000000 characters -> write at most 4096"),
    ("read", "csv", "path", 5, "path is an int where text is wanted -> write it as text, in quotes"),
    ("read", "csv", "path", None, "path is a NoneType where text is wanted -> write it as text, in quotes"),
    ("read", "csv", "path", "a\0b", "path has a control character at position 1: 'a\\x00b' -> "),
    ("read", "csv", "path", "\udcff", "path has half a character: '\\udcff' -> write text that is valid UTF-8"),
    ("read", "csv", "location_as", "a\nb", "location_as has a control character at position 1: 'a\\nb' -> "),
    ("write", "csv", "path", 5, "path is an int where text is wanted -> "),
    ("write", "kafka", "topic", None, "topic is a NoneType where text is wanted -> "),
    ("stream", "select", "columns", "v AS `a\nb`", "the column's name has a control character at position 1: 'a\\nb' "
     "-> write it without line ends, tabs and escapes; AS gives it another name"),
    ("stream", "require", "predicates", 5, "item 1 of predicates is an int where text is wanted -> "),
    ("stream", "named", "name", 5, "name is an int where text is wanted -> "),
    ("stream", "named", "name", "a\n", "name 'a\\n' cannot be used -> use letters, digits"),
    ("hw", "flow", "locations", "L1", 'locations are a text -> write locations=["L1"]'),
    ("hw", "flow", "locations", [5], "item 1 of locations is an int where text is wanted -> "),
    ("hw", "flow", "locations", endless(), "locations: more than 5000 items -> give at most 5000"),
    ("stream", "drop_duplicates", "columns", ["v"] * 20_000, "columns: more than 5000 items -> give at most 5000"),
    ("stream", "union", "others", 5, "item 1 of others is 5, an int -> give a Stream"),
    ("stream", "group_by", "keys", 5, "item 1 of keys is an int where a key is wanted -> write "
     'group_by(hw.window("ts", "1 minute"), "machine")'),
    ("stream", "scan", "initial", json.loads("[" * 900 + "]" * 900), "accepted"),
    ("stream", "scan", "initial", "a" * 10_000_000, "initial has 10000002 characters -> write at most 1048576"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "parameter", "value", "said"), NAMED)
def test_named_values(owner: str, name: str, parameter: str, value: Any, said: str) -> None:
    found = " ".join(outcome(owner, name, parameter, value).split())
    if said == "accepted":
        assert found == said
    else:
        where, found = found.split(": ", 1)
        assert found.startswith(said)
        assert name in where or "operator '" in where or where == "read.files('in/{location}')"


def test_a_dataflow_has_not_endlessly_many_operators() -> None:
    rows = stream()
    with pytest.raises(DataflowError, match="more than 2000 operators"):
        while True:
            rows = rows.where("v > 1")
    operators = [{"id": f"o{n}", "kind": "rate"} for n in range(10_001)]
    with pytest.raises(HeadwaterError, match="10001 operators"):
        Dataflow.from_data({"headwater": 1, "name": "f", "operators": operators})


def test_the_json_form_has_the_same_bounds() -> None:
    def read(**entry: Any) -> None:
        sink = {"id": "m", "kind": "memory", "inputs": ["s"]}
        Dataflow.from_data({"headwater": 1, "name": "f", "operators": [{"id": "s", **entry}, sink]})

    read(kind="sensors", machines=100_000)
    for entry, said in (
        ({"kind": "sensors", "machines": 100_001}, "operator 's'.*machines is 100001"),
        ({"kind": "sensors", "interval": "1 ns"}, "interval is too short"),
        ({"kind": "rate", "rows_per_second": 2**63}, "rows_per_second is 9223372036854775808"),
        ({"kind": "files", "path": "a\0", "format": "csv", "schema_text": "a int"}, "path has a control character"),
        ({"kind": "files", "path": "", "format": "csv", "schema_text": "a int"}, "path is empty"),
        ({"kind": "files", "path": "p", "format": "csv", "schema_text": "a int", "file_as": "a\nb"}, "file_as has a"),
    ):
        with pytest.raises(HeadwaterError, match=said):
            read(**entry)


def test_numbers_are_finite_also_without_bounds() -> None:
    assert [Number().takes(n) for n in (1, 1.5, 1e308, math.inf, -math.inf, math.nan, 10**400, True, "1")] == [
        True
    ] * 3 + [False] * 6


def test_numbers_of_numpy_become_numbers() -> None:
    rows = stream().count_window(np.int64(3), order_by="ts").agg(n="count(*)")
    found: Any = rows.operator
    assert type(found.size) is int
