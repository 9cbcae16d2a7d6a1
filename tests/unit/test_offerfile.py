"""The files for replayed records of dead letters: names, directories and content."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.connectors.deadletters import dead_letters_of
from headwater.connectors.globs import fits
from tests.unit.test_deadletters import put, rows
from tests.unit.test_replaying import BAD, GOOD, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("change", "file", "name", "content"),
    [
        ({"options": {"header": "true"}}, "L1/a.csv", "L1/a-{}.csv", f"id,temperature,ts\n{GOOD}\n"),
        (
            {"options": {"Header": "TRUE", "sep": ";"}, "schema": "id bigint, `a;b` double, ts timestamp"},
            "L1/a.csv",
            "L1/a-{}.csv",
            'id;"a;b";ts\n1;2.5;\n',
        ),
        ({"options": {"lineSep": "|"}}, "L1/a.csv", "L1/a-{}.csv", f"{GOOD}|"),
        ({"options": {"multiLine": "true"}}, "L1/a.csv", "L1/a-{}.csv", f"{GOOD}\n"),
        ({}, "L1/a.csv.gz", "L1/a-{}.csv", f"{GOOD}\n"),
        ({}, "L1/2024/day=1/a", "L1/2024/day=1/a-{}", f"{GOOD}\n"),
        ({}, "L1/.txt", "L1/txt-{}", f"{GOOD}\n"),
        ({"path": "{in}/{location}/*.csv"}, "L1/a.csv", "L1/a-{}.csv", f"{GOOD}\n"),
        ({"path": "{in}/{location}/*-a.csv"}, "L1/x-a.csv", "L1/{}-x-a.csv", f"{GOOD}\n"),
        ({"path": "{in}/{L1,L2}/{a,b}*"}, "L1/b1.csv", "L1/b1-{}.csv", f"{GOOD}\n"),
        ({"path": "{in}/L[0-9]"}, "L1/b1.csv", "L1/b1-{}.csv", f"{GOOD}\n"),
        ({"options": {"pathGlobFilter": "*.log"}}, "L1/a.log", "L1/a-{}.log", f"{GOOD}\n"),
    ],
)
def test_the_new_file_is_as_the_source_reads_it(
    scene: Scene, change: dict[str, Any], file: str, name: str, content: str
) -> None:
    scene = replace(scene, **change)
    (id_,) = scene.malformed(BAD, file=file)
    record = "1;2.5;" if ";" in content else GOOD
    assert scene.one(id_, record).outcome == "replayed", scene.one(id_, record)
    assert scene.new() == {name.format(f"replayed-{id_}"): content.encode()}


@pytest.mark.parametrize(("suffix", "unpack"), [(".gz", gzip.decompress), (".bz2", bz2.decompress)])
def test_it_is_compressed_where_only_such_names_are_read(
    scene: Scene, suffix: str, unpack: Callable[[bytes], bytes]
) -> None:
    scene.path = "{in}/{location}/*" + suffix
    (id_,) = scene.malformed(BAD, file=f"L1/a.csv{suffix}")
    scene.one(id_)
    ((name, data),) = scene.new().items()
    assert name == f"L1/a-replayed-{id_}.csv{suffix}" and unpack(data) == f"{GOOD}\n".encode()


def test_another_encoding(scene: Scene) -> None:
    scene.options = {"encoding": "ISO-8859-1"}
    scene.schema = "id bigint, name string, ts timestamp"
    (id_,) = scene.malformed("x,ü,")
    scene.one(id_, "1,ü,")
    assert list(scene.new().values()) == ["1,ü,\n".encode("latin-1")]


def test_json_of_several_lines(scene: Scene) -> None:
    scene = replace(scene, format="json", options={"multiLine": "true"})
    (id_,) = scene.malformed('{"id": "x"}', file="L1/a.json")
    assert scene.one(id_, '{\n "id": 1}').outcome == "replayed"
    assert scene.new() == {f"L1/a-replayed-{id_}.json": b'{\n "id": 1}\n'}


def test_where_the_old_file_is_unknown_the_sources_directory_takes_it(scene: Scene) -> None:
    put(scene.letters / "u", 0, rows(BAD, location="L1"))
    (letter,) = dead_letters_of(scene.letters)
    assert scene.one(letter.id).target == f"{scene.made}/L1/records-replayed-{letter.id}.csv"


def test_a_long_name_is_cut(scene: Scene) -> None:
    (id_,) = scene.malformed(BAD, file="L1/" + "ü" * 120 + ".csv")
    assert scene.one(id_).outcome == "replayed"


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("/in/a", "/in/*", True),
        ("/in/a/b", "/in/*", False),
        ("/in/a", "/in/?", True),
        ("/in/ab", "/in/?", False),
        ("b", "[^a]", True),
        ("a", "[^a]", False),
        ("/", "[^a]", False),
        ("a-1", "a[-]1", True),
        ("x/c", "{a/b,x/{c,d}}", True),
        ("a*b", "a\\*b", True),
        ("axb", "a\\*b", False),
        ("a{b", "a{b", True),
        ("a[b", "a[b", True),
    ],
)
def test_patterns_are_hadoops(name: str, pattern: str, expected: bool) -> None:
    assert fits(name, pattern) is expected
