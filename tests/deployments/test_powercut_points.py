"""Power cuts at any point of a recorded run, and damaged files of its checkpoints.

After a power cut the run goes on to the exact result. Where a file is damaged, it does so too, or the message names the
file.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result
from tests import missing
from tests.powercuts.damage import DAMAGES, KINDS, damage
from tests.powercuts.deployment import CONTINUUM, Deployed
from tests.powercuts.disk import Disk, content_of
from tests.powercuts.matrix import Cut, Outcome, drawn_cuts, go_on, rebuild
from tests.powercuts.writelog import Call, Link, Rename, available, record

_COMMIT = re.compile(r"/commits/\d+$")
_RECORDING = 900.0  # seconds, far beyond the need
REPORT = "HEADWATER_CUTS_REPORT"
"""Variable of the environment: a file that the outcomes are appended to, one JSON object per line."""


@dataclass(frozen=True)
class Recorded:
    """A recorded run: its deployment, all its calls that changed files, and the result of the batch run."""

    deployed: Deployed
    calls: Sequence[Call]
    expected: Mapping[str, pa.Table]

    def outcomes(self, endpoint: LocalEndpoint, cuts: Sequence[Cut]) -> list[Outcome]:
        """Cut the power at each point, and continue from the disk."""
        found = []
        for cut in cuts:
            rebuild(self.deployed, self.calls, cut)
            found.append(go_on(self.deployed, self.expected, endpoint, cut))
            report(found[-1])
        return found

    def outcome_of_damage(self, endpoint: LocalEndpoint, kind: str, how: str, *, seed: int) -> Outcome:
        """End the run behind a commit, damage a file, and continue; an Outcome without the file's name is wrong."""
        rng = random.Random(f"{seed}-{kind}-{how}")
        done = [n + 1 for n, c in enumerate(self.calls) if isinstance(c, Rename) and _COMMIT.search(c.to)]
        cut = Cut(rng.choice(done[4:]) + rng.randrange(60), "ordered", "all", rng.randrange(2**32))
        rebuild(self.deployed, self.calls, cut)
        file = damage(kind, how, self.deployed.disk, rng)
        found = go_on(self.deployed, self.expected, endpoint, cut)
        name = file.name.removeprefix(".").removesuffix(".crc")
        named = found.end != "refused" or (name in found.message and "->" in found.message)
        message = f"{kind} {how} {file.relative_to(self.deployed.disk)}: {found.message}"
        report(found := Outcome(cut, found.end if named else "wrong", message))
        return found


def report(outcome: Outcome) -> None:
    """Write an outcome to the file of the report, if there is to be one."""
    if file := os.environ.get(REPORT):
        with open(file, "a") as out:
            out.write(json.dumps({**vars(outcome.cut), "end": outcome.end, "message": outcome.message}) + "\n")


@pytest.fixture(scope="module")
def recorded(endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Run the deployment once, with a Spark of its own, under the eyes of strace."""
    if not available():
        missing.skip("no strace that may trace")
    directory = tmp_path_factory.mktemp("recorded").resolve()
    deployed = Deployed(directory)
    deployed.disk.mkdir()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.powercuts.deployment", str(directory)]
    calls = record(command, deployed.disk, directory / "strace.log", timeout=_RECORDING, env=environment)
    (directory / "strace.log").unlink()
    for kind in ("ordered", "weakest"):
        # Else the record is not complete.
        assert Disk(kind, calls).content() == content_of(deployed.disk)
    return Recorded(deployed, calls, batch_result(endpoint.session(), deployed.plan.dataflow, CONTINUUM))


@pytest.mark.long
def test_power_cuts_behind_a_publication(recorded: Recorded, endpoint: LocalEndpoint) -> None:
    """Cut it when a batch has just been published, at the edge and at the site, and nothing else survives."""
    rng = random.Random(1)
    cuts = []
    for part, kind in (("run/channels/", "ordered"), ("run/sinks/", "weakest")):
        published = [n + 1 for n, c in enumerate(recorded.calls) if isinstance(c, Link) and c.to.startswith(part)]
        survival = {"ordered": "names", "weakest": "nothing"}[kind]
        cuts.append(Cut(rng.choice(published[1:]), kind, survival, rng.randrange(2**32)))
    outcomes = recorded.outcomes(endpoint, cuts)
    assert [o for o in outcomes if o.end != "exact"] == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
def test_power_cuts_at_any_point(recorded: Recorded, endpoint: LocalEndpoint, seed: int) -> None:
    outcomes = recorded.outcomes(endpoint, drawn_cuts(recorded.calls, 32, seed=seed))
    print(Counter((o.cut.kind, o.end) for o in outcomes))
    assert [o for o in outcomes if o.end != "exact"] == []


@pytest.mark.long
@pytest.mark.parametrize(("kind", "how"), [("number", "flip"), ("state", "empty"), ("state table", "flip")])
def test_damage_is_repaired_or_named(recorded: Recorded, endpoint: LocalEndpoint, kind: str, how: str) -> None:
    assert recorded.outcome_of_damage(endpoint, kind, how, seed=1).end != "wrong"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_all_damage_is_repaired_or_named(recorded: Recorded, endpoint: LocalEndpoint, kind: str, seed: int) -> None:
    outcomes = [recorded.outcome_of_damage(endpoint, kind, how, seed=seed) for how in DAMAGES]
    assert [o for o in outcomes if o.end == "wrong"] == []
