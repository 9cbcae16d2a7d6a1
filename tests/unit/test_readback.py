"""Sinks are read back as they are, also while they are being made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

import headwater as hw
from headwater.testing.readback import rows_in


def test_a_table_without_a_version_has_no_rows(tmp_path: Path) -> None:
    builder = hw.flow("f", locations=["L1"])
    builder.read.json("/in", "k string").write.delta(str(tmp_path / "out")).named("sink")
    sink = builder.build()["sink"]
    rows = pa.table({"k": ["a"]})
    assert rows_in(sink, rows.schema).num_rows == 0, "missing"
    (tmp_path / "out/_delta_log").mkdir(parents=True)
    assert rows_in(sink, rows.schema).num_rows == 0, "its first version is being written"
    write_deltalake(str(tmp_path / "out"), rows)
    assert rows_in(sink, rows.schema).equals(rows)
