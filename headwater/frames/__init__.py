"""Jobs written for plain PySpark: their unresolved plans become dataflows, without a Spark."""
