"""A log's schema, fixed by its first writer and checked for every later one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import normal_schema
from headwater.core.errors import ChannelError
from headwater.disk.durable import read_sealed, sealed, write_first

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = "schema.json"


def load_schema(log: Path) -> pa.Schema | None:
    """Return the schema of a log; None when it has none yet."""
    record = read_sealed(log / _NAME, ("columns", "arrow"))
    return None if record is None else schema_of(record)


def schema_of(record: Mapping[str, Any]) -> pa.Schema:
    """Rebuild a schema from its JSON form (``record_of``)."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(record["arrow"])))


def record_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the JSON form of a schema: legible, and exact."""
    arrow = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {"columns": {f.name: str(f.type) for f in schema}, "arrow": arrow}


def refuse_other(found: pa.Schema, wanted: pa.Schema, *, where: str) -> None:
    """Raise ChannelError where rows have another schema than the log."""
    if not found.equals(wanted):
        raise ChannelError(
            f"the rows have another schema: {_difference(found, wanted)}",
            where=where,
            hint="a changed schema needs a new channel; keep the old log until it is read to its end",
        )


def ensure_schema(log: Path, schema: pa.Schema, *, scratch: Path, fsync: bool) -> None:
    """Fix the log's schema, or refuse one that differs from the fixed one."""
    wanted = normal_schema(schema)
    found = load_schema(log)
    if found is None:
        # Several tasks start at once: the first one's schema stays.
        write_first(log / _NAME, sealed(record_of(wanted), indent=1), scratch=scratch, fsync=fsync)
        found = load_schema(log)
    if found is not None:
        refuse_other(found, wanted, where=str(log))


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    have = {f.name: str(f.type) for f in found}
    want = {f.name: str(f.type) for f in wanted}
    notes = [f"{n} is new" for n in want if n not in have]
    notes += [f"{n} is missing" for n in have if n not in want]
    notes += [f"{n} was {have[n]}, now {want[n]}" for n in want if n in have and have[n] != want[n]]
    return "; ".join(notes) or f"column order was {', '.join(have)}, now {', '.join(want)}"
