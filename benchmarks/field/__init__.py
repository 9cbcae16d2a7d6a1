"""Headwater beside what else is used: one Spark in the cloud, one Spark over all zones, Flink in the cloud.

python -m benchmarks.field [--quick] [--json FILE] [--plot PNG] [--dataflows routes,means]
"""
