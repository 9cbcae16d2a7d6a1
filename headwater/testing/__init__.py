"""The public test kit: bounded sources with failures inside, and the equivalence oracle.

The oracle's law: for any dataflow, cuts, placement and history, the sinks of a drained deployment
hold exactly the rows, as a multiset, that one Spark batch run over the same input gives.
"""

from headwater.testing.bounded import KILL, PAUSE, STOP, BoundedSource, Item, Kill, Pause, StopAfter
from headwater.testing.compare import Difference, NotEquivalent, compare
from headwater.testing.datasources import NotConformant, check_sink, check_source
from headwater.testing.link import CutLink
from headwater.testing.localspark import local_spark
from headwater.testing.oracle import OracleOutcome, batch_result, check_equivalent, run_to_end
from headwater.testing.zones import ZoneRun

__all__ = [
    "KILL",
    "PAUSE",
    "STOP",
    "BoundedSource",
    "CutLink",
    "Difference",
    "Item",
    "Kill",
    "NotConformant",
    "NotEquivalent",
    "OracleOutcome",
    "Pause",
    "StopAfter",
    "ZoneRun",
    "batch_result",
    "check_equivalent",
    "check_sink",
    "check_source",
    "compare",
    "local_spark",
    "run_to_end",
]
