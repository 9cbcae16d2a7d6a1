"""The only package that knows Spark."""
