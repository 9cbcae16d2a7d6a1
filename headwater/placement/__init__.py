"""Placement of operators on hosts: pure functions over one immutable problem.

Entry point: ``solve(problem, strategy="optimal")``. A problem joins a topology (hosts, zones, and the network
between them) with an application (operators, streams); an answer assigns a host to each operator. Model and
strategies: "Latency-aware placement of data stream analytics on edge computing" (AELS, AELS+RP,
AELS+RP+LA), with equation numbers of that paper; where it leaves a choice open, the code states the choice.
No Spark, no network, no disk here.
"""

from headwater.placement.problem import Application, Hosts, PlacedOperator, Placement, Problem, Topology
from headwater.placement.solve import STRATEGIES, Answer, solve

__all__ = [
    "STRATEGIES",
    "Answer",
    "Application",
    "Hosts",
    "PlacedOperator",
    "Placement",
    "Problem",
    "Topology",
    "solve",
]
