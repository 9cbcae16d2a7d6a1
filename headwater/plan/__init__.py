"""The deployment as a value: units, channels, and how they come from dataflow and continuum. Pure."""
