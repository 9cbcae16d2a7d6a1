"""Spark SQL expressions: parsed, typed as Spark types them, rewritten, and held against each other."""
