"""Read YAML text, or plain data, into a tree whose every node has its position.

A validator needs the line of any node. Only text, numbers, truths and null are
constructed from a file (the core schema of YAML 1.2), so no input can run
code. The size of a file, its nesting and its expanded aliases are
bounded, and recursion over external text is bounded too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

from headwater.core.errors import ContinuumError, ErrorList
from headwater.core.text import printable, shown

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 50
MAX_NODES = 500_000
MAX_PROBLEMS = 100

Atom = bool | int | float | str | None

_INT = re.compile(r"[-+]?[0-9]{1,300}|0x[0-9a-fA-F]{1,300}|0o[0-7]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Atom] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", "")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


@dataclass(frozen=True)
class Leaf:
    """A single value. `text` is as written; `plain` means that it was written without quotes."""

    value: Atom
    text: str
    plain: bool
    where: str
    weight: int = 1

    def __str__(self) -> str:
        return "nothing" if self.value is None else shown(self.text)


@dataclass(frozen=True)
class Items:
    """A list of nodes; `weight` counts the nodes with all aliases expanded."""

    nodes: tuple[YamlNode, ...]
    where: str
    weight: int = 1

    def __str__(self) -> str:
        return "a list"


@dataclass(frozen=True)
class Fields:
    """A mapping in written order; of equal keys only the first is kept."""

    entries: tuple[tuple[Leaf, YamlNode], ...]
    where: str
    weight: int = 1

    def __str__(self) -> str:
        return "a mapping"


YamlNode = Leaf | Items | Fields


class Problems:
    """Collect errors, to report all of them at once."""

    def __init__(self) -> None:
        self.errors: list[ContinuumError] = []

    def add(self, what: str, *, where: str, hint: str | None = None) -> None:
        """Add a problem; beyond MAX_PROBLEMS, raise all collected ones."""
        self.errors.append(ContinuumError(printable(what), where=where, hint=hint and printable(hint)))
        if len(self.errors) >= MAX_PROBLEMS:
            self.stop(f"more than {MAX_PROBLEMS - 1} problems", where=where, hint="correct those above first")

    def stop(self, what: str, *, where: str, hint: str | None = None) -> NoReturn:
        """Add a problem that ends the check, and raise all collected ones."""
        raise ErrorList([*self.errors, ContinuumError(printable(what), where=where, hint=hint)])

    def raise_any(self) -> None:
        """Raise an ErrorList if there were problems."""
        if self.errors:
            raise ErrorList(self.errors)


def read_text(path: Path, problems: Problems) -> str:
    """Return the text of a file of at most MAX_BYTES."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        hint = "let this user read the file, and enter its directories" if denied else "check the path"
        problems.stop(f"cannot read the file: {error.strerror or error}", where=str(path), hint=hint)
    _check_size(len(data), source=str(path), problems=problems)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.stop("the text is not UTF-8", where=f"{path}:{line}", hint="save the file as UTF-8")


def tree_of_text(text: str, *, source: str, problems: Problems) -> YamlNode:
    """Read one YAML document; `where` of each node is `source:line`."""
    # UTF-8 has at least one byte per character: refuse before decoding to four bytes each.
    _check_size(len(text), source=source, problems=problems)
    root: YamlNode | None = None
    try:
        root = _Tree(source, problems).read(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        what = " ".join(str(part) for part in (error.problem, error.context) if part)
        problems.stop(f"this is not YAML: {what}", where=f"{source}:{line}", hint="correct the syntax")
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.stop("the text holds a control character", where=f"{source}:{line}", hint="remove it")
    except YAMLError as error:
        problems.stop(f"this is not YAML: {error}", where=f"{source}:1", hint="correct the syntax")
    if root is None or (isinstance(root, Leaf) and root.plain and not root.text):
        problems.stop("the file is empty", where=f"{source}:1", hint="describe layers and zones in it")
    return root


def tree_of_data(data: object, *, source: str, problems: Problems) -> YamlNode:
    """Read dicts, lists and values as decoded from JSON; `where` is `source: path.to.node`."""
    budget = iter(range(MAX_NODES))

    def node(value: object, path: str, depth: int) -> YamlNode:
        where = f"{source}: {path}" if path else source
        if next(budget, None) is None or depth > MAX_DEPTH:
            problems.stop("the data is too large or too deep", where=where, hint="give the data of a continuum")
        if isinstance(value, str):
            value = _joined(value, where, problems)
            return Leaf(value, value, False, where)
        if value is None or isinstance(value, bool | int | float):
            # Python refuses to write longer numbers; whoever reads the node refuses infinity.
            if isinstance(value, int) and value.bit_length() > 1000:
                value = math.inf if value > 0 else -math.inf
            return Leaf(value, str(value), True, where)
        if isinstance(value, list | tuple):
            return Items(tuple(node(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)), where)
        if isinstance(value, Mapping):
            entries = []
            for name, child in value.items():
                key = node(name, path, depth + 1)
                if isinstance(key, Leaf):
                    below = f"{path}.{key.text}" if path else key.text
                    entries.append((key, node(child, below, depth + 1)))
                else:
                    problems.add(f"{key} cannot be a key", where=where, hint="use text")
            return Fields(tuple(entries), where)
        problems.stop(f"a {type(value).__name__} is no data", where=where, hint="use only types that JSON has")

    return node(data, "", 0)


def _joined(text: str, where: str, problems: Problems) -> str:
    """Join surrogate pairs from JSON's escapes; half a pair is invalid text."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        problems.add("half of a surrogate pair is no text", where=where, hint="write the character itself")
        return "?"


def _check_size(size: int, *, source: str, problems: Problems) -> None:
    if size > MAX_BYTES:
        limit = MAX_BYTES // (1024 * 1024)
        problems.stop(f"the file is larger than {limit} MiB", where=source, hint="give a continuum file")


class _Open:
    """A collection whose end has not been read yet."""

    def __init__(self, *, anchor: str | None, where: str, mapping: bool) -> None:
        self.anchor, self.where, self.mapping = anchor, where, mapping
        self.nodes: list[YamlNode] = []
        self.weight = 1


class _Tree:
    """Build the tree from parser events with its own stack, so that nesting cannot overflow Python's."""

    def __init__(self, source: str, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, YamlNode] = {}
        self._root: YamlNode | None = None

    def read(self, events: Iterator[Event]) -> YamlNode | None:
        for count, event in enumerate(events):
            where = f"{self._source}:{event.start_mark.line + 1}"
            if count > 2 * MAX_NODES:
                self._too_large(where)
            self._take(event, where)
        return self._root

    def _take(self, event: Event, where: str) -> None:
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            self._problems.add(
                f"tag {shown(str(event.tag))} is not supported", where=where, hint="remove it; quote a text"
            )
        if isinstance(event, ScalarEvent):
            plain = event.style is None
            self._add(Leaf(self._value(event, where), event.value, plain, where), event.anchor)
        elif isinstance(event, CollectionStartEvent):
            if len(self._open) >= MAX_DEPTH:
                self._problems.stop(f"nested deeper than {MAX_DEPTH} levels", where=where, hint="unnest it")
            mapping = isinstance(event, MappingStartEvent)
            self._open.append(_Open(anchor=event.anchor, where=where, mapping=mapping))
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            done = self._open.pop()
            self._add(self._fields(done) if done.mapping else self._items(done), done.anchor)
        elif isinstance(event, AliasEvent):
            self._add(self._aliased(event.anchor, where), None)
        elif isinstance(event, DocumentStartEvent) and self._root is not None:
            self._problems.stop("a second document begins here", where=where, hint="keep one document a file")

    def _value(self, event: ScalarEvent, where: str) -> Atom:
        text: str = event.value
        if event.style is not None:
            return _joined(text, where, self._problems)
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _aliased(self, anchor: str, where: str) -> YamlNode:
        if anchor in self._anchors:
            return self._anchors[anchor]
        if any(anchor == collection.anchor for collection in self._open):
            self._problems.stop(f"alias {shown(anchor)} contains itself", where=where, hint="write it out")
        self._problems.stop(f"no anchor {shown(anchor)} above", where=where, hint="an alias names an &anchor")

    def _add(self, node: YamlNode, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        parent.nodes.append(node)
        parent.weight += node.weight
        if parent.weight > MAX_NODES:
            self._too_large(node.where)

    def _too_large(self, where: str) -> NoReturn:
        self._problems.stop(
            f"more than {MAX_NODES} values, aliases expanded", where=where, hint="give a continuum file"
        )

    def _items(self, done: _Open) -> Items:
        return Items(tuple(done.nodes), done.where, done.weight)

    def _fields(self, done: _Open) -> Fields:
        entries: dict[tuple[type, Atom], tuple[Leaf, YamlNode]] = {}
        for key, node in zip(done.nodes[::2], done.nodes[1::2], strict=True):
            if not isinstance(key, Leaf):
                self._problems.add(f"{key} cannot be a key", where=key.where, hint="use a name")
            elif key.plain and key.text == "<<":
                self._problems.add("merge keys are not supported", where=key.where, hint="write the values out")
            # The type is part of the key because Python holds True == 1.
            elif (same := entries.get((type(key.value), key.value))) is not None:
                first = same[0].where.rpartition(":")[2]
                self._problems.add(
                    f"{key} is written twice, first at line {first}",
                    where=key.where,
                    hint="remove one of them",
                )
            else:
                if isinstance(node, Leaf) and node.plain and not node.text:
                    # The parser positions a missing value at the next token.
                    node = replace(node, where=key.where)
                entries[type(key.value), key.value] = (key, node)
        return Fields(tuple(entries.values()), done.where, done.weight)
