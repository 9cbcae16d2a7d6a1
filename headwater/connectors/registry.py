"""A schema registry with Confluent's published API: the writer's schema of a record by its id.

A schema never changes under its id, so a process asks once for each. The address is on the allow-list of the zone,
and redirects, which would lead elsewhere, are refused.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import BrokerAway, RuntimeFailure
from headwater.disk.credentials import read_secret

HEADER = 5
"""Bytes in front of a value: a zero, and the id of its writer's schema."""
DEFAULT_PORTS = {"http": 80, "https": 443}

_SECONDS = 10.0  # seconds for an answer
_TRIES, _PAUSE = 3, 0.5  # attempts, and the seconds between two of them
_MOST = 4 * 2**20  # bytes of an answer
_REFERENCES = 100  # most schemas that one schema imports
_KIND = "application/vnd.schemaregistry.v1+json, application/json"
_URL = re.compile(r"(https?)://(\[[^\]]+\]|[^:/]+)(?::(\d+))?(?:/.*)?")


class NoSuchSchema(Exception):
    """The registry has no schema of an id; the value that names it cannot be decoded."""


@dataclass(frozen=True)
class WriterSchema:
    """A registered schema: its type (AVRO, PROTOBUF, JSON), its text, and the texts of those that it imports."""

    type: str
    text: str
    imported: tuple[str, ...] = ()


_known: dict[tuple[str, int], WriterSchema] = {}
"""Schemas by address and id: a worker process serves many batches."""


@dataclass(frozen=True)
class SchemaRegistry:
    """The address of a registry, and the secrets of its user, by name."""

    url: str
    user_env: str | None = None
    password_env: str | None = None
    where: str = "registry"

    @property
    def server(self) -> tuple[str, int]:
        """Host and port."""
        return server_of(self.url)

    def schema(self, id_: int) -> WriterSchema:
        """Return the schema of an id; raise NoSuchSchema, or BrokerAway where the registry does not answer."""
        key = (self.url, id_)
        if key not in _known:
            _known[key] = self._whole(f"/schemas/ids/{id_}")
        return _known[key]

    def _whole(self, path: str) -> WriterSchema:
        data = self._get(path)
        type_ = str(data.get("schemaType", "AVRO"))
        if type_ == "PROTOBUF":  # asked for as a compiled file: no text of strangers is compiled here
            data = {**data, **self._get(f"{path}?format=serialized")}
        return WriterSchema(type_, str(data.get("schema", "")), tuple(self._imported(data, type_, set())))

    def _imported(self, data: dict[str, Any], type_: str, seen: set[tuple[str, str]]) -> Iterator[str]:
        """Yield the texts of the schemas that one refers to, those that others need first."""
        for reference in data.get("references") or ():
            subject, version = str(reference.get("subject")), str(reference.get("version"))
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > _REFERENCES:
                raise self._failed(f"a schema that imports more than {_REFERENCES} others")
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{urllib.parse.quote(version, safe='')}"
            other = self._get(path + ("?format=serialized" if type_ == "PROTOBUF" else ""))
            yield from self._imported(other, type_, seen)
            yield str(other.get("schema", ""))

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self.url.rstrip("/") + path, headers={"Accept": _KIND})
        user = read_secret(self.user_env, where=self.where)
        password = read_secret(self.password_env, where=self.where)
        if user is not None:
            both = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {both}")
        why = ""
        for number in range(_TRIES):
            if number:
                time.sleep(_PAUSE)
            try:
                with _OPENER.open(request, timeout=_SECONDS) as answer:
                    text = answer.read(_MOST + 1)
                if len(text) > _MOST:
                    raise self._failed(f"its answer to {path} has more than {_MOST} bytes")
                found = json.loads(text)
                if not isinstance(found, dict):
                    raise self._failed(f"its answer to {path} is no object")
                return found
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise NoSuchSchema(path) from None
                if error.code < 500:
                    raise self._failed(f"it answers {path} with HTTP {error.code}") from None
                why = f"HTTP {error.code}"
            except (OSError, http.client.HTTPException) as error:
                why = str(getattr(error, "reason", "")) or str(error) or type(error).__name__
            except (ValueError, RecursionError):
                raise self._failed(f"its answer to {path} is not JSON") from None
        raise BrokerAway(
            f"the schema registry at {self.url} does not answer: {why}",
            where=self.where,
            hint="check that it runs and that this machine reaches it",
        )

    def _failed(self, why: str) -> RuntimeFailure:
        return RuntimeFailure(
            f"the schema registry at {self.url} is of no use: {why}",
            where=self.where,
            hint="check its address, and the secrets named by registry_user_env and registry_password_env",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it may lead to an address that is not permitted."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# Without proxies of the environment: the address that was permitted is the one that is asked.
_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def server_of(url: str) -> tuple[str, int]:
    """Return host and port of a registry's address."""
    match = _URL.fullmatch(url)
    assert match is not None, "KafkaSource checks the address"
    return match[2].strip("[]"), int(match[3] or DEFAULT_PORTS[match[1]])


def split_header(value: bytes) -> tuple[int, bytes] | None:
    """Return the id of a value's schema, and the rest; None for a value without Confluent's header."""
    if len(value) < HEADER or value[0] != 0:
        return None
    return int.from_bytes(value[1:HEADER], "big"), value[HEADER:]
