"""Start of a query in Spark's real-time mode, and the task slots that it needs.

In this mode each partition of a topic keeps a task of Spark for the whole batch, and so does each partition of state.
A query without state starts even where there are fewer slots, and then leaves partitions unread: so they are counted
before.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.channels import kafkaclient
from headwater.connectors.kafkasettings import java_login, java_setting, librdkafka_settings, topic_at
from headwater.core.errors import DeploymentError
from headwater.core.quantity import parse_duration
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.optionlists import check_options
from headwater.dataflow.sinks import RealTimeKafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_SECONDS = 30.0  # seconds for the broker to answer


def start_real_time(sink: RealTimeKafkaSink, frame: DataFrame, *, checkpoint: Path, query_name: str) -> StreamingQuery:
    """Start the query that writes ``frame``, with a column ``topic``, to the topics of a sink."""
    check_options(sink)
    writer: Any = frame.writeStream.format("kafka").queryName(query_name).outputMode("update")
    writer = writer.option("kafka.bootstrap.servers", sink.bootstrap_servers)
    for option, value in sink.options:
        for name, given in java_setting(option, value).items():
            writer = writer.option(name, given)
    for name, given in java_login(sink).items():
        writer = writer.option(name, given)
    writer = writer.option("checkpointLocation", str(checkpoint))
    milliseconds = round(parse_duration(sink.real_time) * 1000)
    query: StreamingQuery = writer.trigger(realTime=f"{milliseconds} milliseconds").start()
    return query


def partitions_read(reads: Iterable[tuple[KafkaSource, str]]) -> int:
    """Return the number of partitions of topics, each read at a location; raise HeadwaterError for an unknown topic."""
    from confluent_kafka import KafkaException

    found = 0
    for source, location in reads:
        topic, settings = topic_at(source, location), librdkafka_settings(source, location)
        admin = kafkaclient.client("AdminClient", source.where, settings)
        try:
            about = admin.list_topics(topic, timeout=_SECONDS).topics.get(topic)
        except KafkaException as error:
            hint = "check the source's settings"
            raise kafkaclient.failure(
                error.args[0], settings["bootstrap.servers"], where=source.where, hint=hint
            ) from error
        if about is None or not about.partitions:
            raise DeploymentError(
                f"the broker has no topic {topic}", where=source.where, hint="correct its name, or create it"
            )
        found += len(about.partitions)
    return found


def check_slots(sink: RealTimeKafkaSink, *, needed: int, taken: int, slots: int, cores: int) -> None:
    """Raise DeploymentError where a Spark has too few task slots.

    ``taken``: those of other queries in this mode. One slot per core stays free for the queries in batches.
    """
    least = cores + taken + needed
    if slots >= least:
        return
    master = f"local[{least}]"
    raise DeploymentError(
        f"real-time mode needs {needed} task slots of its zone's Spark, one for each partition that it reads or keeps "
        f"state of, and of the {slots} slots {cores + taken} are for other queries",
        where=sink.where,
        hint=f"give the zone in the continuum spark: {{conf: {{spark.master: '{master}'}}}}, "
        f"or its agent --conf spark.master={master}",
    )
