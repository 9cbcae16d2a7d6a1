"""The demonstration of ``headwater demo``: its data, its dataflow, its continuum. Installed with the package."""
