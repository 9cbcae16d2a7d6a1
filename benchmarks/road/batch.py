"""The road sensors' dataflow as one PySpark batch job, which writes the rows of each sink as JSON lines.

python -m benchmarks.road.batch CONTINUUM DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.road.flow import from_environment
from headwater.continuum.model import Continuum
from headwater.testing import batch_result


def main() -> None:
    """Run the job."""
    from pyspark.sql import SparkSession

    continuum, place = Continuum.from_yaml(Path(sys.argv[1])), Path(sys.argv[2])
    spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    found = batch_result(spark, from_environment(), continuum)
    names = {"slow_roads": "slow", "hours_by_area": "hours", "busiest_roads": "busiest"}
    for sink, table in found.items():
        spark.createDataFrame(table).write.json(str(place / names[sink]))
    spark.stop()


if __name__ == "__main__":
    main()
