"""A unit as one streaming query."""
