"""A deployment that keeps its promise by itself, against placements that stay, while the world changes."""
