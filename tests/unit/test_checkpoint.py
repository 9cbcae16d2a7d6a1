"""What Headwater does to a query's checkpoint."""

from __future__ import annotations

from pathlib import Path

from headwater.runtime.checkpoint import sweep_torn


def test_only_what_is_half_written_is_swept(tmp_path: Path) -> None:
    kept = ["offsets/0", "offsets/.0.crc", "offsets/1", "commits/0", "metadata", ".metadata.crc"]
    torn = ["offsets/.2.5d3c.tmp", "offsets/..2.5d3c.tmp.crc", "offsets/.2.crc", "commits/.1.77aa.tmp"]
    for name in (*kept, *torn):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    sweep_torn(tmp_path)
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()) == sorted(kept)
    sweep_torn(tmp_path / "absent")
