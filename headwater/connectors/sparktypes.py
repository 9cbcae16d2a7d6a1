"""Convert Headwater's types to PySpark's without a server: PySpark would ask the one it holds for active."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, types

from headwater.sql import schema

MARK = "spark.watermarkDelayMs"
WINDOW_MARK = "spark.timeWindow"
"""Column metadata by which Spark recognizes event time, and windows."""

_ATOMIC: dict[str, type[types.DataType]] = {
    "tinyint": types.ByteType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "boolean": types.BooleanType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
}


def spark_schema(columns: Iterable[schema.Column]) -> types.StructType:
    """Convert columns to a PySpark schema."""
    return types.StructType([types.StructField(c.name, spark_type(c.type)) for c in columns])


def spark_type(type_: schema.DataType) -> types.DataType:
    """Convert a column type to PySpark's."""
    match type_:
        case schema.AtomicType(name):
            return _ATOMIC[name]()
        case schema.DecimalType(precision, scale):
            return types.DecimalType(precision, scale)
        case schema.ArrayType(element):
            return types.ArrayType(spark_type(element))
        case schema.MapType(key, value):
            return types.MapType(spark_type(key), spark_type(value))
        case schema.StructType(fields):
            return spark_schema(fields)
    raise TypeError(f"no column has the type {type_}")


def known(frame: DataFrame, columns: types.StructType | Iterable[types.StructField]) -> DataFrame:
    """Tell PySpark the columns of a frame, for which it would ask Spark: up to 0.1 s, in which Spark calls all sources.

    PySpark has no public way to tell it; a version without this attribute asks.
    """
    frame._cached_schema = types.StructType([*columns])  # type: ignore[attr-defined]
    return frame
