"""Expressions: canonical text, columns, errors. The conformance tests compare their types with Spark's."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import DataflowError
from headwater.sql.expressions import check, check_aggregate, check_condition, parse_projection
from headwater.sql.schema import Schema
from tests.conformance import expression_cases as cases

SCHEMA = Schema.parse(
    "id bigint, k string, v double, n int, ts timestamp, ok boolean, tags map<string,string>, "
    "readings array<double>, window struct<start:timestamp,end:timestamp>, Mixed int, `odd name` int"
)
WIDE = Schema.parse(cases.COLUMNS)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("v*2", "v * 2"),
        (" ( (v) ) ", "v"),
        ("V > 2 and NOT (Ok)", "v > 2 AND NOT ok"),
        ("(v + 1) * 2", "(v + 1) * 2"),
        ("v + (n * 2)", "v + n * 2"),
        ("v - (n - 2)", "v - (n - 2)"),
        ("n | n & 3", "n | n & 3"),
        ("(n | n) & 3", "(n | n) & 3"),
        ("v > 1 or ok and n = 2", "v > 1 OR ok AND n = 2"),
        ("(v > 1 or ok) and n == 2", "(v > 1 OR ok) AND n = 2"),
        ("n <> 3", "n != 3"),
        ("!ok", "NOT ok"),
        ("NOT ok = true", "NOT ok = TRUE"),
        ("v > 1 IS NULL", "(v > 1) IS NULL"),
        ("k not like 'a%'", "k NOT LIKE 'a%'"),
        ("k regexp '[a-z]+'", "k RLIKE '[a-z]+'"),
        ("n not in (1,2)", "n NOT IN (1, 2)"),
        ("v between 1 and n + 2 and ok", "v BETWEEN 1 AND n + 2 AND ok"),
        ('k = "it\'s"', "k = 'it\\'s'"),
        ("k = 'it''s'", "k = 'it\\'s'"),
        ("k = r'\\d'", "k = '\\\\d'"),
        ("UPPER(k)", "upper(k)"),
        ("WINDOW.START", "window.start"),
        ("`window`.`end`", "window.end"),
        ("mixed + MIXED", "Mixed + Mixed"),
        ("`ODD NAME` + 1", "`odd name` + 1"),
        ("- -n", "-(-n)"),
        ("1 - -1", "1 - -1"),
        ("n::bigint", "CAST(n AS bigint)"),
        ("cast(n as LONG)", "CAST(n AS bigint)"),
        ("tags [ 'room' ]", "tags['room']"),
        ("ts - interval 5 minutes", "ts - INTERVAL '5' MINUTE"),
        ("extract(hour from ts)", "date_part('hour', ts)"),
        ("transform(readings, X -> x * n)", "transform(readings, X -> X * n)"),
        ("aggregate(readings, 0D, (acc, x) -> acc+x)", "aggregate(readings, 0D, (acc, x) -> acc + x)"),
        ("case when ok then 1 else 2 end", "CASE WHEN ok THEN 1 ELSE 2 END"),
        ("v /* no */ + 1 -- really", "v + 1"),
        ("current_date", "current_date()"),
        ("cast(my_udf(v, K) as double)", "CAST(my_udf(v, k) AS double)"),
        ("timestampdiff(second, ts, window.end)", "timestampdiff(SECOND, ts, window.end)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    found = check(text, SCHEMA)
    assert found.text == canonical
    assert check(found.text, SCHEMA) == found


@pytest.mark.parametrize("text", cases.SCALARS)
def test_canonical_text_of_scalars_is_stable(text: str) -> None:
    try:
        found = check(text, WIDE)
    except DataflowError as error:
        assert "not allowed for a column" in error.what
        return
    assert check(found.text, WIDE) == found


@pytest.mark.parametrize("text", cases.AGGREGATES)
def test_canonical_text_of_aggregates_is_stable(text: str) -> None:
    try:
        found = check_aggregate(text, WIDE)
    except DataflowError as error:
        assert "not allowed for a column" in error.what
        return
    assert check_aggregate(found.text, WIDE) == found


@pytest.mark.parametrize("text", [*cases.REFUSED, *cases.STRICTER])
def test_refusals_say_where_and_what_to_write(text: str) -> None:
    for checked in (check, check_condition, check_aggregate):
        with pytest.raises(DataflowError) as caught:
            checked(text, WIDE, where="select 'x'")
        assert caught.value.where == "select 'x'" and caught.value.hint, text


def test_columns_are_those_read() -> None:
    found = check("if(OK, transform(readings, v -> v + N), array(0D))", SCHEMA)
    assert found.columns == {"ok", "readings", "n"}
    assert check("window.start", SCHEMA).columns == {"window"}
    assert check("1 + 1", SCHEMA).columns == frozenset()
    assert check_aggregate("sum(v) FILTER (WHERE n > 1) / count(*)", SCHEMA).columns == {"v", "n"}


@pytest.mark.parametrize(
    ("text", "deterministic"),
    [
        ("rand() < 0.5", False), ("uuid()", False), ("unix_timestamp() - 1", False), ("now()", False),
        ("current_date", False), ("monotonically_increasing_id()", False), ("shuffle(readings)", False),
        ("unix_timestamp(ts)", True), ("v + 1", True), ("xxhash64(k)", True),
        ("transform(readings, x -> rand())", False),
    ],
)  # fmt: skip
def test_determinism(text: str, *, deterministic: bool) -> None:
    assert check(text, SCHEMA).deterministic is deterministic


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("vv + 1", "no column 'vv'", "did you mean v"),
        ("k > 3", "'k' is string; > compares it with int", "CAST(k AS int)"),
        ("k + 1", "'k' is string; + combines it with int", "CAST(k AS double)"),
        ("uper(k)", "does not know", "did you mean upper"),
        ("my_udf(v)", "'my_udf' is a function that Headwater does not know", "CAST(my_udf(...) AS double)"),
        ("explode(readings)", "returns rows", ".explode("),
        ("count(*)", "is an aggregate", ".agg("),
        ("sum(v) OVER ()", "no OVER", "window"),
        ("(SELECT max(v) FROM t)", "holds a query", ".join("),
        ("v IN (SELECT 1)", "holds a query", ".join("),
        ("SELECT v FROM t", "is a statement", "one expression"),
        ("v; DROP TABLE t", "unexpected ';'", "semicolon"),
        ("v, n", "one expression only", "argument of its own"),
        ("v AS x", "expected the end", "AS"),
        ("window.strat", "no field 'strat'", "did you mean start"),
        ("k.x", "has no fields", "without .x"),
        ("ts - window.start", "not allowed for a column", "timestampdiff"),
        ("NULL", "not allowed for a column", "CAST(NULL AS"),
        ("upper(k, k)", "does not take 2 arguments", "upper(string)"),
        ("length(tags)", "argument 1 of length must be string or binary", "length("),
        ("CAST(readings AS int)", "cannot be cast to int", "part"),
        ("CAST(my_udf(vv) AS int)", "no column 'vv'", "did you mean"),
        (
            "CAST(my_udf(DISTINCT v) AS int)",
            "WITHIN GROUP for my_udf",
            "CASE WHEN",
        ),
        ("'open", "unexpected", "close the '"),
        ("", "empty", "expression"),
        ("v +", "end of the text", "expression"),
        ("v = 1 = ", "end of the text", "expression"),
        ("aggregate(readings, 0, (a, x) -> a + x)", "starts with int", "CAST(... AS double)"),
        ("case when ok then 1 else 'x' end", "no common type", "cast"),
        ("f(a => 1)", "no '=>'", "position"),
        ("x -> x", "outside of a function call", "transform"),
        ("`a.b`", "no column 'a.b'", "columns are"),
    ],
)
def test_errors_of_expressions(text: str, what: str, hint: str) -> None:
    with pytest.raises(DataflowError) as caught:
        check(text, SCHEMA, where="with_columns")
    assert what in caught.value.what
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("v", "is not aggregated", "max(v)"),
        ("sum(v) + n", "is not aggregated", "max(n)"),
        ("stddev(DISTINCT v)", "stddev(DISTINCT ...) does not run on a stream", "collect_set(v)"),
        ("count(DISTINCT *)", "counts whole rows", "count(DISTINCT a, b)"),
        ("count(DISTINCT struct(v))", "distinct values are not kept", "count(DISTINCT a, b)"),
        ("avg(DISTINCT CAST(v AS decimal(9, 2)))", "rounded otherwise", "cast it to double"),
        ("1 + 1", "has no aggregate", "count(*)"),
        ("sum(count(*))", "inside another aggregate", "two steps"),
        ("sum(k)", "'k' is string; sum needs a number", "cast"),
        ("upper(k) FILTER (WHERE ok)", "is not an aggregate", "CASE"),
        (
            "CAST(my_agg(DISTINCT v) AS double)",
            "WITHIN GROUP for my_agg",
            "collect_set",
        ),
        (
            "CAST(my_agg(v) FILTER (WHERE ok) AS double)",
            "WITHIN GROUP for my_agg",
            "CASE WHEN",
        ),
        (
            "TRY_CAST(my_agg(v) IGNORE NULLS AS double)",
            "WITHIN GROUP for my_agg",
            "CASE WHEN",
        ),
        ("sum(v) FILTER (WHERE n)", "FILTER needs a condition", "comparison"),
        ("summ(v)", "does not know", "did you mean sum"),
        ("max(tags)", "argument 1 of max", "max("),
        ("max(ts) - min(ts)", "not allowed for a column", "timestampdiff"),
    ],
)
def test_errors_of_aggregates(text: str, what: str, hint: str) -> None:
    with pytest.raises(DataflowError) as caught:
        check_aggregate(text, SCHEMA, where="agg")
    assert what in caught.value.what
    assert hint in (caught.value.hint or "")


def test_aggregates() -> None:
    found = check_aggregate("CAST(my_agg(V) AS double) / count(*)", SCHEMA)
    assert (found.text, found.type.text) == ("CAST(my_agg(v) AS double) / count(*)", "double")
    assert found.functions == {"my_agg", "count"}
    found = check_aggregate("slice(sort_array(collect_list(struct(n, k)), false), 1, 10)", SCHEMA)
    assert found.type.text == "array<struct<n:int,k:string>>"
    assert found.columns == {"n", "k"}


def test_conditions_are_boolean() -> None:
    assert check_condition("v > 1", SCHEMA).type.text == "boolean"
    assert check_condition("NULL", SCHEMA).type.text == "boolean"
    with pytest.raises(DataflowError, match="'v \\+ 1' is double, and a condition is needed"):
        check_condition("v + 1", SCHEMA)


def test_projections() -> None:
    def pairs(text: str) -> list[tuple[str, str]]:
        return [(name, e.text) for name, e in parse_projection(text, SCHEMA)]

    assert pairs("V") == [("v", "v")]
    assert pairs("v * 2 as `b c`") == [("b c", "v * 2")]
    assert pairs("window.start") == [("start", "window.start")]
    assert pairs("WINDOW.*") == [("start", "window.start"), ("end", "window.end")]
    assert pairs("window.start AS w") == [("w", "window.start")]
    assert [name for name, _ in pairs("*")] == list(SCHEMA.names)
    with pytest.raises(DataflowError) as caught:
        parse_projection("v * 2", SCHEMA, where="select")
    assert caught.value.hint == "add one: v * 2 AS result"
    for text in ("v b", "readings.*", "*, v", "v AS", "v AS 'x'"):
        with pytest.raises(DataflowError):
            parse_projection(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "v" + ")" * 5000,
        "-" * 1 + " -" * 5000 + "v",
        "NOT " * 5000 + "ok",
        " + ".join(["v"] * 10000),
        " OR ".join(["ok"] * 10000),
        "abs(" * 4000 + "v" + ")" * 4000,
        "v" + "::int" * 5000,
        "v" + "[0]" * 5000,
        "CASE WHEN ok THEN " * 3000 + "1" + " END" * 3000,
        "x -> " * 5000 + "x",
        "CAST(v AS " + "array<" * 5000 + "int" + ">" * 5000 + ")",
        "v + " * 20000 + "v",
        "'" + "a" * 70000 + "'",
        "1" * 5000,
        "1e99999999999",
        "1" * 39,
        "0." + "0" * 50 + "1",
        "\0", "\ud800", "`", "``", "'\\U99999999'", "X'zz'", "{{v}}", "@v", "$v", ":v", "?",
    ],
    ids=range(28),
)  # fmt: skip
def test_hostile_text_is_an_error_like_others(text: str) -> None:
    for checked in (check, check_condition, check_aggregate, parse_projection):
        with pytest.raises(DataflowError) as caught:
            checked(text, SCHEMA)
        assert len(str(caught.value)) < 2000


def test_a_deep_stack_is_no_crash() -> None:
    def below(depth: int) -> None:
        if depth:
            below(depth - 1)
        else:
            check("(" * 60 + "v" + ")" * 60, SCHEMA)

    with pytest.raises(DataflowError, match="nested"):
        below(sys.getrecursionlimit() - 150)


@pytest.mark.parametrize("head", ["substring(", "position(", "trim(BOTH ", "transform(", "struct(", "("])
def test_nesting_takes_no_exponential_time(head: str) -> None:
    with pytest.raises(DataflowError):
        check(head * 60 + "v, 1", SCHEMA)


def test_ordinary_depth_is_fine() -> None:
    nested = "substring(" * 40 + "k" + ", 1)" * 40
    assert check(nested, SCHEMA).text == nested
    check("(" * 50 + "v" + ")" * 50, SCHEMA)
    check(" + ".join(["v"] * 100), SCHEMA)
    check_condition(f"n IN ({', '.join(map(str, range(3000)))})", SCHEMA)


PIECES = (
    """
v|n|k|ok|ts|window.start|1|2.5|'x'|(|)|+|-|*|/|%|,|AND|OR|NOT|=|<|>|>>|IS NULL|IN (|BETWEEN
CASE WHEN|THEN|END|->
upper(|count(|sum(|transform(readings,|x|INTERVAL 1 DAY|CAST(|AS int)|[|]|::|.|DATE '2026-01-01'|FILTER (WHERE
DISTINCT|&|~|`|'|*
""".strip()
    .replace("\n", "|")
    .split("|")
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14).map(" ".join))
def test_any_text_is_checked_or_refused(text: str) -> None:
    for checked in (check, check_aggregate):
        try:
            found = checked(text, SCHEMA)
        except DataflowError:
            continue
        assert checked(found.text, SCHEMA) == found


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_any_string_is_a_literal(value: str) -> None:
    from headwater.sql.lexer import quote_name, quote_string, tokens

    assert tokens(quote_string(value))[0].text == value
    if value:
        assert tokens(quote_name(value))[0].text == value
