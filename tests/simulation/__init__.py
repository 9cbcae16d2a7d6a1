"""Simulate controllers, agents, channels and units in one process, with faults, and compare the sinks with one batch.

See docs/testing.md.
"""
