"""Readers of what machines and programs send or offer: MQTT, HTTP, OPC UA."""

from __future__ import annotations

from typing import Any, Literal

from headwater.core.text import cut
from headwater.dataflow import habits, sources
from headwater.dataflow.httpsource import BodySize, HttpSource
from headwater.dataflow.opcua import Nodes, OpcuaSource, QueueSize
from headwater.dataflow.settings import ColumnName, Duration, Place, QualityOfService, SchemaOf
from headwater.dataflow.sparkplug import NAMESPACE, SparkplugSource, sparkplug_columns
from headwater.dataflow.stream import Stream
from headwater.dataflow.streambase import schema_text, tuple_of


class BridgedReader(habits.NameGuard):
    """Sources that cannot be read twice: what they receive is durable in the zone before it is acknowledged."""

    def _source(self, cls: type[sources.Source], **settings: Any) -> Stream:
        raise NotImplementedError

    def mqtt(
        self,
        broker: Place,
        topic: Place,
        schema: SchemaOf,
        *,
        qos: QualityOfService = 1,
        username_env: Place | None = None,
        password_env: Place | None = None,
        tls: bool = False,
        version: Literal["3.1.1", "5"] | None = None,
        location_as: ColumnName | None = None,
    ) -> Stream:
        """Read JSON messages of an MQTT topic. ``broker`` is host or host:port.

        ``username_env`` and ``password_env`` name secrets of the zone, ``HEADWATER_SECRET_...``. ``version``: "5" for
        MQTT 5, in the session that the broker has from 3.1.1, which is the default.
        """
        return self._source(
            sources.MqttSource,
            broker=broker,
            topic=topic,
            schema_text=schema_text(schema, f"read.mqtt('{cut(topic, 200)}')"),
            qos=qos,
            username_env=username_env,
            password_env=password_env,
            tls=tls,
            version=version,
            location_as=location_as,
        )

    def sparkplug(
        self,
        broker: Place,
        group: Place = "+",
        *,
        type: Place = "string",
        rebirth: bool = True,
        qos: QualityOfService = 1,
        username_env: Place | None = None,
        password_env: Place | None = None,
        tls: bool = False,
        version: Literal["3.1.1", "5"] | None = None,
        location_as: ColumnName | None = None,
    ) -> Stream:
        """Read the metrics of a Sparkplug B group; "+": of all groups. Each metric of a message is a row.

        Columns: group_id, edge_node, device, message (``NBIRTH``, ``DDATA``, ...), metric, alias, value, time, seq,
        quality (good, bad, stale, uncertain), historical, gap. ``type``: that of ``value``; a value that does not fit
        is a dead letter. A death is a row without metric, of quality stale. ``gap``: messages of the edge node before
        this one may be missing. ``rebirth``: ask edge nodes for a birth where one is missing. Otherwise as ``mqtt``.
        """
        return self._source(
            SparkplugSource,
            broker=broker,
            topic=f"{NAMESPACE}/{group}/#",
            schema_text=schema_text(sparkplug_columns(type), f"read.sparkplug('{cut(group, 200)}')"),
            rebirth=rebirth,
            qos=qos,
            username_env=username_env,
            password_env=password_env,
            tls=tls,
            version=version,
            location_as=location_as,
        )

    def http(
        self,
        address: Place,
        schema: SchemaOf,
        *,
        token_env: Place | None = None,
        tls: bool | None = None,
        certificate: Place | None = None,
        key: Place | None = None,
        max_body: BodySize = 8 * 2**20,
        location_as: ColumnName | None = None,
    ) -> Stream:
        """Take rows by HTTP POST: JSON lines, or a JSON array. ``address``: ``0.0.0.0:8080/rows/{location}``.

        The answer 200 means that the rows are durable. A request that is sent again with the same header
        ``Idempotency-Key`` is stored once; 429 and 503 ask to send again later. ``token_env`` names the secret with the
        bearer token of all clients, ``HEADWATER_SECRET_...``; only an endpoint at 127.0.0.1 may do without.

        ``tls``: None: yes, but for 127.0.0.1. ``certificate``, ``key``: PEM files in the zone; without them it makes
        its own. ``max_body``: bytes of a request, at most 33554432.
        """
        return self._source(
            HttpSource,
            address=address,
            schema_text=schema_text(schema, f"read.http('{cut(address, 200)}')"),
            token_env=token_env,
            tls=tls,
            certificate=certificate,
            key=key,
            max_body=max_body,
            location_as=location_as,
        )

    def opcua(
        self,
        url: Place,
        nodes: Nodes,
        *,
        type: Place = "double",
        interval: Duration = "1 second",
        sampling: Duration = "100 milliseconds",
        queue: QueueSize = 1000,
        username_env: Place | None = None,
        password_env: Place | None = None,
        certificate: Place | None = None,
        key: Place | None = None,
        server_certificate: Place | None = None,
        location_as: ColumnName | None = None,
    ) -> Stream:
        """Read changes of nodes of an OPC UA server: node, value, source_time, server_time, status, quality, gap.

        ``nodes``: ids as ``ns=2;s=Line1.Temperature`` or ``nsu=URI;s=...``, at most 10000. ``type``: that of ``value``;
        a value that does not fit is a dead letter. ``quality``: good, uncertain or bad; ``status`` has the code's name.
        ``gap``: values of the node before this one may be missing, as after a new connection.

        The server looks at a node each ``sampling`` and sends changes each ``interval``; it keeps ``queue`` values of a
        node until then, at most 100000. ``..._env`` name secrets, ``HEADWATER_SECRET_...``; ``certificate``, ``key``,
        ``server_certificate``: PEM or DER files in the zone, for an encrypted connection.
        """
        return self._source(
            OpcuaSource,
            url=url,
            nodes=tuple_of(nodes),
            type=type,
            interval=interval,
            sampling=sampling,
            queue=queue,
            username_env=username_env,
            password_env=password_env,
            certificate=certificate,
            key=key,
            server_certificate=server_certificate,
            location_as=location_as,
        )
