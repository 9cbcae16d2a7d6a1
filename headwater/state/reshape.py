"""Rewrite an operator's state with Spark: merge several units' state, divide it, or change its partitions.

Spark's own tool for another number of partitions (`StateRewriter`) reads state as rows of a key and bytes,
applies a function to them, and writes them as the version of a batch. It works on the checkpoint's files, in a
Spark of its own that ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import RuntimeFailure
from headwater.disk.credentials import code_environment
from headwater.plan.transfer import OperatorTransfer
from headwater.query.scan import KEY
from headwater.spark.endpoint import find_java
from headwater.spark.home import spark_home
from headwater.spark.serverconf import FILES_CONF, LOCAL_AUTH, STREAMING_CONF
from headwater.sql.lexer import quote_string, quoted

_SECONDS = 600.0
_HEAP = "512m"
_JAVA_OPTIONS = "HEADWATER_JAVA_OPTIONS"
"""Variable of the new process's environment: Java's options for the archive of classes."""
_KEYS = "headwater_keys"
"""Column of an entry's key columns by their names in the dataflow."""
_JOIN = "symmetricHashJoin"
"""Spark's name of a join of streams."""
_REFUSED = 3
"""Exit code with a RuntimeFailure as JSON on standard output."""
_SPARKS_OWN = "coalesce(column_family_name LIKE '$%', false)"


@dataclass(frozen=True, kw_only=True)
class StatePiece:
    """A checkpoint that holds the operator's state, under its new number, as of a batch.

    ``takes``: the condition that selects its entries, by the key columns ``by``; None selects all.
    """

    checkpoint: str
    batch: int
    takes: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reshaping:
    """A rewriting: the state of all pieces becomes that of ``batch`` of ``checkpoint``."""

    checkpoint: str
    operator: int
    batch: int
    partitions: int
    pieces: list[StatePiece]


def taken_of(share: OperatorTransfer) -> str | None:
    """Return the condition that selects a share's entries; None where it takes all.

    Keys of scans end with their tags; Spark's own entries, its timers, belong to every share.
    """
    conditions = []
    if share.tag is not None:
        tag = f"encode({quote_string(share.tag)}, 'UTF-8')"
        conditions.append(f"(column_family_name LIKE '$%' OR right(key_bytes, {len(share.tag)}) = {tag})")
    if share.by is not None:
        name = quote_string(f"$.{share.by.lower()}")
        of_scan = f"get_json_object(partition_key.{quoted(KEY)}, {name})"
        column = f"{_KEYS}.{quoted(share.by)}" if share.tag is None else of_scan
        values = ", ".join(quote_string(v) for v in share.values)
        conditions.append(f"{column} IN ({values})")
    if (part := share.part) is not None:
        name = quote_string(f"$.{part.column.lower()}")
        of_scan = f"CAST(get_json_object(partition_key.{quoted(KEY)}, {name}) AS {part.type})"
        column = f"{_KEYS}.{quoted(part.column)}" if share.tag is None else of_scan
        conditions.append(f"pmod(xxhash64({column}), {part.count}) = {part.index}")
    return f"({' AND '.join(conditions)})" if conditions else None


def columns_of(share: OperatorTransfer) -> tuple[str, ...]:
    """Return the key columns that the condition of a share names; a scan's keys are text."""
    names = (share.by, share.part.column if share.part is not None else None)
    return tuple(dict.fromkeys(n for n in names if n is not None)) if share.tag is None else ()


def reshape(wanted: Sequence[Reshaping], *, within: Path) -> None:
    """Run the rewritings one after the other in a new process; raise RuntimeFailure with the end of its output."""
    import pyspark

    # PySpark has set variables here when it connected to a server; they would make the new process connect too.
    known = code_environment(())
    environment = {k: v for k, v in known.items() if not k.startswith("SPARK_") or k == "SPARK_LOCAL_DIRS"}
    environment |= {"JAVA_HOME": str(java := find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
    roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in roots if p)
    try:
        with tempfile.TemporaryDirectory(prefix=".spark.", dir=within) as directory:
            home = spark_home(Path(directory), java, Path(pyspark.__file__).parent)
            environment |= {"SPARK_HOME": str(home.path), _JAVA_OPTIONS: home.java_options}
            done = subprocess.run(
                [sys.executable, "-m", "headwater.state.reshape"],
                input=json.dumps([asdict(one) for one in wanted]),
                env=environment,
                cwd=within,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise RuntimeFailure(
            f"state was not rewritten within {_SECONDS:.0f} s",
            where=str(within),
            hint="nothing is lost: the units can continue where they stopped; try again when the machine is less busy",
        ) from error
    if done.returncode == _REFUSED:
        raise RuntimeFailure(**json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("\tat ")]
        raise RuntimeFailure(
            "state could not be rewritten: " + "\n".join(said[-10:]),
            where=str(within),
            hint="nothing is lost: the units can continue where they stopped",
        )


def _session() -> Any:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import SparkSession

    archive = os.environ.get(_JAVA_OPTIONS, "")
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
        return frame.withColumn(_KEYS, keys[store]).where(expression(piece.takes)).drop(_KEYS)

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


def main() -> int:
    """Run the rewritings described on standard input."""
    spark = _session()
    try:
        for data in json.load(sys.stdin):
            pieces = [StatePiece(**piece) for piece in data.pop("pieces")]
            _rewrite(spark, Reshaping(**data, pieces=pieces))
    except RuntimeFailure as error:
        print(json.dumps({"what": error.what, "where": error.where, "hint": error.hint}))
        return _REFUSED
    return 0


if __name__ == "__main__":
    # Java's threads must not keep a finished process alive.
    code = main()
    sys.stdout.flush()
    os._exit(code)
