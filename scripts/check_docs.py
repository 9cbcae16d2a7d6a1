"""Check README.md and docs/*.md: links, file references, commands and code.

- a relative link must lead to a file, and ``#anchor`` to a heading in it;
- a path in backticks (``headwater/plan/model.py``) must exist;
- a module in backticks (``headwater.plan.model``) must be there, and so must the names after it;
- ``make TARGET`` must be a target;
- ``python`` blocks must parse, and their imports from headwater must be there;
  those with ``>>>`` run as doctests, one after the other per file;
- ``json`` and ``yaml`` blocks must parse.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from headwater.frames import pipelines, session

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)(```+|~~~+) *([\w+-]*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"headwater(?:\.[a-z_]+)+(?:\.[A-Z]\w+)?")
PATH = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml|ya?ml|json|sh)|(?:[\w.-]+/)+")
MAKE = re.compile(r"^\s*(?:\$ )?make ([a-z][a-z-]*)\b", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced code block; ``line`` is that of its first line of code, from 1."""

    language: str
    code: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks, without the indentation of the fence."""
    found = []
    for match in FENCE.finditer(text):
        code = re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE)
        found.append(Block(match[3].lower(), code, text.count("\n", 0, match.start(4)) + 1))
    return found


def anchors_of(text: str) -> set[str]:
    """Return the anchors that headings get on a Git host."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        anchor, n = base, 0
        while anchor in anchors:
            n += 1
            anchor = f"{base}-{n}"
        anchors.add(anchor)
    return anchors


def prose_of(text: str) -> str:
    """Return the text with its fenced blocks blanked, so that line numbers stay."""
    return FENCE.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)


def check_links(path: Path, prose: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for each link within the project that leads nowhere."""
    for match in LINK.finditer(CODE_SPAN.sub(lambda span: " " * len(span[0]), prose)):
        target, line = match[1], prose.count("\n", 0, match.start()) + 1
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        if not file.exists():
            yield line, f"the link leads nowhere: {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors_of(file.read_text(encoding="utf-8")):
            yield line, f"no heading for the anchor: {target}"


def check_paths(path: Path, prose: str, *, tops: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for each path in backticks that is not there.

    A path counts when it begins with a folder of this project; others are a user's own files.
    """
    for match in CODE_SPAN.finditer(prose):
        name = match[1]
        if not PATH.fullmatch(name) or name.split("/")[0] not in tops or "/" not in name:
            continue
        if not (ROOT / name).exists() and not (path.parent / name).exists():
            yield prose.count("\n", 0, match.start()) + 1, f"no such file in the project: {name}"


SETTINGS = {*pipelines.SETTINGS, pipelines.TABLE_PATH, session.LOCATIONS}


def check_modules(prose: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for each module in backticks, or name in one, that is not there.

    Settings of PySpark's jobs have such names too.
    """
    for match in CODE_SPAN.finditer(prose):
        if MODULE.fullmatch(match[1]) and match[1] not in SETTINGS:
            parts = match[1].split(".")
            there = ROOT.joinpath(*parts)
            is_module = there.is_dir() or there.with_suffix(".py").exists()
            if not is_module and not _importable(".".join(parts[:-1]), parts[-1]):
                yield prose.count("\n", 0, match.start()) + 1, f"no such module or name: {match[1]}"


def check_targets(text: str, targets: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for each ``make TARGET`` that the Makefile lacks."""
    spans = [(m[1], m.start(1)) for m in CODE_SPAN.finditer(prose_of(text))]
    spans += [(m[4], m.start(4)) for m in FENCE.finditer(text) if m[3] in ("bash", "sh", "shell", "console", "")]
    for code, start in spans:
        for match in MAKE.finditer(code):
            if match[1] not in targets:
                yield text.count("\n", 0, start + match.start(1)) + 1, f"no such target: make {match[1]}"


def check_python(block: Block) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for a block that does not parse or imports a missing name."""
    try:
        tree = ast.parse(block.code)
    except SyntaxError as error:
        yield block.line + (error.lineno or 1) - 1, f"not Python: {error.msg}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            wanted = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.split(".")[0] == "headwater" and not _importable(module, name):
                yield block.line + node.lineno - 1, f"cannot import {name or module} from {module}"


def _importable(module: str, name: str) -> bool:
    try:
        if not name or name == "*" or hasattr(importlib.import_module(module), name):
            importlib.import_module(module)
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def check_data(block: Block) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) for a json or yaml block that does not parse."""
    try:
        if block.language == "json":
            json.loads(block.code)
        else:
            list(YAML(typ="safe").load_all(block.code))
    except (ValueError, YAMLError) as error:
        yield block.line, f"not {block.language}: {' '.join(str(error).split())}"


def check_doctests(path: Path, blocks: list[Block]) -> Iterator[tuple[int, str]]:
    """Run the ``>>>`` examples of one file in one namespace; yield the failures."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block.code, namespace, path.name, str(path), block.line - 1)
        report: list[str] = []
        if runner.run(test, out=report.append, clear_globs=False).failed:
            yield block.line, "the example gives something else:\n" + "".join(report)
        namespace.update(test.globs)


def problems_of(path: Path, *, targets: set[str], tops: set[str]) -> Iterator[tuple[int, str]]:
    """Yield all problems of one Markdown file."""
    text = path.read_text(encoding="utf-8")
    prose = prose_of(text)
    yield from check_links(path, prose)
    yield from check_paths(path, prose, tops=tops)
    yield from check_modules(prose)
    yield from check_targets(text, targets)
    examples = []
    for block in blocks_of(text):
        if block.language in ("json", "yaml"):
            yield from check_data(block)
        elif block.language in ("python", "pycon", "py"):
            if re.search(r"^\s*>>> ", block.code, re.MULTILINE):
                examples.append(block)
            else:
                yield from check_python(block)
    yield from check_doctests(path, examples)


def main() -> int:
    """Print each problem as ``file:line: problem``; return the exit status."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    tops = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("artifacts", ".venv", ".git")}
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    count = 0
    for path in files:
        name = path.relative_to(ROOT)
        if not path.exists():
            print(f"{name}: missing")
            count += 1
            continue
        for line, problem in sorted(problems_of(path, targets=targets, tops=tops)):
            print(f"{name}:{line}: {problem}")
            count += 1
    print(f"{len(files)} documents, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
