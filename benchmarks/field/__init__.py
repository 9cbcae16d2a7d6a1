"""Headwater beside what else is used: one Spark or Flink in the cloud, one over all zones.

python -m benchmarks.field [--quick] [--json FILE] [--plot PNG] [--dataflows routes,means]
"""
