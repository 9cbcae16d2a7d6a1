"""Attacks on a zone's files by a dataflow that runs: no row of a forbidden file becomes visible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.connectors.deadletters import read_dead_letters
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint

ZONES = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
TOKEN = "the-token-of-all-agents"


def reading(source: str, **options: str) -> DeploymentPlan:
    builder = hw.flow("attack", locations=["L1"])
    builder.read.csv(source, "id bigint, v double", **options).write.memory("out")
    return build(builder.build(), ZONES)


def test_a_link_that_appears_later_reveals_nothing(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path.resolve()
    (place / "in").mkdir()
    (place / "in/a.csv").write_text("1,0.5\n")
    run = LocalRun(reading(f"{place}/in"), place / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    run.start()
    try:
        run.settle()
        assert run.sink_rows("out").to_pylist() == [{"id": 1, "v": 0.5}]
        secret = place / "run/token"  # in a directory of Headwater's own
        secret.write_text(f"{TOKEN}\n7,7.5\n")
        os.symlink(secret, place / "in/b.csv")
        with pytest.raises(HeadwaterError, match="of Headwater's own"):
            run.settle()
    finally:
        run.stop()
    assert run.sink_rows("out").to_pylist() == [{"id": 1, "v": 0.5}], "no row of it"
    assert not list(read_dead_letters(run.layout.all_dead_letters)), "nor the token as a dead letter"
