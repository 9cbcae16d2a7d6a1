"""Streams of logs to other zones: they sleep until there is an entry, and end with their service."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.channels import logserver
from headwater.channels.filelog import FileLog
from headwater.channels.followed import RelayMessage
from headwater.channels.logserver import LogService
from headwater.disk.filewatch import is_remote

LONG = 600.0  # seconds: no test may wait so long
PATIENCE = 60.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or is_remote(Path.cwd()), reason="the system reports no new files"
)


class Stream:
    """A followed log, read in a thread."""

    def __init__(self, service: LogService) -> None:
        self._came: queue.SimpleQueue[RelayMessage] = queue.SimpleQueue()
        self._messages = service.follow({"log": "log", "follow": 0, "seconds": LONG})
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for _, data in self._messages:
            self._came.put(RelayMessage.from_bytes(memoryview(data)))

    def next(self) -> RelayMessage:
        return self._came.get(timeout=PATIENCE)


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    made = FileLog(tmp_path / "log", fsync=False)
    made.create()
    return made


@pytest.fixture
def service(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogService]:
    for name in ("SIGN_OF_LIFE", "FOLLOW_SECONDS", "_POLL", "_IDLE_POLL"):
        monkeypatch.setattr(logserver, name, LONG)
    made = LogService(lambda name: log)
    yield made
    made.close()


def test_a_stream_sends_an_entry_when_it_is_published(log: FileLog, service: LogService) -> None:
    stream = Stream(service)
    assert stream.next().items == (None,)
    for batch in range(3):
        log.append(pa.table({"id": [batch]}), epoch=1, batch=batch)
        entry = stream.next().entry
        assert entry is not None and entry.batch == batch
        assert stream.next().items == (None,), "nothing follows for now"


def test_the_streams_of_a_service_end_with_it(log: FileLog, service: LogService) -> None:
    streams = [Stream(service), Stream(service)]
    for stream in streams:
        assert stream.next().items == (None,)
    log.append(pa.table({"id": [1]}), epoch=1, batch=0)
    for stream in streams:  # behind the first wait, which returns at once
        assert stream.next().entry is not None and stream.next().items == (None,)
    service.close()
    for stream in streams:
        stream.thread.join(PATIENCE)
        assert not stream.thread.is_alive()
