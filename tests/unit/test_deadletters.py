"""Dead letters: reasons, positions, and the output of the dead-letter writer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.connectors.deadletters import (
    MAX_RECORD,
    Locator,
    RecordPosition,
    explain,
    read_dead_letters,
)
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.writers import open_sink_writer
from headwater.core.errors import ChannelError

SCHEMA = "id bigint, temperature double, ts timestamp"
NESTED = "v bigint, w struct<a: array<int>>, d decimal(3,1), on boolean, m map<string,double>, ts timestamp"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("1,2", "2 fields, 3 expected"),
        ("1", "1 field, 3 expected"),
        ("1,2,2024-01-01,4", "4 fields, 3 expected"),
        ("1,abc,2024-01-01", "field 'temperature': 'abc' is not a double"),
        ("1,2.5,yesterday", "field 'ts': 'yesterday' is not a timestamp"),
        ("1,2.5,2024-13-01", "field 'ts': '2024-13-01' is not a timestamp"),
        ("1.5,2,2024-01-01", "field 'id': '1.5' is not a bigint"),
        ("99999999999999999999,,", "field 'id': '99999999999999999999' is not a bigint"),
        ('"1","x,y",2024-01-01', "field 'temperature': 'x,y' is not a double"),
        ("1,NaN,2024-01-01T10:00:00.5Z", f"does not fit the schema {SCHEMA}"),
        ("1,,", f"does not fit the schema {SCHEMA}"),
        ("", "empty record"),
    ],
)
def test_csv_reasons(record: str, reason: str) -> None:
    assert explain(record, format="csv", schema=SCHEMA) == reason


@pytest.mark.parametrize(
    ("record", "options", "reason"),
    [
        ("1;x;", {"sep": ";"}, "field 'temperature': 'x' is not a double"),
        ("1;x;", {"Delimiter": ";"}, "field 'temperature': 'x' is not a double"),
        ("1\tx\t", {"sep": "\\t"}, "field 'temperature': 'x' is not a double"),
        ("1,n/a,late", {"nullValue": "n/a"}, "field 'ts': 'late' is not a timestamp"),
        ("1,2,01/02/2024", {"timestampFormat": "yyyy-MM-dd"}, "field 'ts': '01/02/2024' is not a timestamp"),
        ("1,2,01/02/2024", {"timestampFormat": "dd/MM/yyyy"}, f"does not fit the schema {SCHEMA}"),
        ("1,2,Q1 2024", {"timestampFormat": "QQQ yyyy"}, f"does not fit the schema {SCHEMA}"),
    ],
)
def test_the_readers_options_count(record: str, options: dict[str, str], reason: str) -> None:
    assert explain(record, format="csv", schema=SCHEMA, options=options) == reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"v": "x"}', "field 'v': \"x\" is not a bigint"),
        ('{"v": 1.5}', "field 'v': 1.5 is not a bigint"),
        ('{"v": true}', "field 'v': true is not a bigint"),
        ('{"on": 1}', "field 'on': 1 is not a boolean"),
        ('{"v": {"x": 1}}', "field 'v': {\"x\": 1} is not a bigint"),
        ('{"w": {"a": [1, "q"]}}', "field 'w.a[1]': \"q\" is not an int"),
        ('{"w": 3}', "field 'w': 3 is not a struct<a:array<int>>"),
        ('{"d": 123.45}', "field 'd': 123.45 is not a decimal(3,1)"),
        ('{"m": {"k": "hot"}}', "field 'm.k': \"hot\" is not a double"),
        ('{"ts": "soon"}', "field 'ts': \"soon\" is not a timestamp"),
        ('{"v": 1', "not JSON: Expecting ',' delimiter at column 8"),
        ("  nope", "not JSON: Expecting value at column 3"),
        ('{"v": 1,\n "d" 2}', "not JSON: Expecting ':' delimiter at line 2 column 6"),
        ('{"v": 1} {', "not JSON: extra data at column 9"),
        ("[1]", "not an object: [1]"),
        ('[{"v": "x"}]', "field 'v': \"x\" is not a bigint"),
        ("3", "not an object: 3"),
        (f"{NOT_UTF8}/w==", "not UTF-8 text"),
        ("{'v': 1}", f"does not fit the schema {NESTED}"),
        ('{"v": 1, "extra": "x", "ts": 12}', f"does not fit the schema {NESTED}"),
    ],
)
def test_json_reasons(record: str, reason: str) -> None:
    assert explain(record, format="json", schema=NESTED) == reason


@pytest.mark.parametrize("record", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000, "\x00", '"', "\ud800"])
@pytest.mark.parametrize("format_", ["csv", "json", "parquet", ""])
def test_no_record_breaks_the_explanation(record: str, format_: str) -> None:
    assert len(explain(record, format=format_, schema=NESTED)) < 400
    assert explain(record, format=format_, schema="no schema <")


# -- positions -------------------------------------------------------------------------------


def test_places_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a b%20ü.csv"
    path.write_bytes(b"id,v\r\n1,x\r\n2,2\r\n11,x\r\n1,x\r\nlast\xff,1")
    uri = path.as_uri()
    assert uri.startswith("file:///")
    for source in (str(path), uri, uri.replace("file://", "file:")):
        assert Locator().locate("1,x", source) == RecordPosition(2, 6)
        assert Locator().locate("11,x", source) == RecordPosition(4, 16)
    locator = Locator()
    assert [locator.locate("1,x", uri) for _ in range(3)] == [
        RecordPosition(2, 6),
        RecordPosition(5, 22),
        None,
    ]
    assert locator.locate("2,2", uri) == RecordPosition(3, 11)  # out of order
    assert Locator().locate("x", uri) is None  # only whole lines are records
    assert Locator().locate("last\ufffd,1", uri) == RecordPosition(6, 27)


def test_places_of_records_with_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('\ufeff{"v":\n "x"}\n')
    assert Locator().locate('{"v":\n "x"}', str(path)) == RecordPosition(1, 3)


def test_there_may_be_no_place(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"1,x\n"))
    sources = ["mqtt:a/b", "s3a://bucket/a.csv", "hdfs:/a.csv", "", str(tmp_path), str(tmp_path / "gone")]
    sources += [str(tmp_path / "empty"), str(tmp_path / "a.gz"), "relative", "/nul\0"]
    locator = Locator()
    assert [locator.locate("1,x", s) for s in sources] == [None] * len(sources)
    assert locator.locate("1,x", None) is None


def test_places_cost_one_reading_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{i % 1000},bad" for i in range(200_000)]
    path.write_text("\n".join(lines))
    locator = Locator(seconds=600.0)
    assert [p.line for r in lines if (p := locator.locate(r, str(path)))] == list(range(1, len(lines) + 1))
    assert Locator(seconds=0).locate(lines[0], str(path)) is None


# -- the writer ------------------------------------------------------------------------------


def rows(*records: str, **values: str | None) -> pa.RecordBatch:
    text = pa.string()
    names = ["operator", "format", "schema", "record", "source", "location"]
    schema = pa.schema([(n, text) for n in names])
    row = {
        "operator": "files_1",
        "format": "csv",
        "schema": SCHEMA,
        "source": None,
        "location": "n",
        **values,
    }
    return pa.RecordBatch.from_pylist([{**row, "record": r} for r in records], schema=schema)


def put(path: Path, batch: int, *batches: pa.RecordBatch, epoch: int = 1, **spec: Any) -> None:
    sink_writer = open_sink_writer(
        {"kind": "deadletters", "path": str(path), "unit": "u", "fsync": False, **spec}, epoch
    )
    task = sink_writer.open()
    for part in batches:
        task.write(part)
    piece = task.close()
    sink_writer.commit([piece] if piece else [], batch)


def test_a_letter_tells_all_about_its_record(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,temperature,ts\n1,abc,2024-01-01\n")
    put(tmp_path / "dead", 0, rows("1,abc,2024-01-01", source=source.as_uri()))
    (letter,) = read_dead_letters(tmp_path / "dead")
    assert letter.pop("time").endswith("Z") and len(letter.pop("id")) == 16
    assert letter == {
        "unit": "u",
        "operator": "files_1",
        "location": "n",
        "source": source.as_uri(),
        "line": 2,
        "offset": 18,
        "reason": "field 'temperature': 'abc' is not a double",
        "record": "1,abc,2024-01-01",
        "truncated": False,
        "replayed": None,
    }


def test_letters_count_once_and_come_in_order(tmp_path: Path) -> None:
    for unit in ("b", "a"):
        for batch in (9, 10, 10, 9):
            put(tmp_path / unit, batch, rows(f"{unit}{batch}"), rows(f"{unit}{batch}+"), epoch=1)
        put(tmp_path / unit, 0, rows(f"{unit}0"), epoch=2)
        put(tmp_path / unit, 1, epoch=2)
    expected = [f"{u}{r}" for u in "ab" for r in ("9", "9+", "10", "10+", "0")]
    assert [letter["record"] for letter in read_dead_letters(tmp_path)] == expected
    with pytest.raises(ChannelError, match="out of date"):
        put(tmp_path / "a", 11, rows("zombie"), epoch=1)


def test_long_records_are_cut(tmp_path: Path) -> None:
    put(tmp_path, 0, rows("ü" * MAX_RECORD, "x" * MAX_RECORD))
    long, exact = read_dead_letters(tmp_path)
    assert (long["truncated"], long["record"]) == (True, "ü" * (MAX_RECORD // 2))
    assert (exact["truncated"], len(exact["record"])) == (False, MAX_RECORD)


def test_options_are_given_by_operator(tmp_path: Path) -> None:
    put(tmp_path, 0, rows("1;x;"), options={"files_1": {"sep": ";"}})
    assert [m["reason"] for m in read_dead_letters(tmp_path)] == ["field 'temperature': 'x' is not a double"]


def test_reading_puts_up_with_anything(tmp_path: Path) -> None:
    assert list(read_dead_letters(tmp_path / "none")) == []
    assert list(read_dead_letters(tmp_path)) == []
    (tmp_path / "part-00000000-0-1.json").write_text('{"record": "a"}\nhalf a li\n[1]\n{"record": "b"}')
    (tmp_path / "notes.json").write_text(json.dumps({"record": "c"}))
    staging = tmp_path / ".headwater" / "staging"
    staging.mkdir(parents=True)
    (staging / "part-00000000-0-1.json").write_text('{"record": "d"}')
    assert [letter["record"] for letter in read_dead_letters(str(tmp_path))] == ["a", "b"]
