"""Task slots of a Spark that units in real-time mode hold."""

from __future__ import annotations

from headwater.connectors.realtime import check_slots, partitions_read
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sinks import RealTimeKafkaSink
from headwater.plan.content import is_stateful
from headwater.plan.spec import UnitSpec
from headwater.query.counting import Counting
from headwater.spark.endpoint import Endpoint


def take_slots(sink: RealTimeKafkaSink, spec: UnitSpec, counting: Counting, endpoint: Endpoint, *, taken: int) -> int:
    """Return the task slots that a unit's query needs; raise DeploymentError where there are too few.

    ``taken``: those that the other units of this Spark hold.
    """
    reads = ((spec.flow[r.operator], r.location) for r in counting.reads)
    needed = partitions_read((o, at) for o, at in reads if isinstance(o, KafkaSource) and at is not None)
    if is_stateful(spec.flow, spec.unit):
        needed += int(endpoint.session().conf.get("spark.sql.shuffle.partitions") or 0)
    if endpoint.slots is not None:
        check_slots(sink, needed=needed, taken=taken, slots=endpoint.slots, cores=endpoint.cores)
    return needed
