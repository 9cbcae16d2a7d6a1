"""A stand-in for a schema registry, which cannot be installed here: two endpoints of the published API."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class SchemaRegistryServer:
    """Serves ``/schemas/ids/ID`` and ``/subjects/SUBJECT/versions/VERSION``; counts the requests of each path."""

    def __init__(self, *, user: str | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.answer: tuple[int, dict[str, str]] | None = None
        """Status and headers of all answers, if it is to fail."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                given = self.headers.get("Authorization")
                status, headers, body = 404, {}, {"error_code": 40403, "message": "not found"}
                if registry.answer is not None:
                    status, headers = registry.answer
                elif user is not None and given != "Basic " + base64.b64encode(user.encode()).decode():
                    status, body = 401, {"error_code": 401, "message": "Unauthorized"}
                elif (found := registry._find(self.path)) is not None:
                    status, body = 200, found
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _find(self, path: str) -> dict[str, Any] | None:
        parts = urlsplit(path)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        match words:
            case ["schemas", "ids", id_]:
                found = self.schemas.get(int(id_))
            case ["subjects", subject, "versions", "1"]:
                found = self.subjects.get(subject)
            case _:
                found = None
        if found is None:
            return None
        serialized = parts.query == "format=serialized"
        return {k: v for k, v in found.items() if k != "serialized"} | (
            {"schema": found["serialized"]} if serialized and "serialized" in found else {}
        )

    def __enter__(self) -> SchemaRegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def framed(id_: int, value: bytes) -> bytes:
    """Put Confluent's header in front of a value."""
    return b"\0" + id_.to_bytes(4, "big") + value
