"""The shell's completions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.app import loading
from headwater.cli import complete
from headwater.cli.app import app
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.names import names
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.placement import STRATEGIES
from headwater.placement.forecast import FORECASTS
from headwater.placement.schedule import SCHEDULERS
from headwater.plan.build import build

ROOT = Path(__file__).parents[2]
FLOW = """
import headwater as hw
f = hw.flow("{name}", locations=["L1", "L4"])
rows = f.read.csv("in/{{location}}", "id int, v double", location_as="location")
low = rows.where("v > 1").named("{name}_low").to_layer("site")
low.where("v > 2").named("{name}_high").write.memory("out")
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a store with two deployments whose plans are active."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    place = resolved_url(None)
    opened = Store(place)
    assert opened.hold("test", 60)
    for name in ("tiny", "tall"):
        (tmp_path / f"{name}.py").write_text(FLOW.format(name=name))
        loaded = loading.load_dataflow(f"{name}.py").dataflow
        opened.want(name, "run", build(loaded, Continuum.from_yaml(ROOT / "tests/unit/acme.yaml")))
        begin(opened, name)
    opened.close()
    return place


def begin(store: Store, name: str) -> None:
    """Make a plan active, as the controller does at the beginning of a change."""
    from sqlalchemy import update

    desired = store.desired(name)
    with store._writing() as connection:
        connection.execute(
            update(tables.deployments).where(tables.deployments.c.name == name).values(active_plan=desired.plan)
        )


def completed(line: str) -> list[str]:
    """Return bash's completions at the end of a line."""
    words = line.split(" ")
    result = CliRunner().invoke(
        app,
        [],
        prog_name="headwater",
        env={
            "_HEADWATER_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    assert result.stderr == ""
    return result.stdout.split()


def test_names_come_from_the_store(store: str) -> None:
    assert completed("headwater status t") == ["tall", "tiny"]
    assert completed("headwater history ti") == ["tiny"]
    assert completed("headwater move tiny_low") == ["tiny_low", "tiny_low@E1", "tiny_low@E4"]
    assert completed("headwater move x --to ") == ["cloud", "edge", "site"]
    assert completed("headwater move x --to edge --at ") == ["L1", "L4"]
    assert completed("headwater move --of tall tall_low") == ["tall_low", "tall_low@E1", "tall_low@E4"]
    assert completed("headwater split --of tiny tiny_low@") == ["tiny_low@E1", "tiny_low@E4"]
    assert completed("headwater zone S") == ["S1", "S2"]
    assert completed("headwater explain t") == ["tall", "tiny", "tall.py", "tiny.py"]


def test_the_store_that_the_line_names_is_asked(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert completed("headwater status t") == []
    assert completed(f"headwater status --store {tmp_path / store} ti") == ["tiny"]
    monkeypatch.setenv(STORE, str(tmp_path / store))
    assert completed("headwater status ta") == ["tall"]


def test_what_cannot_be_read_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names("deployments", "none.db") == [] and not Path("none.db").exists()
    Path("text.db").write_text("this is no database, " * 100)
    assert names("deployments", "text.db") == []
    assert names("zones", "mysql://a:b@c/d") == []
    assert names("zones", "postgresql://nobody@127.0.0.1:1/x") == []
    assert completed("headwater status --store text.db t") == []


def test_strategies_are_those_there_are() -> None:
    assert set(complete.STRATEGIES) == {"annotated", *STRATEGIES}
    assert set(complete.SCHEDULERS) == set(SCHEDULERS)
    assert set(complete.FORECASTS) == set(FORECASTS)
    assert completed("headwater plan f.py --strategy aels_") == ["aels_rp_la", "aels_rp"]
    assert completed("headwater simulate --strategy tsoo_h,at") == ["tsoo_h,atsoo_h"]
    assert completed("headwater simulate --forecast h") == ["holt_winters"]


def test_a_completion_is_installable_and_light() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "--install-completion" in shown and "--show-completion" in shown
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, headwater.control.names; "
            "print([m for m in ('pyspark', 'pandas', 'numpy', 'networkx') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
