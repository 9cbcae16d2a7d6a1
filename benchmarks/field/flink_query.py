"""Workloads as SQL queries on Flink, one after the other, in a cluster within this process or in one that runs already.

    python -m benchmarks.field.flink_query SETTINGS.json

The file is a `Settings` as JSON; each line on the input is a query as JSON, which takes the place of the one before.
It runs in PyFlink's environment, with the standard library only. The query has no Python function, so its tasks
run in the JVM. Results are CSV files that appear with a checkpoint, so each row is there exactly once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.field.flink_place import place

_CLUSTER_SECONDS = 180.0


@dataclass(frozen=True)
class Settings:
    """Flink's settings, and those of a cluster that runs already: its TaskManagers, and the memory of a slot in MiB."""

    conf: dict[str, str]
    taskmanagers: int = 0
    slot: dict[str, int] = field(default_factory=dict)


def tables(settings: dict[str, Any]) -> list[str]:
    """Return the statements that declare the input of each location, all of it, and the results."""
    found, selects = [], []
    monitor = f"'source.monitor-interval' = '{settings['poll_ms']} ms'"
    for location, directory in settings["inputs"].items():
        columns = f"{settings['columns']}, WATERMARK FOR {settings['time']} AS {settings['time']}"
        files = f"'connector' = 'filesystem', 'path' = '{directory}', 'format' = 'csv', {monitor}"
        found.append(f"CREATE TABLE in_{location} ({columns}) WITH ({files})")
        selects.append(f"SELECT *, '{location}' AS location FROM in_{location}")
    found.append(f"CREATE TEMPORARY VIEW entries AS {' UNION ALL '.join(selects)}")
    files = f"'connector' = 'filesystem', 'path' = '{settings['results']}', 'format' = 'csv'"
    found.append(f"CREATE TABLE out_rows ({settings['result']}) WITH ({files})")
    return found


def watch(client: Any, cancelled: threading.Event) -> None:
    """End this process when a query fails."""
    try:
        client.get_job_execution_result().result()
    except Exception:
        if not cancelled.is_set():
            traceback.print_exc()
            os._exit(1)


def wait_for_taskmanagers(settings: Settings) -> None:
    """Return when all TaskManagers of a cluster have registered."""
    url = f"http://{settings.conf['rest.address']}:{settings.conf['rest.port']}/overview"
    deadline, there = time.monotonic() + _CLUSTER_SECONDS, -1
    while there < settings.taskmanagers:
        if time.monotonic() > deadline:
            sys.exit(f"{there} of {settings.taskmanagers} TaskManagers after {_CLUSTER_SECONDS:.0f} s: see their logs")
        time.sleep(0.2)
        try:
            with urlopen(url, timeout=5) as answer:
                there = json.load(answer)["taskmanagers"]
        except OSError:
            continue  # the JobManager does not listen yet


def submit(settings: Settings, query: dict[str, Any]) -> Any:
    """Start a query; return its client."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    configuration = Configuration()
    for key, value in settings.conf.items():
        configuration.set_string(key, value)
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment = StreamTableEnvironment.create(streams)
    for key, value in settings.conf.items():
        environment.get_config().set(key, value)
    for statement in tables(query):
        environment.execute_sql(statement)
    statements = environment.create_statement_set()
    statements.add_insert_sql(f"INSERT INTO out_rows {query['select']}")
    statements.attach_as_datastream()
    if settings.slot:
        place(streams, list(query["inputs"]), settings.slot)
    return streams.execute_async("field")


def main(words: list[str]) -> int:
    """Run queries until ended."""
    settings = Settings(**json.loads(Path(words[0]).read_text()))
    if settings.taskmanagers:
        wait_for_taskmanagers(settings)
    client, cancelled = None, threading.Event()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if client is not None:
            cancelled.set()
            client.cancel().result()
        cancelled = threading.Event()
        client = submit(settings, json.loads(line))
        threading.Thread(target=watch, args=(client, cancelled), daemon=True).start()
        print(json.dumps({"query": str(client.get_job_id())}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
