"""Rewrite state with Spark, in a process of its own: ``python -m headwater.state.reshaper``.

Spark's own tool for another number of partitions (`StateRewriter`) reads state as rows of a key and bytes,
applies a function to them, and writes them as the version of a batch. It works on the checkpoint's files.

Each line of standard input holds rewritings as JSON; each gets a line of output, with the error that it raised or
nothing. The process ends with its input, or with an error of Spark, which is on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from headwater.core.errors import RuntimeFailure
from headwater.spark.serverconf import FILES_CONF, LOCAL_AUTH, STREAMING_CONF
from headwater.state.reshape import KEYS, Reshaping, StatePiece
from headwater.state.reshapingprocess import ANSWER, JAVA_OPTIONS

_HEAP = "512m"
_JOIN = "symmetricHashJoin"
"""Spark's name of a join of streams."""
_SPARKS_OWN = "coalesce(column_family_name LIKE '$%', false)"


def _session() -> Any:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import SparkSession

    archive = os.environ.get(JAVA_OPTIONS, "")
    conf = {
        **STREAMING_CONF,
        "spark.driver.memory": _HEAP,
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        **LOCAL_AUTH,
        **FILES_CONF,
    }
    # With pinned threads py4j's server in this process, which Spark calls, knows no token.
    os.environ["PYSPARK_PIN_THREAD"] = "false"
    builder = SparkSession.builder.master("local[1]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark: Any = builder.getOrCreate()
    gateway = spark.sparkContext._gateway
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return spark


def _rewrite(spark: Any, wanted: Reshaping) -> None:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from headwater.connectors.sparksql import expression
    from headwater.state.joinkeys import SIDES, key_columns, side_of

    jvm = spark.sparkContext._jvm
    options = jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
    every = options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES()
    name, stores = _described(Path(wanted.checkpoint) / "state" / str(wanted.operator))

    def reader(piece: StatePiece) -> Any:
        found = spark.read.format("statestore").option("path", piece.checkpoint)
        return found.option("batchId", piece.batch).option("operatorId", wanted.operator)

    def read(piece: StatePiece, store: str) -> DataFrame:
        frame: DataFrame = reader(piece).option("storeName", store).option(every, "true").load()
        return frame

    by = list(dict.fromkeys(column for piece in wanted.pieces for column in piece.by))
    keys = dict.fromkeys(stores, F.col("partition_key"))
    if name == _JOIN and by:
        sides = {
            side: key_columns([reader(p).option("joinSide", side).load() for p in wanted.pieces], by, side=side)
            for side in SIDES
        }
        keys = {store: sides[side_of(store)] for store in stores}

    def chosen(frame: DataFrame, piece: StatePiece, store: str) -> DataFrame:
        if piece.takes is None:
            return frame
        return frame.withColumn(KEYS, keys[store]).where(expression(piece.takes)).drop(KEYS)

    class StoreChange:
        """The change of each store's state, one store after the other; called from Java."""

        def __init__(self) -> None:
            self._left = list(stores)

        def apply(self, first: Any) -> Any:
            store = self._left.pop(0)
            frame = chosen(DataFrame(first, spark), wanted.pieces[0], store)
            for piece in wanted.pieces[1:]:
                frame = frame.unionByName(chosen(read(piece, store), piece, store))
            if len(wanted.pieces) > 1 and any(piece.takes for piece in wanted.pieces):
                # Several pieces may hold the same timer. A list has one entry per value under one key.
                same = ["partition_key", "key_bytes", "column_family_name"]
                due = frame.where(expression(_SPARKS_OWN)).dropDuplicates(same)
                frame = frame.where(expression(f"NOT {_SPARKS_OWN}")).unionByName(due)
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
        option.apply(StoreChange()),
        option.apply(None),
    )
    rewriter.run()


def _described(place: Path) -> tuple[str, list[str]]:
    """Return an operator's name, and the names of its stores in the order in which Spark processes them."""
    file = place / "_metadata" / "v2" / "0"
    file = file if file.exists() else place / "_metadata" / "metadata"
    data = json.loads(file.read_text().split("\n", 1)[1])
    return str(data["operatorInfo"]["operatorName"]), [str(info["storeName"]) for info in data["stateStoreInfo"]]


def _answer(spark: Any, line: str) -> dict[str, Any]:
    """Carry out a request; return the error that refuses it."""
    try:
        for data in json.loads(line):
            pieces = [StatePiece(**piece) for piece in data.pop("pieces")]
            _rewrite(spark, Reshaping(**data, pieces=pieces))
    except RuntimeFailure as error:
        return {"what": error.what, "where": error.where, "hint": error.hint}
    return {}


def main() -> None:
    """Answer each request of standard input."""
    spark = _session()
    for line in sys.stdin:
        print(ANSWER + json.dumps(_answer(spark, line)), flush=True)


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(code)  # Java's threads must not keep a finished process alive
