"""XML documents in a column of text, to columns.

A document is input from outside. One with a document type is refused, so it has no entities but XML's own five, and
reads no files; size and depth are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quoted

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DEPTH = 100
_PATH = re.compile(r"[^/@\s]+(/[^/@\s]+)*(/@[^/@\s]+)?")


def parse_xml(
    rows: Stream, paths: Mapping[str, str], *, text: str = "xml", error: str = "error", most_bytes: int = 1 << 20
) -> Stream:
    """Add columns with parts of the XML document in column ``text``, as text without outer white space.

    ``paths``: for each column the path of an element from the root, ``"reading/light"``, or of an attribute,
    ``"reading/@id"``; the first in the document counts, and a missing one is NULL. For a malformed document, one of
    more than ``most_bytes`` or 100 levels, and one with a document type, all are NULL, and column ``error`` says why.
    """
    for name in (*paths, error):
        if name.lower() in {c.lower() for c in rows.columns}:
            raise DataflowError(f"column '{name}' already exists", where="parse_xml", hint="choose another name")
    wrong = [path for path in paths.values() if not _PATH.fullmatch(path)]
    if wrong or not paths:
        raise DataflowError(
            f"'{wrong[0]}' is no path" if wrong else "there are no paths",
            where="parse_xml",
            hint="write names from the root: {'light': 'reading/light', 'id': 'reading/@id'}",
        )
    kind = rows.schema.column(text).type.text
    if kind != "string":
        raise DataflowError(f"'{text}' is {kind}", where="parse_xml", hint="give a column of text: text='...'")
    found = list(paths.values())

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            parsed = [parts(document, found, most_bytes) for document in batch.column(text).to_pylist()]
            columns = [pa.array([values[n] for values, _ in parsed], pa.string()) for n in range(len(found))]
            why = pa.array([reason for _, reason in parsed], pa.string())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *columns, why], names=[*batch.schema.names, *paths, error]
            )

    more = ", ".join(f"{quoted(name)} string" for name in (*paths, error))
    return rows.map_batches(parse, f"{rows.schema.text}, {more}")


def parts(document: str | None, paths: list[str], most_bytes: int) -> tuple[list[str | None], str | None]:
    """Return the text at each path of a document, and why it cannot be read."""
    nothing: list[str | None] = [None] * len(paths)
    if document is None:
        return nothing, None
    from xml.parsers import expat

    data = document.encode()
    if len(data) > most_bytes:
        return nothing, f"{len(data)} bytes, more than {most_bytes}"
    wanted = dict.fromkeys(paths)
    parser = expat.ParserCreate("UTF-8")  # the text is decoded, whatever its declaration says
    for event, handler in _handlers(wanted).items():
        setattr(parser, event, handler)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as problem:
        return nothing, str(problem)
    return [None if (value := wanted[path]) is None else value.strip() for path in paths], None


def _handlers(wanted: dict[str, str | None]) -> dict[str, Callable[..., Any]]:
    """Return handlers of expat's events, which put the text at each path into ``wanted``."""
    names: list[str] = []
    closed: set[str] = set()
    path = ""

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal path
        names.append(name)
        if len(names) > _MOST_DEPTH:
            raise ValueError(f"more than {_MOST_DEPTH} levels")
        path = "/".join(names)
        if path in wanted and path not in closed:
            wanted[path] = ""
        for attribute, value in attributes.items():
            if wanted.get(key := f"{path}/@{attribute}", value) is None:
                wanted[key] = value

    def end(_: str) -> None:
        nonlocal path
        closed.add(path)
        names.pop()
        path = "/".join(names)

    def text(data: str) -> None:
        if path in wanted and path not in closed:
            wanted[path] = (wanted[path] or "") + data

    def document_type(*_: Any) -> None:
        raise ValueError("a document type is not allowed")

    return {
        "StartElementHandler": start,
        "EndElementHandler": end,
        "CharacterDataHandler": text,
        "StartDoctypeDeclHandler": document_type,
    }
