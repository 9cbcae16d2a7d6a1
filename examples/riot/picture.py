"""Draw results of the four dataflows, a chart for each: ``python -m examples.riot.picture DIR``.

``iot.svg`` draws, which also draws the charts of STATS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from examples.riot import definition
from examples.riot.city import FEATURES, TARGET
from headwater.iot import svg

HERE = Path(__file__).resolve().parent
SENSOR = "boston-1"
POINTS = 60
USUAL = {"temperature": 16.0, "humidity": 55.0, "light": 10_000.0}
"""Readings for which models are compared, at several amounts of dust."""
Points = Iterator[dict[str, Any]]


def etl(results: Path) -> Points:
    """Yield a sensor's temperature as it came, and clean."""
    import pyarrow.parquet as pq

    packs = definition.packs_in(sorted((HERE / "data" / "packs" / "boston").glob("*.json")))
    for pack in [p for p in packs if p.sensor == SENSOR][:POINTS]:
        if (value := pack.readings.get("temperature")) is not None:
            yield {"label": "as it came", "at": pack.at / 1000, "value": value}
    rows = [row for file in sorted((results / "table").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    for row in sorted((r for r in rows if r["id"] == SENSOR), key=lambda r: r["at"])[:POINTS]:
        yield {"label": "clean", "at": row["at"].timestamp(), "value": row["temperature"]}


def stats(results: Path) -> Points:
    """Yield a sensor's mean of five amounts of dust, and the forecast of the next one."""
    rows = [r for r in _lines(results / "figures") if r["id"] == SENSOR and r["obs"] == "dust"]
    for kind in ("average", "forecast"):
        mine = [r for r in rows if r["kind"] == kind]
        yield from ({"label": kind, "at": _seconds(r), "value": r["figures"][0]} for r in mine)


def train(results: Path) -> Points:
    """Yield the air quality that each linear model predicts for little, some and much dust."""
    import numpy as np
    import onnxruntime

    for row in _lines(results / "models"):
        if row["kind"] == "MLR":
            model = onnxruntime.InferenceSession(str(results / "blobs" / row["name"]))
            for dust in (500.0, 2000.0, 3500.0):
                values = np.array([[{**USUAL, "dust": dust}[name] for name in FEATURES]])
                (found,) = model.run(None, {model.get_inputs()[0].name: values})
                yield {"label": f"at dust {dust:.0f}", "at": _seconds(row), "value": found.item()}


def pred(results: Path) -> Points:
    """Yield the air quality of a sensor, and what was predicted."""
    rows = [r for r in _lines(results / "predictions") if r["id"] == SENSOR and r["kind"] == "MLR"]
    for name, label in (("actual", TARGET), ("predicted", "predicted")):
        mine = [r for r in rows if r.get("predicted") is not None and r.get(name) is not None]
        yield from ({"label": label, "at": _seconds(r), "value": r[name]} for r in mine)


CHARTS: dict[str, Callable[[Path], Points]] = {"etl": etl, "stats": stats, "train": train, "pred": pred}


def _lines(place: Path) -> list[dict[str, Any]]:
    lines: Iterable[str] = (line for file in place.glob("*.json") for line in file.read_text().splitlines())
    return sorted(map(json.loads, lines), key=_seconds)


def _seconds(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["ts"]).timestamp()


def main(words: list[str]) -> int:
    """Draw the results of those dataflows that have some."""
    if len(words) != 1:
        print("usage: python -m examples.riot.picture DIR", file=sys.stderr)
        return 2
    results, out = HERE / "results", Path(words[0])
    out.mkdir(parents=True, exist_ok=True)
    for name, chart in CHARTS.items():
        if points := list(chart(results)):
            (out / f"riotbench-{name}.svg").write_text(svg(points))
        else:
            print(f"no results of {name} in {results}: run the dataflow first", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
