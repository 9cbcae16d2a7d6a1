"""OPC UA servers as sources and sinks: nodes by their ids, and the settings of a connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from headwater.core.errors import DataflowError
from headwater.core.rules import OneLine, Whole
from headwater.dataflow.settings import Duration, Place, Several
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import BridgedSource
from headwater.dataflow.types import StreamType
from headwater.sql.schema import AtomicType, DataType, DecimalType, Schema

MOST_NODES = 10_000
"""Nodes of a source: each of them is a monitored item of the server."""
_ADDRESS = re.compile(
    r"opc\.tcp://(?P<user>[^/]*@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:/.*)?"
)
QueueSize = Annotated[int, Whole(1, 100_000)]
Nodes = Annotated[str | tuple[str, ...] | list[str], Several(OneLine())]


class OpcuaSettings(Protocol):
    """The settings of a connection, which source and sink share."""

    @property
    def url(self) -> str: ...
    @property
    def username_env(self) -> str | None: ...
    @property
    def password_env(self) -> str | None: ...
    @property
    def certificate(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def server_certificate(self) -> str | None: ...


def server_of_opcua(url: str, *, where: str) -> str:
    """Return the host:port of ``opc.tcp://host[:port][/path]``; raise DataflowError if it is no such address."""
    found = _ADDRESS.fullmatch(url)
    if found is not None and found["user"]:
        raise DataflowError(
            "a name or password in the server's address would be stored and shown",
            where=where,
            hint="name secrets instead: username_env='...', password_env='...'",
        )
    if found is None or not 0 < int(found["port"] or 4840) <= 65535:
        raise DataflowError(
            f"'{url}' is not the address of an OPC UA server", where=where, hint="write opc.tcp://host:4840"
        )
    return f"{found['host']}:{found['port'] or 4840}"


def _check_connection(settings: OpcuaSettings, *, where: str) -> None:
    server_of_opcua(settings.url.replace("{location}", "L1"), where=where)
    files = (settings.certificate, settings.key, settings.server_certificate)
    if any(files) and not all(files):
        raise DataflowError(
            "encryption needs certificate, key and server_certificate",
            where=where,
            hint="give all three files: without the server's certificate, any server could answer",
        )
    if settings.password_env is not None and settings.username_env is None:
        raise DataflowError("a password without a user", where=where, hint="give username_env too")


@dataclass(frozen=True, kw_only=True)
class OpcuaSource(BridgedSource):
    """Changes of the values of an OPC UA server's nodes ('{location}' is replaced in ``url`` and ``nodes``).

    ``gap``: the first value of a node after a connection, or one before which the server has discarded values.
    """

    kind: ClassVar[str] = "opcua"
    shown: ClassVar[tuple[str, ...]] = ("url",)

    url: Place
    nodes: tuple[str, ...]
    type: Place = "double"
    interval: Duration = "1 second"
    sampling: Duration = "100 milliseconds"
    queue: QueueSize = 1000
    username_env: Place | None = None
    password_env: Place | None = None
    certificate: Place | None = None
    key: Place | None = None
    server_certificate: Place | None = None

    @property
    def per_location(self) -> bool:
        return "{location}" in self.url or any("{location}" in node for node in self.nodes)

    def schema(self) -> Schema:
        times = "source_time timestamp, server_time timestamp"
        return Schema.parse(f"node string, value {self.type}, {times}, status string, quality string, gap boolean")

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        _check_connection(self, where=self.where)
        if not 0 < len(self.nodes) <= MOST_NODES:
            raise self.error(f"{len(self.nodes)} nodes", f"name 1 to {MOST_NODES}: nodes=['ns=2;s=Temperature']")
        for name in ("interval", "sampling"):
            self.duration(getattr(self, name), name)
        return super().output(inputs)


@dataclass(frozen=True, kw_only=True)
class OpcuaSink(Sink):
    """Values written to nodes of an OPC UA server: rows of ``value``, and of ``node`` where they name their own.

    The values of a node are written in the order of the rows. A failure may write those of a batch again, in the same
    order.
    """

    kind: ClassVar[str] = "opcua_out"
    shown: ClassVar[tuple[str, ...]] = ("url",)

    url: Place
    node: Place | None = None
    username_env: Place | None = None
    password_env: Place | None = None
    certificate: Place | None = None
    key: Place | None = None
    server_certificate: Place | None = None

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.url, self.node or ""

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        _check_connection(self, where=self.where)
        columns = {c.name.lower(): c.type for c in inputs[0].schema.columns}
        wanted = {"value"} | ({"node"} if self.node is None else set())
        if columns.keys() != wanted:
            raise self.error(
                f"OPC UA takes columns {', '.join(sorted(wanted))}, not {', '.join(columns)}",
                "write.opcua(url, node, value='...') makes them of any stream",
            )
        if not _is_scalar(columns["value"]):
            raise self.error(
                f"a node takes a number, text, time or boolean, and 'value' is {columns['value'].text}", "cast it"
            )
        if "node" in columns and columns["node"].text != "string":
            raise self.error(f"'node' is {columns['node'].text}", "cast it to string")
        return inputs[0]


def _is_scalar(type_: DataType) -> bool:
    return isinstance(type_, AtomicType | DecimalType)
