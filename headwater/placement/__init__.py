"""Which host runs which operator: pure functions over one immutable problem.

``solve(problem, strategy="optimal")`` is the entrance. A problem joins a topology (hosts, zones, what lies
between them) with an application (operators, streams); an answer names a host for each operator. Model and
strategies: "Latency-aware placement of data stream analytics on edge computing" (AELS, AELS+RP,
AELS+RP+LA), with equation numbers of that paper; where it leaves a choice, the choice is named where it is
made. No Spark, no network, no disk here.
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
