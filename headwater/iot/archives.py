"""ZIP archives of files that come as rows."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Sequence
from typing import Any

from headwater.core.errors import DataflowError, UserCodeError
from headwater.dataflow.stream import Stream
from headwater.iot.folds import Row, at_least, keys_of
from headwater.sql.lexer import quoted

_MOST_BYTES = 16 << 20
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a file in an archive


def zip_files(
    rows: Stream,
    *,
    size: int = 100,
    keys: Sequence[str] | None = None,
    content: str = "content",
    name: str = "name",
    archive: str = "files",
) -> Stream:
    """Gather ``size`` files into a ZIP archive: the event time of the last, ``name`` and ``content`` (binary).

    Columns ``name`` and ``content`` of the rows have a file's name, and its text or bytes; NULL does not count. By
    default the files of a location are gathered together. The same files give the same bytes. An archive of more than
    16 MiB of content is an error.
    """
    at_least("size", size, 1)
    keys = keys_of(rows, keys, ())
    time = rows.shape.event_time
    if time is None:
        raise DataflowError(
            "the files have no event time", where="zip_files", hint=".with_watermark('ts', '10 seconds')"
        )
    binary = rows.schema.column(content).type.text == "binary"

    def gathered(state: dict[str, Any], row: Row) -> tuple[dict[str, Any], Row | None]:
        if row[content] is None or row[name] is None:
            return state, None
        data = bytes(row[content]) if binary else row[content].encode()
        files = [*state["files"], [row[name], base64.b64encode(data).decode()]]
        if sum(len(text) for _, text in files) * 3 // 4 > _MOST_BYTES:
            raise UserCodeError("an archive of more than 16 MiB", where="zip_files", hint="give a smaller size")
        if len(files) < size:
            return {"n": state["n"], "files": files}, None
        called = "-".join([archive, *(str(row[k]) for k in keys), str(state["n"])])
        kept = {k: row[k] for k in keys}
        return {"n": state["n"] + 1, "files": []}, {
            **kept, time.column: row[time.column], "name": f"{called}.zip", "content": archived(files)
        }  # fmt: skip

    kept = "".join(f"{quoted(k)} {rows.schema.column(k).type.text}, " for k in keys)
    schema = f"{kept}{quoted(time.column)} timestamp, name string, content binary"
    order = [time.column, name]  # files of one time by name, so that the same rows give the same archives
    return rows.scan(gathered, schema, keys=keys, order_by=order, initial={"n": 0, "files": []}, keeps_keys=True)


def archived(files: Sequence[Sequence[str]]) -> bytes:
    """Return an archive of names and contents, in base64; a later file of a name gets a number."""
    out, seen = io.BytesIO(), set()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for number, (called, data) in enumerate(files):
            safe = called.replace("\\", "/").rsplit("/", 1)[-1] or "file"
            entry = safe if safe not in seen else f"{number}-{safe}"
            seen.add(entry)
            made.writestr(zipfile.ZipInfo(entry, _EARLIEST), base64.b64decode(data), zipfile.ZIP_DEFLATED)
    return out.getvalue()
