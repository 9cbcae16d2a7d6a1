"""`headwater doctor`: each check with its condition met and broken, and the command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.app import doctor, hostchecks
from headwater.app.hostchecks import Finding
from headwater.channels.filelog import FileLog
from headwater.channels.logserver import LogServer
from headwater.channels.wire import PROTOCOL
from headwater.cli.app import app
from headwater.continuum.model import Continuum
from headwater.spark import endpoint
from headwater.spark.home import spark_home
from tests.conftest import SITE, SITE_TEXT, free_port
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CONTINUUM = """
name: z
layers: [edge, cloud]
zones:
  C1: {{layer: cloud}}
  E1: {{layer: edge, parent: C1, locations: [a], at: "127.0.0.1:{port}"}}
"""


def broken(finding: Finding, state: str = "missing") -> str:
    """Return the text and the next step of a finding with this state."""
    assert finding.state == state, finding
    assert finding.hint
    return f"{finding.text} -> {finding.hint}"


def fine(finding: Finding) -> str:
    assert finding.state == "ok", finding
    return finding.text


def test_java(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "version" in fine(hostchecks.java())
    monkeypatch.setattr(endpoint, "JAVA", 99)
    said = broken(hostchecks.java())
    assert "no Java 99 or newer" in said and "openjdk" in said


def test_pyspark_of_another_version_or_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "version 4.3" in fine(hostchecks.pyspark())
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert "without grpc" in broken(hostchecks.pyspark())
    monkeypatch.undo()
    monkeypatch.setattr("pyspark.__version__", "4.1.2")
    assert "version 4.1.2, and Headwater needs 4.3" in broken(hostchecks.pyspark())
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "pip install" in broken(hostchecks.pyspark())


def test_the_version_of_spark_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    major, minor = hostchecks.SPARK
    assert f"pyspark[connect]>={major}.{minor},<{major}.{minor + 1}" in project["dependencies"]
    assert set(project["optional-dependencies"]) - {"bench", "docs", "dev"} == set(hostchecks.EXTRAS)


def test_memory() -> None:
    assert "free" in fine(hostchecks.memory(8 << 30))
    assert "profile: small" in broken(hostchecks.memory(1 << 30), "warning")
    assert "container" in broken(hostchecks.memory(100 << 20))


def test_cores_within_a_quota(tmp_path: Path) -> None:
    group = tmp_path / "cgroups" / "box"
    group.mkdir(parents=True)
    proc = tmp_path / "proc" / str(os.getpid())
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/box\n")
    (group / "cpu.max").write_text("50000 100000")
    places = {"proc": tmp_path / "proc", "cgroups": tmp_path / "cgroups"}
    assert "a cgroup permits 0.5" in broken(hostchecks.cores(os.getpid(), **places), "warning")
    (group / "cpu.max").write_text("max 100000")
    fine(hostchecks.cores(os.getpid(), **places))


def test_disk(tmp_path: Path) -> None:
    there = tmp_path / "not" / "yet"
    assert str(tmp_path) in fine(hostchecks.disk(there, 100 << 30))
    assert "--max-buffer" in broken(hostchecks.disk(there, 1 << 30), "warning")
    assert "another disk" in broken(hostchecks.disk(there, 1 << 20))
    assert not there.exists()


def test_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(hostchecks.temporary_space())
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert "TMPDIR" in broken(hostchecks.temporary_space())


def test_inodes(tmp_path: Path) -> None:
    there = tmp_path / "not" / "yet"
    fine(hostchecks.inodes(there))
    assert f"5,000 free in {tmp_path}" in broken(hostchecks.inodes(there, 5000), "warning")
    assert "small files" in broken(hostchecks.inodes(there, 7))


def test_shared_memory(tmp_path: Path) -> None:
    assert str(tmp_path) in fine(hostchecks.shared_memory(tmp_path, 1 << 30))
    assert "tmpfs of 64 MiB" in broken(hostchecks.shared_memory(tmp_path, 1 << 20), "warning")
    assert "No such file" in broken(hostchecks.shared_memory(tmp_path / "none"), "warning")


def test_programs_in_temporary_files(tmp_path: Path) -> None:
    fine(hostchecks.temporary_programs(tmp_path))
    code = f"from headwater.app import hostchecks as h; print(h.temporary_programs(h.Path({str(tmp_path)!r})))"
    mounted = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o noexec none {tmp_path} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("this machine permits no mounts")
    done = subprocess.run([*mounted, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "state='warning'" in done.stdout and "noexec" in done.stdout, done.stderr


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fine(hostchecks.home_directory())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    assert "No such file or directory -> set HOME" in broken(hostchecks.home_directory())


def test_ports() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = broken(hostchecks.port("an agent", taken.getsockname()[1]), "warning")
    assert "--listen" in said
    fine(hostchecks.port("Spark", 0))
    assert "loopback" in broken(hostchecks.port("Spark", 0, host="203.0.113.1"))


def test_clock() -> None:
    fine(hostchecks.clock(synchronized=True))
    assert "NTP" in broken(hostchecks.clock(synchronized=False), "warning")
    assert "1970-01-01" in broken(hostchecks.clock(0.0))


def test_class_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADWATER_CLASS_ARCHIVE", raising=False)
    assert "headwater.spark.training" in broken(hostchecks.class_archive(), "optional")
    found = spark_home(tmp_path, endpoint.find_java(), Path(endpoint_package()))
    found.archive.touch()
    assert fine(hostchecks.class_archive()) == str(found.archive)
    monkeypatch.setenv("HEADWATER_CLASS_ARCHIVE", "off")
    assert "unset" in broken(hostchecks.class_archive(), "optional")
    monkeypatch.setattr(endpoint, "JAVA", 99)
    assert "install Java" in broken(hostchecks.class_archive(), "optional")


def endpoint_package() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    fine(hostchecks.extra("web"))
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert "without nicegui -> pip install 'headwater[web]'" in broken(hostchecks.extra("web"), "optional")


def test_token(tmp_path: Path) -> None:
    assert "headwater token" in broken(hostchecks.token({}), "optional")
    assert "too weak" in broken(hostchecks.token({"HEADWATER_TOKEN": "secret"}))
    file = tmp_path / "token"
    environment = {"HEADWATER_TOKEN_FILE": str(file)}
    assert "cannot read" in broken(hostchecks.token(environment))
    file.write_text(SITE_TEXT)
    file.chmod(0o644)
    assert "chmod 600" in broken(hostchecks.token(environment), "warning")
    file.chmod(0o600)
    assert fine(hostchecks.token(environment)) == f"site secret from {file}"
    file.write_text(SITE.of("E1").text)
    assert "credential of an agent" in fine(hostchecks.token(environment))


def test_authority(tmp_path: Path) -> None:
    assert "HEADWATER_CA" in broken(hostchecks.authority({}), "optional")
    (tmp_path / "ca.pem").write_text("no certificate")
    assert "PEM" in broken(hostchecks.authority({"HEADWATER_CA": str(tmp_path / "ca.pem")}))
    trustme = pytest.importorskip("trustme")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    fine(hostchecks.authority({"HEADWATER_CA": str(tmp_path / "ca.pem")}))


def test_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_TOKEN", SITE_TEXT)

    def answer(body: dict[str, object]) -> dict[str, object]:
        return {"protocol": PROTOCOL, "node": "E1", "version": "1.2.3", "time": time.time() + 3600}

    server = LogServer("127.0.0.1:0", credential=SITE.of("E1"), find=FileLog, actions={"hello": answer})
    try:
        there = Continuum.from_text(CONTINUUM.format(port=server.port))
        cloud, edge, ahead = doctor.agents(there.nodes, tmp_path)
        assert fine(edge).endswith("version 1.2.3")
        assert "ahead of" in broken(ahead, "warning")
        assert "headwater up" in broken(cloud, "optional")
    finally:
        server.shutdown()
    gone = Continuum.from_text(CONTINUUM.format(port=free_port()))
    _, edge = doctor.agents(gone.nodes, tmp_path)
    assert "no answer from E1" in broken(edge)
    assert list(tmp_path.iterdir()) == []


def test_clocks_of_two_hosts() -> None:
    assert "0.250 s ahead of this host's, to within 0.500 s" in fine(
        hostchecks.clock_difference("E1", 10.75, 10.0, 11.0)
    )
    assert "NTP" in broken(hostchecks.clock_difference("E1", 8.0, 10.0, 10.2), "warning")
    fine(hostchecks.clock_difference("E1", 9.5, 10.0, 14.0))  # the answer took too long to tell


# ---------------------------------------------------------------- the command


def test_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_TOKEN", raising=False)
    monkeypatch.delenv("HEADWATER_TOKEN_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.stdout
    assert "ok       java: version" in result.stdout
    Path("c.yaml").write_text(CONTINUUM.format(port=free_port()))
    result = CliRunner().invoke(app, ["doctor", "-c", "c.yaml", "--json"])
    assert result.exit_code == 7
    findings = json.loads(result.stdout)
    assert [f["check"] for f in findings if f["state"] == "missing"] == ["agent E1"]
    assert all(f["hint"] for f in findings if f["state"] != "ok")


def test_it_needs_no_pyspark() -> None:
    """It runs on a host where the installation is not complete."""
    code = "import sys; sys.modules['pyspark'] = sys.modules['grpc'] = None; from headwater.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--json"], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
    )
    assert done.returncode == 7, done.stderr
    assert {f["check"] for f in json.loads(done.stdout) if f["state"] == "missing"} == {"pyspark"}
