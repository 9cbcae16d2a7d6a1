"""Values that all others share: errors, quantities, requirements, metrics, and the JSON of values."""
