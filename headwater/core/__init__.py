"""Shared values: errors, quantities, requirements, metrics, and the JSON form of values."""
