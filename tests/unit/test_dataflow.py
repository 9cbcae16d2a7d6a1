"""The dataflow as a value: JSON round trip, hostile JSON, content keys, hoisted watermarks."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import DataflowError, ErrorList, HeadwaterError
from headwater.dataflow import graph
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from tests.deployments import flows

SCHEMA = "id bigint, ts timestamp, k string, v double, tags array<string>"


def read(name: str = "f") -> Stream:
    return hw.flow(name, locations=["L1"]).read.json("/d/{location}", SCHEMA, location_as="location")


def built(stream: Stream) -> Dataflow:
    stream.write.memory("out")
    flow = stream.builder.build()  # type: ignore[attr-defined]
    assert isinstance(flow, Dataflow)
    return flow


def key(stream: Stream) -> str:
    return built(stream).keys["out"]


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("make", flows.FLOWS.values(), ids=flows.FLOWS)
def test_json_there_and_back(make: Callable[[str], Any]) -> None:
    flow = make("/d/{location}").build()
    again = Dataflow.from_json(flow.to_json())
    assert again == flow and again.keys == flow.keys and again.types == flow.types
    assert again.to_json() == flow.to_json()
    assert Dataflow.from_data(json.loads(json.dumps(flow.to_data()))) == flow


def test_json_keeps_place_and_requirements() -> None:
    stream = read().to_layer("cloud").require("gpu = true", "memory >= 16GiB").where("v > 1")
    flow = built(stream)
    again = Dataflow.from_json(flow.to_json())
    assert again["where"].layer == "cloud"
    assert again["where"].requires.text == "gpu = true and memory >= 16GiB"
    assert again.locations == ("L1",)


def data() -> dict[str, Any]:
    return built(read().where("v > 1")).to_data()


def changed(operator: int, **settings: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d["operators"][operator].update(settings)


DEEP = json.loads("[" * 500 + "]" * 500)
HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda d: [d], "not a Headwater dataflow"),
    "text": (lambda d: "x", "not a Headwater dataflow"),
    "another format": (lambda d: d.update(headwater=2), "not a Headwater dataflow"),
    "true is not 1": (lambda d: d.update(headwater=True), "not a Headwater dataflow"),
    "unknown top": (lambda d: d.update(zz=1), "unknown settings: zz"),
    "name": (lambda d: d.update(name=3), "valid string"),
    "no name": (lambda d: {k: v for k, v in d.items() if k != "name"}, "valid string"),
    "name is a path": (lambda d: d.update(name="../x"), "cannot be used"),
    "locations text": (lambda d: d.update(locations="L1"), "valid tuple"),
    "locations numbers": (lambda d: d.update(locations=[1]), "valid string"),
    "locations twice": (lambda d: d.update(locations=["a", "a"]), "named twice"),
    "location is a path": (lambda d: d.update(locations=["../a"]), "cannot be used"),
    "operators none": (lambda d: d.update(operators=None), "valid list"),
    "operators numbers": (lambda d: d.update(operators=[1]), "valid dictionary"),
    "operators empty": (lambda d: d.update(operators=[]), "empty"),
    "unknown kind": (changed(1, kind="zz"), "unknown kind 'zz'"),
    "kind a list": (changed(1, kind=["where"]), "unknown kind"),
    "kind none": (changed(1, kind=None), "unknown kind None"),
    "unknown setting": (changed(1, zz=1), "unknown settings: zz"),
    "condition number": (changed(1, condition=3), "condition: Input should be a valid string"),
    "condition broken": (changed(1, condition="((("), "expected an expression"),
    "condition column": (changed(1, condition="zz > 1"), "no column 'zz'"),
    "condition deep": (changed(1, condition="(" * 30000 + "v > 1" + ")" * 30000), "where"),
    "condition huge": (changed(1, condition="v > 1 AND " * 20000 + "v > 1"), "characters"),
    "id number": (changed(1, id=3), "id: Input should be a valid string"),
    "id is a path": (changed(1, id="a/b"), "cannot be used"),
    "layer number": (changed(1, layer=3), "layer: Input should be a valid string"),
    "requires number": (changed(1, requires=3), "'requires' is not text"),
    "requires none": (changed(1, requires=None), "'requires' is not text"),
    "requires broken": (changed(1, requires="gpu"), "operator 'where': requirement 'gpu'"),
    "inputs text": (changed(1, inputs="files"), "inputs: Input should be a valid"),
    "inputs nested": (changed(1, inputs=[["files"]]), "inputs.0"),
    "inputs deep": (changed(1, inputs=DEEP), "operator 'where'"),
    "no inputs": (changed(1, inputs=[]), "has 0 inputs, needs 1"),
    "two inputs": (changed(1, inputs=["files", "files"]), "has 2 inputs, needs 1"),
    "dangling input": (changed(1, inputs=["zz"]), "reads unknown operator 'zz'"),
    "duplicate": (lambda d: d["operators"].append(d["operators"][1]), "two operators are called 'where'"),
    "nobody reads": (
        lambda d: d["operators"].append({**d["operators"][1], "id": "x"}), "'x' .*nothing reads its output"),
    "sink is read": (
        lambda d: d["operators"].append({**d["operators"][2], "id": "x", "inputs": ["out"]}),
        "a sink has no output"),
    "schema": (changed(0, schema_text="a intt"), "'files'.*'intt' is not a type"),
    "schema deep": (changed(0, schema_text="a " + "array<" * 9000), "'files'"),
    "schema reserved": (changed(0, schema_text="__a int"), "reserved"),
    "format": (changed(0, format="orc"), "'csv', 'json' or 'parquet'"),
    "options pair": (changed(0, options=[["a"]]), "options.0"),
    "options number": (changed(0, options=[["a", 1]]), "options.0.1"),
    "options dict": (changed(0, options={"a": "b"}), "options: Input should be a valid"),
    "surrogate": (changed(0, path="\ud800"), "operator 'files'"),
    "not JSON": (changed(0, path={1, 2}), "operator 'files'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_json(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    given = copy.deepcopy(data())
    result = change(given)
    with pytest.raises(HeadwaterError, match=f"(?s){message}") as caught:
        Dataflow.from_data(given if result is None else result)
    found = caught.value.errors if isinstance(caught.value, ErrorList) else (caught.value,)
    assert found and all(isinstance(e, DataflowError) and len(str(e)) < 2000 for e in found)
    assert all(e.hint for e in found)


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, "NaN", '{"headwater": ' + "9" * 5000 + "}", "{"])
def test_hostile_text(text: str) -> None:
    with pytest.raises(DataflowError):
        Dataflow.from_json(text)


def test_huge_json_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_JSON_BYTES", 100)
    with pytest.raises(DataflowError, match="larger than 100 bytes"):
        Dataflow.from_json("[" * 101)


def operators(*entries: dict[str, Any]) -> Dataflow:
    rate = {"id": "s", "kind": "rate", "inputs": []}
    mark = {"id": "t", "kind": "watermark", "inputs": ["s"], "column": "timestamp", "delay": "1 s"}
    return Dataflow.from_data({"headwater": 1, "name": "x", "operators": [rate, mark, *entries]})


@pytest.mark.parametrize("bound", [True, "5", 1.5, None])
def test_numbers_are_numbers(bound: Any) -> None:
    rate = {"id": "s", "kind": "rate", "inputs": [], "rows_per_second": bound}
    sink = {"id": "m", "kind": "console", "inputs": ["s"], "rows": bound}
    for entry in (rate, {**sink, "inputs": ["t"]}):
        with pytest.raises(HeadwaterError, match="valid integer"):
            operators({**entry, "id": "z"})


@pytest.mark.parametrize(
    "window",
    [{}, {"column": "timestamp"}, {"column": "timestamp", "size": "1 s", "gap": "1 s"},
     {"column": "timestamp", "gap": "1 s", "zz": 1}, {"column": "timestamp", "size": 3}, "1 s", []],
)  # fmt: skip
def test_hostile_window(window: Any) -> None:
    count = {"keys": [], "aggregates": [["n", "count(*)"]], "inputs": ["t"]}
    sink = {"id": "m", "kind": "memory", "inputs": ["a"]}
    with pytest.raises(DataflowError, match=r"operator 'a': window"):
        operators({"id": "a", "kind": "aggregate", "window": window, **count}, sink)


@pytest.mark.parametrize(("idle_after", "said"), [("soon", "not a duration: 'soon'"), ("0 s", "too short"), (5, "")])
def test_idleness_is_a_duration(idle_after: Any, said: str) -> None:
    with pytest.raises(DataflowError, match=f"idle_after is {said}"):
        read().with_watermark("ts", "1 s", idle_after=idle_after)


def test_idleness_follows_the_event_time() -> None:
    def together(*spans: str | None) -> float | None:
        rows = read()
        first, *others = (rows.with_watermark("ts", "1 s", idle_after=span) for span in spans)
        stream = first.union(*others) if others else first
        stream = stream.where("v > 1").select("ts AS t", "k").group_by(hw.window("t", "1 hour"), "k").count()
        time = built(stream).types["out"].event_time
        assert time is not None
        return time.idle_after

    found = [together("5 minutes"), together("5 minutes", "1 hour"), together("5 minutes", None), together(None)]
    assert found == [300, 3600, None, None]


def test_cycles_are_named() -> None:
    loop = [
        {"id": "a", "kind": "union", "inputs": ["t", "b"]},
        {"id": "b", "kind": "where", "inputs": ["a"], "condition": "value > 1"},
        {"id": "m", "kind": "memory", "inputs": ["b"]},
    ]
    with pytest.raises(ErrorList, match=r"cycle: (a -> b -> a|b -> a -> b)"):
        operators(*loop)
    with pytest.raises(ErrorList, match="cycle: a -> a"):
        operators({**loop[0], "inputs": ["t", "a"]}, {**loop[2], "inputs": ["a"]})


def test_all_mistakes_are_told_at_once() -> None:
    wheres = [{"id": f"w{i}", "kind": "where", "inputs": ["t"], "condition": f"zz{i} > 1"} for i in range(3)]
    sinks = [{"id": f"m{i}", "kind": "memory", "inputs": [f"w{i}"]} for i in range(3)]
    with pytest.raises(ErrorList) as caught:
        operators(*wheres, *sinks)
    assert [e.where for e in caught.value.errors] == [f"operator 'w{i}' (where)" for i in range(3)]


def test_scan_state_must_be_json() -> None:
    fold = {"id": "a", "kind": "scan", "inputs": ["t"], "keys": [], "order_by": ["value"], "initial": "{{",
            "schema_text": "n int", "function": {"name": "f", "fingerprint": "x", "pickled": ""}}  # fmt: skip
    sink = {"id": "m", "kind": "memory", "inputs": ["a"]}
    with pytest.raises(HeadwaterError, match=r"'a' .*initial state is not JSON"):
        operators(fold, sink)
    assert operators({**fold, "initial": "[1]"}, sink)["a"].kind == "scan"
    with pytest.raises(DataflowError, match="function"):
        operators({**fold, "function": {"name": "f", "fingerprint": "x", "pickled": "", "run": 1}}, sink)


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_code_in_json_is_never_loaded(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    pickled = base64.b64encode(pickle.dumps(Trap(trap))).decode()
    flow = built(read().map_batches(lambda batches: batches, "id bigint, k string").where("id > 1"))
    given = flow.to_data()
    given["operators"][1]["function"]["pickled"] = pickled
    again = Dataflow.from_json(json.dumps(given))
    assert again.keys and again.types and again.to_json() and again == Dataflow.from_data(given)
    assert hash(again) and repr(again) and pickle.dumps(again)
    assert again.with_operators([again["where"]]) == again
    assert not trap.exists()
    pickle.loads(base64.b64decode(pickled)).close()  # the trap works
    assert trap.exists()


# ---------------------------------------------------------------- content keys


def plain() -> Stream:
    return read().where("v > 1").select("id", "v * 2 AS w")


def test_keys_do_not_depend_on_name_place_or_spelling() -> None:
    same = [
        plain(),
        read("other").named("readings").where("v > 1").named("big").select("id", "v * 2 AS w").named("x"),
        read().to_layer("site").where("v > 1").require("gpu = true").select("id", "v * 2 AS w"),
        read().where(" ( V>1 ) ").select("ID AS id", "(v*2) as w"),
        read().filter("`v`>1").select("id", "V  *  2 AS w"),
    ]
    assert len({key(stream) for stream in same}) == 1


def test_keys_of_computed_columns_and_aggregates_by_meaning() -> None:
    window = hw.window("ts", "1 minute")
    a = read().with_columns(w="v*2").with_watermark("ts", "1 s").group_by(window, "k").agg(n="sum( W )")
    b = read().with_columns(w="(V * 2)").with_watermark("TS", "1 s").group_by(window, "K").agg(n="SUM(w)")
    assert key(a) == key(b)
    counted = [read().count_window(3, keys=k, order_by="id").agg(n=n) for k, n in
               (("k", "sum(v)"), ("K", "SUM( V )"))]  # fmt: skip
    assert key(counted[0]) == key(counted[1])
    exploded = [read().explode(text, "tag") for text in ("tags", " (TAGS) ")]
    assert key(exploded[0]) == key(exploded[1])


def test_keys_depend_on_what_is_done() -> None:
    window = hw.window("ts", "1 minute")
    timed = read().with_watermark("ts", "1 s")
    different = [
        plain(),
        read().where("v > 2").select("id", "v * 2 AS w"),
        read().where("v > 1").select("id", "v * 2 AS x"),
        read().where("v > 1").select("v * 2 AS w", "id"),
        hw.flow("f").read.csv("/d/{location}", SCHEMA, location_as="location").where("v > 1").select(
            "id", "v * 2 AS w"),
        read().select("id", "v").where("v > 1").select("id", "v * 2 AS w"),
        read().with_watermark("ts", "2 s"), read().with_watermark("ts", "2 s", idle_after="1 minute"),
        read().explode("tags", "tag"), read().explode("tags", "tag", outer=True),
        timed.group_by(window).count(), read().with_watermark("ts", "1 s").group_by(window, "k").count(),
        read().count_window(3, order_by="id").agg(n="count(*)"),
        read().count_window(4, order_by="id").agg(n="count(*)"),
        read().map_batches(lambda batches: batches, "id bigint"),
        read().map_batches(lambda batches: list(batches), "id bigint"),
    ]  # fmt: skip
    assert len({key(stream) for stream in different}) == len(different)


def test_keys_depend_on_structure_above() -> None:
    # The same ancestors in another order: a comparison as sets would call these equal.
    one = read().where("v > 1").explode("tags", "tag").where("id > 3")
    two = read().explode("tags", "tag").where("v > 1").where("id > 3")
    assert key(one) != key(two)


def test_order_of_inputs() -> None:
    def halves(swap: bool) -> tuple[Stream, Stream]:
        rows = read().with_watermark("ts", "1 s")
        left = rows.where("v > 1").select("id", "ts", "v")
        right = rows.where("v <= 1").select("id", "ts", "v")
        return (right, left) if swap else (left, right)

    a, b = halves(False)
    c, d = halves(True)
    assert key(a.union(b)) == key(c.union(d))
    # The sides of a join differ, even if only their order does.
    a, b = halves(False)
    b = b.select("id", "ts AS at", "v AS w")
    c, d = halves(True)
    c = c.select("id", "ts AS at", "v AS w")
    assert key(a.join(b, "id", within="1 s")) != key(c.join(d, "id", within="1 s"))
    # The order matters where the first input determines the order of the columns.
    s, t = read().select("id", "v"), read()
    assert key(s.union(s.select("v", "id"))) != key((u := t.select("id", "v")).select("v", "id").union(u))


# ---------------------------------------------------------------- hoisting


def order(flow: Dataflow) -> list[str]:
    return list(flow.order)


def test_watermark_moves_above_filters_and_renames() -> None:
    stream = read().where("v > 1").select("ts AS t", "id").where("id > 3").with_watermark("t", "1 s")
    flow = built(stream)
    assert order(flow) == ["files", "watermark", "where", "select", "where-2", "out"]
    assert flow["watermark"].config()["column"] == "ts"
    assert flow.types["out"] == stream.shape
    assert flow.types["files"].event_time is None


def test_watermark_is_where_its_input_is() -> None:
    """After a crossing between zones, the rows of a slow zone would be late."""
    for late in (
        read().to_layer("cloud").require("gpu = true").where("v > 1").with_watermark("ts", "1 s"),
        read().where("v > 1").to_layer("cloud").require("gpu = true").with_watermark("ts", "1 s"),
        read().to_layer("cloud").explode("tags", "tag").with_watermark("ts", "1 s"),
    ):
        flow = built(late)
        mark = flow["watermark"]
        assert (mark.inputs, mark.layer, mark.requires.text) == (("files",), None, "")
    heavy = read().to_layer("cloud").require("gpu = true").map_batches(lambda b: b, "ts timestamp").named("m")
    flow = built(replace(heavy, next_layer=None).with_watermark("ts", "1 s"))
    assert (flow["watermark"].layer, flow["watermark"].requires.text) == ("cloud", "gpu = true")


def test_watermark_moves_above_an_explode_that_does_not_make_its_column() -> None:
    def exploded() -> Stream:
        return read().select("id", "array(ts, ts) AS both", "ts").explode("both", "at")

    assert built(exploded().with_watermark("ts", "1 s"))["watermark"].inputs == ("files",)
    assert built(exploded().with_watermark("AT", "1 s"))["watermark"].inputs == ("explode",)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.with_columns(ts="date_trunc('hour', ts)"),
        lambda s: s.select("id", "to_timestamp(k) AS ts"),
        lambda s: s.union(s),
        lambda s: s.map_batches(lambda batches: batches, "ts timestamp"),
    ],
)
def test_watermark_stays_below(make: Callable[[Stream], Stream]) -> None:
    stream = make(read()).with_watermark("ts", "1 s")
    flow = built(stream)
    assert order(flow).index("watermark") == len(flow.operators) - 2
    assert flow.types["out"] == stream.shape


def test_watermark_stays_below_what_others_read() -> None:
    shared = read().where("v > 1")
    shared.write.memory("raw")
    flow = built(shared.with_watermark("ts", "1 s"))
    assert flow["watermark"].inputs == ("where",)
    assert flow.types["raw"].event_time is None


def test_watermark_on_the_second_name_of_a_column_stays() -> None:
    stream = read().select("ts AS a", "ts AS b").with_watermark("b", "1 s").group_by(
        hw.window("b", "1 minute")).count()  # fmt: skip
    flow = built(stream)
    assert flow["watermark"].inputs == ("select",)
    assert flow.types["out"] == stream.shape
    first = read().select("ts AS a", "ts AS b").with_watermark("`A`", "1 s")
    flow = built(first)
    assert flow["watermark"].inputs == ("files",) and flow.types["out"] == first.shape


@pytest.mark.parametrize("make", flows.FLOWS.values(), ids=flows.FLOWS)
def test_hoisting_changes_no_type_downstream(make: Callable[[str], Any]) -> None:
    builder = make("/d/{location}")
    flow = builder.build()
    for sink in builder._sinks:
        assert flow.types[sink.operator.id] == sink.shape


def test_a_label_tells_operators_apart() -> None:
    f = hw.flow("f")
    read = f.read.csv("/data/of/a/plant/with/a/long/name/in/{location}/*.csv", "k string, ts timestamp, v double")
    kept = read.where("v > 5").where("k <> 'none'").with_watermark("ts", "1 minute")
    kept.group_by(hw.window("ts", "1 hour"), "k").agg(n="count(*)").write.memory("out")
    assert [o.label for o in f.build().operators] == [
        "files(csv, /data/of/a/plan .. /in/{location}/*.csv)",
        "where(v > 5)",
        "where-2(k <> 'none')",
        "watermark(ts, 1 minute)",
        "aggregate(ts 1 hour, k)",
        "out",
    ]


def test_the_file_of_a_row_is_a_column_of_the_source() -> None:
    read = hw.flow("f", locations=["L1"]).read
    plain, named = (read.csv("in", "id int", location_as="at", file_as=column) for column in (None, "file"))
    assert named.columns == ["id", "file", "at"]
    assert "file_as" not in plain.operator.config(), "keys and documents of older sources stay"
    assert named.operator.config()["file_as"] == "file"
    with pytest.raises(DataflowError, match="file_as='id' names an existing column"):
        read.json("in", "id int", file_as="id")
    with pytest.raises(DataflowError, match="has no value behind a channel") as refused:
        plain.select("id", "input_file_name() AS file")
    assert "file_as='file'" in str(refused.value.hint)
