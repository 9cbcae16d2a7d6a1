"""Power cuts at any point of a run, and damaged files: its writes are recorded, and its disk is rebuilt."""
