"""Tasks over input from outside: XML documents, files that rows name, archives, tables."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import iot
from headwater.connectors.permitted import uses_of
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError
from headwater.dataflow.blobs import BlobContainer
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.stream import Stream
from headwater.iot.archives import archived
from headwater.iot.xmltext import parts
from headwater.plan.build import build
from headwater.plan.spec import spec_of

PATHS = ["reading/@id", "reading/light", "reading/at/place"]


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ("<reading id='7'><light> 12.5 </light><at><place>A&amp;B</place></at></reading>", ["7", "12.5", "A&B"]),
        ("<reading><light>1</light><light>2</light></reading>", [None, "1", None]),
        ("<reading><at/><at><place>x<b>y</b>z</place></at></reading>", [None, None, "xz"]),
        ("<other id='7'/>", [None, None, None]),
        ("<?xml version='1.0' encoding='latin-1'?><reading id='ä'/>", ["ä", None, None]),
        ("<reading><light/></reading>", [None, "", None]),
    ],
)
def test_parts_of_documents(document: str, wanted: list[str | None]) -> None:
    assert parts(document, PATHS, 1_000) == (wanted, None)


LAUGHS = "<!DOCTYPE r [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]><reading><light>&b;</light></reading>"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("not a document", "syntax error"),
        ("", "no element found"),
        ("<reading><light>1</light>", "no element found"),
        ("<reading/><reading/>", "junk after document element"),
        ("<reading>&unknown;</reading>", "undefined entity"),
        (LAUGHS, "document type is not allowed"),
        ("<!DOCTYPE r SYSTEM 'file:///etc/passwd'><reading/>", "document type is not allowed"),
        ("<a>" * 500 + "</a>" * 500, "more than 100 levels"),
        ("<reading>" + "x" * 6_000 + "</reading>", "more than 5000"),
        ("<reading>\x00</reading>", "not well-formed"),
    ],
)
def test_bad_documents_give_nulls_and_a_reason(document: str, why: str) -> None:
    found, reason = parts(document, PATHS, 5_000)
    assert found == [None, None, None] and why in (reason or "")
    assert parts(None, PATHS, 5_000) == ([None, None, None], None)


def named(builder: DataflowBuilder | None = None) -> Stream:
    rows = (builder or hw.flow("f", locations=["here"])).read.json("/in", "ts timestamp, name string, xml string")
    return rows.with_watermark("ts", "10 seconds")


def test_errors_of_the_author() -> None:
    with pytest.raises(DataflowError, match="no path"):
        iot.parse_xml(named(), {"v": "//v"})
    with pytest.raises(DataflowError, match="already exists"):
        iot.parse_xml(named(), {"name": "v"})
    with pytest.raises(DataflowError, match="is timestamp"):
        iot.parse_xml(named(), {"v": "v"}, text="ts")
    for path in ("models", "simplecache::s3://b/m", "", "file:/x"):
        with pytest.raises(DataflowError, match="no container"):
            iot.download_blobs(named(), path)
    with pytest.raises(DataflowError, match="most_bytes=0"):
        iot.download_blobs(named(), "/models", most_bytes=0)
    with pytest.raises(DataflowError, match="no column 'start'"):
        table = hw.flow("f", locations=["here"]).table.csv("/t.csv", "name string, v double")
        iot.query_range(named(), table, on="name", by="v")


def test_a_blob_is_read_from_its_container_only(tmp_path: Path) -> None:
    inside = tmp_path / "models"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "a.onnx").write_bytes(b"1234")
    (inside / "big").write_bytes(b"x" * 9)
    (tmp_path / "secret").write_bytes(b"no")
    (inside / "link").symlink_to(tmp_path / "secret")
    container = BlobContainer(path=str(inside), name="name", into="content", error="error", most_bytes=8)
    assert container.read("deep/a.onnx") == (b"1234", None)
    assert container.read(None) == (None, None)
    refused = {
        "big": "more than 8 bytes",
        "gone": "FileNotFoundError",
        "deep": "IsADirectoryError",
        "link": "leads out",
        **dict.fromkeys(
            ("../secret", str(tmp_path / "secret"), "deep/../../secret", "", "file:///x", "a::b", "a\\b", "a\x00"),
            "none of a file in the container",
        ),
    }
    for name, why in refused.items():
        content, reason = container.read(name)
        assert content is None and why in (reason or ""), name


def test_agents_see_the_container_and_no_code() -> None:
    builder = hw.flow("f", locations=["here"])
    iot.download_blobs(named(builder), "s3://bucket/models").write.memory("out")
    flow = builder.build()
    continuum = Continuum.from_text("name: c\nlayers: [e]\nzones:\n  E: {layer: e, locations: [here]}\n")
    plan = build(flow, continuum)
    (unit,) = plan.units
    assert ("read", "s3://bucket/models") in {(str(u.kind), u.target) for u in uses_of(spec_of(plan, unit.id))}
    assert [f.has_code for o in flow.operators if isinstance(f := getattr(o, "function", None), BuiltinFunction)] == [
        False
    ]


def test_files_become_archives() -> None:
    operator: Any = iot.zip_files(named(), size=2, content="xml", archive="charts").operator
    assert operator.order_by == ("ts", "name"), "files of one time have an order"
    step, state, found = operator.function.load(), {"n": 0, "files": []}, []
    for name in ("a.svg", "../a.svg", None, "b.svg", "c.svg", "d.svg"):
        state, out = step(state, {"ts": 1, "name": name, "xml": f"<{name}>"})
        found += [out] if out else []
    assert [row["name"] for row in found] == ["charts-0.zip", "charts-1.zip"] and len(state["files"]) == 1
    with zipfile.ZipFile(io.BytesIO(found[0]["content"])) as made:
        assert {n: made.read(n) for n in made.namelist()} == {"a.svg": b"<a.svg>", "1-a.svg": b"<../a.svg>"}
    files = [["a", "eA=="], ["b", "eQ=="]]
    assert archived(files) == archived(files), "the same files give the same bytes"
