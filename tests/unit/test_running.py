"""Loading and planning as the command line and the server call them; no test starts Spark."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app import loading, running
from headwater.app.client import Client, PlanRequest, Shape
from headwater.connectors.filewriter import FileSinkWriter
from headwater.continuum.model import Continuum
from headwater.continuum.sparksettings import SparkSettings
from headwater.control.store import Store
from headwater.core.errors import (
    ChannelError,
    ContinuumError,
    DataflowError,
    DeploymentError,
    ErrorList,
    HeadwaterError,
)
from headwater.dataflow.graph import Dataflow
from headwater.disk.layout import writer_name
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from tests.formeroutput import settled

ONE_ZONE = "name: one\nlayers: [cloud]\nzones:\n  C1: {layer: cloud, locations: [L1]}\n"
TINY = """
import headwater as hw
f = hw.flow("tiny", locations=["L1"])
f.read.csv("in/{location}", "id int, v double").where("v > 1").write.memory("out")
"""
SCAN = """
import headwater as hw
from words import step
f = hw.flow("counted", locations=["L1"])
rows = f.read.csv("in/{location}", "id int, ts timestamp").with_watermark("ts", "1 minute")
rows.scan(step, "id int, n int", keys=["id"], order_by="ts", initial=0).write.memory("out")
"""
STEP = "def step(state, row):\n    return state + 1, {'id': row['id'], 'n': state + 1}\n"


def written(directory: Path, text: str, name: str = "flow.py") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def test_loads_the_only_builder(tmp_path: Path) -> None:
    loaded = loading.load_dataflow(written(tmp_path, TINY))
    assert loaded.dataflow.name == "tiny"
    assert loaded.directory == tmp_path.resolve()
    assert loaded.is_code


def test_an_alias_is_not_a_second_dataflow(tmp_path: Path) -> None:
    assert loading.load_dataflow(written(tmp_path, TINY + "same = f\n")).dataflow.name == "tiny"


def test_loads_a_built_dataflow_and_what_build_returns(tmp_path: Path) -> None:
    built = loading.load_dataflow(written(tmp_path, TINY + "g = f.build()\ndel f\n"))
    text = TINY.replace("\nf", "\n    f").replace("\n    f = ", "\ndef build():\n    f = ") + "    return f\n"
    assert loading.load_dataflow(written(tmp_path, text, "b.py")).dataflow == built.dataflow


def test_two_dataflows_need_a_name(tmp_path: Path) -> None:
    file = written(tmp_path, TINY + "g = hw.flow('other')\n")
    with pytest.raises(DataflowError, match="2 dataflows: f, g") as caught:
        loading.load_dataflow(file)
    assert caught.value.hint == f"name one: {file}:f"
    assert loading.load_dataflow(f"{file}:f").dataflow.name == "tiny"
    with pytest.raises(DataflowError, match="there is no 'h'"):
        loading.load_dataflow(f"{file}:h")


def test_neighbours_are_importable_and_forgotten(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        written(directory, STEP.replace("+ 1", f"+ {number}"), "words.py")
        written(directory, SCAN)
    before = list(sys.path)
    first, second = (loading.load_dataflow(str(tmp_path / n / "flow.py")).dataflow for n in "12")
    assert first.keys["out"] != second.keys["out"]
    assert sys.path == before
    assert "words" not in sys.modules


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("import headwater as hw\n\nx = 1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import headwater as hw\nif True\n", 2, "not Python"),
        ("import nowhere_to_be_found\n", 1, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        (TINY.replace("v > 1", "w > 1"), 4, "there is no column 'w'"),
    ],
)
def test_errors_in_the_file_name_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(HeadwaterError) as caught:
        loading.load_dataflow(file)
    assert what in caught.value.what
    assert f"{file}:{line}" in str(caught.value.where)
    assert caught.value.hint


def test_an_error_in_build_is_a_list_with_hints(tmp_path: Path) -> None:
    with pytest.raises(ErrorList) as caught:
        loading.load_dataflow(written(tmp_path, TINY.replace('["L1"]', '["L1", "L1"]')))
    (error,) = caught.value.errors
    assert error.what == "location L1 is named twice" and error.hint


@pytest.mark.parametrize("reference", ["nowhere.py", "nowhere.json", "nowhere.py:f"])
def test_no_such_file(reference: str) -> None:
    with pytest.raises(DataflowError, match="no such file"):
        loading.load_dataflow(reference)


def test_a_file_without_dataflow(tmp_path: Path) -> None:
    with pytest.raises(DataflowError, match="no dataflow in the file"):
        loading.load_dataflow(written(tmp_path, "x = 1\n"))
    with pytest.raises(DataflowError, match="returns int, not a dataflow"):
        loading.load_dataflow(written(tmp_path, "def build():\n    return 1\n"))
    with pytest.raises(DataflowError, match="neither Python nor JSON"):
        loading.load_dataflow(written(tmp_path, "", "flow.txt"))


def test_json_is_the_same_dataflow(tmp_path: Path) -> None:
    dataflow = loading.load_dataflow(written(tmp_path, TINY)).dataflow
    loaded = loading.load_dataflow(written(tmp_path, dataflow.to_json(), "flow.json"))
    assert loaded.dataflow == dataflow
    assert not loaded.is_code
    loading.check_trust(loaded, trust_code=False)


def test_pickled_code_needs_trust(tmp_path: Path) -> None:
    written(tmp_path, STEP, "words.py")
    own = loading.load_dataflow(written(tmp_path, SCAN))
    loading.check_trust(own, trust_code=False)
    foreign = loading.load_dataflow(written(tmp_path, own.dataflow.to_json(), "flow.json"))
    with pytest.raises(DataflowError, match="pickled Python code") as caught:
        loading.check_trust(foreign, trust_code=False)
    assert "--trust-code" in str(caught.value.hint)
    loading.check_trust(foreign, trust_code=True)


def test_bad_json_names_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "{", "flow.json")
    with pytest.raises(DataflowError) as caught:
        loading.load_dataflow(file)
    assert file in str(caught.value.where)


def test_shapes_of_a_plan(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    dataflow = loading.load_dataflow(str(root / "examples/acme/flow.py")).dataflow
    continuum = Continuum.from_yaml(root / "examples/acme/continuum.yaml")
    shapes: tuple[Shape, ...] = ("annotated", "one-unit", "unit-per-operator")
    marked, one, every = (
        Client(str(tmp_path / "none.db")).propose(PlanRequest(dataflow=dataflow, continuum=continuum, shape=shape)).plan
        for shape in shapes
    )
    assert {u.zone for u in one.units} == {"C1"}
    assert len(one.units) < len(marked.units) < len(every.units)


def test_the_demo_has_the_continuum_of_the_example() -> None:
    from headwater.demo.flow import CONTINUUM, LOCATIONS

    root = Path(__file__).parents[2]
    assert CONTINUUM.read_text() == (root / "examples/acme/continuum.yaml").read_text()
    assert Continuum.from_yaml(CONTINUUM).locations == LOCATIONS


@pytest.mark.parametrize("name", ["frequent", "profitable"])
def test_the_taxi_example_plans(name: str) -> None:
    taxi = Path(__file__).parents[2] / "examples/taxi"
    dataflow = loading.load_dataflow(f"{taxi / 'flow.py'}:{name}").dataflow
    assert isinstance(dataflow, Dataflow)
    assert len(build(dataflow, Continuum.from_yaml(taxi / "continuum.yaml")).units) == 2


def test_only_one_run_in_a_directory(tmp_path: Path) -> None:
    with (
        running._only_one(tmp_path),
        pytest.raises(DeploymentError, match=f"process {os.getpid()}"),
        running._only_one(tmp_path),
    ):
        pass


def test_fresh_deletes_only_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "channels").mkdir()
    running._clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DeploymentError, match=r"thesis\.tex"):
        running._clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def _written_before(tmp_path: Path) -> tuple[DeploymentPlan, Path, str]:
    """Plan a file sink whose directory has two rows of another run and an unrelated file."""
    builder = hw.flow("f", locations=["L1"])
    builder.read.csv("in/{location}", "id int").write.json("out/{zone}").named("out")
    plan = build(builder.build(), Continuum.from_text(ONE_ZONE))
    (unit,) = plan.units
    name, out = writer_name(plan.tags["out"], unit), tmp_path / "out/C1"
    _write(out, name, "1", 0, 1, 2)
    (out / f"{name}-part-notes.json").write_text("")
    return plan, out, name


def _write(out: Path, name: str, lineage: str, batch: int, *ids: int) -> None:
    writer = FileSinkWriter({"path": out, "name": name, "format": "json", "lineage": lineage}, 0)
    task = writer.open()
    task.write(pa.record_batch({"id": list(ids)}))
    writer.commit([s] if (s := task.close()) else [], batch)


def _ids(out: Path) -> list[int]:
    return sorted(json.loads(line)["id"] for file in out.glob("*.json") for line in file.read_text().splitlines())


def test_a_sink_with_output_of_another_run_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalEndpoint, "start", lambda *args, **options: pytest.fail("Spark was started"))
    plan, out, name = _written_before(tmp_path)
    for fresh in (False, True):
        settings = running.RunSettings(directory=tmp_path / "state", fresh=fresh)
        with pytest.raises(DeploymentError, match="'out' holds 2 rows of another run") as refused:
            running.run(plan, settings)
        assert refused.value.where == str(out)
        assert "--append" in str(refused.value.hint) and "--overwrite" in str(refused.value.hint)
    os.rename(out / ".headwater" / name, out / ".headwater" / "another-dataflow")
    with pytest.raises(DeploymentError, match="'out' holds 2 rows of another run"):
        running.run(plan, running.RunSettings(directory=tmp_path / "state"))
    assert _ids(out) == [1, 2]


def test_appended_output_is_whole_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan, out, name = _written_before(tmp_path)
    for lineage, first in (("2", 3), ("3", 5)):
        settled(plan, "append")
        for batch in (0, 0, 1, 1):
            _write(out, name, lineage, batch, first + batch)
    assert _ids(out) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DeploymentError, match="'out' holds 6 rows of another run"):
        settled(plan, "refuse")
    with pytest.raises(ChannelError, match="output of another run"):
        _write(out, name, "2", 2, 7)


def test_overwriting_removes_what_was_written_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan, out, name = _written_before(tmp_path)
    settled(plan, "append")
    _write(out, name, "2", 0, 3)
    for other in ("part-00000000-0-0.json", f"{name}x-part-00000000-0-0.json", f"{name}-part-00000000-0-0.json.bak"):
        (out / other).write_text("")
    others = {p.name for p in out.iterdir() if p.stat().st_size == 0}
    settled(plan, "overwrite")
    assert {p.name for p in out.iterdir()} == others | {".headwater"}
    assert len(others) == 4
    settled(plan, "refuse")
    _write(out, name, "3", 0, 4)
    assert _ids(out) == [4]


def test_a_run_that_goes_on_does_not_overwrite_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalEndpoint, "start", lambda *args, **options: pytest.fail("Spark was started"))
    plan, out, _ = _written_before(tmp_path)
    (tmp_path / "state").mkdir()
    with closing(Store(tmp_path / "state/run.db")) as store:
        store.adopt(plan, finished=False)
    with pytest.raises(DeploymentError, match="--overwrite would remove the rows of the run that goes on") as refused:
        running.run(plan, running.RunSettings(directory=tmp_path / "state", former_output="overwrite"))
    assert "--fresh" in str(refused.value.hint)
    assert _ids(out) == [1, 2]


def test_a_run_that_was_refused_at_its_first_start_may_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalEndpoint, "start", lambda *args, **options: pytest.fail("Spark was started"))
    plan, out, _ = _written_before(tmp_path)
    (tmp_path / "state").mkdir()
    with closing(Store(tmp_path / "state/run.db")) as store:
        store.want(plan.dataflow.name, "run", plan)  # refused before any unit began
    with pytest.raises(DeploymentError, match="'out' holds 2 rows of another run"):
        running.run(plan, running.RunSettings(directory=tmp_path / "state"))
    with pytest.raises(pytest.fail.Exception, match="Spark was started"):
        running.run(plan, running.RunSettings(directory=tmp_path / "state", former_output="overwrite"))
    assert _ids(out) == [1, 2]  # removed by the first step, not before Spark starts


def test_the_spark_of_a_run_has_drivers_packages_and_settings() -> None:
    builder = hw.flow("f", locations=["L1"])
    builder.read.csv("in/{location}", "id int").write.jdbc("jdbc:postgresql://h/d", "t")
    zone = "{layer: %s, spark: {packages: ['org.postgresql:postgresql:1', 'a:b:1'], conf: {spark.x: %s}}%s}"
    lower, upper = zone % ("edge", "1", ", parent: C1, locations: [L1]"), zone % ("cloud", "2", "")
    text = f"layers: [edge, cloud]\nzones:\n  C1: {upper}\n  E1: {lower}\n"
    plan = build(builder.build(), Continuum.from_text(text))
    with pytest.raises(ContinuumError, match=r"zones C1 and E1 give spark\.x different values"):
        running.spark_settings(plan, SparkSettings())
    given = SparkSettings.of_options("a:b:2, c:d:1", ["spark.x=3", "spark.y=a=b"])
    found = running.spark_settings(plan, given)
    assert found.packages == ("org.postgresql:postgresql:1", "a:b:2", "c:d:1")
    assert found.conf == (("spark.x", "3"), ("spark.y", "a=b"))
    alone = build(plan.dataflow, Continuum.from_text(ONE_ZONE))
    (driver,) = running.spark_settings(alone, SparkSettings()).packages
    assert driver.startswith("org.postgresql:postgresql:42")


@pytest.mark.parametrize(
    ("packages", "conf", "what"),
    [
        ("postgresql", [], "'postgresql' is no package"),
        ("", ["spark.x"], "'spark.x' has no value"),
        ("", ["x=1"], "'x' is no setting of Spark"),
        ("", ["spark.jars.packages=a:b:1"], "spark.jars.packages is set by Headwater"),
        ("", ["spark.x=a\nb"], "the value of spark.x has a line break"),
    ],
)
def test_wrong_packages_and_settings_of_spark_are_refused(packages: str, conf: list[str], what: str) -> None:
    with pytest.raises(ContinuumError, match=what) as refused:
        SparkSettings.of_options(packages, conf)
    assert refused.value.where in ("--packages", "--conf") and refused.value.hint


def test_what_needs_no_spark_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalEndpoint, "start", lambda *args, **options: pytest.fail("Spark was started"))
    monkeypatch.delenv("HEADWATER_SECRET_UNSET", raising=False)
    (tmp_path / "file").write_text("")
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.csv("file", "id int")
    builder.read.csv("file/{location}", "id int").union(rows).write.json("file/out").named("out")
    rows.write.kafka("b:9092", "t", user_env="HEADWATER_SECRET_UNSET", password_env="HEADWATER_SECRET_UNSET").named(
        "log"
    )
    plan = build(builder.build(), Continuum.from_text(ONE_ZONE))
    with pytest.raises(ErrorList) as refused:
        running.run(plan, running.RunSettings(directory=tmp_path / "state"))
    said = str(refused.value)
    for text in (
        f"'{tmp_path / 'file'}' is a file",
        f"there is no '{tmp_path / 'file/L1'}', and '{tmp_path / 'file'}' is not a directory",
        "operator 'out' (write_files): files cannot be written",
        "the environment variable HEADWATER_SECRET_UNSET is not set",
    ):
        assert text in said

    endless = hw.flow("g", locations=["L1"])
    endless.read.rate(1).write.json("out").named("out")
    plan = build(endless.build(), Continuum.from_text(ONE_ZONE))
    settings = running.RunSettings(directory=tmp_path / "state", until_drained=True)
    with pytest.raises(DeploymentError, match="rate never ends"):
        running.run(plan, settings)

    with closing(Store(tmp_path / "state/run.db")) as store:
        store.adopt(plan, finished=True)
    with pytest.raises(DeploymentError, match="this deployment has finished"):
        running.run(plan, replace(settings, until_drained=False))


def test_the_only_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeploymentError, match="no deployment"):
        running.only_deployment()
    for name in ("a", "b"):
        (tmp_path / ".headwater" / name).mkdir(parents=True)
        (tmp_path / ".headwater" / name / "plan.json").write_text("{}")
        if name == "a":
            assert running.only_deployment() == Path(".headwater/a")
    with pytest.raises(DeploymentError, match="2 deployments: a, b"):
        running.only_deployment()


def test_an_edit_of_the_same_size_in_the_same_second_is_seen(tmp_path: Path) -> None:
    file, beside = tmp_path / "flow.py", tmp_path / "beside.py"
    text = (
        "import headwater as hw\nfrom beside import LEAST\nf = hw.flow('x')\n"
        "rows = f.read.csv('in', 'v int').where(f'v > {LEAST} AND v > 1')\nrows.write.memory('out')\n"
    )
    keys = set()
    for number, (own, other) in enumerate((("v > 1", "1"), ("v > 2", "1"), ("v > 2", "2"))):
        file.write_text(text.replace("v > 1", own))
        beside.write_text(f"LEAST = {other}\n")
        for path in (file, beside):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        keys.add(loading.load_dataflow(str(file)).dataflow.keys["out"])
        assert len(keys) == number + 1


@pytest.mark.parametrize(
    ("pattern", "format_", "mebibytes", "short"),
    [
        ("in/{location}", "csv", 1, True),
        ("in/{location}", "csv", 40, False),
        ("in/*/*.csv", "csv", 40, False),
        ("nowhere", "json", 1, True),
        ("s3a://bucket/in", "parquet", 1, False),
    ],
)
def test_a_run_over_little_input_starts_quickly(
    pattern: str, format_: str, mebibytes: int, short: bool, tmp_path: Path
) -> None:
    (tmp_path / "in" / "L1" / "part").mkdir(parents=True)
    with (tmp_path / "in" / "L1" / "part" / "a.csv").open("wb") as file:
        file.truncate(mebibytes * 2**20)
    (tmp_path / "in" / "L1" / "b.csv").touch()
    if "*" in pattern:
        (tmp_path / "in" / "L1" / "part" / "a.csv").rename(tmp_path / "in" / "L1" / "b.csv")
    builder = hw.flow("f", locations=["L1"])
    path = pattern if "://" in pattern else f"{tmp_path}/{pattern}"
    builder.read.files(path, "v double", format=format_).write.memory("out")
    plan = build(builder.build(), Continuum.from_text(ONE_ZONE))
    drained = running.RunSettings(directory=tmp_path / "run", until_drained=True)
    assert running._is_short(plan, drained) is short
    assert not running._is_short(plan, replace(drained, until_drained=False))
