"""Operators' costs and output rates, measured on a real Spark."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headwater as hw
from headwater.cli import app
from headwater.core.errors import RuntimeFailure
from headwater.plan.profile import Profile
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.profiling import cpu_seconds, profile

SCHEMA = "machine string, ts timestamp, celsius double"
ROWS = 20_000


def sampled(path: Path, rows: int = ROWS) -> Path:
    """Write rows of ten machines, ten a second; a quarter of them below zero."""
    path.mkdir(parents=True, exist_ok=True)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    lines = [
        f"m{n % 10},{(begin + timedelta(seconds=n / 10)).isoformat()},{-5 if n % 4 == 0 else n % 90}"
        for n in range(rows)
    ]
    (path / "a.csv").write_text("\n".join(lines) + "\n")
    return path


def plant(path: str) -> hw.Dataflow:
    f = hw.flow("plant", locations=["L1"])
    readings = f.read.csv(path, SCHEMA, location_as="location").named("readings")
    valid = readings.where("celsius >= 0").named("valid")
    slow = valid.map_batches(slowly, f"{SCHEMA}, location string").named("slow")
    late = slow.with_watermark("ts", "1 minute").named("late")
    means = late.group_by(hw.window("ts", "1 minute"), "machine").agg(n="count(*)").named("means")
    means.write.json(f"{path}-out").named("out")
    return f.build()


def slowly(batches):  # type: ignore[no-untyped-def]
    for batch in batches:
        total = 0
        for n in range(1000 * batch.num_rows):
            total += n
        yield batch


def test_costs_selectivities_and_state_are_measured(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    path = sampled(tmp_path / "in")
    found = profile(endpoint.session(), plant(str(path)), {"readings": {"L1": str(path)}}, tmp_path / "work", repeats=1)
    figures = found.operators
    assert found.rates["readings"]["*"] == pytest.approx(10, rel=0.01)
    assert figures["valid"].selectivity == pytest.approx(0.75)
    assert figures["slow"].selectivity == 1.0
    windows = ROWS / 10 / 60
    assert figures["means"].selectivity == pytest.approx(windows * 10 / (0.75 * ROWS), rel=0.05)
    assert figures["means"].state_bytes > 0 == figures["valid"].state_bytes
    # A loop of 1,000 turns per row in Python takes longer than a filter under any other load of the machine.
    assert figures["slow"].cpu_s > 1e-6
    assert figures["slow"].cpu_s > figures["late"].cpu_s
    assert 1 < (figures["valid"].bytes_out or 0) < 100
    shares = figures["valid"].columns or {}
    assert set(shares) == {"machine", "ts", "celsius", "location"}
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) > 0
    assert set(figures["means"].columns or {}) == {"window", "machine", "n"}
    assert Profile.from_json(found.to_json()) == found


def test_what_locations_repeat_of_each_other_is_measured(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    drawn = random.Random(5)
    words = [drawn.randbytes(40).hex() for _ in range(60)]
    for location in ("L1", "L2"):
        (tmp_path / location).mkdir()
        lines = [f"{drawn.choice(words)},{n}" for n in range(1_500)]
        (tmp_path / location / "a.csv").write_text("\n".join(lines) + "\n")
    f = hw.flow("words", locations=["L1", "L2"])
    read = f.read.csv(f"{tmp_path}/{{location}}", "word string, n bigint", location_as="location").named("read")
    read.select("word").named("bare").write.memory("out")
    sample = {"read": {location: str(tmp_path / location) for location in ("L1", "L2")}}
    found = profile(endpoint.session(), f.build(), sample, tmp_path / "work", repeats=1).operators
    share = found["read"].repeated
    assert share is not None and 0.1 < share < 0.99
    assert found["bare"].repeated is None, "no column tells the locations apart"
    alone = profile(endpoint.session(), f.build(), {"read": {"L1": sample["read"]["L1"]}}, tmp_path / "one", repeats=1)
    assert alone.operators["read"].repeated is None


def test_what_has_no_sample_is_said(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    path = sampled(tmp_path / "in", 10)
    with pytest.raises(RuntimeFailure, match="source 'readings' has no sample"):
        profile(endpoint.session(), plant(str(path)), {}, tmp_path / "work")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RuntimeFailure, match="has no rows"):
        profile(endpoint.session(), plant(str(path)), {"readings": {"L1": str(empty)}}, tmp_path / "work")


def test_processor_time_is_that_of_spark(endpoint: LocalEndpoint) -> None:
    before = cpu_seconds()
    assert endpoint.session().range(2_000_000).selectExpr("sum(id * 7 % 13)").collect()
    assert cpu_seconds() > before > 0


FLOW = f'''
import headwater as hw
f = hw.flow("plant", locations=["L1"])
readings = f.read.csv("nowhere/{{location}}", "{SCHEMA}").named("readings")
readings.where("celsius >= 0").named("valid").write.json("out").named("out")
'''


@pytest.mark.long
def test_the_command_writes_a_profile_that_plans_take(tmp_path: Path) -> None:
    sampled(tmp_path / "in" / "L1", 2_000)
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "plant.yaml").write_text("name: p\nlayers: [edge]\nzones:\n  E1: {layer: edge, locations: [L1]}\n")
    flow, out = str(tmp_path / "flow.py"), tmp_path / "profile.json"
    sample = f"{tmp_path}/in/{{location}}"
    shown = CliRunner().invoke(
        app, ["profile", flow, "--sample", sample, "--rate", "readings=50", "--repeats", "1", "-o", str(out)]
    )
    assert shown.exit_code == 0, shown.output
    assert json.loads(out.read_text())["rates"] == {"readings": {"*": 50.0}}
    assert Profile.from_json(out.read_text()).operators["valid"].selectivity == 0.75
    planned = CliRunner().invoke(
        app,
        ["plan", flow, "-c", str(tmp_path / "plant.yaml"), "--strategy", "optimal", "--profile", str(out)],
    )
    assert planned.exit_code == 0, planned.output
    assert "assumed" not in planned.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sample", "other=x"], "there is no source 'other'"),
        (["--rate", "readings=fast"], "write SOURCE=NUMBER"),
        (["--rate", "other=1"], "a source of the dataflow"),
    ],
)
def test_wrong_options_are_said(tmp_path: Path, options: list[str], said: str) -> None:
    sampled(tmp_path / "nowhere" / "L1", 10)
    (tmp_path / "flow.py").write_text(FLOW)
    shown = CliRunner().invoke(app, ["profile", str(tmp_path / "flow.py"), *options])
    assert shown.exit_code == 2
    assert said in " ".join(shown.output.replace("│", " ").split())
