"""Spark's Python daemon with pandas and Arrow loaded, so that each worker forked from it need not."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
