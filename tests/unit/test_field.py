"""The parts of the comparison with other systems that need neither Spark nor a lab."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import flinkenv
from benchmarks.field import report
from benchmarks.field.__main__ import Comparison, parser
from benchmarks.field.feed import lay, make_feed, show
from benchmarks.field.flink_query import tables
from benchmarks.field.ship import ship
from benchmarks.field.stretched_flink import SLOT_MB, taskmanager
from benchmarks.field.variants import SHAPE, Arrived, ArrivedLines
from benchmarks.field.workloads import WORKLOADS, event_time
from benchmarks.flowunits.storage import Storage
from benchmarks.flowunits.workload import CLOUD, continuum_text
from headwater.continuum.model import Continuum
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.plan.build import build

LOCATIONS = tuple(SHAPE.edges.values())


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_steps_are_in_the_order_of_event_time_with_rows_at_every_location(name: str) -> None:
    workload = WORKLOADS[name]
    last = dict.fromkeys(LOCATIONS, 0.0)
    for step in islice(workload.steps(LOCATIONS), 5):
        times = {location: [event_time(line, workload.time) for line in lines] for location, lines in step.items()}
        assert sorted(times) == sorted(LOCATIONS)
        assert all(those == sorted(those) and those[0] > last[location] for location, those in times.items())
        last = {location: those[-1] for location, those in times.items()}
        assert workload.rows_of_step / 2 < sum(map(len, step.values())) < workload.rows_of_step * 2


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_units_are_in_all_layers_that_the_dataflow_names(name: str) -> None:
    flow = WORKLOADS[name].dataflow("in/{location}", "out", LOCATIONS)
    plan = build(flow, Continuum.from_text(continuum_text(shape=SHAPE)))
    assert {unit.zone for unit in plan.units} >= {*SHAPE.edges, CLOUD}
    assert "ends" in flow.types["result"].schema.names


def test_a_feed_knows_when_its_windows_have_ended(tmp_path: Path) -> None:
    feed = make_feed(WORKLOADS["means"], tmp_path, LOCATIONS, [3, 1, 1])
    assert feed.rows == [3600, 1200, 1200]
    assert [len(feed.files[1][location].read_text().splitlines()) for location in LOCATIONS] == [600, 600]
    wanted = pa.table({"ends": [int(feed.times[0]) + 1, int(feed.times[0]) - 5, int(feed.times[2])]})
    assert [feed.closed(wanted, release).num_rows for release in range(3)] == [1, 2, 3]
    assert [feed.release_of(ends) for ends in wanted["ends"].to_pylist()] == [1, 0, 2]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    (tmp_path / "files" / "L1").mkdir(parents=True)
    with Storage(("127.0.0.1", 0), tmp_path / "files") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_shipped_files_appear_whole_under_their_names(storage: Storage, tmp_path: Path) -> None:
    connection = HTTPConnection(*storage.server_address)
    for number in range(2):
        file = tmp_path / f"{number}.csv"
        file.write_text(f"row {number}\n" * 1000)
        ship(connection, file, "/L1")
    connection.close()
    found = {file.name: file.read_text() for file in (tmp_path / "files" / "L1").iterdir()}
    assert found == {f"{n}.csv": f"row {n}\n" * 1000 for n in range(2)}


def test_a_file_is_hidden_until_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    lay(tmp_path / "a.csv", tmp_path / "events")
    assert [file.name for file in (tmp_path / "events").iterdir()] == [".a.csv"]
    show("a.csv", tmp_path / "events")
    assert [file.name for file in (tmp_path / "events").iterdir()] == ["a.csv"]


def test_results_of_both_kinds_of_files_are_one_table(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([("ends", pa.int64()), ("place", pa.int32()), ("origin", pa.string()), ("mean", pa.float64())])
    rows = [{"ends": 60, "place": 1, "origin": "1.2", "mean": 0.5}, {"ends": 120, "place": 2, "origin": "3", "mean": 2}]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "0.parquet")
    (tmp_path / "part-1-0").write_text("60,1,1.2,0.5\n120,2,3,2.0\n")
    (tmp_path / ".part-1-1.inprogress").write_text("180,1,")
    for kind in (Arrived, ArrivedLines):
        arrived = kind(tmp_path)
        assert arrived.look() == 2
        assert arrived.table(list(arrived.new), schema).to_pylist() == rows


def test_flink_reads_each_location_and_all_of_them() -> None:
    query = WORKLOADS["means"].flink
    texts = tables(
        {
            "inputs": {"L1": "file:///in/L1", "L2": "webhdfs://host:1/L2"},
            "columns": query.columns,
            "time": query.time,
            "result": query.result,
            "results": "viewfs://field/out",
            "poll_ms": 200,
        }
    )
    begins = Counter(text.split("(")[0].strip() for text in texts)
    assert begins["CREATE TABLE in_L1"] == begins["CREATE TABLE in_L2"] == begins["CREATE TABLE out_rows"] == 1
    assert "SELECT *, 'L2' AS location FROM in_L2" in texts[2]
    assert "WATERMARK FOR ts AS ts" in texts[0] and "'path' = 'file:///in/L1'" in texts[0]
    assert "'path' = 'webhdfs://host:1/L2'" in texts[1] and "'path' = 'viewfs://field/out'" in texts[-1]


def test_a_taskmanager_has_a_slot_for_each_resource_that_a_group_may_ask_for() -> None:
    found = {zone: taskmanager(zone, "10.0.0.1") for zone in SHAPE.cores}
    amounts: Counter[str] = Counter()
    where: dict[str, list[str]] = {}
    for zone, conf in found.items():
        slots = int(conf["taskmanager.numberOfTaskSlots"])
        resources = str(conf["external-resources"]).split(";")
        of_zone = {name: int(conf[f"external-resource.{name}.amount"]) for name in resources}
        assert sum(of_zone.values()) == slots == conf["taskmanager.cpu.cores"]
        assert conf["taskmanager.memory.task.heap.size"] == f"{slots * SLOT_MB['heap']}m"
        assert conf["taskmanager.memory.managed.size"] == f"{slots * SLOT_MB['managed']}m"
        amounts.update(of_zone)
        for name in resources:
            where.setdefault(name, []).append(zone)
    assert amounts["core"] == sum(SHAPE.cores.values()) and where["core"] == list(SHAPE.cores)
    assert where["files-L1"] == ["E1"] and where["files-L2"] == ["E2"] and where["results"] == [CLOUD]
    assert amounts["files-L1"] == amounts["files-L2"] == amounts["results"] == 1


def test_an_environment_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, where the environment is to be")
    with pytest.raises(Unavailable, match="PyFlink cannot be installed") as raised:
        flinkenv.python(tmp_path / "taken", install=True)
    assert raised.value.where == str(tmp_path / "taken")
    with pytest.raises(Unavailable, match="not installed") as raised:
        flinkenv.python(tmp_path / "none", install=False)
    assert "--flink" in (raised.value.hint or "")


class Scripted(Comparison):
    """A comparison whose systems fail at given points: at a dataflow, or where they are deployed."""

    def __init__(self, place: Path, fails: str) -> None:
        super().__init__(parser().parse_args(["--quick"]), place)
        self._input = dict.fromkeys(WORKLOADS)  # type: ignore[assignment]
        self._fails = fails
        self.deployed = 0

    @contextlib.contextmanager
    def _deployed(self, system: str) -> Iterator[Callable[[str], dict[str, Any]]]:
        self.deployed += 1
        if self._fails == "deploying":
            raise Unavailable("no network", where=system, hint="none")

        def measure(name: str) -> dict[str, Any]:
            if name == self._fails:
                raise RuntimeFailure("its driver has ended\nTraceback", where=system, hint="none")
            return run_of(1000, 1.0)

        yield measure


@pytest.mark.parametrize(
    ("fails", "deployed", "without", "status"),
    [("", 1, [], 0), ("routes", 2, ["routes"], RuntimeFailure.exit_code), ("deploying", 1, list(WORKLOADS), 0)],
)
def test_a_system_is_started_once_and_anew_after_a_failure(
    fails: str, deployed: int, without: list[str], status: int, tmp_path: Path
) -> None:
    comparison, notes = Scripted(tmp_path, fails), []
    found: dict[str, dict[str, Any]] = {name: {} for name in WORKLOADS}
    comparison.run("headwater", found, lambda: notes.append(str(found)))
    assert comparison.deployed == deployed
    assert [name for name, systems in found.items() if "failed" in systems["headwater"]] == without
    assert comparison.failed == status and notes[-1] == str(found)


def run_of(rows: int, edge: float) -> dict[str, Any]:
    links = {"E1 up": edge, "E1 down": 0.5, "E2 up": 1.0, "E2 down": 0.0, "S1 up": 1.0, "S1 down": 0.5}
    rest = {"p50_s": 1.0, "p99_s": 2.0, "cores": 1.5, "cpu_s_per_million_rows": 4.0, "pss_mb": 1000}
    return {"rows_per_s": rows, "bytes_per_row": links, "bursts": [{"rows": 3600}], **rest}


def test_the_table_has_ratios_to_headwater_and_says_what_failed(tmp_path: Path) -> None:
    found = {
        "headwater": run_of(2000, 2.5),
        "spark-cloud": run_of(1000, 8.5),
        "flink-cloud": {"failed": "no network\nTraceback"},
    }
    result = {
        "machine": {"cores": 2, "processor": "some processor"},
        **{"spark": "4", "flink": "1", "commit": "0a1b"},
        "link": {"bandwidth": "100mbit", "delay_ms": 10},
        "load": {"warm": 1, "bursts": 3, "paced": 24, "pace": 1.5},
        "dataflows": {"means": found},
    }
    text = report.markdown(result)
    assert "| rows/s | 2,000 | 1,000 (0.50×) | not run |" in text
    assert "| bytes/row, link E1–S1 | 3.00 | 9.00 (3.00×) |  |" in text
    assert "| bytes/row, link S1–C1 | 1.50 | 1.50 (1.00×) |  |" in text
    assert "\nFlink in the cloud: no network\n" in text and "Traceback" not in text
    assert "2 cores (some processor)" in text and "Bursts: 3, of 3,600 to 3,600 rows" in text
    assert report.ratios({"spark-cloud": run_of(1, 1.0)}) == {}
    report.plot(result, tmp_path / "field.png")
    assert (tmp_path / "field.png").read_bytes().startswith(b"\x89PNG")
