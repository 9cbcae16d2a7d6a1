"""A node's agent: it runs the units that it is told to."""
