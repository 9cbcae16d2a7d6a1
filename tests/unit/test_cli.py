"""The command line without Spark: plans, JSON, errors and exit codes; and the detector of the demo."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.app import Screen, app
from headwater.core.errors import DataflowError, ErrorList, PlacementError
from headwater.core.jsonform import dump
from headwater.core.metrics import LinkProgress, Progress, UnitProgress
from headwater.core.quantity import parse_heap
from headwater.demo.flow import PERSISTENCE, WARM_UP, watch
from headwater.render import deployment
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
ACME = [str(ROOT / "examples/acme/flow.py"), "-c", str(ROOT / "examples/acme/continuum.yaml")]
TINY = """
import headwater as hw
f = hw.flow("tiny", locations=["{place}"])
f.read.csv("in/{{location}}", "id int, v double").where("v > 1").{mark}write.memory("out")
"""
PROGRESS = Progress(
    seconds=75.0,
    units=(
        UnitProgress(
            unit="a@E1",
            zone="E1",
            layer="edge",
            status="running",
            waits="no Kafka broker",
            rows_in=12_345,
            dead_letters=2,
            late_rows=3,
            idle=("L1", "L2"),
        ),
        UnitProgress(unit="b@C1", zone="C1", layer="cloud", status="failed", lag=7, error="it broke"),
    ),
    links=(LinkProgress(link="E1-C1", rows=10, bytes=2048),),
)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def tiny(directory: Path, *, place: str = "L1", mark: str = "") -> list[str]:
    (directory / "flow.py").write_text(TINY.format(place=place, mark=mark))
    return [str(directory / "flow.py"), "-c", ACME[2]]


def test_plan_shows_zones_units_and_links() -> None:
    code, out, err = invoke("plan", *ACME)
    assert code == 0, err
    for text in (
        "alarms@S1 on s1a or s1b",
        "top_machine_list@C1 on vm1",
        "E5-S2 4Mbit/s 10ms",
        "means: window struct",
    ):
        assert text in out
    assert err == ""


def test_plan_as_json_is_nothing_but_json() -> None:
    code, out, err = invoke("plan", *ACME, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["dataflow"] == "acme"
    assert set(data["links"]) == {"E1-S1", "E2-S1", "E3-S1", "E4-S2", "E5-S2", "S1-C1", "S2-C1"}


def test_plan_shapes() -> None:
    _, one, _ = invoke("plan", *ACME, "--json", "--one-unit")
    _, every, _ = invoke("plan", *ACME, "--json", "--unit-per-operator")
    assert json.loads(one)["links"] == {}
    assert len(json.loads(every)["units"]) > 10
    assert invoke("plan", *ACME, "--one-unit", "--unit-per-operator")[0] == 2


def test_errors_have_place_hint_and_code(tmp_path: Path) -> None:
    code, out, err = invoke("plan", *tiny(tmp_path, place="L9"))
    assert (code, out) == (4, "")
    assert err.startswith("error: no zone covers location L9")
    assert "  at dataflow 'tiny'" in err
    assert "  -> there are L1, L2, L3, L4, L5" in err
    assert "Traceback" not in err


def test_every_member_of_a_list_is_shown(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "name: x\nlayers: [edge]\nzones: {A: {layer: edg, hosts: {h: {}}}, B: {layer: sky, hosts: {i: {}}}}\n"
    )
    code, _, err = invoke("plan", tiny(tmp_path)[0], "-c", str(tmp_path / "c.yaml"))
    assert code == 3
    assert err.count("error: ") >= 2


def test_an_error_in_the_flow_file_shows_its_line(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("import headwater as hw\nhw.flow('x').read.csv('in')\n")
    code, _, err = invoke("run", str(tmp_path / "flow.py"), "-c", ACME[2])
    assert code == 3
    assert f"{tmp_path / 'flow.py'}:2" in err.replace("\n", "")
    assert "service.py" not in err


def test_wrong_options_are_refused_before_spark(tmp_path: Path) -> None:
    flow = tiny(tmp_path)
    assert invoke("run", *flow, "--memory", "lots")[0] == 3
    assert invoke("run", *flow, "--trigger", "soon")[0] == 3
    assert invoke("run", *flow, "--when-full", "explode")[0] == 2
    assert invoke("plan", flow[0])[0] == 2
    assert invoke("deadletters", "--dir", str(tmp_path))[0] == 6
    assert invoke("demo", "--nab", str(tmp_path / "x.csv"))[0] == 2


def test_the_demo_misses_its_files_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headwater.spark.endpoint.LocalEndpoint.start", lambda *a, **k: pytest.fail("Spark was started")
    )
    (there := tmp_path / "there.csv").touch()
    for nab, labels in (("x.csv", there), (there, "x.json")):
        code, _, err = invoke("demo", "--nab", str(nab), "--labels", str(labels))
        assert code != 0 and "the file does not exist" in err and "x." in err


def test_exit_code_of_a_list_is_its_first_members() -> None:
    assert ErrorList([PlacementError("a"), DataflowError("b")]).exit_code == 4
    assert ErrorList([]).exit_code == 1


@pytest.mark.parametrize(("text", "wanted"), [("1g", 1024), ("512m", 512), ("2GiB", 2048)])
def test_memory_in_both_spellings(text: str, wanted: int) -> None:
    assert parse_heap(text) == wanted


def test_progress_as_table_line_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    console = Console(width=120, record=True)
    with console.capture() as captured:
        console.print(deployment.progress_view(PROGRESS, title="acme"))
    shown = captured.get()
    for text in (
        "acme  01:15",
        "12,345",
        "failed",
        "2KiB",
        "b@C1: it broke",
        "a@E1 waits: no Kafka broker",
        "a@E1: L1, L2 idle, left out of its event time",
    ):
        assert text in shown
    line = deployment.progress_line(PROGRESS)
    assert line.startswith("01:15 units: 1 running, 1 failed; rows read 12,345; lag 7; dead letters 2; late 3")
    with Screen("acme", as_json=True) as screen:
        screen.show(PROGRESS)
    assert json.loads(capsys.readouterr().out) == dump(PROGRESS)


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen("acme", as_json=False) as screen:
        for second in range(12):
            screen.show(Progress(seconds=float(second), units=PROGRESS.units))
    assert len(capsys.readouterr().out.splitlines()) == 3  # at 0, 5 and 10 s


def processor_seconds(*arguments: str) -> float:
    """Return the least CPU time, in seconds, of three runs of a Python process; discard its output."""
    best = math.inf
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_help_is_quick_and_documents_exit_codes() -> None:
    help_ = ("-c", "from headwater.cli import main; main()", "--help")
    shown = subprocess.run([sys.executable, *help_], capture_output=True, text=True, timeout=60, check=True)
    assert "Exit codes" in shown.stdout
    assert processor_seconds(*help_) < processor_seconds("-c", "import pyspark.sql, pandas")
    assert heavy_modules("headwater.cli") == []


def test_a_controller_starts_without_spark_and_pandas() -> None:
    assert heavy_modules("headwater.cli.control, headwater.control.controller, headwater.agent.agents") == []


def heavy_modules(imported: str) -> list[str]:
    """Return the heavy modules that importing modules loads."""
    told = f"import sys, {imported}; print(*(m for m in ('pyspark', 'pandas') if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return loaded.stdout.split()


def test_version() -> None:
    import headwater

    for asked in ("version", "--version"):
        assert invoke(asked) == (0, f"{headwater.__version__}\n", "")


def readings(values: list[float]) -> list[dict[str, object]]:
    return [{"location": "L1", "machine": "m", "ts": n, "mean": v} for n, v in enumerate(values)]


def test_the_detector_needs_persistence_and_recovers() -> None:
    normal = [90.0 + (n % 5) for n in range(4 * WARM_UP)]
    state, flagged = None, []
    values = [*normal, 20.0, *normal[:20], *[20.0] * (PERSISTENCE + 2), *normal]
    for row in readings(values):
        state, alarm = watch(state, row)
        state = json.loads(json.dumps(state))
        if alarm:
            flagged.append(alarm["ts"])
    begun = len(normal) + 1 + 20
    assert flagged == [begun + PERSISTENCE - 1, begun + PERSISTENCE, begun + PERSISTENCE + 1]
