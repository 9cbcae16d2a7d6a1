"""Settings and Java options of the Sparks that Headwater starts, and of their sessions."""

from __future__ import annotations

from collections.abc import Mapping

KEEP_COMPILED = "-XX:-UseCodeCacheFlushing"
"""Java 17 drops compiled code that was not used lately. Therefore it compiled a query that rests between
batches over and over: a tenth to a third of a core in each of seven Sparks on two cores."""

CLASS_MEMORY = "-XX:MetaspaceSize=128m"
"""Java collects all garbage when its classes reach this size. With the default it did so twice in the first ten seconds
of a Spark, for 0.14 s each."""

OPTIMIZE_LATER = (
    "-XX:Tier4InvocationThreshold=250000 -XX:Tier4MinInvocationThreshold=30000 -XX:Tier4CompileThreshold=750000"
)
"""Calls of a method after which Java optimizes it, fifty times the default; loops over rows count apart, as by default.

Optimizing a method takes about 10 ms. With the default, Java optimized the code that plans batches for many minutes,
which took half of the processor time of a pool with few rows; queries with many rows are as fast with both.
"""

STREAMING_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Named sources, so that a checkpoint survives a change of its query's sources.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    # transformWithState needs RocksDB; one provider for all keeps every state movable.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Rows of a slow zone must not become late because a fast one is ahead.
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    # A malformed field must be detected whichever columns the query uses.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    # Without a trigger interval, an idle query looks for input this often: with Spark's 10 ms, one that
    # lists files kept a fifth of a core busy.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Spark lists more files than this by a job, which takes ten times as long on a local disk (2 s for 1,000 files).
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # Java never compiles a method of more than 8,000 bytes, and interprets it about twenty times slower:
    # make Spark generate smaller ones.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "30",
    # Spark would replace ${env:NAME} in an expression, also inside a string, by a variable of the agent's environment.
    "spark.sql.variable.substitute": "false",
}

SESSION_CONF: Mapping[str, str] = {
    # Isolation of classes and files that a session adds; Headwater's add none. With it each query has Python processes
    # of its own, and the compiler of generated code sends the driver a message for each name that may be a class, which
    # takes half of the duration of a query's first batch.
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}
"""Settings of each session; a server's values of these have no effect, because Spark Connect overwrites them."""

MOST_PARTITIONS = 4
"""Partitions of a query's state, at most."""
PARALLELISM = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
"""Settings that keep queries in as many parts as there are cores, where Spark has more task slots."""

SERVER_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.catalogImplementation": "in-memory",
    # Cache of code generated for plans: with the default of 100, queries evict each other's code every batch.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # Spark's state server knows no secret: a stranger at its port could read and change state.
    "spark.python.unix.domain.socket.enabled": "true",
    # A rename is enough for checkpoints on a local disk; the default forks a shell command per file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


LOCAL_AUTH: Mapping[str, str] = {
    # The driver deserializes any message at its RPC port, also from other users of this machine. Without a cluster
    # Spark makes the secret itself, and keeps it in the memory of its process.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
    # The default cipher, CTR, loads its classes in the thread that serves a task's class loader, which waits for it:
    # the first query stood still for 120 s.
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}
"""Authentication of a Spark without a cluster; a cluster has a secret of its own, or none."""

FILES_CONF: Mapping[str, str] = {
    # Hadoop's own one starts `chmod` twice in each batch. A cluster's hosts do not have this class.
    "spark.hadoop.fs.file.impl": "headwater.ForklessLocalFileSystem",
}
"""The local file system of a Spark without a cluster."""

QUICK_CONF: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
