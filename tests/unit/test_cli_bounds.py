"""Bad values of options: each ends the command with the option's name and its bounds."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headwater.cli import bounds
from headwater.cli.app import app
from headwater.control.tables import url_of
from headwater.core.errors import DeploymentError, HeadwaterError

FLOW = """
import headwater as hw
f = hw.flow("tiny", locations=["L1"])
f.read.csv("in/{location}", "id int, v double").where("v > 1").write.memory("out")
"""
ZONES = """
name: tiny
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
"""
ON = ("flow.py", "-c", "z.yaml")
LONG = "1" + "0" * 400


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_STORE", "")
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "z.yaml").write_text(ZONES)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "dir").mkdir()


def said(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and its message in one line, without a frame."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), "no stack trace"
    words = result.stderr.replace("│", " ").replace("╭", " ").replace("╰", " ").replace("─", " ")
    return result.exit_code, " ".join(words.split())


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    *((("top", "--once", "--every", v), 2, "'--every': it is ") for v in ("inf", "nan", "1e400", "1e308", LONG, "-5")),
    *((("demo", "--days", v), 2, "'--days': it is ") for v in ("inf", "nan", "1e400", "1e308", LONG, "-5")),
    *((("demo", "--seconds", v), 2, "'--seconds': it is ") for v in ("inf", "nan", "1e400", "1e308", LONG, "-5")),
    (("top", "--every", "inf"), 2, "it is inf: give a finite number of at least 0.1 and at most 86400"),
    (("top", "--every", "soon"), 2, "it is 'soon': give a finite number of at least 0.1 and at most 86400"),
    (("top", "--rows", LONG), 2, "'--rows': it is a number of 401 digits: give a whole number of at least 1"),
    (("demo", "--seed", "9" * 5_000), 2, "'--seed': it is "),
    (("run", *ON, "--cores", LONG), 2, "'--cores': it is a number of 401 digits"),
    (("run", *ON, "--trigger", "1ns"), 3, "too short: '1ns' at --trigger -> write it as '5 minutes': at least 1ms"),
    (("run", *ON, "--trigger", "2 days"), 3, "too long: '2 days' at --trigger -> write at most 24h"),
    (("run", *ON, "--trigger", "100000000000 days"), 3, "at --trigger -> write at most 365250 days"),
    (("run", *ON, "--max-buffer", "0B"), 3, "too small: '0B' at --max-buffer -> write at least 4KiB"),
    (("plan", *ON, "--strategy", "tsoo_exact", "--max-latency", "0s"), 3, "too short: '0s' at --max-latency"),
    (("plan", *ON, "--strategy", "optimal", "--profile", "deep.json"), 4, "the profile is not JSON"),
    (("plan", *ON, "--strategy", "tsoo_exact", "--weights", "cpu=1e308,network=1"), 2, "from 0 to 1000000"),
    (("apply", *ON, "--yes", "--canary", ""), 3, "canary is not a duration: '' at --canary"),
    (("apply", *ON, "--yes", "--factor", "inf"), 2, "'--factor': it is inf"),
    (("owner", "x", "--max-cores", "inf"), 2, "'--max-cores': it is inf"),
    (("owner", "x", "--max-operators", LONG), 2, "'--max-operators': it is a number of 401 digits"),
    (("approve", LONG), 2, "it is a number of 401 digits"),
    (("approve", "0"), 2, "it is 0: give a whole number of at least 1"),
    (("what-if", "x", "--rate", "1e308x"), 3, "'1e308x' is not a rate"),
    (("run", *ON, "--memory", "100000000000PiB"), 3, "is too large"),
    (("run", *ON, "--memory", "17TiB"), 3, "a heap of '17TiB' is more than 16TiB"),
    (("slo", "x", "--max-cost", "inf"), 2, "--max-cost inf: write a finite number, or none"),
    (("profile", "flow.py", "--rate", "files=1e308"), 2, "a number from 0 to 1000000000"),
    (("status", "--store", "postgresql://h:abc/d"), 6, "not a database URL at --store -> give a path, or postgresql:"),
    (("status", "--store", "dir"), 6, "a directory, not a store at --store dir -> give the path of a file in it"),
    (("plan", *ON, "--store", "dir/"), 6, "a directory, not a store at --store dir/"),
    (("status", "--store", "sqlite:///dir"), 6, "a directory, not a store at --store dir"),
    (("status", "--store", "a\nb"), 6, "the path has a control character at position 1: 'a\\nb' at --store a\\nb"),
    (("status", "--store", "x" * 3_000), 6, "File name too long at --store xxx"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG)
def test_a_bad_value_is_refused(arguments: tuple[str, ...], code: int, words: str) -> None:
    found, text = said(*arguments)
    assert (found, words in text) == (code, True), text
    assert "defect" not in text and len(text) < 1_500


def commands() -> Iterator[Callable[..., Any]]:
    grouped = [command for group in app.registered_groups for command in of(group).registered_commands]
    for registered in [*app.registered_commands, *grouped]:
        assert registered.callback is not None
        yield registered.callback


def of(group: Any) -> typer.Typer:
    assert isinstance(group.typer_instance, typer.Typer)
    return group.typer_instance


def numbers() -> Iterator[tuple[str, str, Any]]:
    """Return the options and arguments of all commands that are numbers."""
    for command in commands():
        for name, hint in typing.get_type_hints(command, include_extras=True).items():
            if typing.get_origin(hint) is not Annotated:
                continue
            of_type, option = typing.get_args(hint)[:2]
            if {int, float} & ({of_type} | set(typing.get_args(of_type))):
                yield command.__name__, name, option


def test_every_number_has_bounds() -> None:
    """Typer's own readers, and its min and max, accept infinity and NaN."""
    found = list(numbers())
    assert len(found) >= 10
    for command, name, option in found:
        assert option.parser is not None, f"{command}: give {name} a parser of headwater.cli.bounds"


READERS = [option.parser for _, _, option in numbers() if option.parser is not None]
TEXTS = [v for name, v in vars(bounds).items() if (name.isupper() or name == "trigger") and inspect.isfunction(v)]
VALUES = st.one_of(
    st.text(max_size=30), st.floats().map(str), st.integers().map(str), st.just(LONG), st.just("9" * 4_999)
)


@given(reader=st.sampled_from([*READERS, *TEXTS]), value=VALUES)
def test_a_reader_accepts_or_refuses(reader: Callable[[str], Any], value: str) -> None:
    try:
        found = reader(value)
    except HeadwaterError as error:
        assert error.hint and error.where
    except typer.BadParameter as error:
        assert "give" in error.message or "use" in error.message
    else:
        assert isinstance(found, str) or math.isfinite(found)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("0s", 0), ("1s", 1_000), ("1.5 min", 90_000), ("500 milliseconds", 500)]
)
def test_a_trigger_is_written_as_spark_reads_it(text: str, milliseconds: int) -> None:
    assert bounds.trigger(text) == f"{milliseconds} milliseconds"


@given(value=st.text(max_size=40).map(lambda tail: f"postgresql://{tail}") | st.text(max_size=40))
def test_a_store_is_a_place_or_refused(value: str) -> None:
    try:
        url_of(value)
    except DeploymentError as error:
        assert error.hint
