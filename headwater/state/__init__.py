"""The state of queries: saved, assembled, divided."""
