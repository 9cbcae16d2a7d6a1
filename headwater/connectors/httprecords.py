"""The records of a request's body: JSON lines, a JSON array, or one JSON value. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from headwater.connectors.spoolwriter import text_of

# Texts of records are kept as they came; nothing is made of numbers here, which may have millions of digits.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
_BLANK = " \t\r\n"


def records_of(body: bytes) -> tuple[list[str], int]:
    """Return the texts of a body's records, and how many of them were no text.

    What is malformed is a record too, so that it becomes a dead letter; the records around it stay whole.

    >>> records_of(b'{"v": 1}\\n\\n{"v": 2}'), records_of(b'[{"v": 1.0}, {"v": ]')
    ((['{"v": 1}', '{"v": 2}'], 0), (['{"v": 1.0}', '{"v": ]'], 0))
    """
    text, clean = text_of(body)
    if not clean:
        lines = [text_of(line) for line in body.split(b"\n") if line.strip()]
        return [line for line, _ in lines], sum(not clean for _, clean in lines)
    text = text.removeprefix("\ufeff").strip(_BLANK)
    if text.startswith("["):
        return list(_elements(text)), 0
    if "\n" in text and _end_of_value(text, 0) == len(text):
        return [text], 0  # one value on several lines
    return [line.strip(_BLANK) for line in text.split("\n") if line.strip(_BLANK)], 0


def _elements(text: str) -> Iterator[str]:
    """Yield the elements of an array as they are written; from the first malformed one on, the rest is one record."""
    at = _skip(text, 1)
    if text[at : at + 1] == "]" and at + 1 == len(text):
        return
    while True:
        end = _end_of_value(text, at)
        after = _skip(text, end) if end is not None else len(text)
        if end is None or text[after : after + 1] not in (",", "]"):
            yield text[at:]
            return
        yield text[at:end]
        at = _skip(text, after + 1)
        if text[after] == "]":
            if at < len(text):
                yield text[at:]
            return


def _end_of_value(text: str, at: int) -> int | None:
    """Return where the JSON value ends that begins at a place; None where none does."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
