"""Check the pages of the documentation: run the blocks without Spark, and parse all commands."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.app import deployments
from headwater.control import tables
from headwater.control.tables import STORE
from headwater.core import errors
from headwater.testing.nodes import SimulatedNodes
from scripts import check_docs, docs_site, reference
from tests import pages

ROOT = Path(__file__).parents[2]
ALL = (ROOT / "README.md", *sorted(pages.DOCS.rglob("*.md")))


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    return tmp_path


@contextmanager
def controller() -> Iterator[None]:
    """Run `headwater up` with simulated zones for the commands of a page."""
    zones, stop = SimulatedNodes(), threading.Event()
    thread = threading.Thread(target=deployments.up, kwargs={"open_node": zones.open, "stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def test_tutorial(place: Path) -> None:
    with controller():
        pages.run(pages.TUTORIAL, place)


@pytest.mark.parametrize("page", pages.GUIDES, ids=named)
def test_guides(page: Path, place: Path) -> None:
    having = ("onnx",) if importlib.util.find_spec("skl2onnx") else ()
    with controller():
        pages.run([page], place, having=having)


@pytest.mark.parametrize("page", ALL, ids=named)
def test_python_of_pages_runs(page: Path, place: Path) -> None:
    """Run blocks without ``>>>``; ``make docs`` runs those with it, and the tests above run files."""
    names: dict[str, object] = {"__name__": "__docs__", "__file__": str(place / "flow.py")}
    for block in pages.blocks(page):
        if block.language == "python" and not block.file and not block.needs and ">>> " not in block.code:
            exec(compile(block.code, block.place, "exec"), names)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a block of shell lines."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        ends = [n for n, word in enumerate(words) if word in ("&", "&&", "|", "||", ";") or ">" in word]
        yield words[: ends[0] if ends else None]


def shell_blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    for block in pages.blocks(page):
        if block.language in ("sh", "bash"):
            yield from ((block.place, words) for words in commands(block.code) if words)


@pytest.mark.parametrize("page", ALL, ids=named)
def test_commands_are_such_as_there_are(page: Path) -> None:
    known = {path: (command, context) for path, command, context in reference.command_line()}
    for place, words in shell_blocks(page):
        if words[0] == "headwater" and "--help" not in words:
            depth = next((n for n in (2, 1) if tuple(words[1 : n + 1]) in known), 0)
            assert depth, f"{place}: there is no command {' '.join(words)}"
            path = tuple(words[1 : depth + 1])
            command, context = known[path]
            try:
                command.make_context(path[-1], words[depth + 1 :], parent=context.parent)
            except Exception as error:
                raise AssertionError(f"{place}: {' '.join(words)}: {error}") from error
        elif words[:2] == ["python", "-m"]:
            _check_module(place, words[2], [w for w in words[3:] if w.startswith("--")])


def _check_module(place: str, module: str, options: list[str]) -> None:
    assert importlib.util.find_spec(module), f"{place}: there is no module {module}"
    if not module.startswith(("benchmarks", "examples")):
        return
    path = ROOT.joinpath(*module.split("."))
    files = [*path.rglob("*.py"), path.with_suffix(".py"), ROOT / "benchmarks" / "common.py"]
    texts = "".join(f.read_text(encoding="utf-8") for f in files if f.exists())
    known = {n.value for n in ast.walk(ast.parse(texts)) if isinstance(n, ast.Constant)}
    for option in options:
        assert option in known, f"{place}: {module} knows no {option}"


def test_modules_that_are_named_are_there() -> None:
    prose = "`headwater.plan.edit` and `headwater.core.errors.ChannelFull`\n`headwater.plan.edits`"
    assert list(check_docs.check_modules(prose)) == [(2, "no such module or name: headwater.plan.edits")]


def test_output_that_is_not_shown_is_found(tmp_path: Path) -> None:
    page = pages.DOCS / "index.md"
    shown = pages.Block(page, 1, "sh", "echo one; echo two", shows=("one", "two"))
    other = replace(shown, shows=("two", "one"))
    pages.run_blocks([shown], tmp_path / "a")
    with pytest.raises(AssertionError, match=r"docs/index\.md:1: does not show 'one'"):
        pages.run_blocks([other], tmp_path / "b")
    with pytest.raises(AssertionError, match="ended with 3"):
        pages.run_blocks([replace(shown, code="exit 3")], tmp_path / "c")


# ---------------------------------------------------------------- the site


@pytest.mark.parametrize("page", sorted(reference.PAGES.glob("*.md")), ids=named)
def test_reference_pages_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert reference.current(text) == text, "run `make docs`, which writes it again"


def test_reference_has_every_command_and_option() -> None:
    text = reference.cli_reference()
    assert "\n## apply\n" in f"\n{text}" and "\n## broker start\n" in text
    for path, command, _ in reference.command_line():
        part = f"\n{text}\n## ".split(f"\n## {' '.join(path)}\n")[1].split("\n## ")[0]
        options = [name for p in command.params for name in p.opts if name.startswith("--")]
        assert [name for name in options if name not in part] == []


def test_reference_tells_all_errors_and_their_codes() -> None:
    codes, told = reference.exit_codes(), reference.errors_reference()
    assert "| 4 | it cannot be placed | `PlacementError` |" in codes
    assert "| 130 | a second Ctrl-C: ended at once |  |" in codes
    assert "| `ChannelFull` | The channel stayed full for longer than a writer may wait. | yes |" in told
    assert all(f"`{e.__name__}`" in codes for e in (errors.Unavailable, errors.UserCodeError))


def test_formulas_are_made_at_build_time() -> None:
    block = r'<div class="arithmatex">\[\frac{1}{\mu - \lambda}\]</div>'
    made = docs_site.with_formulas(rf'<p>x</p>{block}<span class="arithmatex">\(a &lt; b\)</span>')
    assert made.startswith('<p>x</p><div class="formula"><math') and "<mfrac>" in made
    assert 'display="block"' in made and 'display="inline"' in made and "&#x0003C;" in made
    with pytest.raises(ValueError, match="unknown command"):
        docs_site.mathml(r"\notacommand{x}", block=False)


def test_what_would_be_fetched_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link rel="canonical" href="https://a/"><a href="https://b/">b</a><img alt="" src="c.png">'
        '<script src="https://d/x.js"></script><link rel=stylesheet href=//e/f.css>'
    )
    (tmp_path / "a.css").write_text("@import url(https://g/font); a {background: url(b.png)}")
    assert [address for _, address in docs_site.fetched(tmp_path)] == [
        "https://g/font",
        "https://d/x.js",
        "//e/f.css",
    ]
    with pytest.raises(ValueError, match="nothing is generated as 'nothing'"):
        reference.current("<!-- generated: nothing -->\n<!-- end -->\n")
