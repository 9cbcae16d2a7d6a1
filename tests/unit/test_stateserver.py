"""A worker waits for Spark's state server only for a limited time."""

from __future__ import annotations

import socket
import threading

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import StructType

from headwater.core.errors import SparkStumbled
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.stateful import Scan
from headwater.query import stateserver
from headwater.query.failure import translated
from headwater.query.scan import Scanning, ScanProcessor


def test_a_worker_gives_up_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateserver, "PATIENCE", 0.2)
    function = PythonFunction.of(lambda state, row: (state, row), where="scan")
    operator = Scan(id="scan", keys=(), order_by=("ts",), function=function, initial="null", schema_text="ts timestamp")
    processor = ScanProcessor([Scanning(operator, "ts", "i0")])
    told: list[BaseException] = []

    def work(port: int) -> None:
        client = StatefulProcessorApiClient(port, StructType())
        try:
            processor.init(StatefulProcessorHandle(client))
        except Exception as error:
            told.append(error)
        finally:
            client.sockfile.close()
            client._client_socket.close()

    # Like Spark's server after it has accepted a foreign worker: it listens, but accepts no connection.
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker = threading.Thread(target=work, args=(server.getsockname()[1],), daemon=True)
        worker.start()
        worker.join(20)
        assert not worker.is_alive()
    (error,) = told
    story = f"PythonException: Traceback (most recent call last):\n{type(error).__name__}: {error}\n"
    assert isinstance(translated(story, "out@C1"), SparkStumbled), "it is done again"
