"""Run the blocks of the docs' pages one after the other, as a reader would.

- a block with ``title="NAME"`` is a file of that name, written in the order of the blocks;
- a ``sh`` block is run, all of them in one shell and one directory;
- a ``text`` block with ``title="output"`` holds lines that the block before it shows, in this order; a line
  of ``...`` stands for any;
- ``<!-- needs: spark -->`` above a block: it runs where a Spark may start; ``<!-- needs: onnx -->``: where the
  libraries of models are installed; ``<!-- needs: machines -->``: it never runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.check_docs import FENCE
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIAL = tuple(
    DOCS / "tutorial" / f"{name}.md" for name in ("first-dataflow", "three-zones", "deployment", "placement")
)
GUIDES = tuple(p for p in sorted((DOCS / "guides").glob("*.md")) if p.name != "index.md")
_TITLE = re.compile(r'title="([^"]+)"')
_NEEDS = re.compile(r"<!-- needs: (\w+) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A block of a page: ``file`` it is, or language; ``shows``: lines of output."""

    page: Path
    line: int
    language: str
    code: str
    file: str = ""
    needs: str = ""
    shows: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page, each with its output."""
    text, last = page.read_text(encoding="utf-8"), None
    for match in FENCE.finditer(text):
        head = text[match.start() : text.index("\n", match.start())]
        title, needs = _TITLE.search(head), _NEEDS.search(text[: match.start()])
        block = Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[3].lower(),
            re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE),
            file=title[1] if title else "",
            needs=needs[1] if needs else "",
        )
        if block.file == "output":
            assert last is not None, f"{block.place}: there is nothing that it is the output of"
            last = replace(last, shows=tuple(line for line in block.code.splitlines() if line.strip()))
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def run(pages: Sequence[Path], place: Path, *, having: Collection[str] = (), seconds: float = PATIENCE) -> None:
    """Run the blocks of pages in a directory; raise AssertionError with page and line for a failure."""
    found = [b for page in pages for b in blocks(page) if not b.needs or b.needs in having]
    run_blocks([b for b in found if b.file or b.language == "sh"], place, seconds=seconds)


def run_blocks(todo: Sequence[Block], place: Path, *, seconds: float = PATIENCE) -> None:
    """Run blocks in a directory, one after the other."""
    stage = place / ".stage"
    stage.mkdir(parents=True)
    command = f'#!/bin/sh\nexec "{sys.executable}" -c "from headwater.cli import main; main()" "$@"\n'
    (stage / "headwater").write_text(command)  # this checkout's code, independent of the installed version
    (stage / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # with the libraries of the tests
    for name in ("headwater", "python"):
        (stage / name).chmod(0o755)
    script = []
    for n, block in enumerate(todo):
        script.append(f"echo '=== {n}'")
        if block.file:
            (stage / str(n)).write_text(block.code)
            script.append(f"mkdir -p '{Path(block.file).parent}' && cp '{stage / str(n)}' '{block.file}'")
        else:
            script.append(block.code)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PATH": f"{stage}:{os.environ['PATH']}",
        "PYTHONPATH": path,
        "COLUMNS": "100",
    }
    environment.pop("HEADWATER_STORE", None)
    with (stage / "output").open("w") as output:
        shell = subprocess.Popen(
            ["sh", "-e", "-c", "\n".join(script)],
            cwd=place,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = shell.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"nothing in {seconds:.0f} s"
        finally:  # processes that the page started in the background are ended, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(30)
    parts = re.split(r"^=== (\d+)\n", (stage / "output").read_text(), flags=re.MULTILINE)
    said = {int(n): text for n, text in zip(parts[1::2], parts[2::2], strict=True)}
    if status:
        last = max(said)
        raise AssertionError(f"{todo[last].place}: ended with {status}:\n{said[last]}")
    for n, block in enumerate(todo):
        if (line := missing(block.shows, said[n])) is not None:
            raise AssertionError(f"{block.place}: does not show {line!r}, but\n{said[n]}")


def missing(shows: Sequence[str], said: str) -> str | None:
    """Return the first line that is not shown after the lines before it; spacing is ignored.

    >>> missing(["a  b", "...", "c"], "a b\\nx\\nc"), missing(["c", "a b"], "a b\\nx\\nc")
    (None, 'a b')
    """
    lines = iter([" ".join(line.split()) for line in said.splitlines()])
    for wanted in shows:
        if wanted.strip() != "..." and " ".join(wanted.split()) not in lines:
            return wanted
    return None
