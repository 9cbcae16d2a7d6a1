"""The OPC UA sink writer: a batch's rows are values for nodes; a batch that was interrupted may be written again.

A node ends with the value of its last row in either case: the values of a node are written one after the other, in the
order of the rows. A batch is marked as written in the unit's directory once the server has taken all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.channels.segments import Segment
from headwater.connectors.opcuaclient import OpcuaAddress, connected, fitting, node_id, require_library, status_name
from headwater.connectors.sent import SentBatches
from headwater.connectors.staged import StagedSinkWriter
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from asyncua import Client, ua

Row: TypeAlias = tuple[str, Any]
"""The text of a node's id, and the value."""

_AT_ONCE = 200  # values of a request
_SETTINGS = ("username_env", "password_env", "certificate", "key", "server_certificate")
_REFUSALS = (
    "BadNodeId",
    "BadAttributeId",
    "BadTypeMismatch",
    "BadNotWritable",
    "BadUserAccess",
    "BadOutOfRange",
    "BadWriteNotSupported",
    "BadIndexRange",
)
"""Beginnings of statuses that a repetition does not change."""


class OpcuaSinkWriter(StagedSinkWriter):
    """Write values: ``url``, ``node`` (or a column of that name), ``lineage``, the settings of the connection."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._where = f"operator {spec.get('operator', 'opcua')!r}"
        named = {name: spec.get(name) for name in _SETTINGS}
        self._address = OpcuaAddress(url=str(spec["url"]), where=self._where, **named)
        self._node: str | None = spec.get("node")
        self._sent = SentBatches(self._scratch, str(spec.get("lineage") or ""))

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Write a batch, unless it is marked as written.

        Raise Unavailable if the server does not answer, RuntimeFailure if it refuses a value for good.
        """
        files = [p for p in segments if p.file]
        if files and batch not in self._sent:
            where = f"{self._where}, batch {batch}"
            require_library(self._where)
            rows = list(self._rows(self.batches(files), where))
            try:
                asyncio.run(self._write(rows, where))
            except HeadwaterError:
                raise
            except Exception as error:  # of the library, the network, or the connection's certificates
                code = getattr(error, "code", None)
                raise self._unreachable(str(error) if code is None else status_name(code)) from None
            self._sent.add(batch)
        self.abort(files)

    def _rows(self, tables: Sequence[pa.RecordBatch], where: str) -> Iterator[Row]:
        for table in tables:
            values = table.column("value").to_pylist()
            nodes = [self._node] * len(values) if self._node else table.column("node").to_pylist()
            for node, value in zip(nodes, values, strict=True):
                if not node:
                    raise self._refused("a row names no node", where)
                yield node, value

    async def _write(self, rows: Sequence[Row], where: str) -> None:
        async with connected(self._address) as client:
            nodes = dict.fromkeys(node for node, _ in rows)
            targets = {node: await self._target(client, node, where) for node in nodes}
            for part in _parts(rows):
                await self._write_part(client, part, targets, where)

    async def _target(self, client: Client, node: str, where: str) -> tuple[ua.NodeId, ua.VariantType]:
        """Return the id and the type of a node."""
        from asyncua.ua.uaerrors import UaStatusCodeError

        try:
            id_ = await node_id(client, node)
            return id_, await client.get_node(id_).read_data_type_as_variant_type()
        except ValueError as error:
            raise self._refused(str(error), where) from None
        except UaStatusCodeError as error:
            raise self._failed(node, status_name(error.code), where) from None

    async def _write_part(
        self, client: Client, part: Sequence[Row], targets: Mapping[str, tuple[ua.NodeId, ua.VariantType]], where: str
    ) -> None:
        """Write values, of which no two are for one node."""
        from asyncua import ua

        values = []
        for node, value in part:
            type_ = targets[node][1]
            try:
                values.append(ua.DataValue(ua.Variant(fitting(value, type_), type_)))
            except ValueError as error:
                raise self._refused(f"the node {node} does not take a row: {error}", where) from None
        ids = [targets[node][0] for node, _ in part]
        statuses = await client.uaclient.write_attributes(ids, values, ua.AttributeIds.Value)
        for (node, _), status in zip(part, statuses, strict=True):
            if not status.is_good():
                raise self._failed(node, status_name(status.value), where)

    def _failed(self, node: str, status: str, where: str) -> HeadwaterError:
        if status.startswith(_REFUSALS):
            return self._refused(f"the server refuses to write to {node}: {status}", where)
        return self._unreachable(f"{status} of {node}")

    def _refused(self, what: str, where: str) -> RuntimeFailure:
        return RuntimeFailure(
            what,
            where=where,
            hint="filter such rows before the sink, cast 'value', or correct the node and its access rights",
        )

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the OPC UA server {self._address.url} did not take the values: {why or 'no answer'}",
            where=self._where,
            hint="check that the server runs and that this machine reaches it",
        )

    def newest(self) -> int | None:
        """Return None: a node may see a batch again."""
        return None


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Divide rows into requests in which each node occurs once: a server may write those of one in any order."""
    part: dict[str, Any] = {}
    for node, value in rows:
        if node in part or len(part) >= _AT_ONCE:
            yield list(part.items())
            part = {}
        part[node] = value
    if part:
        yield list(part.items())
