"""The Maven packages that Spark needs for the sources, tables and sinks of a dataflow (``spark.jars.packages``)."""

from __future__ import annotations

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.jdbcurl import known_database
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import JdbcSink, RealTimeKafkaSink

KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's Kafka connector: the newest on Maven Central; there is none of Spark 4.3, with which it works."""


def packages_for(dataflow: Dataflow) -> list[str]:
    """List the Maven packages that Spark needs for a dataflow's sources, tables and sinks."""
    return sorted({p for o in dataflow.operators if (p := package_of(o)) is not None})


def package_of(operator: Operator) -> str | None:
    """Return the Maven package that Spark needs for a source, table or sink; None when it needs none."""
    match operator:
        case KafkaSource(ending=None) | RealTimeKafkaSink():
            return KAFKA
        case JdbcSink(url=url) | Lookup(format="jdbc", path=url):
            found = known_database(url)
            return None if found is None else found.package
    return None


def how_to_add(operator: Operator) -> str:
    """Tell how a zone's Spark gets the package of a source, table or sink."""
    package = package_of(operator) or "<group:artifact:version of the driver>"
    return f"give its zone in the continuum spark: {{packages: ['{package}']}}, or its agent --packages {package}"
