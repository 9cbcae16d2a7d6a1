"""Row patterns: the automaton against a search of all mappings, and the operators that a pattern becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.app.loading import LoadedDataflow, check_trust
from headwater.core.errors import DataflowError, HeadwaterError
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Select
from headwater.dataflow.recognition import Recognition, recognition
from headwater.dataflow.rowmatcher import compared, matching, measured
from headwater.dataflow.stateful import Scan
from headwater.dataflow.stream import Stream
from headwater.plan.state import _parts
from headwater.sql.rowpattern import (
    MOST_STEPS,
    PatternChoice,
    PatternRepetition,
    PatternSequence,
    PatternVariable,
    RowPattern,
    parse_pattern,
    program_of,
)

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1)


def readings(name: str = "patterns") -> Stream:
    raw = hw.flow(name, locations=["L1"]).read.json("in/{location}", "m string, ts timestamp, v int, t double")
    return raw.with_watermark("ts", "10 seconds")


SHAPE = readings().shape


def built(stream: Stream) -> Dataflow:
    stream.write.memory("out")
    return stream.builder.build()  # type: ignore[attr-defined,no-any-return]


def scan_of(flow: Dataflow) -> Scan:
    (found,) = (o for o in flow.operators if isinstance(o, Scan))
    return found


# ---------------------------------------------------------------- a search of all mappings

Truth = bool | None


@dataclass
class Search:
    """Try all mappings of the rows from ``start``, the preferred ones first, as SQL defines them."""

    rows: list[Row]
    start: int
    conditions: dict[str, Callable[[Search, str], Truth]]
    within: int | None
    ran_out: bool = field(default=False)

    def paths(self, pattern: RowPattern, path: str) -> Iterator[str]:
        match pattern:
            case PatternVariable(name):
                if self.takes(path + name):
                    yield path + name
            case PatternSequence(parts):
                if not parts:
                    yield path
                else:
                    for longer in self.paths(parts[0], path):
                        yield from self.paths(PatternSequence(parts[1:]), longer)
            case PatternChoice(branches):
                for branch in branches:
                    yield from self.paths(branch, path)
            case PatternRepetition(part, least, most, greedy):
                again = PatternRepetition(part, max(least - 1, 0), None if most is None else most - 1, greedy)
                more = (p for longer in self.paths(part, path) for p in self.paths(again, longer))
                if least > 0:
                    yield from more
                elif most == 0:
                    yield path
                elif greedy:
                    yield from more
                    yield path
                else:
                    yield path
                    yield from more

    def takes(self, path: str) -> bool:
        at = self.start + len(path) - 1
        if at >= len(self.rows):
            self.ran_out = True
            return False
        if (
            self.within is not None
            and (self.rows[at]["ts"] - self.rows[self.start]["ts"]).total_seconds() > self.within
        ):
            return False
        condition = self.conditions.get(path[-1])
        return condition is None or condition(self, path) is True

    def this(self, path: str) -> Any:
        return self.rows[self.start + len(path) - 1]["v"]

    def prev(self, path: str) -> Any:
        at = self.start + len(path) - 2
        return self.rows[at]["v"] if at >= 0 else None

    def first(self, path: str, name: str) -> Any:
        return self.rows[self.start + path.index(name)]["v"] if name in path else None

    def last(self, path: str, name: str) -> Any:
        return self.rows[self.start + path.rindex(name)]["v"] if name in path else None


def expected(
    rows: list[Row], pattern: RowPattern, conditions: dict[str, Any], within: int | None
) -> list[tuple[int, str]]:
    """Return start and path of every match that is decided by the given rows."""
    found, start = [], 0
    while start < len(rows):
        search = Search(rows, start, conditions, within)
        path = next(search.paths(pattern, ""), None)
        if search.ran_out:
            break  # a later row might give a preferred mapping
        if path is not None:
            found.append((start, path))
        start += len(path) if path else 1
    return found


def less(a: Any, b: Any) -> Truth:
    return None if a is None or b is None else a < b


def both(a: Truth, b: Truth) -> Truth:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def inverse(a: Truth) -> Truth:
    return None if a is None else not a


CONDITIONS: dict[str, Callable[[Search, str], Truth]] = {
    "v > 2": lambda s, p: less(2, s.this(p)),
    "v < PREV(v)": lambda s, p: less(s.this(p), s.prev(p)),
    "NOT (v > PREV(v))": lambda s, p: inverse(less(s.prev(p), s.this(p))),
    "v > FIRST(a.v)": lambda s, p: less(s.first(p, "a"), s.this(p)),
    "v >= LAST(b.v) AND v < 4": lambda s, p: both(
        inverse(less(s.this(p), s.last(p, "b"))), less(s.this(p), 4)
    ),
    "PREV(v) IS NULL OR c.v < 3": lambda s, p: inverse(
        both(inverse(s.prev(p) is None), inverse(less(s.last(p, "c"), 3)))
    ),
    "FIRST(v) < v + 1": lambda s, p: less(s.rows[s.start]["v"], None if s.this(p) is None else s.this(p) + 1),
    "v BETWEEN FIRST(b.v) AND 4": lambda s, p: both(
        inverse(less(s.this(p), s.first(p, "b"))), inverse(less(4, s.this(p)))
    ),
}  # fmt: skip
EVALUATED: dict[str, Callable[[Row], Any]] = {
    "v": lambda r: r["v"],
    "v + 1": lambda r: None if r["v"] is None else r["v"] + 1,
    "v > 2": lambda r: less(2, r["v"]),
    "v < 3": lambda r: less(r["v"], 3),
    "v >= v AND v < 4": lambda r: less(r["v"], 4),
    "v < 4": lambda r: less(r["v"], 4),
    "v <= 4": lambda r: inverse(less(4, r["v"])),
    "3": lambda r: 3,
    "unix_micros(ts)": lambda r: round((r["ts"] - BEGIN).total_seconds() * 1_000_000),
}
"""The values that Spark computes for these conditions."""


def can_be_empty(pattern: RowPattern) -> bool:
    match pattern:
        case PatternRepetition(part, least):
            return least == 0 or can_be_empty(part)
        case PatternSequence(parts):
            return all(map(can_be_empty, parts))
        case PatternChoice(branches):
            return any(map(can_be_empty, branches))
    return False


def text_of(pattern: RowPattern) -> str:
    match pattern:
        case PatternVariable(name):
            return name
        case PatternSequence(parts):
            return f"({' '.join(map(text_of, parts))})"
        case PatternChoice(branches):
            return f"({' | '.join(map(text_of, branches))})"
        case PatternRepetition(part, least, most, greedy):
            times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            times = times or f"{{{least},{'' if most is None else most}}}"
            inner = f"({text_of(part)})" if isinstance(part, PatternRepetition) else text_of(part)
            return f"{inner}{times}{'' if greedy else '?'}"


VARIABLES = st.sampled_from("abc").map(PatternVariable)


def repeated(part: RowPattern, least: int, more: int | None, greedy: bool, extra: RowPattern) -> RowPattern:
    solid = PatternSequence((part, extra)) if can_be_empty(part) else part
    return PatternRepetition(solid, least, None if more is None else max(1, least + more), greedy)


PATTERNS: st.SearchStrategy[RowPattern] = st.recursive(
    VARIABLES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda p: PatternSequence(tuple(p))),
        st.lists(inner, min_size=2, max_size=3).map(lambda p: PatternChoice(tuple(p))),
        st.builds(
            repeated, inner, st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2)), st.booleans(), VARIABLES
        ),
    ),
    max_leaves=6,
)


@given(
    pattern=PATTERNS,
    last=VARIABLES,
    conditions=st.dictionaries(st.sampled_from("abc"), st.sampled_from(sorted(CONDITIONS)), max_size=3),
    values=st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=10),
    gaps=st.lists(st.integers(0, 4), min_size=10, max_size=10),
    within=st.sampled_from([3, 8, 100]),
)
@settings(max_examples=600, deadline=None)
def test_matches_are_those_of_a_search(
    pattern: RowPattern,
    last: RowPattern,
    conditions: dict[str, str],
    values: list[Any],
    gaps: list[int],
    within: int,
) -> None:
    """Leftmost start, preferred mapping, then past the last row; the state is JSON after each row."""
    if can_be_empty(pattern):
        pattern = PatternSequence((pattern, last))
    measures = {"start": "first(ts)", "stop": "last(ts)", "rows": "count(*)", "total": "sum(v)"}
    names = [v for v in "abc" if v in text_of(pattern)]
    measures |= {f"n_{v}": f"count({v}.*)" for v in names} | {f"last_{v}": f"last({v}.v)" for v in names}
    define = {v: text for v, text in conditions.items() if v in names and not others(text, names)}
    found = recognition(
        text_of(pattern),
        SHAPE,
        measures=measures,
        define=define,
        keys=(),
        order_by=(),
        within=within,
        where="here",
    )
    rows: list[Row] = []
    for value, gap in zip(values, gaps, strict=False):
        rows.append({"v": value, "ts": (rows[-1]["ts"] if rows else BEGIN) + timedelta(seconds=gap)})
    wanted = [
        {
            "start": rows[start]["ts"],
            "stop": rows[start + len(path) - 1]["ts"],
            "rows": len(path),
            "total": total([rows[start + i]["v"] for i in range(len(path))]),
            **{f"n_{v}": path.count(v) for v in names},
            **{f"last_{v}": rows[start + path.rindex(v)]["v"] if v in path else None for v in names},
        }
        for start, path in expected(rows, pattern, {v: CONDITIONS[t] for v, t in define.items()}, within)
    ]
    assert folded(found, rows, measures) == wanted


def others(text: str, names: list[str]) -> bool:
    """Return whether a condition names a variable that the pattern lacks."""
    return any(f"{v}.v" in text.lower() and v not in names for v in "abc")


def total(values: list[Any]) -> Any:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def folded(made: Recognition, rows: list[Row], measures: dict[str, str]) -> list[Row]:
    """Fold rows as Spark would: the projection before, the scan with its state as JSON, the projection after."""
    fold, found = matching(made.settings), []
    state: Any = made.initial
    for row in rows:
        computed = {n: row[n] if t == f"`{n}`" else EVALUATED[t](row) for n, t in made.columns}
        state, out = fold(state, computed)
        state = json.loads(json.dumps(state))
        for match in (out or {}).get("matches", ()):
            found.append({n: result(match, t) for n, t in made.outputs if n in measures})
    return found


def result(match: Row, text: str) -> Any:
    value = match[text.removeprefix("timestamp_micros(").removesuffix(")").removeprefix("match.")]
    return BEGIN + timedelta(microseconds=value) if text.startswith("timestamp_micros(") else value


def matches(pattern: str, define: dict[str, str], values: list[Any], within: int | None = None) -> list[Any]:
    """Return start and length of the matches among rows of one a second."""
    measures = {"at": "first(ts)", "n": "count(*)"}
    made = recognition(
        pattern, SHAPE, measures=measures, define=define, keys=(), order_by=(), within=within, where="here"
    )
    rows = [{"v": v, "ts": BEGIN + timedelta(seconds=n)} for n, v in enumerate(values)]
    return [(round((m["at"] - BEGIN).total_seconds()), m["n"]) for m in folded(made, rows, measures)]


def test_greedy_waits_for_the_row_that_ends_a_match_and_reluctant_does_not() -> None:
    high = {"a": "v > 2"}
    assert matches("a{1,3}", high, [3, 3, 1]) == [(0, 2)]
    assert matches("a{1,3}", high, [3, 3]) == [], "a third row may still belong to it"
    assert matches("a{1,3}", high, [3, 3, 3]) == [(0, 3)], "no fourth row can"
    assert matches("a{1,3}?", high, [3, 3]) == [(0, 1), (1, 1)]


def test_one_row_may_decide_several_matches() -> None:
    assert matches("(a a a b) | a", {"a": "v > 2", "b": "v < 4"}, [5, 5, 5, 5]) == [(0, 1)]
    assert matches("(a a a b) | a", {"a": "v > 2", "b": "v < PREV(v)"}, [5, 5, 5, 5, 5]) == [(0, 1), (1, 1)]
    # A row that is neither ends the attempts at all three rows.
    assert matches("(a a a a b) | a", {"a": "v > 2"}, [5, 5, 5, 0]) == [(0, 1), (1, 1), (2, 1)]


def test_rows_of_variables_that_conditions_compare() -> None:
    assert matches("b b a", {"a": "v >= LAST(b.v) AND v < 4"}, [1, 3, 2]) == [], "2 is below the last row of b"
    assert matches("b b a", {"a": "v >= LAST(b.v) AND v < 4"}, [3, 1, 2]) == [(0, 3)]
    # The preferred mappings a a and a b compare with 5; b a has another first row of a.
    assert matches("(a | b) (a | b) c", {"c": "v > FIRST(a.v)"}, [5, 1, 3]) == [(0, 3)]


def test_within_includes_its_end() -> None:
    ends = {"a": "v > 2", "c": "v < 4"}
    assert matches("a b* c", {**ends, "b": "NOT (v > PREV(v))"}, [5, 5, 5, 3, 9], within=3) == [(0, 4)]
    assert matches("a b* c", {**ends, "b": "NOT (v > PREV(v))"}, [5, 5, 5, 3, 9], within=2) == [(1, 3)]


# ---------------------------------------------------------------- comparing and aggregating as Spark


@pytest.mark.parametrize(
    ("operator", "left", "right", "truth"),
    [
        ("=", None, 1, None), ("<=>", None, None, True), ("<=>", None, 1, False), ("!=", 1, 2, True),
        ("=", float("nan"), float("nan"), True), (">", float("nan"), float("inf"), True),
        ("<", 1.0, float("nan"), True), ("<", float("nan"), 1.0, False), (">=", float("nan"), float("nan"), True),
        ("<", "a", "b", True), (">=", "a", "b", False), ("<=", 2, 2, True), ("<", 2, 2, False),
        (">", True, False, True),
    ],
)  # fmt: skip
def test_compares_as_spark(operator: str, left: Any, right: Any, truth: bool | None) -> None:
    assert compared(operator, left, right) is truth


def test_aggregates_as_spark() -> None:
    nan = float("nan")
    assert measured("max", [1.0, nan, None]) != measured("max", [1.0, nan, None]), "NaN is the greatest"
    assert measured("min", [nan, 1.0, None]) == 1.0
    assert [measured(f, []) for f in ("first", "last", "sum", "avg", "min", "count")] == [None] * 5 + [0]
    assert [measured(f, [None, 2, None]) for f in ("first", "sum", "avg", "count")] == [None, 2, 2.0, 1]
    with pytest.raises(OverflowError, match="double"):
        measured("sum", [2**62, 2**62])


# ---------------------------------------------------------------- the operators

HOT = {"hot": "t > 90", "cold": "t < PREV(t) AND t < FIRST(hot.t) / 2"}
PEAK = {
    "since": "first(hot.ts)",
    "peak": "max(hot.t) - min(t)",
    "n": "count(hot.*)",
    "left": "cold.v",
    "mean": "avg(v)",
}


def hot(stream: Stream, **more: Any) -> Stream:
    return stream.match_recognize(
        "hot+ cold", **{"keys": "m", "define": HOT, "measures": PEAK, "within": "1 h", **more}
    )


def test_the_result_has_keys_event_time_and_measures() -> None:
    found = hot(readings())
    assert found.dtypes == [
        ("m", "string"), ("ts", "timestamp"), ("since", "timestamp"), ("peak", "double"), ("n", "bigint"),
        ("left", "int"), ("mean", "double"),
    ]  # fmt: skip
    assert found.shape.event_time is not None and found.shape.event_time.column == "ts"
    replaced = hot(readings(), measures={"TS": "last(ts)"})
    assert replaced.columns == ["m", "TS"] and replaced.shape.event_time is None


def test_spark_computes_both_sides_of_each_comparison() -> None:
    (before, *_) = (o for o in built(hot(readings())).operators if isinstance(o, Select))
    texts = [text for _, text in before.columns]
    assert texts[2:] == ["t > 90", "t", "t / 2", "unix_micros(ts)", "v"]


def test_equal_patterns_have_equal_keys() -> None:
    def key(stream: Stream) -> str:
        return built(stream).keys["out"]

    same = {
        "HOT": "T > 90 ",
        "cold": "(t < prev(t)) and t<first(HOT.t)/2",
    }
    assert key(hot(readings())) == key(hot(readings(), define=same))
    assert key(hot(readings())) != key(hot(readings(), within="2 h"))


def test_columns_of_pyspark_stand_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    from pyspark.sql import functions as F

    define = {"hot": F.col("t") > 90, "cold": F.expr("t < PREV(t) AND t < FIRST(hot.t) / 2")}
    measures = {**PEAK, "since": F.first("hot.ts"), "n": "count(hot.*)"}
    assert built(hot(readings(), define=define, measures=measures)).keys == built(hot(readings())).keys


def test_state_is_kept_while_its_meaning_is() -> None:
    def form(stream: Stream) -> Any:
        flow = built(stream)
        scan = scan_of(flow)
        return _parts(scan, [flow.types[scan.inputs[0]]])["the form of the state"]

    kept = form(hot(readings()))
    assert form(hot(readings(), define={**HOT, "hot": "t > 95"})) == kept, "a threshold"
    assert form(hot(readings(), within="2 h")) == kept
    assert form(hot(readings(), measures={**PEAK, "mean": "avg(t)"})) != kept, "values of other columns"
    changed = readings().match_recognize("hot hot+ cold", keys="m", define=HOT, measures=PEAK, within="1 h")
    assert form(changed) != kept


def test_a_stored_dataflow_has_the_pattern_and_no_code() -> None:
    flow = built(hot(readings()))
    again = Dataflow.from_json(flow.to_json())
    assert again == flow and again.keys == flow.keys
    assert scan_of(again).label == "scan(match_recognize, m)"
    check_trust(LoadedDataflow(again, "a file", is_code=False), trust_code=False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "match", "settings": "{}"}, "Headwater has no function 'match'"),
        ({"name": "match_recognize", "settings": "{}"}, "the settings of match_recognize are malformed: KeyError"),
        ({"name": "match_recognize", "settings": "["}, "are malformed: JSONDecodeError"),
        ({"name": "match_recognize"}, "function"),
    ],
)
def test_malformed_functions_in_json(wrong: dict[str, str], message: str) -> None:
    data = built(hot(readings())).to_data()
    (scan,) = (o for o in data["operators"] if o["kind"] == "scan")
    scan["function"] = wrong
    with pytest.raises(HeadwaterError, match=message):
        Dataflow.from_data(data)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no rows": ("a*", {}, "matches no rows at all"),
    "a loop of nothing": ("a (b*)+", {}, "a repeated part .* matches no rows"),
    "no time": ("a+", {}, r"longer and longer.*within="),
    "a wrong token": ("a ^", {}, r"expected a variable, found '\^' at position 2"),
    "permute": ("PERMUTE(a, b)", {}, r"no PERMUTE.*A B \| B A"),
    "no bracket": ("(a", {}, r"expected '\)'"),
    "reversed": ("a{3,2}", {}, "repeats nothing"),
    "too many steps": ("a{2000}", {}, f"more than {MOST_STEPS} steps"),
    "not in the pattern": ("a", {"define": {"b": "v > 1"}}, "'b', which is not in the pattern.*variables are a"),
    "defined twice": ("a", {"define": {"a": "v > 1", "A": "v > 2"}}, "a variable twice"),
    "no measure": ("a", {"measures": {}}, "no measures"),
    "a variable as a column": ("v", {}, "'v' is a variable of the pattern and a column"),
    "no condition": ("a", {"define": {"a": "v"}}, "a condition is needed"),
    "unknown column": ("a b", {"define": {"b": "w > PREV(v)"}}, "no column 'w'"),
    "two rows on a side": ("a", {"define": {"a": "v - PREV(v) > 5"}}, r"values of two rows.*PREV\(v\) \+ 5"),
    "next": ("a", {"define": {"a": "v > NEXT(v)"}}, r"next\(v\) is not supported"),
    "an offset": ("a", {"define": {"a": "v > PREV(v, 2)"}}, r"prev\(v, 2\) is not supported"),
    "before another row": ("a b", {"define": {"b": "v > PREV(a.v)"}}, "another variable"),
    "a row in a row": ("a b", {"define": {"b": "v > FIRST(PREV(v))"}}, "inside of another row"),
    "two variables": ("a b", {"define": {"b": "v > FIRST(a.v + b.v)"}}, "several variables"),
    "an aggregate": ("a b", {"define": {"b": "v > avg(a.v)"}}, "aggregates are for measures"),
    "no comparison": ("a", {"define": {"a": "concat(PREV(m), 'x')"}}, "no comparison of two rows"),
    "unlike types": ("a", {"define": {"a": "m > PREV(v)"}}, "m"),
    "random": ("a", {"define": {"a": "rand() > 0.5"}}, "new value in each evaluation"),
    "a struct": ("a", {"measures": {"x": "first(named_struct('v', v))"}}, "not supported over row patterns"),
    "another aggregate": ("a", {"measures": {"x": "stddev(a.v)"}}, "not supported in a measure"),
    "distinct": ("a", {"measures": {"x": "count(DISTINCT v)"}}, "not supported in a measure"),
    "no variable": ("a", {"measures": {"x": "count(z.*)"}}, "no variable 'z'"),
    "a key as a measure": ("a", {"keys": "m", "measures": {"m": "first(m)"}}, "'m' is a key and a measure"),
    "another order": ("a", {"order_by": "v"}, "the order begins with 'v', but the event time is 'ts'"),
    "no key": ("a", {"keys": "z"}, "no column 'z'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_place(case: str) -> None:
    pattern, more, message = REFUSED[case]
    with pytest.raises(DataflowError, match=f"(?s){message}") as refused:
        readings().match_recognize(pattern, **{"measures": {"n": "count(*)"}, **more})
    assert refused.value.where == "match_recognize after 'watermark'"
    assert refused.value.hint


def test_without_event_time() -> None:
    raw = hw.flow("f", locations=["L1"]).read.json("in/{location}", "v int")
    with pytest.raises(DataflowError, match="no event time"):
        raw.match_recognize("a", measures={"n": "count(*)"})


def test_a_program_prefers_the_first_branch_and_the_longer_repetition() -> None:
    assert program_of(parse_pattern("a|b")) == (
        ("split", 1, 3), ("row", "a"), ("jump", 4), ("row", "b"), ("end",),
    )  # fmt: skip
    assert program_of(parse_pattern("a+"))[1] == ("split", 2, 4)
    assert program_of(parse_pattern("a+?"))[1] == ("split", 4, 2)
