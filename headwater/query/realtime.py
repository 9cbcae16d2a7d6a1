"""The frame of a unit in Spark's real-time mode: the rows of its topic, and the dead letters of another topic."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headwater.connectors.marks import CORRUPT
from headwater.connectors.sparksql import expression, items
from headwater.dataflow.sinks import RealTimeKafkaSink
from headwater.query.corrupt import DEAD, GOOD
from headwater.sql.lexer import quote_string, quoted
from headwater.sql.schema import Schema

TOPIC = "topic"
"""The column by which Spark's Kafka sink chooses the topic of a row."""


def to_topics(frame: DataFrame, sink: RealTimeKafkaSink, schema: Schema) -> DataFrame:
    """Give each row the topic that it goes to; the dead letters in a frame, each one JSON object, have their own."""
    columns = {c.name: quoted(c.name) for c in schema.columns}
    topic = quote_string(sink.topic)
    if DEAD in frame.columns:
        topic = f"IF({GOOD}, {topic}, {quote_string(sink.dead_letters)})"
        for column in schema.columns:
            letter = f"to_json({quoted(DEAD)})" if column.name.lower() == "value" else "NULL"
            columns[column.name] = f"IF({GOOD}, {quoted(column.name)}, CAST({letter} AS {column.type.text}))"
    made = (f"{text} AS {quoted(name)}" for name, text in columns.items())
    return frame.select(*items(*made, f"{topic} AS {TOPIC}"))


def letters_alone(records: DataFrame, schema: Schema) -> DataFrame:
    """Keep the malformed ones of all records of a source, beside empty columns of the sink's rows."""
    empty = (f"CAST(NULL AS {c.type.text}) AS {quoted(c.name)}" for c in schema.columns)
    return records.where(expression(f"NOT ({GOOD})")).select(*items(*empty, quoted(CORRUPT), quoted(DEAD)))
