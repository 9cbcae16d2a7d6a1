"""Compare exit codes with their documentation."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import headwater
from headwater.cli.app import _Commands, app
from headwater.cli.exits import EXITS, IN_WORDS
from headwater.core.errors import ErrorList, HeadwaterError, PlacementError, RuntimeFailure, Unavailable

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| ([^|]+?) \|([^|]*)\|$", re.MULTILINE)


def documented() -> dict[int, tuple[str, list[str]]]:
    text = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    return {int(code): (meaning, re.findall(r"`(\w+)`", raised)) for code, meaning, raised in ROW.findall(text)}


def errors() -> list[type[HeadwaterError]]:
    """Return all classes of errors, including those of modules that need Spark."""
    for module in pkgutil.walk_packages(headwater.__path__, "headwater."):
        source = ROOT / Path(*module.name.split(".")).with_suffix(".py")
        if source.is_file() and re.search(r"^class \w+\(\w*(Error|Failure|Unavailable)\)", source.read_text(), re.M):
            importlib.import_module(module.name)
    found: list[type[HeadwaterError]] = [HeadwaterError]
    for kind in found:
        found += [k for k in kind.__subclasses__() if k not in found and k.__module__.startswith("headwater")]
    return found


def raised(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message of a command that raises an error."""
    one = typer.Typer(cls=_Commands, pretty_exceptions_enable=False)

    @one.command()
    def fail() -> None:
        raise error

    @one.command()
    def other() -> None:
        pass

    result = CliRunner().invoke(one, ["fail"])
    return result.exit_code, result.stderr


def test_the_page_and_the_help_say_the_same() -> None:
    page = documented()
    assert list(page) == list(EXITS)
    for code, meaning in EXITS.items():
        assert page[code][0].startswith(meaning), code
    shown = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert IN_WORDS in shown


def test_every_class_of_error_has_the_code_that_is_documented() -> None:
    codes = {name: code for code, (_, names) in documented().items() for name in names}
    kinds = errors()
    assert set(codes) <= {kind.__name__ for kind in kinds} and len(kinds) > 15
    for kind in kinds:
        if kind is ErrorList:
            continue
        nearest = next(one.__name__ for one in kind.__mro__ if one.__name__ in codes)
        error = kind.__new__(kind)
        HeadwaterError.__init__(error, "this is wrong", where="here", hint="do that")
        code, said = raised(error)
        assert code == codes[nearest], kind
        for text in ("error: this is wrong", "at here", "-> do that"):
            assert text in said, kind


def test_a_list_of_errors_shows_all_and_has_the_first_ones_code() -> None:
    code, said = raised(ErrorList([Unavailable("no broker"), PlacementError("no host"), RuntimeFailure("it fell")]))
    assert code == 7
    assert [line for line in said.splitlines() if line.startswith("error")] == [
        "error: no broker",
        "error: no host",
        "error: it fell",
    ]


def test_other_codes_are_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
    assert CliRunner().invoke(app, ["version", "--wrong"]).exit_code == 2
    assert raised(typer.Abort())[0] == 1
