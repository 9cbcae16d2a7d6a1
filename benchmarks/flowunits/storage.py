"""A file system that hosts share over the network: the part of WebHDFS that Spark uses.

    python storage.py ADDRESS PORT DIRECTORY [SECONDS]

A cluster without a shared file system cannot keep the state of a streaming query, since executors write it and any
other executor must be able to read it. Hadoop's own client for it is in PySpark (`webhdfs://`). It
stands in the cloud zone, as HDFS or an object store would.

With SECONDS, a file is removed so many seconds after it was read to its end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

API = "/webhdfs/v1"
_CHUNK = 1 << 20


class Refused(Exception):
    """A request that is answered with one of Hadoop's exceptions."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        super().__init__(message)
        self.status, self.exception = status, exception

    @property
    def document(self) -> dict[str, Any]:
        """Return the answer, as Hadoop's client expects it."""
        java = self.exception in ("FileNotFoundException", "IOException")
        package = "java.io" if java else "org.apache.hadoop.fs"
        names = {"exception": self.exception, "javaClassName": f"{package}.{self.exception}"}
        return {"RemoteException": {**names, "message": str(self)}}


class Handler(BaseHTTPRequestHandler):
    """One connection; the directory is the server's."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer, not one a header
    disable_nagle_algorithm = True
    server: Storage

    def do_GET(self) -> None:
        blocks = {"GETFILEBLOCKLOCATIONS": self._blocks}
        self._answer({"GETFILESTATUS": self._status, "LISTSTATUS": self._list, "OPEN": self._open, **blocks})

    def do_PUT(self) -> None:
        ignored = dict.fromkeys(("SETPERMISSION", "SETTIMES", "SETOWNER"), self._nothing)
        kinds = {"MKDIRS": self._mkdirs, "RENAME": self._rename, "CREATE": self._create, **ignored}
        self._answer(kinds)

    def do_DELETE(self) -> None:
        self._answer({"DELETE": self._delete})

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; a batch makes hundreds of requests."""

    def _answer(self, operations: dict[str, Callable[[], None]]) -> None:
        parts = urlsplit(self.path)
        self.name = unquote(parts.path).removeprefix(API) or "/"
        self.query = {key.lower(): values[-1] for key, values in parse_qs(parts.query).items()}
        kind = self.query.get("op", "").upper()
        try:
            if kind not in operations:
                raise Refused(400, "UnsupportedOperationException", f"{kind} is not supported")
            operations[kind]()
        except Refused as refused:
            self._json(refused.document, refused.status)
        except FileNotFoundError:
            self._json(Refused(404, "FileNotFoundException", f"no file {self.name}").document, 404)
        except OSError as error:
            self._json(Refused(403, "IOException", f"{self.name}: {error.strerror}").document, 403)

    @property
    def _file(self) -> Path:
        return self.server.place(self.name)

    def _status(self) -> None:
        self._json({"FileStatus": _status(self._file, "")})

    def _list(self) -> None:
        file = self._file
        if not file.is_dir():
            found = [_status(file, "")]
        else:
            found = []
            for entry in sorted(os.listdir(file)):
                try:
                    found.append(_status(file / entry, entry))
                except FileNotFoundError:
                    continue  # removed meanwhile
        self._json({"FileStatuses": {"FileStatus": found}})

    def _blocks(self) -> None:
        """Answer with one block on this host, so that Spark prefers an executor of the same host."""
        address, port = self.server.server_address[:2]
        block = {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": [address],
            "length": self._file.stat().st_size,
            "names": [f"{address!s}:{port}"],
            "offset": 0,
            "storageTypes": ["DISK"],
            "topologyPaths": [],
        }
        self._json({"BlockLocations": {"BlockLocation": [block]}})

    def _open(self) -> None:
        file = self._file
        size = file.stat().st_size
        if self._redirected():
            return
        begin = min(int(self.query.get("offset", 0)), size)
        count = min(int(self.query.get("length", size)), size - begin)
        self.send_response(200)
        self.send_header("Content-Length", str(count))
        self.end_headers()
        with file.open("rb") as source:
            source.seek(begin)
            while count and (data := source.read(min(count, _CHUNK))):
                self.wfile.write(data)
                count -= len(data)
            at_end = source.tell() == size
        if at_end and self.server.keep is not None:
            threading.Timer(self.server.keep, file.unlink, kwargs={"missing_ok": True}).start()

    def _mkdirs(self) -> None:
        self._file.mkdir(parents=True, exist_ok=True)
        self._json({"boolean": True})

    def _rename(self) -> None:
        source, target = self._file, self.server.place(self.query["destination"])
        overwrite = "OVERWRITE" in self.query.get("renameoptions", "").upper()
        if not source.exists():
            raise FileNotFoundError(source)
        # No other request may come between check and renaming.
        with self.server.renames:
            if "renameoptions" not in self.query:
                target = target / source.name if target.is_dir() else target
                free = not target.exists()
                if free:
                    os.rename(source, target)
                self._json({"boolean": free})
                return
            if target.exists() and not overwrite:
                raise Refused(403, "FileAlreadyExistsException", f"{self.query['destination']} is there")
            os.replace(source, target)
        self._nothing()

    def _create(self) -> None:
        file = self._file
        overwrite = self.query.get("overwrite", "true") == "true"
        if file.exists() and not overwrite:
            self._drain()
            raise Refused(403, "FileAlreadyExistsException", f"{self.name} is there")
        if self._redirected():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as target:
            for data in self._body():
                target.write(data)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _delete(self) -> None:
        file = self._file
        there = file.exists()
        if file.is_dir():
            if self.query.get("recursive", "false") != "true" and os.listdir(file):
                raise Refused(403, "PathIsNotEmptyDirectoryException", f"{self.name} is not empty")
            shutil.rmtree(file, ignore_errors=True)
        elif there:
            file.unlink(missing_ok=True)
        self._json({"boolean": there})

    def _nothing(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirected(self) -> bool:
        """Send the client on to the host with the data, as HDFS does; here it is the same one."""
        if "redirected" in self.query:
            return False
        self._drain()
        host = self.headers["Host"]
        location = f"http://{host}{quote(API + self.name)}?{urlsplit(self.path).query}&redirected=true"
        self.send_response(307)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def _drain(self) -> None:
        for _ in self._body():
            pass

    def _body(self) -> Any:
        """Return the request's body, which may come in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        elif left := int(self.headers.get("Content-Length") or 0):
            yield self.rfile.read(left)

    def _json(self, document: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        # No Content-Type: to look at one, the shaded client needs a class that PySpark does not ship.
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Storage(ThreadingHTTPServer):
    """The server, the directory that it shows as the root, and the seconds that it keeps a file which has been read."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], directory: Path, keep: float | None = None) -> None:
        super().__init__(address, Handler)
        self.directory, self.keep = directory, keep
        self.renames = threading.Lock()

    def place(self, name: str) -> Path:
        """Return the file of a name; refuse a name that leads out of the directory."""
        file = (self.directory / name.lstrip("/")).resolve()
        if not file.is_relative_to(self.directory):
            raise Refused(403, "AccessControlException", f"{name} leads out of the file system")
        return file


def _status(file: Path, suffix: str) -> dict[str, Any]:
    found = file.stat()
    changed = int(found.st_mtime * 1000)
    return {
        "accessTime": changed,
        "blockSize": 128 << 20,
        "group": "spark",
        "length": 0 if file.is_dir() else found.st_size,
        "modificationTime": changed,
        "owner": "spark",
        "pathSuffix": suffix,
        "permission": "755",
        "replication": 1,
        "type": "DIRECTORY" if file.is_dir() else "FILE",
    }


def main(words: list[str]) -> int:
    """Serve until ended."""
    directory = Path(words[2]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with Storage((words[0], int(words[1])), directory, *map(float, words[3:])) as server:
        print("ready", flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
