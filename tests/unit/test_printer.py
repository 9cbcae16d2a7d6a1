"""Spark is given printed text only, and one module gives it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headwater
from headwater.core.errors import DataflowError
from headwater.sql import special
from headwater.sql.expressions import check
from headwater.sql.lexer import quote_string, tokens
from headwater.sql.names import RULED, RULED_AGGREGATES
from headwater.sql.parser import parse, parse_generated
from headwater.sql.printer import printed, printed_text
from headwater.sql.schema import Schema

ROOT = Path(headwater.__file__).parent
GATE = ROOT / "connectors" / "sparksql.py"
SCHEMA = Schema.parse("v int, `a``b` int")


def _text_given(path: Path) -> list[str]:
    """Return the calls of a module that give Spark text which is not printed."""
    source = path.read_text(encoding="utf-8")
    if "pyspark" not in source:
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, arguments = node.func.attr, node.args
        if ast.unparse(node.func.value) == "np":
            continue
        if name in ("expr", "selectExpr", "sql"):
            found.append(f"{path}:{node.lineno} {name}")
        if name == "col" and not all(isinstance(a, (ast.Constant, ast.Name)) or _is_plain(a) for a in arguments):
            found.append(f"{path}:{node.lineno} {name}")
        if name in ("where", "filter") and any(not isinstance(a, (ast.Call, ast.Compare)) for a in arguments):
            found.append(f"{path}:{node.lineno} {name}")
    return found


def _is_plain(node: ast.expr) -> bool:
    """Return whether an f-string has no back-quote: a column's number, not its name."""
    return isinstance(node, ast.JoinedStr) and "`" not in ast.unparse(node)


def test_one_module_gives_text_to_spark() -> None:
    found = [call for path in ROOT.rglob("*.py") if path != GATE for call in _text_given(path)]
    assert not found, "give it through headwater.connectors.sparksql:\n" + "\n".join(found)
    assert len(_text_given(GATE)) == 2


def test_the_names_of_rules_are_those_that_the_printer_knows() -> None:
    assert (special.RULES.keys(), special.AGGREGATE_RULES.keys()) == (RULED, RULED_AGGREGATES)


def test_one_function_quotes_names() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, value in zip(node.values, node.values[1:], strict=False):
                opens = isinstance(before, ast.Constant) and str(before.value).endswith("`")
                if opens and isinstance(value, ast.FormattedValue):
                    found.append(f"{path}:{node.lineno}")
    assert not found, "use quoted(name) of headwater.sql.lexer:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("v > 1 -- note", "`v` > 1"),
        ("v > 1 --\r AND v < 3", "`v` > 1 AND `v` < 3"),
        ("v > 1 --\\\n AND v < 3\n+ 1", "`v` > 1 + 1"),
        ("v /* a /* b */ c */ > 1", "`v` > 1"),
        ("v\u00a0>\u30001", "`v` > 1"),
        ("`a``b` + (1 + 2)", "`a``b` + (1 + 2)"),
        ("- -v", "-(-`v`)"),
        ("(v = 1) = TRUE", "(`v` = 1) = TRUE"),
        ("first(v) FILTER (WHERE v > 1) IGNORE NULLS", "first(`v`) FILTER (WHERE `v` > 1) IGNORE NULLS"),
        ("CAST(odd(v) AS struct<`x y`: int>)", "CAST(`odd`(`v`) AS struct<`x y`: int>)"),
        ("timestampdiff(second, v, v)", "timestampdiff(SECOND, `v`, `v`)"),
        ("transform(v, x -> x.y[0])", "transform(`v`, `x` -> `x`.`y`[0])"),
        ("trim(BOTH 'x' FROM v)", "btrim(`v`, 'x')"),
    ],
)
def test_printed_text(text: str, sent: str) -> None:
    assert printed(parse(text)) == sent
    assert printed(parse_generated(sent)) == sent


@pytest.mark.parametrize("text", ["v \x85 + 1", "v \u2029 + 1", "v /*+ x */", "v /* x", "v /* /* */", "v ; v", "$$v$$"])
def test_text_outside_the_grammar_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(DataflowError, match="at position") as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["reflect", "java_method", "try_reflect", "`Java_Method`"])
def test_functions_that_call_java_are_refused(name: str) -> None:
    with pytest.raises(DataflowError, match="calls methods of Java"):
        check(f"CAST({name}('java.lang.System', 'getenv', 'HOME') AS string)", SCHEMA)


def test_long_generated_chains_are_printed() -> None:
    text = " OR ".join(f"v = {n}" for n in range(3000))
    assert printed_text(text) == "(" + text.replace("v", "`v`") + ")"
    with pytest.raises(DataflowError, match="nested"):
        parse(text)


def test_nul_before_digits_stays_itself() -> None:
    for value in ("\x00" + "12", "\x00\x00" + "77", "\x00", "a\x009"):
        assert tokens(quote_string(value))[0].text == value
    assert quote_string("\x00") == "'\\0'"
