"""The dashboard for Grafana asks for metrics and labels that a scrape has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.adapt.slo import SLO
from headwater.control.records import ReportRecord
from headwater.control.store import Store
from headwater.core.metrics import HostProgress
from headwater.web.prometheus import serving
from tests.unit.test_cli_slo import decided, measured, scrape, seen, store

__all__ = ["store"]  # a fixture

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "headwater.json"
Query = tuple[str, str, str]
"""Title of a panel, expression, legend."""


def queries(dashboard: dict[str, Any]) -> Iterator[Query]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def wrong(query: Query, scraped: dict[str, set[str]]) -> list[str]:
    """Return the metrics that a scrape lacks, and the labels that their samples lack."""
    _, expression, legend = query
    found = []
    metrics = re.findall(r"(headwater_\w+)(?:\{([^}]*)\})?", expression)
    grouped = [name.strip() for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(",")]
    shown = re.findall(r"\{\{(\w+)\}\}", legend)
    for metric, matchers in metrics:
        if metric not in scraped:
            found.append(metric)
            continue
        asked = {*re.findall(r"(\w+)\s*[=!]~?", matchers), *grouped, *shown}
        found += [f"{metric}: {label}" for label in sorted(asked - scraped[metric])]
    if grouped:
        found += [f"legend: {label}" for label in shown if label not in grouped]
    return found or ([] if metrics else ["no metric"])


@pytest.fixture
def scraped(store: Store) -> dict[str, set[str]]:
    """Return the labels of each metric in a scrape of a deployment with all figures, an SLO and decisions."""
    base = measured(store)
    store.set_slo("f", SLO(max_latency=1.0))
    decided(store, base)
    host = HostProgress(host="gw1", zone="E1", cores=2.0, seconds=9.0, cpu_s=1.0, memory=1 << 20, memory_free=1 << 30)
    progress, now = seen(11), time.time()
    whole = replace(progress, hosts=(host,), units=tuple(replace(unit, behind=5) for unit in progress.units))
    record = ReportRecord(node="E1", at=now, progress=whole)
    store.report("me", now, {"f": [record]}, samples={"f": whole})
    found: dict[str, set[str]] = {}
    with serving(None, "127.0.0.1", 0) as url:
        for name, labels in scrape(url):
            found.setdefault(name, set()).update(label for label, _ in labels)
    return found


def test_panels_ask_for_what_a_scrape_has(scraped: dict[str, set[str]]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = list(queries(dashboard))
    assert len(asked) > 20
    assert [(query[0], said) for query in asked for said in wrong(query, scraped)] == []
    (variable,) = (v for v in dashboard["templating"]["list"] if v["type"] == "query")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
    assert label == variable["name"] and label in scraped[metric]


def test_panels_lie_beside_each_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_what_a_scrape_lacks_is_found(scraped: dict[str, set[str]]) -> None:
    assert wrong(("", "rate(headwater_unit_rows_total[1m])", ""), scraped) == ["headwater_unit_rows_total"]
    assert wrong(("", 'headwater_link_up{zone="E1"}', ""), scraped) == ["headwater_link_up: zone"]
    assert wrong(("", "sum by (host) (headwater_unit_up)", ""), scraped) == ["headwater_unit_up: host"]
    assert wrong(("", "sum by (unit) (headwater_unit_up)", "{{zone}}"), scraped) == ["legend: zone"]
