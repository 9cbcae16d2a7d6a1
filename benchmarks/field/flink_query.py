"""A Flink in the cloud: workloads as SQL queries, one after the other, in a cluster within this process.

    python flink_query.py SETTINGS.json

The file has Flink's settings; each line on the input is a query as JSON, which takes the place of the one before.
It runs in PyFlink's environment, and imports nothing of this project. The query has no Python function, so its tasks
run in the JVM. Results are CSV files that appear with a checkpoint, so each row is there exactly once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any


def tables(settings: dict[str, Any]) -> list[str]:
    """Return the statements that declare the input of each location, all of it, and the results."""
    found, selects = [], []
    monitor = f"'source.monitor-interval' = '{settings['poll_ms']} ms'"
    for location, directory in settings["inputs"].items():
        time = settings["time"]
        files = f"'connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = 'csv', {monitor}"
        found.append(
            f"CREATE TABLE in_{location} ({settings['columns']}, WATERMARK FOR {time} AS {time}) WITH ({files})"
        )
        selects.append(f"SELECT *, '{location}' AS location FROM in_{location}")
    found.append(f"CREATE TEMPORARY VIEW entries AS {' UNION ALL '.join(selects)}")
    files = f"'connector' = 'filesystem', 'path' = 'file://{settings['results']}', 'format' = 'csv'"
    found.append(f"CREATE TABLE out_rows ({settings['result']}) WITH ({files})")
    return found


def watch(result: Any, cancelled: threading.Event) -> None:
    """End this process when a query fails."""
    try:
        result.wait()
    except Exception:
        if not cancelled.is_set():
            traceback.print_exc()
            os._exit(1)


def main(words: list[str]) -> int:
    """Run queries until ended."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in json.loads(Path(words[0]).read_text()).items():
        configuration.set_string(key, value)
    client, cancelled = None, threading.Event()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if client is not None:
            cancelled.set()
            client.cancel().result()
        settings, cancelled = json.loads(line), threading.Event()
        environment = TableEnvironment.create(
            EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
        )
        for statement in tables(settings):
            environment.execute_sql(statement)
        result = environment.execute_sql(f"INSERT INTO out_rows {settings['select']}")
        client = result.get_job_client()
        threading.Thread(target=watch, args=(result, cancelled), daemon=True).start()
        print(json.dumps({"query": str(client.get_job_id())}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
