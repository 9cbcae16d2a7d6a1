"""Test that each read has a registered data source of its own, with a real Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from headwater.channels.channel_spark import ChannelSource
from headwater.connectors.delta_source import DeltaDataSource
from headwater.connectors.iceberg_source import IcebergDataSource
from headwater.connectors.kafkarange import KafkaRangeDataSource
from headwater.connectors.sensor_source import SensorDataSource
from headwater.connectors.sparkformats import own_format

SOURCES = (ChannelSource, DeltaDataSource, IcebergDataSource, KafkaRangeDataSource, SensorDataSource)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_can_only_be_read_under_a_name_of_the_read(spark: Any, source: Any) -> None:
    with pytest.raises(PySparkException, match="DATA_SOURCE_NOT_FOUND"):
        _ = spark.readStream.format(source.name()).load().schema
    first, second = own_format(spark, source), own_format(spark, source)
    assert first != second
    assert first.startswith(source.name()) and second.startswith(source.name())


def test_reads_of_one_data_source_have_their_own_names(spark: Any) -> None:
    names = [own_format(spark, SensorDataSource, "sensors") for _ in range(2)]
    frames = [spark.read.format(name).option("location", "L1").option("rows", 3).load() for name in names]
    assert [frame.count() for frame in frames] == [3, 3]
    assert len(set(names)) == 2 and all(name.startswith("sensors_") for name in names)
