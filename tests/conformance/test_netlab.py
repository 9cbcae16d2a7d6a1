"""Compare the settings of the network lab's links with the real kernel's traffic between zones."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.netlab import Lab, ProcessorShares, namespaces
from benchmarks.netlab.check import CONTINUUM, Probe, measure
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError, Unavailable
from tests.conformance import labs


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.running(CONTINUUM, "test") as made:
        yield made
    mine = [zone.namespace for zone in made.topology.zones.values()]
    assert not set(mine) & set(namespaces.existing())


def ping(lab: Lab, start: str, end: str) -> bool:
    """Return whether a connection from one zone to another's address is answered at all (here: refused)."""
    code = "import socket,sys; s=socket.socket(); s.settimeout(1); sys.exit(s.connect_ex((sys.argv[1], 9)))"
    process = lab.popen(start, [sys.executable, "-I", "-c", code, lab.address(end)])
    return process.wait(15) == 111  # connection refused: the packet went there and back


def test_bandwidth_and_delay_are_as_asked(lab: Lab) -> None:
    before = lab.crossed("E1")
    (found,) = measure(lab, [(20e6, 0.02)], seconds=1.0)
    after = lab.crossed("E1")
    assert 0.04 <= found.got_round_trip < 0.08
    assert 10e6 < found.got_bandwidth < 22e6
    assert after.up - before.up > 1_000_000 > after.down - before.down > 1_000
    lab.set_link("E1", bandwidth=None, delay=0.0)


def test_zones_reach_each_other_and_a_cut_link_swallows_everything(lab: Lab) -> None:
    assert ping(lab, "E1", "C1") and ping(lab, "C1", "E1")
    lab.cut("S1")
    assert ping(lab, "E1", "S1")
    assert not ping(lab, "E1", "C1")
    lab.mend("S1")
    assert ping(lab, "E1", "C1")


def test_a_connection_outlives_a_change_of_its_links(lab: Lab) -> None:
    probe = Probe(lab, "C1", "E1")
    script = Path(__file__).parents[2] / "benchmarks" / "netlab" / "probe.py"
    argv = [sys.executable, "-I", str(script), "trips", lab.address("C1"), "7001", "100"]
    lab.set_link("S1", delay=0.005)
    client = lab.popen("E1", argv, stdout=subprocess.PIPE, text=True)
    lab.set_link("E1", delay=0.005)
    out, _ = client.communicate(timeout=30)
    trips = [float(line) for line in out.split()]
    assert len(trips) == 100 and sorted(trips)[50] < 0.1 and sorted(trips)[-10] >= 0.02
    lab.set_links(delay=0.0)
    probe.close()


def test_hidden_directories_are_empty_inside_and_untouched_outside(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other zone"
    other.mkdir()
    (other / "secret").write_text("x")
    argv = [sys.executable, "-c", "import os, sys; print(os.listdir(sys.argv[1]))", str(other)]
    process = lab.popen("S1", argv, hide=[other], stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=15)[0].strip() == "[]"
    assert (other / "secret").read_text() == "x"


def test_processes_end_with_the_lab() -> None:
    try:
        made = Lab(Continuum.from_text(CONTINUUM), name=f"{os.getpid()}-ends")
        made.start()
    except HeadwaterError as reason:
        pytest.skip(str(reason))
    # It ignores SIGTERM, and its child does not stay in its group.
    script = "trap '' TERM; setsid sleep 600 & echo $!; sleep 600"
    process = made.popen("E1", ["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = process.stdout.readline().strip()
    assert namespaces.alive(int(child))
    made.stop(patience=0.5)
    assert not namespaces.alive(int(child))
    assert process.poll() is not None
    assert not [z for z in made.topology.zones.values() if z.namespace in namespaces.existing()]


BUSY = "import time\nwhile time.process_time() < 0.6: pass"


def test_a_host_uses_no_more_processor_time_than_its_share(lab: Lab) -> None:
    with contextlib.ExitStack() as opened:
        try:
            shares = opened.enter_context(ProcessorShares(f"{os.getpid()}-test", {"E1": 1, "C1": 3}))
        except Unavailable as reason:
            pytest.skip(str(reason))
        assert shares.limit(0.8) == {"E1": pytest.approx(0.2), "C1": pytest.approx(0.6)}
        begun = time.monotonic()
        limited = _busy(lab, shares, "E1")
        limited.wait(120)
        # 0.6 s at a fifth of a core are 3 s; the shares of the first and last period may be used at once.
        assert time.monotonic() - begun > 2.5
        used = shares.used()
        assert used["E1"] > 0.5 and used["C1"] == 0.0
        shares.limit(None)
        _busy(lab, shares, "C1").wait(120)
        assert shares.used()["C1"] > 0.5 and shares.used()["E1"] == used["E1"]
    assert not any(entrance.exists() for zone in ("E1", "C1") for entrance in shares.entrances(zone))


def _busy(lab: Lab, shares: ProcessorShares, zone: str) -> subprocess.Popen[str]:
    return lab.popen(zone, [sys.executable, "-I", "-c", BUSY], join=shares.entrances(zone))
