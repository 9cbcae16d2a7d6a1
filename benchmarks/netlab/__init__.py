"""A network of zones on one machine: namespaces joined by links of a chosen bandwidth and delay.

A `Lab` makes a network namespace for every zone of a continuum and a link for every child and its
parent; zones reach each other along the tree, parents forward. Links are shaped in both directions
and can be changed, cut and mended while processes run in the zones. It needs root and iproute2.

    python -m benchmarks.netlab check|up|clean
"""

from __future__ import annotations

from benchmarks.netlab.lab import Crossed, Lab
from benchmarks.netlab.shares import ProcessorShares

__all__ = ["Crossed", "Lab", "ProcessorShares"]
