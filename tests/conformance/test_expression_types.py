"""Compare Headwater's types and canonical texts with real Spark's."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from headwater.core.errors import DataflowError
from headwater.sql import special
from headwater.sql.coercion import Typed
from headwater.sql.expressions import check, check_aggregate, check_condition, parse_projection
from headwater.sql.functions import AGGREGATES, SCALARS, VOLATILE
from headwater.sql.inference import Inference
from headwater.sql.parser import parse
from headwater.sql.schema import DataType, Schema
from headwater.sql.syntax import Binary, Call, PredicateCall, SyntaxNode, Unary
from tests.conformance import expression_cases as cases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema.parse(cases.COLUMNS)
NUMBERS = ("t", "s", "a", "b", "f", "d", "dec", "dec2", "2", "2L", "2.5", "2D", "NULL")
OPERATORS = ("+", "-", "*", "&", "|", "^", "<<", ">>", ">>>")
OTHERS = ("str", "'x'", "bo", "da", "ts", "ntz", "bin", "arr", "NULL")


def _pairs() -> list[str]:
    found = []
    for left, right in itertools.product(NUMBERS, NUMBERS):
        if left == right == "NULL":
            continue
        found += [f"{left} {o} {right}" for o in ("+", "-", "*", "/", "%", "=", "<", "<=>")]
        found += [f"coalesce({left}, {right})", f"CASE WHEN bo THEN {left} ELSE {right} END"]
        found += [f"greatest({left}, {right})", f"array({left}, {right})", f"pmod({left}, {right})"]
    return found


def _walk(text: str, *, aggregate: bool = False) -> Typed:
    """Infer also types that no column can have, such as intervals."""
    return Inference(SCHEMA, place="outside" if aggregate else "scalar").walk(parse(text))


def _type_or_none(text: str) -> DataType | None:
    try:
        return _walk(text).type
    except DataflowError:
        return None


@pytest.fixture(scope="module")
def empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], cases.COLUMNS)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, empty: DataFrame) -> DataFrame:
    nulls = ", ".join(f"CAST(NULL AS {c.type.text})" for c in SCHEMA)
    casts = [f"CAST(`{c.name}` AS {c.type.text}) AS `{c.name}`" for c in SCHEMA]
    return spark.sql(f"{cases.ROW} UNION ALL SELECT {nulls}").selectExpr(*casts)


def _spark_types(frame: DataFrame, texts: Sequence[str]) -> list[DataType | str]:
    """Ask Spark for many types at once; where it refuses, for each alone."""
    try:
        fields = frame.selectExpr(*[f"{t}\n AS e{i}" for i, t in enumerate(texts)]).schema
    except Exception as error:
        if len(texts) == 1:
            return [str(error)[:200]]
        half = len(texts) // 2
        return [*_spark_types(frame, texts[:half]), *_spark_types(frame, texts[half:])]
    return [DataType.parse(_quoted(f.dataType)) for f in fields]


def _quoted(found: Any) -> str:
    """Spell a Spark type with quoted field names: simpleString leaves them bare."""
    match found.typeName():
        case "struct":
            return f"struct<{','.join(f'`{f.name}`:{_quoted(f.dataType)}' for f in found.fields)}>"
        case "array":
            return f"array<{_quoted(found.elementType)}>"
        case "map":
            return f"map<{_quoted(found.keyType)},{_quoted(found.valueType)}>"
    return str(found.simpleString())


def _disagreements(frame: DataFrame, texts: Sequence[str], *, aggregate: bool = False) -> list[str]:
    ours = [_walk(t, aggregate=aggregate) for t in texts]
    wrong = []
    for spelling in (list(texts), [o.text for o in ours]):
        for text, mine, sparks in zip(spelling, ours, _spark_types(frame, spelling), strict=True):
            if str(sparks).lower() != mine.type.text.lower():
                wrong.append(f"{text}: Spark {sparks}, Headwater {mine.type}")
    return wrong


def test_scalar_types(empty: DataFrame) -> None:
    wrong = _disagreements(empty, cases.SCALARS)
    assert not wrong, "\n".join(wrong)


def test_types_of_all_pairs_of_numbers(empty: DataFrame) -> None:
    wrong = _disagreements(empty, _pairs())
    assert not wrong, "\n".join(wrong)


def test_aggregate_types(empty: DataFrame) -> None:
    wrong = _disagreements(empty, cases.AGGREGATES, aggregate=True)
    assert not wrong, "\n".join(wrong)


def test_pairs_of_other_types(empty: DataFrame) -> None:
    """Spark accepts every expression that Headwater accepts, with the same type."""
    texts = []
    for left, right in itertools.product((*OTHERS, "a", "d"), OTHERS):
        texts += [f"{left} {o} {right}" for o in ("=", "<", "+", "-", "||")]
        texts += [f"coalesce({left}, {right})", f"concat({left}, {right})"]
    mine = {text: found for text in texts if (found := _type_or_none(text))}
    wrong = [
        f"{text}: Spark {sparks}, Headwater {mine[text]}"
        for text, sparks in zip(mine, _spark_types(empty, list(mine)), strict=True)
        if sparks != mine[text]
    ]
    assert len(mine) > 100
    assert not wrong, "\n".join(wrong)


def test_every_cast_agrees(empty: DataFrame) -> None:
    names = "tinyint int bigint float double decimal(10,2) string boolean binary date timestamp timestamp_ntz"
    texts = [f"CAST(`{c.name}` AS {n})" for c in SCHEMA for n in names.split()]
    accepted = [t for t in texts if _type_or_none(t)]
    refused = [t for t in texts if not _type_or_none(t)]
    wrong = [
        f"{text}: Spark {sparks}"
        for text, sparks in zip(accepted, _spark_types(empty, accepted), strict=True)
        if sparks != _type_or_none(text)
    ]
    for text in refused:
        wrong += [f"Spark takes {text}" for found in _spark_types(empty, [text]) if not isinstance(found, str)]
    assert not wrong, "\n".join(wrong)


def test_refused_by_both(empty: DataFrame) -> None:
    accepted = []
    for text in cases.REFUSED:
        for name, checked in (("scalar", check), ("aggregate", check_aggregate)):
            try:
                accepted.append(f"Headwater, {name}: {text} is {checked(text, SCHEMA).type}")
            except DataflowError as error:
                assert error.hint, text
        try:
            # A generator or window is legal in Spark's select, but not in a condition.
            sparks = empty.where(text).schema if text.startswith(("explode", "row_")) else None
            sparks = sparks or empty.selectExpr(text).schema
            if " " not in text or len(sparks) == 1:
                accepted.append(f"Spark: {text}")
        except Exception:
            continue
    # Spark reads these as an alias, a query or a window: they are not one expression on a stream.
    legal = {"a b", "a AND", "(SELECT 1)", "a IN (SELECT 1)", "row_number() OVER (ORDER BY a)"}
    accepted = [a for a in accepted if a.removeprefix("Spark: ") not in legal]
    assert not accepted, "\n".join(accepted)


def test_stricter_than_spark(empty: DataFrame) -> None:
    """These are refused on purpose; an expression that Spark refuses too belongs in the list above."""
    for text in cases.STRICTER:
        with pytest.raises(DataflowError):
            check(text, SCHEMA)
        with pytest.raises(DataflowError):
            check_aggregate(text, SCHEMA)
        assert len(empty.selectExpr(text).schema) == 1


def _values(frame: DataFrame, texts: Sequence[str]) -> list[Any]:
    """Evaluate many expressions; where a run fails, evaluate each alone, with the failure's class as its value."""
    try:
        found = frame.selectExpr(*[f"CAST({t}\n AS string) AS e{i}" for i, t in enumerate(texts)]).collect()
    except Exception as error:
        if len(texts) == 1:
            return [str(error).split("]")[0]]
        half = len(texts) // 2
        return [*_values(frame, texts[:half]), *_values(frame, texts[half:])]
    return [list(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("aggregate", [False, True], ids=["scalar", "aggregate"])
def test_canonical_text_means_the_same(rows: DataFrame, *, aggregate: bool) -> None:
    texts = []
    for text in cases.AGGREGATES if aggregate else cases.SCALARS:
        walk = Inference(SCHEMA, place="outside" if aggregate else "scalar")
        walk.walk(parse(text))
        if not walk.volatile:
            texts.append(text)
    canonical = [_walk(t, aggregate=aggregate).text for t in texts]
    wrong, failed = [], set()
    pairs = sorted(zip(texts, canonical, strict=True), key=lambda pair: pair[0] in cases.RAISING)
    sound = len(texts) - len(cases.RAISING.intersection(texts))
    for part in (pairs[:sound], *([pair] for pair in pairs[sound:])):
        before, after = (_values(rows, side) for side in zip(*part, strict=True))
        failed |= {text for (text, _), value in zip(part, before, strict=True) if isinstance(value, str)}
        wrong += [f"{p}: {x} and {y}" for p, x, y in zip(part, before, after, strict=True) if x != y]
    assert not wrong, "\n".join(wrong)
    assert failed == cases.RAISING.intersection(texts)


def _bracketed(node: SyntaxNode) -> str:
    match node:
        case Binary(operator, left, right):
            return f"({_bracketed(left)} {operator} {_bracketed(right)})"
        case Unary(operator, operand):
            return f"({operator} {_bracketed(operand)})"
        case PredicateCall(operator, _, subject, ()):
            return f"({_bracketed(subject)} {operator})"
    return f"({Inference(SCHEMA, place='scalar').walk(node).text})"


def test_needless_parentheses_only_are_dropped(rows: DataFrame) -> None:
    chance = random.Random(4)

    def grow(depth: int) -> str:
        if depth == 0 or chance.random() < 0.2:
            return chance.choice(["a", "2", "3", "-a", "~a", "- 1"])
        text = f"{grow(depth - 1)} {chance.choice(OPERATORS)} {grow(depth - 1)}"
        return chance.choice([f"({text})", f"-({text})", text])

    texts = [grow(3) for _ in range(100)]
    original, rewritten = _values(rows, texts), _values(rows, [_walk(t).text for t in texts])
    wrong = [t for t, before, after in zip(texts, original, rewritten, strict=True) if before != after]
    assert not wrong, "\n".join(wrong)


def test_precedence_is_sparks(rows: DataFrame) -> None:
    """Draw chains of operators without parentheses; a seed gives the same ones each time."""
    chance = random.Random(20260)
    conditions = [
        "bo",
        "a = 7",
        "a > b IS NULL",
        "a IN (7)",
        "a BETWEEN 1 AND 9",
        "str LIKE '1%'",
        "a + 1 = b",
    ]
    texts = []
    for _ in range(300):
        terms = [chance.choice(["", "", "-", "~", "- "]) + chance.choice(["a", "2", "3"]) for _ in range(5)]
        texts.append(terms[0] + "".join(f" {chance.choice(OPERATORS)} {t}" for t in terms[1:]))
        terms = [chance.choice(["", "", "NOT ", "! "]) + chance.choice(conditions) for _ in range(4)]
        texts.append(terms[0] + "".join(f" {chance.choice(['AND', 'OR'])} {t}" for t in terms[1:]))
    # Parentheses that spell out how Headwater read the chain must not change its value.
    original, rewritten = _values(rows, texts), _values(rows, [_bracketed(parse(t)) for t in texts])
    wrong = [t for t, before, after in zip(texts, original, rewritten, strict=True) if before != after]
    assert not wrong, "\n".join(wrong)


def test_window_time(spark: SparkSession) -> None:
    frame = spark.sql("SELECT window, count(*) AS count FROM VALUES (TIMESTAMP '2026-01-01') AS t(ts) "
                      "GROUP BY window(ts, '5 minutes')")  # fmt: skip
    schema = Schema.parse("window struct<start:timestamp,end:timestamp>, count bigint")
    mine = check("window_time(window)", schema)
    assert frame.selectExpr(mine.text).schema[0].dataType.simpleString() == mine.type.text


def test_every_known_function_has_a_case() -> None:
    called = {"window_time"}

    def collect(node: SyntaxNode) -> None:
        if isinstance(node, Call):
            called.add(node.name)
        for child in node.children:
            collect(child)

    for text in (*cases.SCALARS, *cases.AGGREGATES):
        collect(parse(text))
    known = {*SCALARS, *VOLATILE, *AGGREGATES, *special.RULES, *special.AGGREGATE_RULES}
    assert known - called == set()


def test_condition_filters_as_spark_does(rows: DataFrame) -> None:
    condition = check_condition("`odd name` = 1 AND not str not like '2%'", SCHEMA)
    assert rows.where(condition.text).count() == 1


def test_projection_names_as_spark_does(rows: DataFrame) -> None:
    texts = ["*", "w.*", "w.start", "a * 2 AS `my name`", "sts.x", "`end`"]
    names = [name for text in texts for name, _ in parse_projection(text, SCHEMA)]
    assert rows.selectExpr(*texts).columns == names


def test_schema_text_is_read_by_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA.text)
    assert Schema.parse(", ".join(f"`{f.name}` {_quoted(f.dataType)}" for f in frame.schema)) == SCHEMA
