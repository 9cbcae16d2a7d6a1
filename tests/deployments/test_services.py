"""Agents and a controller as services of systemd with all their hardening: exact under kills and restarts.

systemd is the first process of a container (``systemd-nspawn``) whose disk is this machine's, with a layer above it.
The guide's steps are taken there: docs/guides/service.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests import missing
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""Headwater's Python: one in a home directory is hidden from services."""
INSTALL_SECONDS = 1800
PIECE, PIECES = 10, 6
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
STORE = "/var/lib/headwater/up/headwater.db"

MACHINE = r"""
set -e
place=$1 root=$1/root
mount --make-rprivate /
mount -t tmpfs -o size=6G tmpfs "$place"
mkdir "$place/up" "$place/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/up,workdir=$place/work" "$root"
rm -rf "$root"/etc/systemd/system/*.wants
mkdir -p "$root/src" "$root/data/in"
cp -r "$2/headwater" "$2/deploy" "$2/pyproject.toml" "$2/README.md" "$root/src"
[ ! -e "$2/LICENSE" ] || cp "$2/LICENSE" "$root/src"
mount --bind /dev "$root/dev"
mount --bind /proc "$root/proc"
chroot "$root" /usr/bin/python3 -m venv /opt/headwater
chroot "$root" /opt/headwater/bin/pip install --quiet '/src[web]'
umount "$root/dev" "$root/proc"
chroot "$root" sh -ec '
cd /src/deploy/systemd
install -m 644 sysusers.conf /usr/lib/sysusers.d/headwater.conf
systemd-sysusers
install -d -m 755 /etc/headwater
install -d -o headwater /data/out
umask 077
cd /etc/headwater
/opt/headwater/bin/headwater token --new > site-secret
for zone in E1 C1; do
    HEADWATER_TOKEN_FILE=site-secret /opt/headwater/bin/headwater token $zone > $zone.token
done
umask 022
cp /src/deploy/systemd/headwater-*.service /etc/systemd/system
cp /src/deploy/systemd/up.env .
for zone in E1:7070 C1:7071; do
    printf "LISTEN=127.0.0.1:${zone#*:}\nOPTIONS=--allow-read /data/in --allow-write /data/out\n" > ${zone%:*}.env
    install -d /etc/systemd/system/headwater-zone@${zone%:*}.service.d
    printf "[Service]\nReadWritePaths=/data/out\n" > /etc/systemd/system/headwater-zone@${zone%:*}.service.d/out.conf
done
'
cp "$3/plant.yaml" "$root/etc/headwater"
cp "$3/flow.py" "$root/data"
exec systemd-nspawn --quiet --directory "$root" --boot --register=no --keep-unit --private-network \
    --machine "$4" --link-journal=no --console=pipe systemd.unit=multi-user.target < /dev/null
"""
CONTINUUM = """
name: plant
layers: [edge, cloud]
zones:
  C1: {layer: cloud, at: "127.0.0.1:7071", hosts: {c1: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], at: "127.0.0.1:7070", hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""
FLOW = """
import headwater as hw

f = hw.flow("plant", locations=["L1"])
rows = f.read.json("/data/in/{location}", "id bigint, v double")
rows.where("v > 0").to_layer("cloud").write.json("/data/out/big").named("big")
"""


class Machine:
    """A container that systemd has booted."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.root = Path(f"/proc/{first}/root")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in it; return its output."""
        enter = ["nsenter", "-t", str(self._first), "-m", "-u", "-i", "-n", "-p", "-C", "--", "env", "-i", PATH]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def headwater(self, *arguments: str) -> str:
        """Run a command of Headwater as the user of the services."""
        user = ("runuser", "-u", "headwater", "--", "env", "HOME=/var/lib/headwater", "/opt/headwater/bin/headwater")
        return self.run(*user, *arguments)

    def receive(self, files: list[Path]) -> None:
        """Put files into the input directory, each whole at once."""
        into = self.root / "data" / "in" / "L1"
        into.mkdir(exist_ok=True)
        for file in files:
            if not (into / file.name).exists():
                os.replace(shutil.copy(file, into / f".{file.name}"), into / file.name)

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of the sink."""
        files = sorted((self.root / "data" / "out" / "big").glob("*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.getuid() != 0 or shutil.which("systemd-nspawn") is None or not Path(PYTHON).exists():
        missing.skip(f"needs root, systemd-nspawn and {PYTHON}")
    name, given, place = f"hw{os.getpid()}", tmp_path / "given", tmp_path / "machine"
    given.mkdir()
    place.mkdir()
    (given / "plant.yaml").write_text(CONTINUUM)
    (given / "flow.py").write_text(FLOW)
    log = tmp_path / "machine.log"
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc"]
    with log.open("w") as said:
        started = subprocess.Popen(
            [*apart, "sh", "-c", MACHINE, "sh", str(place), str(ROOT), str(given), name],
            stdout=said, stderr=said, env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip
        try:
            yield Machine(_first(started, log))
        finally:
            for child in psutil.Process(started.pid).children(recursive=True) if started.poll() is None else ():
                child.kill()
            started.kill()
            started.wait(PATIENCE)


def _first(started: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until systemd, the first process of the container, has booted; return its id."""
    deadline = time.monotonic() + INSTALL_SECONDS
    while time.monotonic() < deadline:
        if started.poll() is not None:
            missing.skip(f"this machine boots no container: {log.read_text()[-500:]}")
        for one in psutil.Process(started.pid).children(recursive=True):
            try:
                is_first = one.cmdline()[:1] == ["/usr/lib/systemd/systemd"]
                if is_first and Machine(one.pid).run("systemctl", "is-system-running", check=False) == "running\n":
                    return one.pid
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.5)
    raise AssertionError(log.read_text())


@pytest.mark.long
@pytest.mark.timeout(INSTALL_SECONDS + 20 * 60)
def test_services_run_a_dataflow_through_kills_and_restarts(
    machine: Machine, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    rows = [{"id": n, "v": float(n % 10 - 3)} for n in range(PIECE * PIECES)]
    source = BoundedSource(tmp_path / "in", {"L1": rows}, rows_per_file=PIECE)
    released = iter(source.release())
    wanted = [row for row in rows if row["v"] > 0]

    def more() -> None:
        """Release a piece, and wait until its rows are in the sink."""
        next(released)
        files = sorted((tmp_path / "in" / "L1").glob("*.json"))
        machine.receive(files)
        count = len(files)
        due = sum(row["id"] < count * PIECE for row in wanted)
        deadline = time.monotonic() + 2 * PATIENCE
        while len(machine.rows()) < due:
            assert time.monotonic() < deadline, machine.run("journalctl", "--no-pager", "-n", "60", check=False)
            time.sleep(0.5)

    zones, controller = ("headwater-zone@E1", "headwater-zone@C1"), "headwater-up"
    machine.run("systemctl", "start", *zones, controller)
    machine.headwater("apply", "/data/flow.py", "-c", "/etc/headwater/plant.yaml", "--store", STORE, "--yes")
    more()
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", zones[0])
    more()
    assert machine.run("systemctl", "show", "-p", "NRestarts", zones[0]).strip() == "NRestarts=1"
    spark = machine.run("pgrep", "-f", "java.*/var/lib/headwater/E1/").split()
    machine.run("kill", "-9", *spark)
    more()
    machine.run("systemctl", "restart", zones[1], controller)
    more()
    machine.run("systemctl", "stop", *zones, controller)
    assert not machine.run("pgrep", "-f", "java.*/var/lib/headwater/E1/", check=False)
    machine.run("systemctl", "start", *zones, controller)
    more()
    more()
    assert not machine.run("systemctl", "list-units", "--failed", "--no-legend", "headwater*")
    assert "signin?token" not in machine.run("journalctl", "--no-pager", "-u", controller)
    builder = hw.flow("plant", locations=["L1"])
    builder.read.json(source.path, "id bigint, v double").where("v > 0").write.memory("big")
    whole = batch_result(endpoint.session(), builder.build(), Continuum.from_text(CONTINUUM))["big"]
    assert not compare(whole, pa.Table.from_pylist(machine.rows(), whole.schema))
