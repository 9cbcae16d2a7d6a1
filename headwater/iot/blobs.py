"""Download files that rows name."""

from __future__ import annotations

from headwater.core.errors import DataflowError
from headwater.dataflow.blobs import BlobContainer
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.operators import MapBatches
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quoted


def download_blobs(
    rows: Stream,
    container: str,
    *,
    name: str = "name",
    into: str = "content",
    error: str = "error",
    most_bytes: int = 16 << 20,
) -> Stream:
    """Add the content of the file that each row names: a binary column ``into``.

    ``container``: an absolute path, or a URI that fsspec opens; agents read it only where their permissions allow it.
    A name that leads out of the container, a missing file and one of more than ``most_bytes`` give NULL, and column
    ``error`` says why; a NULL name gives NULL. Files should not change: a batch that is repeated reads them again.
    """
    made = BlobContainer(path=container, name=name, into=into, error=error, most_bytes=most_bytes)
    for column in (into, error):
        if column.lower() in {c.lower() for c in rows.columns}:
            raise DataflowError(f"column '{column}' already exists", where="download_blobs", hint="choose another name")
    if (kind := rows.schema.column(name).type.text) != "string":
        raise DataflowError(f"'{name}' is {kind}", where="download_blobs", hint="give a column of text: name='...'")
    return rows._then(
        MapBatches,
        function=BuiltinFunction("download_blobs", made.settings),
        schema_text=f"{rows.schema.text}, {quoted(into)} binary, {quoted(error)} string",
    )
