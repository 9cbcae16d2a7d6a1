"""A deployment that keeps its SLO by itself, against placements that stay, while the world changes."""
