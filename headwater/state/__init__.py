"""The state of queries: saved, put together, divided."""
