"""Files of ``deploy/``: units of systemd."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import reference
from tests import missing
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = ("headwater-zone@.service", "headwater-up.service")
ENVIRONMENTS = {"headwater-zone@.service": "E1.env", "headwater-up.service": "up.env"}
PROGRAM = "/opt/headwater/bin/headwater"
EXPOSURE = 20
"""Tenths of the points that `systemd-analyze security` may give: 100 is a service without any hardening."""


def settings(unit: str) -> list[tuple[str, str]]:
    lines = (SYSTEMD / unit).read_text().splitlines()
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines if re.match(r"\w+=", line)]


def value(unit: str, key: str) -> str:
    return next(v for k, v in settings(unit) if k == key)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        missing.skip("no systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=PATIENCE)


def installed(unit: str, directory: Path) -> Path:
    """Write a unit whose program is one of this machine, since it has to exist."""
    file = directory / unit
    file.write_text((SYSTEMD / unit).read_text().replace(PROGRAM, sys.executable))
    return file


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_reads_the_unit(unit: str, tmp_path: Path) -> None:
    file = installed(unit, tmp_path)
    done = analyze("verify", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(file.read_text().replace("ProtectProc=invisible", "ProtectProcs=invisible"))
    assert "'ProtectProcs'" in analyze("verify", str(file)).stderr


@pytest.mark.parametrize("unit", UNITS)
def test_its_exposure_is_small(unit: str, tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(installed(unit, tmp_path)))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_its_command_is_such_as_there_is(unit: str) -> None:
    variables = dict(
        line.split("=", 1)
        for line in (SYSTEMD / ENVIRONMENTS[unit]).read_text().splitlines()
        if "=" in line and line[0] != "#"
    )
    given = value(unit, "ExecStart").replace("%i", "E1").replace("%S", "/var/lib")
    for name, text in variables.items():
        given = given.replace(f"${{{name}}}", text).replace(f"${name}", text)
    program, name, *words = shlex.split(given)
    assert program == PROGRAM and "$" not in given
    command, context = {path: (c, x) for path, c, x in reference.command_line()}[(name,)]
    with command.make_context(name, words, parent=context.parent) as made:
        assert made.params["directory" if name == "zone" else "home"].parts[:4] == ("/", "var", "lib", "headwater")


@pytest.mark.parametrize("unit", UNITS)
def test_no_secret_is_in_a_unit_or_its_environment(unit: str) -> None:
    assert ("Environment", "HEADWATER_TOKEN_FILE=%d/token") in settings(unit)
    assert value(unit, "LoadCredential").startswith("token:/etc/headwater/")
    for file in (SYSTEMD / unit, SYSTEMD / ENVIRONMENTS[unit]):
        assert not re.search(r"HEADWATER_(TOKEN|SECRET_\w+|OWNER_TOKEN)=", file.read_text())


def test_a_spark_may_outlive_its_agent() -> None:
    """Signals go to the agent alone, and nothing that a Spark needs is removed with the agent."""
    unit = "headwater-zone@.service"
    assert value(unit, "KillMode") == "process" and value(unit, "OOMPolicy") == "continue"
    kept = value(unit, "StateDirectory").split()
    for key in ("TMPDIR=", "HOME="):
        place = next(v for k, v in settings(unit) if k == "Environment" and v.startswith(key))
        assert place.partition("%S/")[2] in kept


def test_the_guide_tells_every_option() -> None:
    guide = (ROOT / "docs" / "guides" / "service.md").read_text()
    for unit in UNITS:
        text = (SYSTEMD / unit).read_text()
        hardening = text[text.index("# Hardening") : text.index("[Install]")]
        for key in re.findall(r"^(\w+)=", hardening, re.MULTILINE):
            assert f"`{key}`" in guide, key
