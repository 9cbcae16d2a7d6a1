"""Write an operator's state anew with Spark: several units' made one, divided, in other partitions.

Spark's own tool for another number of partitions (`StateRewriter`) reads state as rows of a key and bytes,
lets them be changed, and writes them as the version of a batch. It works on the checkpoint's files, in a
Spark of its own that ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwater.errors import RuntimeFailure
from headwater.runtime.endpoint import STREAMING_CONF, find_java

_SECONDS = 600.0
_HEAP = "512m"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A checkpoint that holds the operator's state, under its new number, as of a batch."""

    checkpoint: str
    batch: int


@dataclass(frozen=True, kw_only=True)
class Reshaping:
    """What is to be written: state of all pieces, as of ``batch`` of ``checkpoint``.

    ``column`` is of the operator's key: of its ``values`` alone state is taken.
    """

    checkpoint: str
    operator: int
    batch: int
    partitions: int
    pieces: list[Piece]
    column: str | None = None
    values: list[str] | None = None


def reshape(wanted: Reshaping) -> None:
    """Do it in a process of its own; raise RuntimeFailure with the last words of one that failed."""
    # What PySpark noted in this process when it connected to a server would make it seek one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= {"JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
    roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in roots if p)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headwater.runtime.reshape"],
            input=json.dumps(asdict(wanted)),
            env=environment,
            cwd=wanted.checkpoint,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeFailure(
            f"state was not written anew within {_SECONDS:.0f} s", where=wanted.checkpoint
        ) from error
    if done.returncode:
        raise RuntimeFailure(
            "state could not be written anew: " + "\n".join(done.stderr.splitlines()[-20:]),
            where=wanted.checkpoint,
            hint="nothing is lost: the units can go on where they stood",
        )


def _rewrite(wanted: Reshaping) -> None:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[1]").config("spark.driver.memory", _HEAP)
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.sql.catalogImplementation", "in-memory"
    )
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    for key, value in STREAMING_CONF.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.shuffle.partitions", str(wanted.partitions)).getOrCreate()
    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = context._jvm
    options = jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
    every = options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES()
    stores = _stores(Path(wanted.checkpoint) / "state" / str(wanted.operator))

    def read(piece: Piece, store: str) -> DataFrame:
        reader = spark.read.format("statestore").option("path", piece.checkpoint)
        reader = reader.option("batchId", piece.batch).option("operatorId", wanted.operator)
        return reader.option("storeName", store).option(every, "true").load()

    class Change:
        """What is made of each store's state, one after the other; called from Java."""

        def __init__(self) -> None:
            self._left = list(stores)

        def apply(self, first: Any) -> Any:
            store = self._left.pop(0)
            frame = DataFrame(first, spark)
            for piece in wanted.pieces[1:]:
                frame = frame.unionByName(read(piece, store))
            if wanted.column is not None:
                frame = frame.where(F.col(f"partition_key.`{wanted.column}`").isin(wanted.values or []))
            return frame.repartition(wanted.partitions, "partition_key")._jdf

        class Java:
            implements = ["scala.Function1"]  # noqa: RUF012 (py4j's form)

    option = jvm.scala.Option
    session = spark._jsparkSession
    rewriter = jvm.org.apache.spark.sql.execution.streaming.state.StateRewriter(
        session,
        wanted.pieces[0].batch,
        wanted.batch,
        wanted.checkpoint,
        session.sessionState().newHadoopConf(),
        option.apply(wanted.pieces[0].checkpoint),
        option.apply(Change()),
        option.apply(None),
    )
    rewriter.run()
    spark.stop()


def _stores(place: Path) -> list[str]:
    """Name an operator's stores, in the order in which Spark goes through them."""
    file = place / "_metadata" / "v2" / "0"
    file = file if file.exists() else place / "_metadata" / "metadata"
    data = json.loads(file.read_text().split("\n", 1)[1])
    return [str(info["storeName"]) for info in data["stateStoreInfo"]]


def main() -> int:
    """Do what standard input asks for."""
    data = json.load(sys.stdin)
    pieces = [Piece(**piece) for piece in data.pop("pieces")]
    _rewrite(Reshaping(**data, pieces=pieces))
    return 0


if __name__ == "__main__":
    # Java's threads must not keep a process whose work is done.
    code = main()
    sys.stdout.flush()
    os._exit(code)
