"""A Spark for a small host, such as an edge gateway: little memory, few threads, only the jars that units use.

``profile: small`` of a zone chooses it. Compiled code and memory kept for bursts take most of such a host's memory. So
Java compiles lightly, Spark generates no code, and heap, classes and RocksDB have bounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HEAP_MB = 160
"""Heap of a small Spark."""

RESERVED_BELOW_MB = 512
"""Heaps below this size are refused by Spark, unless it reserves less than its 300 MB."""

SMALL_JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:MaxMetaspaceSize=192m",
    "-XX:CompressedClassSpaceSize=48m",
    "-XX:MetaspaceReclaimPolicy=aggressive",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=25",
    "-XX:TrimNativeHeapInterval=30000",
    "-XX:MaxDirectMemorySize=64m",
    "-Xss512k",
    "-Dio.netty.allocator.numDirectArenas=1",
    "-Dio.netty.allocator.numHeapArenas=1",
    "-Dio.netty.allocator.maxOrder=4",
)

SMALL_CONF: Mapping[str, str] = {
    "spark.rpc.netty.dispatcher.numThreads": "2",
    "spark.rpc.io.threads": "1",
    "spark.shuffle.io.serverThreads": "1",
    "spark.shuffle.io.clientThreads": "1",
    "spark.files.io.threads": "1",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.codegen.cache.maxEntries": "100",
    # All state stores of this Spark share the cache and the buffers of RocksDB.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "24",
}

SMALL_ENVIRONMENT: Mapping[str, str] = {
    # Every thread that allocates would get an arena of its own, and keep what it once held.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_UNUSED = re.compile(
    "(?:"
    # other managers of clusters
    r"kubernetes-|volcano-|vertx-|zjsonpatch-|spark-kubernetes_|spark-yarn_|zookeeper-|curator-|jjwt-"
    # Hive and its store
    r"|hive-(?!storage-api)|spark-hive|datanucleus-|derby|jdo-api-|javax\.jdo-|HikariCP-|commons-dbcp-|commons-pool-|jta-|transaction-api-"
    r"|libfb303-|libthrift-|antlr-runtime-|ST4-|jpam-|opencsv-|super-csv-|javolution-|json-1|oro-"
    r"|spark-graphx_"
    # the shell and the user interface
    r"|spark-repl_|scala-compiler-|jline-|jersey-|hk2-|jakarta\.(?:inject|validation)|aopalliance|javassist-|jaxb-"
    r"|istack-|osgi-"
    # other systems
    r"|.*-(?:windows|osx)-"
    ")"
)


def is_used(jar: str) -> bool:
    """Return whether units may use a jar of PySpark; jars that a later PySpark adds count as used."""
    return _UNUSED.match(jar) is None


def reserved_memory(heap_mb: int) -> Mapping[str, str]:
    """Return the setting with which Spark accepts a small heap: it keeps half for its own objects."""
    return {"spark.testing.reservedMemory": str(heap_mb << 19)} if heap_mb < RESERVED_BELOW_MB else {}
