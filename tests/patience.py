"""How long tests wait for events."""

PATIENCE = 1200.0
"""Seconds until a test gives up: far beyond need, also on one core beside other work. Only a failure takes so long."""
