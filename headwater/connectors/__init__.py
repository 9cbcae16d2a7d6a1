"""The outside world: sources, sink writers, dead letters and their replay."""
