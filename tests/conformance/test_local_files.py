"""Spark writes files on the local disk with the permissions and checksums of Hadoop, and starts no process for it."""

from __future__ import annotations

import os
import shutil
import stat
import time
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.home import OWN_JAR
from scripts.jar import checksum
from tests.conftest import start_endpoint
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_no_process_is_started_for_the_files_of_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    chmod = tmp_path / "bin" / "chmod"
    chmod.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/chmods\nexec {shutil.which("chmod")} "$@"\n')
    chmod.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    endpoint = start_endpoint(tmp_path / "spark")
    try:
        run_batches(endpoint.session(), tmp_path, 5)
    finally:
        endpoint.stop()
    assert not (tmp_path / "chmods").exists(), (tmp_path / "chmods").read_text()
    made = [*(tmp_path / "checkpoint").rglob("*"), *(tmp_path / "out").rglob("*")]
    files = [path for path in made if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o755}
    offsets = tmp_path / "checkpoint/offsets"
    assert (offsets / "3").exists() and (offsets / ".3.crc").exists(), "flipped bytes are found by checksums"


def run_batches(spark: SparkSession, place: Path, count: int) -> None:
    reader: Any = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
    rows = reader.name("rows").load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start(str(place / "out"))
    try:
        deadline = time.monotonic() + PATIENCE
        while (progress := query.lastProgress) is None or progress.batchId < count:
            assert query.isActive and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        query.stop()


def test_the_jar_is_made_of_the_sources_in_the_repository() -> None:
    with zipfile.ZipFile(OWN_JAR) as jar:
        manifest = Parser().parsestr(jar.read("META-INF/MANIFEST.MF").decode())
        names = jar.namelist()
    assert manifest["Sources-SHA-256"] == checksum(), "run `python scripts/jar.py`"
    assert "headwater/ForklessLocalFileSystem.class" in names
