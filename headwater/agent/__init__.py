"""A node's agent: it runs the units that the controller orders."""
