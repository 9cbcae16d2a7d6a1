"""Reuse between dataflows: common operators run once. Pure."""
