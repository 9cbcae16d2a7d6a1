"""Spark writes files on the local disk with the permissions and checksums of Hadoop, and starts no process for it."""

from __future__ import annotations

import stat
import time
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.spark.home import OWN_JAR
from scripts.jar import checksum
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.endpoint import LocalEndpoint


def faults_of_children(pid: int) -> int:
    """Return the page faults of all children of a process that have ended: none without a child."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[8])


def test_no_process_is_started_for_the_files_of_a_query(
    endpoint: LocalEndpoint, spark: SparkSession, tmp_path: Path
) -> None:
    reader: Any = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
    rows = reader.name("rows").load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    before = faults_of_children(endpoint.pid)
    query = writer.trigger(processingTime="0 seconds").start(str(tmp_path / "out"))
    try:
        deadline = time.monotonic() + PATIENCE
        while (progress := query.lastProgress) is None or progress.batchId < 5:
            assert query.isActive and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        query.stop()
    assert faults_of_children(endpoint.pid) == before
    made = [*(tmp_path / "checkpoint").rglob("*"), *(tmp_path / "out").rglob("*")]
    files = [path for path in made if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o755}
    offsets = tmp_path / "checkpoint/offsets"
    assert (offsets / "3").exists() and (offsets / ".3.crc").exists(), "flipped bytes are found by checksums"


def test_the_jar_is_made_of_the_sources_in_the_repository() -> None:
    with zipfile.ZipFile(OWN_JAR) as jar:
        manifest = Parser().parsestr(jar.read("META-INF/MANIFEST.MF").decode())
        names = jar.namelist()
    assert manifest["Sources-SHA-256"] == checksum(), "run `python scripts/jar.py`"
    assert "headwater/ForklessLocalFileSystem.class" in names
