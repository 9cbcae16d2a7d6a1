"""The Spark of a small host: its jars, its settings, and the memory that a process finds."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from headwater.spark import endpoint as endpoint_module
from headwater.spark.endpoint import PROPERTIES, LocalEndpoint
from headwater.spark.memory import memory_free, memory_total
from headwater.spark.smallhost import HEAP_MB, is_used

_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of the constants of a class file, by their kind; texts (1) have a length."""
_UTF8, _CLASS, _LONG, _DOUBLE = 1, 7, 5, 6

_NOT_OF_UNITS = (
    "jersey-",  # the user interface, which is off
    "jjwt-",
    "zookeeper-",  # a standalone master's election
    "curator-",
    "spark-graphx_",  # LDA and power iteration, which are no models of `predict`
)


def referenced(data: bytes) -> Iterator[str]:
    """Yield the classes that a class file names."""
    texts, classes = {}, []
    at, number = 10, 1
    while number < struct.unpack_from(">H", data, 8)[0]:
        kind, at = data[at], at + 1
        if kind == _UTF8:
            (length,) = struct.unpack_from(">H", data, at)
            texts[number] = data[at + 2 : at + 2 + length].decode("latin-1")
            at += 2 + length
        else:
            if kind == _CLASS:
                classes.append(struct.unpack_from(">H", data, at)[0])
            at += _SIZES[kind]
        number += 2 if kind in (_LONG, _DOUBLE) else 1
    return (texts[one] for one in classes)


def test_the_jars_that_a_small_spark_leaves_out_are_named_by_no_class_of_spark_that_units_use() -> None:
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    owners: dict[str, str] = {}
    for jar in sorted(jars, key=lambda j: is_used(j.name)):
        with zipfile.ZipFile(jar) as opened:
            owners |= {name.removesuffix(".class"): jar.name for name in opened.namelist() if name.endswith(".class")}
    found: dict[str, str] = {}
    for jar in [j for j in jars if j.name.startswith("spark-") and is_used(j.name)]:
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if name.endswith(".class"):
                    for one in referenced(opened.read(name)):
                        owner = owners.get(one)
                        if owner is not None and not is_used(owner) and not owner.startswith(_NOT_OF_UNITS):
                            found[f"{jar.name}: {name}"] = owner
    assert found == {}
    assert len(jars) > 250 and sum(not is_used(jar.name) for jar in jars) > 100


class _SeenStart(Exception):
    pass


@pytest.mark.parametrize(
    ("small", "heap", "reserved"), [(True, HEAP_MB, 80 << 20), (False, 400, 200 << 20), (False, 512, None)]
)
def test_a_heap_below_spark_s_least_is_accepted(
    small: bool, heap: int, reserved: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def spawn(arguments: list[str], environment: dict[str, str], directory: Path, *, own_session: bool) -> None:
        seen["conf"] = dict(line.split("=", 1) for line in (directory / PROPERTIES).read_text().splitlines())
        seen["options"] = next(b for a, b in pairwise(arguments) if a == "--conf")
        seen["environment"] = environment
        raise _SeenStart

    monkeypatch.setattr(endpoint_module, "_spawn", spawn)
    with pytest.raises(_SeenStart):
        LocalEndpoint.start(tmp_path, memory_mb=heap, small=small, extra_conf={"spark.ui.retainedJobs": "7"})
    assert seen["conf"].get("spark.testing.reservedMemory") == (None if reserved is None else str(reserved))
    assert ("-XX:MaxMetaspaceSize=" in seen["options"]) == small
    assert ("MALLOC_ARENA_MAX" in seen["environment"]) == small
    assert seen["conf"]["spark.ui.retainedJobs"] == "7", "a zone's own settings win"


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("0::/a/b", {"a/memory.max": "3000", "a/memory.current": "1000", "a/b/memory.max": "max"}),
        ("7:memory:/a", {"memory/a/memory.limit_in_bytes": "3000", "memory/a/memory.usage_in_bytes": "1000"}),
    ],
)
def test_memory_is_that_within_the_limits_of_cgroups(version: str, files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    (tmp_path / "cgroup").write_text(f"3:cpuset:/\n{version}\n")
    assert memory_free(proc=tmp_path, cgroups=tmp_path / "groups") == 2000
    assert memory_total(proc=tmp_path, cgroups=tmp_path / "groups") == 3000
    (tmp_path / "cgroup").write_text("3:cpuset:/\n")
    free = memory_free(proc=tmp_path, cgroups=tmp_path / "groups")
    assert 2000 < free <= psutil.virtual_memory().total
    assert memory_total(proc=tmp_path, cgroups=tmp_path / "groups") == psutil.virtual_memory().total
