"""Compare the text that Spark is given with the text that was checked, by Spark's own parser."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.serializers import UTF8Deserializer, read_int

from headwater.core.errors import DataflowError
from headwater.sql import special
from headwater.sql.functions import AGGREGATES, SCALARS, VOLATILE
from headwater.sql.inference import Inference
from headwater.sql.lexer import quoted
from headwater.sql.parser import REFLECTION, parse, parse_generated
from headwater.sql.printer import printed
from headwater.sql.schema import Schema
from headwater.sql.syntax import Call, SyntaxNode
from tests.conformance import expression_cases as cases
from tests.faults import until
from tests.patience import PATIENCE

SCHEMA = Schema.parse(cases.COLUMNS)
KNOWN = {*SCALARS, *VOLATILE, *AGGREGATES, *special.RULES, *special.AGGREGATE_RULES}
OPERATORS = {
    "when",
    "between",
    "negative",
    "positive",
    "in",
    "and",
    "or",
    "not",
    "like",
    "ilike",
    "rlike",
}  # Spark's own names of operators
TEXTS = (*cases.SCALARS, *cases.AGGREGATES)
# Headwater reads these forms of the grammar as the functions that they stand for; nulls are respected by default.
FORMS = re.compile(r"\b(extract|position|substring|substr|trim)\s*\(.*\b(from|in)\b|\brespect\s+nulls\b", re.IGNORECASE)
ATTACK = "raise_error(java_method('java.lang.System','getenv','HEADWATER_TOKEN')) IS NULL"
Tree = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a Java process that has Spark's classes and runs no Spark."""
    from pyspark.java_gateway import launch_gateway

    # PySpark itself would start it by a plain fork, which gRPC's threads in this process may not survive.
    told = tmp_path_factory.mktemp("gateway") / "port"
    home = Path(pyspark.__file__).parent
    process = subprocess.Popen(
        [str(home / "bin" / "spark-submit"), "pyspark-shell"],
        stdin=subprocess.PIPE,
        env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
    )
    assert process.stdin is not None
    try:
        until(lambda: told.exists() or process.poll() is not None, "a Java process")
        with told.open("rb") as info, pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_GATEWAY_PORT", str(read_int(info)))
            patch.setenv("PYSPARK_GATEWAY_SECRET", UTF8Deserializer().loads(info))  # type: ignore[no-untyped-call]
            started: Any = launch_gateway()  # type: ignore[no-untyped-call]
        yield started
        started.shutdown()
    finally:
        process.stdin.close()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def tree(gateway: Any) -> Tree:
    """Return Spark's parser: from a text to the nodes of its tree, constants and all."""
    parser = gateway.jvm.org.apache.spark.sql.execution.SparkSqlParser()

    def read(text: str) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = json.loads(parser.parseExpression(text).toJSON())
        for node in nodes:
            if node["class"].endswith("UnresolvedFunction"):
                node["nameParts"] = str(node["nameParts"]).lower()
            for fresh in ("exprId", "resultId"):  # another one each time
                node.pop(fresh, None)
            if node.get("dataType") == "binary":  # JSON has the array's address only
                node.pop("value", None)
        return nodes

    return read


def _accepted(text: str) -> SyntaxNode | None:
    for place in ("scalar", "outside"):
        try:
            node = parse(text)
            Inference(SCHEMA, place=place).walk(node)  # type: ignore[arg-type]
            return node
        except DataflowError:
            continue
    return None


def _functions(nodes: list[dict[str, Any]]) -> set[str]:
    called = [str(n["nameParts"]) for n in nodes if n["class"].endswith("UnresolvedFunction")]
    return {word for names in called for word in re.findall(r"\w+", names)}


def _called(node: SyntaxNode) -> set[str]:
    own = {node.name} if isinstance(node, Call) else set()
    return own.union(*map(_called, node.children))


def _check(tree: Tree, text: str) -> bool:
    """Examine an accepted text; return whether it is one."""
    node = _accepted(text)
    if node is None:
        return False
    sent = printed(node)
    assert printed(parse_generated(sent)) == sent
    found = _functions(tree(sent))
    assert found <= KNOWN | OPERATORS | _called(node), sent
    assert not found & REFLECTION, sent
    return True


def test_spark_reads_printed_text_as_the_original(tree: Tree) -> None:
    wrong = []
    for text in TEXTS:
        sent = printed(parse(text))
        try:
            assert _check(tree, text), text
        except AssertionError as error:
            wrong.append(str(error)[:300])
        if not FORMS.search(text) and tree(text) != tree(sent):
            wrong.append(f"{text}\n  {sent}\n  {tree(text)}\n  {tree(sent)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        f"a > 1 --\r AND {ATTACK}",
        f"a > 1 /* /* */ AND {ATTACK} -- */",
        f"a > 1 --\\\n AND {ATTACK}",
        f"a > 1 /*+ */ AND {ATTACK}",
        f"a > 1 AND str = 'x\\\\' AND {ATTACK} AND str = ''",
        f"a > 1 AND CAST({ATTACK.removesuffix(' IS NULL')} AS boolean)",
        "CAST(`java_method`('java.lang.System', 'getenv', 'HEADWATER_TOKEN') AS string)",
        "CAST(identifier('java_method') AS string)",
    ],
)
def test_attacks_reach_no_java(tree: Tree, text: str) -> None:
    node = _accepted(text)
    if node is not None:
        assert not _functions(tree(printed(node))) & (REFLECTION | {"raise_error"})


def test_reflection_is_all_that_calls_java(gateway: Any) -> None:
    """Spark has no function that calls methods by name beside the refused ones."""
    registry = gateway.jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry
    found = registry.builtin().listFunction().mkString(" ").split()
    names = {re.findall(r"\w+", name)[-1] for name in found}
    assert len(names) > 300
    classes = {n: registry.builtin().lookupFunction(gateway.jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(n))
               for n in names if re.search("reflect|java|method|class|jvm|invoke", n)}  # fmt: skip
    assert set(classes) == REFLECTION, {n: c.get().getClassName() for n, c in classes.items()}


@pytest.mark.parametrize("name", ["a`b", "`", "``", "x` OR reflect('a','b') OR `y", "select", "é 1", "a.b", "*"])
def test_names_are_names(tree: Tree, name: str) -> None:
    (node,) = tree(printed(parse(quoted(name))))
    assert node["class"].endswith("UnresolvedAttribute")
    assert quoted(name).strip("`").replace("``", "`") in str(node["nameParts"]) or set(name) == {"`"}


_SPACES = [" ", "\t", "\r\n", "\r", "\u00a0", "\u3000", "/* ' */", "/* a /* b */ c */", "-- x\r", "--\\\n`\n", "--'\n"]
SPACES = st.sampled_from(_SPACES)
_SPACE = re.compile(r" (?=(?:[^'\"`]*['\"`][^'\"`]*['\"`])*[^'\"`]*$)")
_PIECES = ["--", "/*", "*/", "/*+", "``", "''", " OR ", "r'", " --\r AND reflect('a','b') IS NULL"]
NOISE = st.sampled_from([*"`'\"\\\r\n\0\x85\x1c(),.*+-/;$@?:<>=!", *_PIECES])


def _respelled(text: str, spaces: list[str]) -> str:
    left = iter(spaces * 50)
    return _SPACE.sub(lambda _: " " + next(left), text)  # a comment must not join a minus sign


def _fuzz_spelling(tree: Tree, text: str, spaces: list[str]) -> None:
    assert "'" in text or '"' in text or "`" in text or _check(tree, _respelled(text, spaces))


def _fuzz_noise(tree: Tree, text: str, noise: list[tuple[int, str]]) -> None:
    for at, what in noise:
        place = at % (len(text) + 1)
        text = text[:place] + what + text[place:]
    _check(tree, text)


PLAIN = [t for t in TEXTS if "--" not in t and "/*" not in t]
SPELLED = (st.sampled_from(PLAIN), st.lists(SPACES, min_size=1, max_size=6))
NOISY = (st.sampled_from(TEXTS), st.lists(st.tuples(st.integers(0, 200), NOISE), min_size=1, max_size=3))
SHORT = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))


@SHORT
@given(st.tuples(*SPELLED))
def test_spelling_makes_no_difference(tree: Tree, drawn: tuple[str, list[str]]) -> None:
    _fuzz_spelling(tree, *drawn)


@SHORT
@given(st.tuples(*NOISY))
@example(("a + b", [(5, f" > 1 --\r AND {ATTACK}")]))
def test_noise_calls_no_other_function(tree: Tree, drawn: tuple[str, list[tuple[int, str]]]) -> None:
    _fuzz_noise(tree, *drawn)


@pytest.mark.long
@LONG
@given(st.tuples(*SPELLED))
def test_long_spelling(tree: Tree, drawn: tuple[str, list[str]]) -> None:
    _fuzz_spelling(tree, *drawn)


@pytest.mark.long
@LONG
@given(st.tuples(*NOISY))
def test_long_noise(tree: Tree, drawn: tuple[str, list[tuple[int, str]]]) -> None:
    _fuzz_noise(tree, *drawn)
