"""Cuts of the power at drawn points of a recorded run, and their outcomes when the run goes on from the disk."""

from __future__ import annotations

import math
import random
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from headwater.core.errors import HeadwaterError
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import compare
from tests.patience import PATIENCE
from tests.powercuts.deployment import Deployed
from tests.powercuts.disk import SURVIVALS, Disk, Kind
from tests.powercuts.writelog import Call

_DRAFT = re.compile(r"(?<![^/])\.([^/]+)\.[0-9a-f]{32}")  # the name of a file that is being written


@dataclass(frozen=True)
class Cut:
    """A power cut before the call of a number, on a kind of disk; ``survival`` names a Survival."""

    before: int
    kind: Kind
    survival: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """The end of a run after a cut: ``exact`` results, ``refused`` with a message, or ``wrong``."""

    cut: Cut
    end: Literal["exact", "refused", "wrong"]
    message: str = ""


def drawn_cuts(calls: Sequence[Call], count: int, *, seed: int) -> list[Cut]:
    """Draw cuts: every kind of disk and survival in turn, and parts of the directory by the root of their calls."""
    rng = random.Random(seed)
    parts: dict[str, list[int]] = {}
    for n, call in enumerate(calls):
        whole = _DRAFT.sub(r"\1", call.path or "")
        parts.setdefault("/".join(whole.split("/")[:3]), []).append(n + 1)
    ways = [(kind, survival) for survival in SURVIVALS for kind in get_args(Kind)]
    found = []
    for n in range(count):
        kind, survival = ways[n % len(ways)]
        (part,) = rng.choices(sorted(parts), [math.sqrt(len(parts[part])) for part in sorted(parts)])
        found.append(Cut(rng.choice(parts[part]), kind, survival, rng.randrange(2**32)))
    return found


def rebuild(deployed: Deployed, calls: Sequence[Call], cut: Cut) -> None:
    """Make the deployment's directory as a cut leaves it."""
    shutil.rmtree(deployed.disk, ignore_errors=True)
    deployed.disk.mkdir()
    disk = Disk(cut.kind, calls[: cut.before])
    disk.cut_power(SURVIVALS[cut.survival], random.Random(cut.seed), deployed.disk)


def go_on(deployed: Deployed, expected: Mapping[str, pa.Table], endpoint: LocalEndpoint, cut: Cut) -> Outcome:
    """Continue the run to its end from its directory, and compare the sinks with the batch run."""
    expired = threading.Event()
    timer = threading.Timer(PATIENCE, expired.set)
    timer.start()
    try:
        deployment = deployed.start(endpoint)
        try:
            deployment.drain(stop=expired)
            found = deployed.results(deployment)
        finally:
            deployment.stop()
    except HeadwaterError as error:
        return Outcome(cut, "refused", str(error))
    finally:
        timer.cancel()
    if expired.is_set():
        return Outcome(cut, "wrong", f"no end within {PATIENCE:.0f} s")
    # A sink without rows is read back without columns.
    got = {
        sink: found[sink] if found[sink].num_rows else table.schema.empty_table() for sink, table in expected.items()
    }
    differences = {sink: compare(table, got[sink]) for sink, table in expected.items()}
    told = "; ".join(
        f"{sink}: lost {d.lost}, too many {d.duplicated}: {d.examples}" for sink, d in differences.items() if d
    )
    return Outcome(cut, "wrong" if told else "exact", told)
