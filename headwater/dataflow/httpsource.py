"""The HTTP endpoint as a source, and its address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from headwater.core.address import is_loopback
from headwater.core.rules import Whole
from headwater.dataflow.settings import Place
from headwater.dataflow.sources import BridgedSource
from headwater.dataflow.types import StreamType
from headwater.sql.schema import Schema

_ENDPOINT = re.compile(r"(?:(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>[0-9]{1,5})(?P<path>/[\w.~/+@-]*)")

BodySize = Annotated[int, Whole(1, 32 * 2**20)]
"""Bodies are held in memory until their rows are stored."""


@dataclass(frozen=True)
class HttpAddress:
    """Where an endpoint listens, and the path that it answers."""

    host: str
    port: int
    path: str

    @property
    def server(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class HttpSource(BridgedSource):
    """Rows that clients POST to an endpoint of the zone ('{location}' is replaced): JSON lines, or a JSON array.

    An answer 200 means that the rows are durable. A request that is sent again with the same ``Idempotency-Key`` is
    stored once.
    """

    kind: ClassVar[str] = "http"
    shown: ClassVar[tuple[str, ...]] = ("address",)

    address: Place
    schema_text: str
    token_env: Place | None = None
    tls: bool | None = None
    certificate: Place | None = None
    key: Place | None = None
    max_body: BodySize = 8 * 2**20

    @property
    def per_location(self) -> bool:
        return "{location}" in self.address

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)

    def endpoint(self, location: str) -> HttpAddress:
        """Return the address at a location; raise DataflowError where it is none."""
        found = _ENDPOINT.fullmatch(self.address.replace("{location}", location))
        if found is None or not 0 < int(found["port"]) <= 65535:
            raise self.error(
                f"'{self.address}' is not the address of an endpoint",
                "write host, port and path: '0.0.0.0:8080/rows/{location}'; without a host it listens at 127.0.0.1",
            )
        return HttpAddress((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]), found["path"])

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        host = self.endpoint("L1").host
        if self.token_env is None and not is_loopback(host):
            raise self.error(
                f"every program that reaches {host} could send rows",
                "name a secret with the clients' token: token_env='HEADWATER_SECRET_TOKEN'; or listen at 127.0.0.1",
            )
        if (self.certificate is None) != (self.key is None):
            raise self.error("a certificate without its key, or a key without certificate", "give both files, or none")
        if self.tls is False and self.certificate is not None:
            raise self.error("there is a certificate, and TLS is off", "leave out tls=False, or the certificate")
        return super().output(inputs)
