"""Write the class-data archive of a Spark home: ``python -m headwater.spark.training [HOME | --small]``.

A server runs a few queries of the kinds that units use, and Java writes the classes it has loaded when the server ends.
That takes about a minute of processor time, once per Java, PySpark and choice of jars. Without HOME it is that of this
environment, with ``--small`` that of small hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headwater.core.errors import HeadwaterError
from headwater.spark.endpoint import LocalEndpoint, find_java
from headwater.spark.home import SparkHome, pyspark_directory, spark_home

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LIMIT = 900.0
"""Seconds in which a server has to start, and later to write the archive: it has the least priority."""
_FREE = 1 << 30  # bytes that stay free on the disk
_ROWS = [{"ts": f"2026-01-01T00:0{i}:00Z", "v": i / 2, "k": f"k{i % 2}", "n": i} for i in range(6)]


def main() -> int:
    """Train once; do nothing where another process trains, or where homes are not shared."""
    with tempfile.TemporaryDirectory(prefix="headwater-training-") as name:
        try:
            given = sys.argv[1:]
            small = given == ["--small"]
            home = SparkHome(Path(given[0]), shared=True) if given and not small else _own_home(Path(name), lean=small)
            if home.shared:
                with home.training():
                    return _train_once(home, Path(name))
        except BlockingIOError:
            pass
    return 0


def _own_home(otherwise: Path, *, lean: bool) -> SparkHome:
    return spark_home(otherwise, find_java(), pyspark_directory(), lean=lean)


def _train_once(home: SparkHome, directory: Path) -> int:
    if home.archive.exists() or shutil.disk_usage(home.path).free < _FREE:
        return 0
    try:
        _train(home, directory)
    except (HeadwaterError, OSError, psutil.Error, RuntimeError) as error:
        print(f"no class-data archive: {error}", file=sys.stderr)
        home.failed.touch()
        return 1
    home.failed.unlink(missing_ok=True)
    home.forget_others()
    return 0


def _train(home: SparkHome, directory: Path) -> None:
    draft = home.path / ".classes.jsa"
    draft.unlink(missing_ok=True)
    endpoint = LocalEndpoint.start(directory / "spark", cores=2, small=home.lean, recorded=draft, limit=_LIMIT)
    server = psutil.Process(endpoint.pid)
    try:
        _use(endpoint.session(), directory)
        endpoint.leave()
        server.terminate()  # the archive is written at the end
        server.wait(_LIMIT)
    finally:
        endpoint.stop()
    if not draft.exists():
        raise RuntimeError(f"Java wrote no file: {endpoint.last_words()}")
    with draft.open("rb") as written:
        os.fsync(written.fileno())  # a power cut must not leave a part of it under the final name
    draft.replace(home.archive)


def _use(session: SparkSession, directory: Path) -> None:
    """Run queries with the classes of most units: files, Python, windows, joins, state."""
    from pyspark.sql import functions as F

    source: Any = directory / "in"
    source.mkdir()
    (source / "a.json").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    schema = "ts timestamp, v double, k string, n int"
    busy = (F.col("v") * F.col("n") > 1) & F.col("k").like("k%")
    session.read.schema(schema).json(str(source)).withColumn("busy", busy).toArrow()

    def same(batches: Any) -> Any:
        yield from batches

    def read(name: str) -> Any:
        reader: Any = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.format("json").name(name).load(str(source)).withWatermark("ts", "1 minute")

    def keep(frame: Any, number: int) -> None:
        table: pa.Table = frame.toArrow()
        assert table.num_columns

    plain = read("a").where(F.col("v") >= 0).mapInArrow(same, schema)
    windowed = read("b").groupBy("k").agg({"v": "avg", "n": "max"})
    timed = read("c").groupBy(F.window("ts", "1 minute"), "k").count()
    at = F.col("at")
    near = (F.col("k") == F.col("other")) & at.between(F.col("ts"), F.col("ts") + F.make_dt_interval(mins=F.lit(1)))
    joined = read("d").join(read("e").select(F.col("k").alias("other"), F.col("ts").alias("at")), on=near)
    for number, (frame, mode) in enumerate(
        ((plain, "append"), (windowed, "update"), (timed, "append"), (joined, "append"))
    ):
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(directory / f"c{number}"))
        query = writer.foreachBatch(keep).trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    sys.exit(main())
