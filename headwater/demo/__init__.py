"""What ``headwater demo`` shows: its data, its dataflow, its continuum. Installed with the package."""
