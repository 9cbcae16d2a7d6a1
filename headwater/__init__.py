"""Headwater: one dataflow over edge, site and cloud. Spark inside a zone, Headwater between zones."""

__version__ = "0.1.0"
