"""Spark's way to the edges' events in the stretched cluster: a source that pulls from event servers.

It works like a broker's connector: offsets are positions per server, the driver asks each server
how far it is, and tasks pull ranges. Spark runs such tasks wherever a core is free; a Python source
cannot ask for a place, and Kafka's connector does not ask for one near the broker either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from benchmarks.flowunits.events import Client

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offset = dict[str, int]
CHUNK = 100_000  # rows a record batch
_client = Client()  # of this Python worker, which Spark uses again for later tasks


@dataclass
class Range(InputPartition):
    """Events of one server."""

    location: str
    address: str
    port: int
    low: int
    high: int


class EventSource(DataSource):
    """Options: `servers` ({location: [address, port]} as JSON), `splits` a server, `max_rows` a server."""

    @classmethod
    def name(cls) -> str:
        return "edge_events"

    def schema(self) -> str:
        return "location string, i bigint"

    def streamReader(self, schema: StructType) -> EventReader:  # noqa: N802 (PySpark's name)
        servers = {name: (str(a), int(p)) for name, (a, p) in json.loads(self.options["servers"]).items()}
        return EventReader(servers, int(self.options["splits"]), int(self.options["max_rows"]))


class EventReader(DataSourceStreamReader):
    """Plan batches over all servers, read ranges of them."""

    def __init__(self, servers: dict[str, tuple[str, int]], splits: int, max_rows: int) -> None:
        self.servers, self.splits, self.max_rows = servers, splits, max_rows

    def initialOffset(self) -> Offset:  # noqa: N802
        return dict.fromkeys(self.servers, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with ThreadPoolExecutor(len(self.servers)) as pool:  # as far away as the farthest, not all in a row
            newest = dict(
                zip(self.servers, pool.map(lambda at: _client.newest(*at), self.servers.values()), strict=True)
            )
        return {name: min(count, start[name] + self.max_rows) for name, count in newest.items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        found = []
        for name, (address, port) in self.servers.items():
            low, count = start[name], end[name] - start[name]
            bounds = [low + count * at // self.splits for at in range(self.splits + 1)]
            found += [Range(name, address, port, a, b) for a, b in pairwise(bounds) if b > a]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert isinstance(partition, Range)
        schema = pa.schema([("location", pa.string()), ("i", pa.int64())])
        for low in range(partition.low, partition.high, CHUNK):
            values = _client.get(partition.address, partition.port, low, min(low + CHUNK, partition.high))
            where = pa.repeat(partition.location, len(values))
            yield pa.RecordBatch.from_arrays([where, pa.array(values)], schema=schema)
