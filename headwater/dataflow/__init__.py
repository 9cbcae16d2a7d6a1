"""WHAT is computed: types, expressions, operators, graphs. No places, no Spark, no input or output."""
