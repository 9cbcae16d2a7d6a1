"""Refuse a class name that is defined twice, and a word in a class name that is not agreed on.

A word is agreed on where ``docs/glossary.md`` has it, or ``scripts/words.txt``: plain English, and names that
others gave. A new term belongs in the glossary, with its meaning.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+|[A-Z]+|[a-z]+")
FORBIDDEN = {"manager", "handler", "helper", "util", "utils", "process", "base"}


def classes() -> dict[str, list[str]]:
    """Return the places where each class of the package is defined, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "headwater").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def words(text: str) -> set[str]:
    """Return the words of a text, in lower case, each also without a plural's s."""
    found = {word.lower() for word in re.findall(r"[A-Za-z]+", text)}
    return found | {word.removesuffix("s") for word in found}


def main() -> int:
    """Check the names of classes; return 1 where one is wrong."""
    agreed = words((ROOT / "docs/glossary.md").read_text(encoding="utf-8"))
    agreed |= words((ROOT / "scripts/words.txt").read_text(encoding="utf-8"))
    wrong = []
    known = classes()
    for name, places in known.items():
        if len(places) > 1:
            wrong.append(f"{', '.join(places)}: class {name} is defined {len(places)} times: one word, one meaning")
        if name.startswith("_"):
            continue
        for word in (found.lower() for found in _WORD.findall(name)):
            if word in FORBIDDEN and word not in agreed:
                wrong.append(f"{places[0]}: class {name}: '{word}' says nothing")
            elif word not in agreed and word.removesuffix("s") not in agreed:
                wrong.append(f"{places[0]}: class {name}: '{word}' is new: put the term into docs/glossary.md")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(known)} class names, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
