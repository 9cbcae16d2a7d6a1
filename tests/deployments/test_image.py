"""The container image of ``deploy/image``: built without a registry, run as its own user with a read-only root."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.channels.credential import TOKEN_ENV, SiteSecret
from headwater.continuum.model import Continuum
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests import missing
from tests.conftest import free_port

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "deploy" / "image"
WHEELS_ENV = "HEADWATER_TEST_WHEELS"
"""A directory with wheels for the image; without it they are made here."""
IMAGE_ENV = "HEADWATER_TEST_IMAGE"
"""An image that was built before, to test that one."""
BUILD_SECONDS = 3000
NAME = "headwater-tested"
CANNOT = ("Could not resolve", "Unable to fetch", "Failed to fetch", "Temporary failure", "Operation not permitted",
          "cannot clone", "no subuid ranges", "error mounting")  # fmt: skip
"""What is said where a machine has no source of Debian packages, or permits no namespaces."""

MOUNTED = """
mount --bind "$1" "$1"
mount --bind "$2" "$1/var/lib/headwater"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mount -o remount,bind,ro "$1"
root=$1; shift 2
exec chroot --userspec=10001:10001 "$root" "$@"
"""
"""Mount an image's files ($1) read-only with a volume ($2), and run a command there as its user."""


def as_root(*command: str) -> list[str]:
    """Return a command for the owner of the images: root, or a user's own root."""
    return [*([] if os.getuid() == 0 else ["buildah", "unshare"]), *command]


def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image; return its name."""
    wheels = Path(os.environ.get(WHEELS_ENV) or tmp_path_factory.mktemp("wheels"))
    if WHEELS_ENV not in os.environ:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels), f"{ROOT}[web,otel]"]
        if (made := subprocess.run(command, capture_output=True, text=True)).returncode:
            missing.skip(f"the wheels cannot be had: {made.stderr[-300:]}")
    done = subprocess.run(
        [str(IMAGE / "build.sh"), str(wheels), NAME], capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    if done.returncode and any(text in done.stderr for text in CANNOT):
        missing.skip(f"this machine cannot build it: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return NAME


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    """Build the image; yield its configuration and its files."""
    for program in ("buildah", "mmdebstrap", "unshare"):
        if shutil.which(program) is None:
            missing.skip(f"no {program}")
    name = os.environ.get(IMAGE_ENV) or built(tmp_path_factory)
    run = subprocess.run(as_root("buildah", "from", "--pull-never", name), capture_output=True, text=True)
    container = run.stdout.strip()
    try:
        told = subprocess.run(["buildah", "inspect", container], capture_output=True, text=True)
        mounted = subprocess.run(as_root("buildah", "mount", container), capture_output=True, text=True)
        assert mounted.returncode == 0, mounted.stderr
        yield json.loads(told.stdout)["Docker"]["config"], Path(mounted.stdout.strip())
    finally:
        subprocess.run(as_root("buildah", "rm", container), capture_output=True)


Inside = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def inside(image: tuple[dict[str, Any], Path], tmp_path: Path) -> Inside:
    """Run a command as the container would: its user, its environment, a read-only root, processes of its own."""
    config, files = image
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(as_root("chown", "10001:10001", str(volume)), check=True)

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = [*config["Env"], *(f"{k}={v}" for k, v in environment.items())]
        shut = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", MOUNTED, "sh"]
        whole = [*shut, str(files), str(volume), "env", "-i", "-C", "/var/lib/headwater", *given, *command]
        return subprocess.run(as_root(*whole), capture_output=True, text=True, timeout=600)

    return run


@pytest.mark.long
def test_the_image_is_for_its_user(image: tuple[dict[str, Any], Path], inside: Inside) -> None:
    config, files = image
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["tini", "--", "headwater"])
    seen = inside("sh", "-c", "id -u; id -g; touch /opt/x 2>&1; touch /var/lib/headwater/x && echo written")
    assert seen.stdout.split("\n")[:2] == ["10001", "10001"], seen.stderr
    assert "Read-only file system" in seen.stdout and "written" in seen.stdout
    listed = (files / "opt/headwater/wheels.sha256").read_text()
    assert "headwater-" in listed and "pyspark-4" in listed
    assert "openjdk-17-jre-headless" in (files / "opt/headwater/packages.txt").read_text()
    assert not list(files.glob("wheels/*")), "the wheels stay out"


@pytest.mark.long
def test_doctor_finds_nothing_missing_in_it(image: tuple[dict[str, Any], Path], inside: Inside) -> None:
    done = inside(*image[0]["Entrypoint"], "doctor", "--json")
    findings = {f["check"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 0, findings
    assert "version 17" in findings["java"]["text"]
    assert [f["state"] for c, f in findings.items() if c in ("extra web", "extra otel", "pyspark")] == ["ok"] * 3


@pytest.mark.long
def test_the_health_check_tells_an_agent_that_answers(image: tuple[dict[str, Any], Path], inside: Inside) -> None:
    check = image[0]["Healthcheck"]["Test"][1:]
    idle = inside(*check)
    assert idle.returncode == 1 and "neither" in idle.stdout, idle.stderr
    agent = f"tini -s -- headwater zone E1 --dir /var/lib/headwater/zone --listen 127.0.0.1:{free_port()}"
    watched = (
        f"{agent} & until headwater-health >/dev/null; do kill -0 $! || exit 9; done; echo healthy; kill -TERM $!; wait"
    )
    token = SiteSecret.parse("a-site-secret-for-the-image", where="test").of("E1").text
    done = inside("sh", "-c", watched, **{TOKEN_ENV: token})
    assert "healthy" in done.stdout and "ending with its units" in done.stdout, done.stdout + done.stderr


FLOW = """
import headwater as hw

def means(f, path):
    read = f.read.json(path, "room string, ts timestamp, celsius double", location_as="location")
    plausible = read.with_watermark("ts", "10 minutes").where("celsius BETWEEN -40 AND 40")
    hours = plausible.to_layer("cloud").group_by(hw.window("ts", "1 hour"), "location", "room")
    found = hours.agg(mean="avg(celsius)", n="count(*)")
    return found.select("unix_timestamp(window.end) AS ends", "location", "room", "mean", "n")

f = hw.flow("rooms", locations=["L1", "L2"])
means(f, "in/{location}").write.parquet("out")
"""
ZONES = """
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
  E2: {layer: edge, parent: C1, locations: [L2]}
"""


@pytest.mark.long
def test_a_dataflow_runs_in_it(
    image: tuple[dict[str, Any], Path], inside: Inside, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    volume, drawn = tmp_path / "volume", random.Random(5)
    (volume / "flow.py").write_text(FLOW)
    (volume / "continuum.yaml").write_text(ZONES)
    for location in ("L1", "L2"):
        (volume / "in" / location).mkdir(parents=True)
        for number in range(3):
            rows = [
                {
                    "room": drawn.choice("abc"),
                    "ts": f"2026-01-01T{number:02}:{minute:02}:00Z",
                    "celsius": drawn.uniform(-50, 50),
                }
                for minute in range(60)
            ]
            file = volume / "in" / location / f"{number}.json"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("run", "flow.py", "-c", "continuum.yaml", "--until-drained", "--quick")
    done = inside(*image[0]["Entrypoint"], *words)
    assert done.returncode == 0, done.stdout + done.stderr
    known: dict[str, Any] = {}
    exec(FLOW, known)
    f = hw.flow("rooms", locations=["L1", "L2"])
    known["means"](f, f"{volume}/in/{{location}}").write.memory("out")
    wanted = batch_result(endpoint.session(), f.build(), Continuum.from_text(ZONES))["out"]
    files = [file for file in (volume / "out").rglob("*.parquet") if file.name[0] not in "._"]
    found = pa.concat_tables(pq.ParquetFile(file).read().select(wanted.column_names) for file in files)
    assert not compare(wanted, found) and wanted.num_rows == 18
    assert all(file.stat().st_uid == 10001 for file in files)
