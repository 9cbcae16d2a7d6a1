"""The class-data archive: trained by real queries, mapped by real servers, ignored where it does not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.home import SparkHome

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHome]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        subprocess.run([sys.executable, "-m", "headwater.spark.training"], check=True)
        (found,) = (cache / "headwater/spark").iterdir()
        yield SparkHome(found, shared=True)


def mapped(endpoint: LocalEndpoint, archive: Path) -> list[Any]:
    return [part for part in psutil.Process(endpoint.pid).memory_maps(grouped=False) if part.path == str(archive)]


def test_servers_map_the_archive_and_share_its_pages(home: SparkHome, tmp_path: Path) -> None:
    assert home.archive.stat().st_size > 50 << 20
    first = LocalEndpoint.start(tmp_path / "a", cores=1)
    second = LocalEndpoint.start(tmp_path / "b", cores=1, quick=True)
    try:
        for one in (first, second):
            assert one.session().range(10).count() == 10
            assert mapped(one, home.archive)
        shared = sum(part.shared_clean for part in mapped(first, home.archive))
        assert shared > 10 << 20, "pages that are moved in memory are not shared"
    finally:
        first.stop()
        second.stop()


def test_a_broken_archive_is_ignored(home: SparkHome, tmp_path: Path) -> None:
    data = home.archive.read_bytes()
    for broken in (b"", b"\0" * len(data), data[: len(data) // 2]):
        home.archive.unlink()  # a server may have mapped it
        home.archive.write_bytes(broken)
        one = LocalEndpoint.start(tmp_path / f"{len(broken)}", cores=1)
        try:
            assert one.session().range(10).count() == 10
            assert not mapped(one, home.archive)
        finally:
            one.stop()
    assert not home.archive.exists(), "Java dies of half an archive; it is removed"
    assert list(tmp_path.glob("*/java-crash-*.log")), "not in the working directory"
