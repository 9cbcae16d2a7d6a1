"""Compare the tasks over readings that are Spark SQL with plain Python."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import iot
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.stream import Stream
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, check_equivalent

ONE = Continuum.from_text("""
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [here]}
""")
RANGES = {"temperature": (-10.0, 40.0), "light": (100.0, 900.0)}


def packs(place: Path, count: int) -> list[dict[str, Any]]:
    """Write packs with a reading of each kind, some of them broken; return the readings in them."""
    drawn, lines, found = random.Random(2), [], []
    for n in range(count):
        device, at = f"device-{drawn.randrange(12)}", 1_767_225_600_000 + n * 1_000
        entries: list[dict[str, Any]] = [{"n": "source", "sv": device, "u": "string"}]
        for name, (low, high) in RANGES.items():
            value = f"{drawn.uniform(low - 20, high + 20):.3f}" if n % 9 else "n/a"
            entries.append({"n": name, "v": value, "u": "x"})
            found.append({"id": device, "obs": name, "value": float(value) if n % 9 else None})
        lines.append(json.dumps({"e": entries, "bt": at}))
    place.mkdir(parents=True)
    (place / "a.json").write_text("\n".join([*lines, "not a pack"]) + "\n")
    return found


def collected(write: Any, place: Path, endpoint: LocalEndpoint) -> list[dict[str, Any]]:
    builder = hw.flow("f", locations=["here"])
    rows = iot.parse_senml(builder.read.json(str(place), iot.PACK), fields=tuple(RANGES))
    write(rows).write.memory("out")
    return batch_result(endpoint.session(), builder.build(), ONE)["out"].to_pylist()


def test_packs_are_taken_apart(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    wanted = packs(tmp_path / "in", 60)
    got = collected(lambda r: r.select("id", "obs", "value"), tmp_path / "in", endpoint)
    assert sorted(map(str, got)) == sorted(map(str, wanted))


def test_filters_say_what_python_says(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    wanted = packs(tmp_path / "in", 80)
    members = iot.Bloom.of([f"device-{n}" for n in range(6)])

    def filters(rows: Stream) -> Stream:
        kept = iot.bloom_filter(iot.range_filter(rows, RANGES), members)
        return kept.select("id", "obs", "value")

    def passed(row: dict[str, Any]) -> Any:
        low, high = RANGES[row["obs"]]
        good = row["value"] is not None and low <= row["value"] <= high and row["id"] in members
        return row["value"] if good else None

    got = collected(filters, tmp_path / "in", endpoint)
    assert sorted(map(str, got)) == sorted(str({**row, "value": passed(row)}) for row in wanted)
    assert any(row["value"] is not None for row in got)


def test_models_say_what_scikit_learn_says(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    tree = pytest.importorskip("sklearn.tree")
    linear = pytest.importorskip("sklearn.linear_model")
    drawn = random.Random(4)
    x = [[drawn.uniform(-30, 1000)] for _ in range(300)]
    classes = ["low" if v < 20 else "high" if v > 500 else "usual" for (v,) in x]
    forest = tree.DecisionTreeClassifier(max_depth=4, random_state=1).fit(x, classes)
    line = linear.LinearRegression().fit(x, [3 * v + 1 for (v,) in x])
    packs(tmp_path / "in", 50)

    def both(rows: Stream) -> Stream:
        found = iot.classify_tree(rows, forest, features=("value",))
        return iot.predict_linear(found, line, features=("value",)).select("value", "class", "predicted")

    got = [r for r in collected(both, tmp_path / "in", endpoint)]
    known = [r for r in got if r["value"] is not None]
    assert known and [r["class"] for r in known] == list(forest.predict([[r["value"]] for r in known]))
    assert [r["predicted"] for r in known] == pytest.approx(list(line.predict([[r["value"]] for r in known])))
    assert all(r["class"] is None and r["predicted"] is None for r in got if r["value"] is None)


def test_messages_come_together_again(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    packs(tmp_path / "in", 40)
    builder = hw.flow("joined", locations=["here"])
    rows = iot.parse_senml(builder.read.json(str(tmp_path / "in"), iot.PACK), fields=tuple(RANGES))
    whole = iot.join_message(iot.interpolate(rows), tuple(RANGES))
    iot.to_senml(whole, {"temperature": "C", "light": "lx"}, texts=("id",)).write.memory("packs")
    outcome = check_equivalent(builder.build(), ONE, endpoint, tmp_path / "run")
    assert outcome.rows["packs"] == 40


def test_tables_and_blobs_stand_where_they_are_looked_for(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    packs(tmp_path / "in", 60)
    builder = hw.flow("stored", locations=["here"])
    rows = iot.parse_senml(builder.read.json(str(tmp_path / "in"), iot.PACK), fields=tuple(RANGES))
    good = iot.interpolate(rows)
    iot.insert_table(good.select("id", "obs", "value"), "readings", database=str(tmp_path / "t.db"))
    iot.upload_blobs(iot.plot_lines(good, size=50), container=str(tmp_path / "blobs"))
    deployment = LocalRun(build(builder.build(), ONE), tmp_path / "run", endpoint, UnitSettings())
    deployment.start()
    try:
        deployment.drain()
    finally:
        deployment.stop()
    with sqlite3.connect(tmp_path / "t.db") as table:
        assert table.execute("SELECT count(*), count(DISTINCT id) FROM readings").fetchone() == (120, 12)
    drawn = sorted((tmp_path / "blobs").iterdir())
    assert len(drawn) == 120 // 50 and all("<svg" in f.read_text() for f in drawn)


def test_documents_files_and_tables_are_read(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "table").mkdir()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a.bin").write_bytes(b"abc")
    documents = ["<r id='a'><from>2</from></r>", "<r id='b'><from>3</from></r>", "<!DOCTYPE r><r id='a'/>", None]
    lines = [{"n": n, "ts": f"2026-01-01T00:00:0{n}Z", "xml": text} for n, text in enumerate(documents)]
    (tmp_path / "in" / "a.json").write_text("\n".join(map(json.dumps, lines)))
    rows = [{"id": k, "at": v, "v": v * 10.0} for k in "ac" for v in range(6)]
    (tmp_path / "table" / "t.json").write_text("\n".join(map(json.dumps, rows)))
    builder = hw.flow("f", locations=["here"])
    table = builder.table.json(str(tmp_path / "table"), "id string, at bigint, v double")
    read = builder.read.json(str(tmp_path / "in"), "n bigint, ts timestamp, xml string").with_watermark("ts", "5 s")
    parsed = iot.parse_xml(read, {"id": "r/@id", "low": "r/from"}, error="why")
    blobs = iot.download_blobs(parsed.with_columns(name="id || '.bin'"), str(tmp_path / "blobs"))
    blobs.select("n", "id", "why IS NULL AS good", "CAST(content AS string) AS text", "error").write.memory("blobs")
    asked = parsed.select("n", "id", "CAST(low AS bigint) AS start", "CAST(low AS bigint) + 2 AS end")
    iot.query_range(asked, table, by="at").select("n", "at", "v").write.memory("range")
    iot.look_up(asked, table).select("n", "v").write.memory("found")
    iot.zip_files(blobs.drop("xml"), size=1).select("name", "length(content) > 0 AS full").write.memory("zips")
    got = {k: t.to_pylist() for k, t in batch_result(endpoint.session(), builder.build(), ONE).items()}
    assert [tuple(r.values()) for r in sorted(got["blobs"], key=lambda r: r["n"])] == [
        (0, "a", True, "abc", None), (1, "b", True, None, "FileNotFoundError: b.bin"),
        (2, None, False, None, None), (3, None, True, None, None),
    ]  # fmt: skip
    assert sorted(map(str, got["range"])) == [str({"n": 0, "at": at, "v": at * 10.0}) for at in (2, 3)]
    assert sorted(r["n"] for r in got["found"]) == [0] * 6 + [1, 2, 3], "a row without a match stays"
    assert got["zips"] == [{"name": "files-0.zip", "full": True}]
