"""Register Python data sources with Spark, for each read under a name of its own.

Spark keeps one map of environment variables for each registered data source, and writes into it whenever a stream of
the data source starts (``PythonStreamingSourceRunner.init``, Spark 4.3). It takes no lock: two queries that start at
once can damage the map, and then every query of this data source fails until Spark is started again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def own_format(spark: SparkSession, source: type[DataSource], name: str | None = None) -> str:
    """Register a data source; return its format, which no other read uses: ``name``, or its own, and a number."""
    unique = f"{name or source.name()}_{uuid.uuid4().hex}"
    renamed: Any = type(source.__name__, (source,), {"name": classmethod(lambda cls: unique)})
    spark.dataSource.register(renamed)
    return unique
