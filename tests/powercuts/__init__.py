"""Power cuts at any point of a run: its writes are recorded, and the disk is rebuilt as a cut leaves it."""
