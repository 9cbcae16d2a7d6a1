"""RIoTBench's dataflows: deployments and one Spark batch run agree, and ETL and STATS with plain Python."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.riot import definition, generate
from examples.riot.city import FEATURES, SENSORS, TARGET
from examples.riot.etl import etl
from examples.riot.pred import pred
from examples.riot.stats import stats
from examples.riot.train import train
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.iot import Bloom
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, batch_result, check_equivalent
from tests.deployments.test_oracle import DECISIONS
from tests.deployments.test_suites import Released

CITIES = ("boston", "geneva")
ONE_EDGE = Continuum.from_text("""
name: small
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [boston, geneva]}
""")
TWO_EDGES = Continuum.from_text("""
name: small
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [boston]}
  E2: {layer: edge, parent: C1, locations: [geneva]}
""")
Tables = dict[str, pa.Table]


@dataclass(frozen=True)
class Case:
    """A dataflow, the directory whose files come one after another, and a check of the rows of its sinks."""

    dataflow: Dataflow
    source: Path
    check: Callable[[Tables], None]


def written(place: Path, *, seed: int, minutes: int, per_file: int = 200, every: int = 1) -> list[definition.Pack]:
    """Write packs with random shares of faults; return them."""
    drawn = random.Random(seed)
    faults = generate.Faults(*(drawn.uniform(0.02, 0.15) for _ in range(4)))
    files = list(
        generate.write_files(place, minutes, seed=seed, faults=faults, per_file=per_file, every=every, cities=CITIES)
    )
    return definition.packs_in([f for f in files if "packs" in f.parts])


def agrees(wanted: list[definition.Row], got: list[definition.Row]) -> None:
    assert wanted, "an empty result proves nothing"
    assert definition.differences(wanted, got)[:3] == []


def etl_case(place: Path, endpoint: LocalEndpoint, *, seed: int = 3, minutes: int = 4) -> Case:
    packs = written(place / "in", seed=seed, minutes=minutes)
    known = Bloom.of(SENSORS, false_positives=1e-6)
    assert not any(p.sensor in known for p in packs if p.sensor not in SENSORS), "choose another seed"

    def check(tables: Tables) -> None:
        table = tables["table"].to_pylist()
        agrees(definition.etl(packs, SENSORS), definition.table_rows(table))
        assert {r["annotation"] for r in table} >= {"boston,roof", "geneva,street", ""}
        documents = [json.loads(r["pack"]) for r in tables["clean"].to_pylist()]
        named = [{e["n"]: e.get("v", e.get("sv")) for e in d["e"]} | {"at": d["bt"]} for d in documents]
        rows = [
            (
                *(n["at"], n["source"].partition("-")[0], n["source"], n["longitude"], n["latitude"]),
                *(n.get(name) for name in definition.RANGES),
            )
            for n in named
        ]
        agrees(definition.etl(packs, SENSORS), rows)

    return Case(etl(str(place / "in"), None, cities=CITIES), place / "in" / "packs", check)


def stats_case(place: Path, endpoint: LocalEndpoint) -> Case:
    packs = written(place / "in", seed=4, minutes=3, per_file=80)

    def check(tables: Tables) -> None:
        wanted = definition.stats(packs)
        agrees(wanted, definition.figure_rows(tables["figures"].to_pylist()))
        kinds = [(r[1], r[4], r[3]) for r in wanted]
        charts = {c: sum(kinds.count(k) // 20 for k in set(kinds) if k[0] == c) for c in CITIES}
        archives = [r["city"] for r in tables["plots"].to_pylist()]
        assert {c: archives.count(c) for c in CITIES} == {c: n // 10 for c, n in charts.items()}

    return Case(stats(str(place / "in"), None, cities=CITIES, charts=10), place / "in" / "packs", check)


def train_case(place: Path, endpoint: LocalEndpoint, *, minutes: int = 3) -> Case:
    pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    written(place / "in", seed=5, minutes=minutes, per_file=80)
    cleaned = etl(str(place / "in"), None, cities=CITIES)
    table = batch_result(endpoint.session(), cleaned, TWO_EDGES)["table"]
    (place / "table").mkdir()
    pq.write_table(table, place / "table" / "rows.parquet")
    complete = [r for r in table.to_pylist() if None not in r.values()]

    def check(tables: Tables) -> None:
        import numpy as np

        models = tables["models"].to_pylist()
        assert sorted(r["kind"] for r in models) == ["DTC"] * minutes + ["MLR"] * minutes
        assert sum(r["samples"] for r in models) == 2 * len(complete)
        for row in models:
            begin = row["ts"].timestamp() // 60 * 60 - 60
            mine = [r for r in complete if begin <= r["at"].timestamp() < begin + 60]
            session = runtime.InferenceSession(str(place / "blobs" / row["name"]))
            argument = session.get_inputs()[0]
            kind = np.float32 if "float" in argument.type else np.float64
            values = np.array([[r[n] for n in FEATURES] for r in mine], dtype=kind)
            found = session.run(None, {argument.name: values})[0].reshape(-1).tolist()
            actual = [r[TARGET] for r in mine]
            if row["kind"] == "MLR":
                assert median(abs(p - a) for p, a in zip(found, actual, strict=True)) < 6
            else:
                right = [p == a for p, a in zip(found, labels(actual), strict=True)]
                assert sum(right) > 0.7 * len(right)

    flow = train(str(place / "in"), str(place / "table"), str(place / "blobs"), None, cities=CITIES)
    return Case(flow, place / "in" / "ticks", check)


def labels(values: list[float]) -> list[str]:
    """Label values by their quartiles."""
    import numpy as np

    half, most, all_ = (np.percentile(values, share) for share in (50, 75, 100))
    return ["BAD" if v < half else "GOOD" if v < most else "VERYGOOD" if v < all_ else "EXCELLENT" for v in values]


def pred_case(place: Path, endpoint: LocalEndpoint) -> Case:
    trained = train_case(place, endpoint)
    models = batch_result(endpoint.session(), trained.dataflow, TWO_EDGES)["models"].to_pylist()
    (place / "models").mkdir()
    lines = [json.dumps(r | {"ts": r["ts"].isoformat()}) for r in models]
    missing = {"ts": models[0]["ts"].isoformat(), "kind": "MLR", "name": "missing.onnx", "samples": 0}
    (place / "models" / "all.json").write_text("\n".join([*lines, json.dumps(missing)]))
    begin = min(r["ts"] for r in models)

    def check(tables: Tables) -> None:
        rows = tables["predictions"].to_pylist()
        for row in rows:
            before = row["ts"] < begin
            assert not before or (row["predicted"] is None and not row["class"])
            assert (row["error"] is not None) <= (row["predicted"] is not None and row["actual"] is not None)
        near = [r for r in rows if r["error"] is not None and 18 <= r["actual"] <= 360]
        assert len(near) > 40 and median(r["error"] for r in near) < 0.2
        assert {r["class"] for r in rows if r["kind"] == "DTC"} >= {None, "BAD", "GOOD", "VERYGOOD"}
        averaged(rows, definition.packs_in(sorted((place / "in" / "packs").rglob("*.json"))))

    flow = pred(str(place / "in"), str(place / "models"), str(place / "blobs"), None, cities=CITIES)
    return Case(flow, place / "in" / "packs", check)


def averaged(rows: list[dict[str, Any]], packs: list[definition.Pack]) -> None:
    """Check that errors are shares of the latest mean of five readings of the sensor."""
    means: dict[tuple[str, int], float] = {}
    seen: dict[str, list[float]] = {}
    for pack in packs:
        block = seen.setdefault(pack.sensor, [])
        if (value := pack.readings.get(TARGET)) is not None:
            block.append(value)
        if whole := block[: len(block) // 5 * 5]:
            means[pack.sensor, pack.at] = sum(whole[-5:]) / 5
    for row in rows:
        if row["kind"] == "MLR" and None not in (row["actual"], row["predicted"]):
            time: datetime = row["ts"]
            mean = means.get((row["id"], round(time.timestamp() * 1000)))
            wanted = None if not mean else abs(row["actual"] - row["predicted"]) / abs(mean)
            assert row["error"] == (None if wanted is None else pytest.approx(wanted))


def test_etl_is_as_one_batch_and_plain_python(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    case = etl_case(tmp_path, endpoint, seed=7, minutes=2)
    batch = batch_result(endpoint.session(), case.dataflow, ONE_EDGE)
    case.check(batch)
    outcome = check_equivalent(case.dataflow, ONE_EDGE, endpoint, tmp_path / "run", expected=batch)
    assert {unit.layer for unit in outcome.plan.units} == {"edge", "cloud"}


CASES = {"etl": etl_case, "stats": stats_case, "train": train_case, "pred": pred_case}


@pytest.mark.long
@pytest.mark.parametrize("decision", ["unit per layer", "one unit"])
@pytest.mark.parametrize("name", list(CASES))
def test_kills_change_no_results(name: str, decision: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    case = CASES[name](tmp_path, endpoint)
    batch = batch_result(endpoint.session(), case.dataflow, TWO_EDGES)
    case.check(batch)
    wanted = DECISIONS[decision](case.dataflow, TWO_EDGES)
    source = Released(case.source, [PAUSE, KILL, KILL])
    outcome = check_equivalent(
        case.dataflow, TWO_EDGES, endpoint, tmp_path / "run", decision=wanted, source=source, expected=batch
    )
    if decision == "unit per layer":
        assert {unit.layer for unit in outcome.plan.units} == {"edge", "cloud"}
