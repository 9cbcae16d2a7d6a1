"""Rows per second through the bridges: by HTTP, in requests of several sizes with keys, beside MQTT at QoS 1.

Each sender is a process of its own and waits for acknowledgements: of a request, or of messages, 200 of which may be
under way. Rows are durable (fsync) before they are acknowledged. MQTT needs Mosquitto.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import Bridge
from headwater.connectors.httpbridge import HttpBridge
from headwater.connectors.mqtt import MqttBridge
from headwater.connectors.mqttclient import MqttAddress, MqttConnection, MqttMessage
from headwater.dataflow.httpsource import HttpSource
from headwater.dataflow.sources import MqttSource

ROWS, QUICK_ROWS = 20_000, 2_000
CLIENTS = 8  # connections of the HTTP sender
PORT = 18_831
SCHEMA = "id bigint, ts timestamp, celsius double"


def row(number: int) -> str:
    return json.dumps({"id": number, "ts": "2026-01-01T08:00:00Z", "celsius": 20 + number % 100 / 10})


def post(rows: int, each: int) -> None:
    """Send rows by HTTP, in requests of so many."""
    numbers = iter(range(0, rows, each))
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        while True:
            with lock:
                first = next(numbers, None)
            if first is None:
                return
            body = "\n".join(row(n) for n in range(first, min(rows, first + each)))
            connection.request("POST", "/rows", body, {"Idempotency-Key": str(first)})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 429:
                raise SystemExit("the log is full")

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def publish(rows: int) -> None:
    """Send rows by MQTT, one message each."""
    connection = MqttConnection(MqttAddress.parse(f"127.0.0.1:{PORT}", tls=False, username_env=None, password_env=None,
                                                  where="benchmark"))  # fmt: skip
    connection.send(MqttMessage(topic="rows", payload=row(n).encode()) for n in range(rows))
    connection.close()


def measure(bridge: Bridge[Any], log: FileLog, send: Callable[[], None], rows: int) -> float:
    """Return the rows per second that are stored."""
    bridge.start()
    try:
        while bridge.status().state != "connected":
            time.sleep(0.01)
        sender = multiprocessing.get_context("spawn").Process(target=send)
        sender.start()
        while not (first := bridge.status().stored) and sender.is_alive():
            time.sleep(0.001)
        begun = time.perf_counter()
        while bridge.status().stored < rows and (sender.is_alive() or not sender.exitcode):
            time.sleep(0.005)
        took = time.perf_counter() - begun
        sender.join(60)
    finally:
        bridge.stop()
    ids = [json.loads(v)["id"] for b in log.read(0, log.latest()) for v in b.column("value").to_pylist()]
    if sorted(ids) != list(range(rows)):
        raise SystemExit(f"{bridge}: {len(ids)} rows instead of {rows}")
    return (rows - first) / took


def by_http(place: Path, rows: int, each: int) -> float:
    """Measure the HTTP endpoint."""
    log = FileLog(place / "log")
    source = HttpSource(id="http", address=f"127.0.0.1:{PORT}/rows", schema_text=SCHEMA)
    bridge = HttpBridge(source, location="L1", log=log, epoch=1, home=place)
    return measure(bridge, log, partial(post, rows, each), rows)


def by_mqtt(place: Path, rows: int) -> float:
    """Measure the MQTT bridge with a broker of its own."""
    config = place / "mosquitto.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"listener {PORT} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nuser root\n")
    command = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin")
    broker = subprocess.Popen([str(command), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        log = FileLog(place / "log")
        source = MqttSource(id="mqtt", broker=f"127.0.0.1:{PORT}", topic="rows", schema_text=SCHEMA)
        return measure(MqttBridge(source, location="L1", log=log, epoch=1), log, partial(publish, rows), rows)
    finally:
        broker.terminate()
        broker.wait(10)


def main() -> int:
    """Run the benchmark."""
    options = common.arguments("Rows per second through the bridges of HTTP and MQTT", repeats=3).parse_args()
    facts = common.facts(quick=options.quick)
    rows = QUICK_ROWS if options.quick else ROWS
    ways: dict[str, Callable[[Path], float]] = {
        f"HTTP, {each} rows a request": partial(by_http, rows=rows, each=each)
        for each in ((1, 10, 100) if options.quick else (1, 10, 100, 1000))
    }
    if shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin"):
        ways["MQTT, QoS 1"] = partial(by_mqtt, rows=rows)
    found: dict[str, list[float]] = {name: [] for name in ways}
    place = Path(tempfile.mkdtemp(prefix="headwater-bridges-"))
    try:
        for turn in range(common.repeats_of(options)):
            for number, (name, way) in enumerate(ways.items()):
                found[name].append(way(place / f"{turn}-{number}"))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    middle = {name: common.middle(rates, 0) for name, rates in found.items()}
    for name, rate in middle.items():
        print(f"{name:26} {rate:>9,.0f} rows/s")
    common.write_result(options.json, {"rows_per_s": middle, "rows": rows}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
