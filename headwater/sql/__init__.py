"""Spark SQL expressions: parsing, types as in Spark, rewriting, implication."""
