"""A Spark to run queries on: started, reached, warmed, measured."""
