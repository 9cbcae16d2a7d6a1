"""Many dataflows as one: what they have in common runs once. Pure."""
