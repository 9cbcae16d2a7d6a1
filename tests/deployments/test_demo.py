"""Run the demonstration on real Sparks, on a few days of data."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from headwater.demo.run import DemoSettings, run_demo, summary_view
from headwater.spark.endpoint import LocalEndpoint

KEYS = {"zones", "units", "rows_in", "rows_out", "lost", "duplicated", "anomalies"}
KEYS |= {"link_bytes", "link_bytes_all_to_cloud"}


def test_the_demo_equals_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    settings = DemoSettings(seconds=2.0, days=8, files=2)
    seen = []
    summary = run_demo(settings, tmp_path, stop=threading.Event(), observe=seen.append, endpoint=lambda: endpoint)
    assert summary is not None
    assert set(summary) >= KEYS
    assert (summary["lost"], summary["duplicated"]) == (0, 0)
    assert summary["zones"] == 8
    assert summary["units"] == len(summary["units_detail"]) == 10
    assert summary["rows_in"] == summary["lines_written"] == 8 * 288 * 2 * 5
    assert summary["malformed_found"] == summary["malformed_written"] > 0
    assert summary["late_rows"] == 0
    assert summary["anomalies"]["labelled"] > 0
    links = {"E1-S1", "E2-S1", "E3-S1", "E4-S2", "E5-S2", "S1-C1", "S2-C1"}
    assert set(summary["link_bytes"]) == set(summary["link_bytes_all_to_cloud"]) == links
    for link in links:
        assert 0 <= summary["link_bytes"][link] < summary["link_bytes_all_to_cloud"][link]
    assert seen[-1].finished
    assert json.loads(json.dumps(summary)) == summary
    from rich.console import Console

    console = Console(width=140)
    with console.capture() as captured:
        console.print(summary_view(summary))
    assert "0 lost, 0 duplicated" in captured.get()


def test_a_stopped_demo_gives_no_summary(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert run_demo(DemoSettings(days=2, files=1), tmp_path, stop=stop, endpoint=lambda: endpoint) is None
