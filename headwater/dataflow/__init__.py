"""Dataflows: types, operators, graphs. No places, no Spark, no input or output."""
