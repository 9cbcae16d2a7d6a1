"""Many dataflows over the same sensors, with and without reuse."""
