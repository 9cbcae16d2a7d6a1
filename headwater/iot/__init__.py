"""Tasks over sensor readings: the building blocks of RIoTBench's dataflows, as functions over streams.

    packs = flow.read.json("/data/{location}", iot.PACK)
    readings = iot.parse_senml(packs, fields=("temperature", "humidity"))
    clean = iot.interpolate(iot.range_filter(readings, {"temperature": (-12.5, 43.1)}))

A reading is a row with ``ts``, ``id`` (the device), ``obs`` (the observed quantity) and ``value``. Stateless tasks
are Spark SQL; stateful ones are scans by device and observation, in event-time order.
"""

from headwater.iot.archives import zip_files
from headwater.iot.blobs import download_blobs
from headwater.iot.filters import Bloom, bloom_filter, range_filter
from headwater.iot.folds import (
    accumulate,
    block_average,
    distinct_count,
    interpolate,
    kalman,
    second_moment,
    sliding_regression,
)
from headwater.iot.joins import annotate, join_message
from headwater.iot.newest import predict_newest
from headwater.iot.plots import plot_lines, svg
from headwater.iot.predict import classify_tree, estimate_error, predict_linear
from headwater.iot.senml import PACK, parse_senml, to_senml
from headwater.iot.sinks import insert_table, publish_mqtt, upload_blobs
from headwater.iot.tables import look_up, query_range
from headwater.iot.training import train_linear, train_tree
from headwater.iot.xmltext import parse_xml

__all__ = [
    "PACK",
    "Bloom",
    "accumulate",
    "annotate",
    "block_average",
    "bloom_filter",
    "classify_tree",
    "distinct_count",
    "download_blobs",
    "estimate_error",
    "insert_table",
    "interpolate",
    "join_message",
    "kalman",
    "look_up",
    "parse_senml",
    "parse_xml",
    "plot_lines",
    "predict_linear",
    "predict_newest",
    "publish_mqtt",
    "query_range",
    "range_filter",
    "second_moment",
    "sliding_regression",
    "svg",
    "to_senml",
    "train_linear",
    "train_tree",
    "upload_blobs",
    "zip_files",
]
