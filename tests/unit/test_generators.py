"""The example generators: layout, labels, exact report of malformed lines; taxi columns, order, routes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.acme import generate as acme
from examples.debs2015 import generate as debs
from examples.debs2015.flow import GARAGES
from examples.linearroad import generate as roads
from examples.riot import definition, etl, pred, stats, train
from examples.riot import generate as riot
from examples.riot.city import CITIES, RANGES, SENSORS
from examples.taxi import generate as taxi
from headwater.core.errors import HeadwaterError
from headwater.dataflow.sensors import SensorModel, readings
from headwater.demo.data import (
    MALFORMED_KINDS,
    NAB_SHIFT_DAYS,
    Series,
    WrittenFiles,
    nab_series,
    sensor_series,
    write_steps,
)
from tests.unit.test_sensors import machine_of

NAB = Path(__file__).parents[3] / "shared" / "data" / "nab"


def write_all(out: Path, series: Sequence[Series], **settings: Any) -> WrittenFiles:
    """Write all files at once."""
    return WrittenFiles(tuple(write_steps(out, series, **settings)))


def parses(line: str) -> bool:
    parts = line.split(",")
    try:
        return len(parts) == 3 and bool(datetime.fromisoformat(parts[1])) and float(parts[2]) == float(parts[2])
    except ValueError:
        return False


def test_acme_files_hold_the_models_readings(tmp_path: Path) -> None:
    model = SensorModel(seed=4, machines=2)
    written = write_all(tmp_path, sensor_series(model, ["L1", "L2"], days=3), files=3)
    assert [str(file.path.relative_to(tmp_path)) for file in written.files] == [
        f"{location}/readings-{number:04d}.csv" for number in (1, 2, 3) for location in ("L1", "L2")
    ]
    lines = "".join((tmp_path / "L2" / f"readings-{n:04d}.csv").read_text() for n in (1, 2, 3)).splitlines()
    wanted = readings(model, "L2", first=0, last=3 * 288 * 2)
    assert written.lines == 2 * len(lines) == 2 * len(wanted)
    assert lines[0].startswith("L2-m0,2026-01-01 00:00:00,")
    machine, ts, temperature = zip(*(line.split(",") for line in lines), strict=True)
    assert list(machine) == machine_of(wanted).tolist()
    assert np.array_equal(np.array(ts, dtype="datetime64[us]").astype(np.int64), wanted.ts)
    assert np.allclose(np.array(temperature, dtype=float), wanted.temperature, atol=1e-6, rtol=0)
    assert written.malformed == ()


def test_acme_labels_are_the_labelled_readings(tmp_path: Path) -> None:
    model = SensorModel(seed=4)
    write_all(tmp_path, sensor_series(model, ["L1"], days=60))
    labels = json.loads((tmp_path / "labels.json").read_text())
    part = readings(model, "L1", first=0, last=60 * 288)
    inside = np.zeros(len(part), dtype=bool)
    for start, end in labels["L1"]:
        low, high = (int(np.datetime64(text, "us").astype(np.int64)) for text in (start, end))
        inside |= (part.ts >= low) & (part.ts <= high)
    assert inside.any()
    assert np.array_equal(inside, part.label)


def test_acme_malformed_lines_are_exactly_the_reported_ones(tmp_path: Path) -> None:
    series = sensor_series(SensorModel(seed=4), ["L1", "L2"], days=20)
    written = write_all(tmp_path, series, malformed=0.02, seed=3)
    found = {
        (f"{location}/{path.name}", number, line)
        for location in ("L1", "L2")
        for path in (tmp_path / location).glob("*.csv")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if not parses(line)
    }
    assert found == {(bad.file, bad.line, bad.text) for bad in written.malformed}
    assert 0.01 < len(found) / written.lines < 0.03
    assert {bad.kind for bad in written.malformed} == set(MALFORMED_KINDS)
    assert json.loads((tmp_path / "malformed.json").read_text()) == [vars(bad) for bad in written.malformed]
    again = write_all(tmp_path / "again", series, malformed=0.02, seed=3)
    assert again.malformed == written.malformed
    assert write_all(tmp_path / "other", series, malformed=0.02, seed=4).malformed != written.malformed


def test_acme_files_appear_one_after_another(tmp_path: Path) -> None:
    steps = write_steps(tmp_path, sensor_series(SensorModel(), ["L1", "L2"], days=1), files=2)
    assert not any(tmp_path.iterdir())
    for count, step in enumerate(steps, start=1):
        assert (tmp_path / "labels.json").is_file()
        assert step.path.is_file()
        assert len([path for path in tmp_path.rglob("*") if path.suffix in (".csv", ".part")]) == count
        assert step.lines == len(step.path.read_text().splitlines()) == 144


def test_acme_refuses_impossible_shares(tmp_path: Path) -> None:
    series = sensor_series(SensorModel(), ["L1"], days=1)
    with pytest.raises(HeadwaterError, match="malformed"):
        write_all(tmp_path, series, malformed=1.5)
    with pytest.raises(HeadwaterError, match="files"):
        write_all(tmp_path, series, files=0)


def test_acme_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert acme.main(["--out", str(tmp_path), "--locations", "A,B", "--days", "10", "--malformed", "0.01"]) == 0
    bad = json.loads((tmp_path / "malformed.json").read_text())
    assert capsys.readouterr().out.startswith(f"5760 lines in 16 files under {tmp_path}, {len(bad)} malformed\n")
    with pytest.raises(SystemExit) as wrong:
        acme.main(["--out", str(tmp_path), "--nab", "x.csv"])
    assert wrong.value.code == 2


def nab_files(folder: Path) -> tuple[Path, Path]:
    file, labels = folder / "machine.csv", folder / "windows.json"
    start = datetime(2013, 12, 2, 21, 15)
    rows = [f"{start + number * timedelta(minutes=5)},{70 + number / 8}" for number in range(600)]
    file.write_text("\n".join(["timestamp,value", *rows]) + "\n")
    windows = [
        ["2013-12-03 06:25:00.000000", "2013-12-03 08:00:00.000000"],
        ["2013-12-04 06:25:00.000000", "2013-12-04 08:00:00.000000"],
    ]
    labels.write_text(json.dumps({"other/ambient.csv": [], "real/machine.csv": windows}))
    return file, labels


def test_nab_series_is_shifted_per_location(tmp_path: Path) -> None:
    file, labels = nab_files(tmp_path)
    write_all(tmp_path / "out", nab_series(file, labels, locations=["L1", "L2"]), files=1)
    one, two = (
        list(csv.reader((tmp_path / "out" / location / "readings-0001.csv").read_text().splitlines()))
        for location in ("L1", "L2")
    )
    assert one[1] == ["L1-m0", "2013-12-02 21:20:00", "70.125000"]
    assert len(one) == len(two) == 600
    shift = timedelta(days=NAB_SHIFT_DAYS)
    for (_, early, value), (machine, late, same) in zip(one, two, strict=True):
        assert (machine, same) == ("L2-m0", value)
        assert datetime.fromisoformat(late) - datetime.fromisoformat(early) == shift
    written = json.loads((tmp_path / "out" / "labels.json").read_text())
    assert written["L1"][0] == ["2013-12-03 06:25:00", "2013-12-03 08:00:00"]
    assert written["L2"][0] == ["2013-12-08 06:25:00", "2013-12-08 08:00:00"]
    (short,) = nab_series(file, labels, locations=["L1"], days=1)
    assert (len(short.ts), len(short.windows)) == (288, 1)


def test_nab_labels_must_name_the_file(tmp_path: Path) -> None:
    file, labels = nab_files(tmp_path)
    labels.write_text("{}")
    with pytest.raises(HeadwaterError, match=r"no windows of machine\.csv"):
        nab_series(file, labels, locations=["L1"])


@pytest.mark.skipif(not NAB.is_dir(), reason="the real file is not beside this checkout")
def test_real_nab_file() -> None:
    file = NAB / "machine_temperature_system_failure.csv"
    series = nab_series(file, NAB / "combined_windows.json", locations=["L1", "L2", "L3"])
    assert [len(one.ts) for one in series] == [22_695] * 3
    assert [len(one.windows) for one in series] == [4] * 3


def cell(longitude: str, latitude: str) -> tuple[int, int]:
    down = (taxi.NORTH - float(latitude)) / taxi.CELL_LATITUDE
    return int(down) + 1, int((float(longitude) - taxi.WEST) / taxi.CELL_LONGITUDE) + 1


def test_taxi_trips_have_the_challenges_columns() -> None:
    rows = list(taxi.trips(3_000, seed=2))
    assert len(rows) == 3_000
    for row in rows:
        trip = dict(zip(taxi.COLUMNS, row, strict=True))
        pickup, drop_off = (datetime.fromisoformat(trip[f"{end}_datetime"]) for end in ("pickup", "dropoff"))
        assert (drop_off - pickup).total_seconds() == int(trip["trip_time_in_secs"]) >= 0
        parts = ("fare_amount", "surcharge", "mta_tax", "tip_amount", "tolls_amount")
        assert sum(float(trip[part]) for part in parts) == pytest.approx(float(trip["total_amount"]))
        assert trip["payment_type"] in ("CRD", "CSH")
    drop_offs = [row[3] for row in rows]
    assert drop_offs == sorted(drop_offs)
    assert rows == list(taxi.trips(3_000, seed=2))
    assert rows[:1_000] == list(taxi.trips(1_000, seed=2))
    assert rows != list(taxi.trips(3_000, seed=3))


def test_taxi_routes_are_as_hot_as_in_the_real_file() -> None:
    rows = taxi.trips(40_000, seed=1, bad=0.0)
    routes = Counter((cell(row[6], row[7]), cell(row[8], row[9])) for row in rows)
    per_10_000 = [count / 4 for _, count in routes.most_common(10)]
    assert 12 <= per_10_000[0] <= 20  # 16 in the real file
    assert 7 <= per_10_000[-1] <= 12  # 10 in the real file
    assert all(1 <= part <= 300 for route in routes for place in route for part in place)


def test_taxi_bad_share_has_no_position() -> None:
    rows = list(taxi.trips(5_000, seed=1, bad=0.1))
    bad = [row for row in rows if "0.000000" in row[6:10]]
    assert 400 < len(bad) < 600
    assert all(row[6:10] == ["0.000000"] * 4 for row in bad)


def test_taxi_late_share_is_out_of_order_and_nothing_is_lost() -> None:
    ordered, late = list(taxi.trips(5_000, seed=1)), list(taxi.trips(5_000, seed=1, late=0.05))
    assert sorted(ordered) == sorted(late)
    place = {tuple(row): number for number, row in enumerate(ordered)}
    behind = [number - place[tuple(row)] for number, row in enumerate(late)]
    assert 200 <= sum(delay > 0 for delay in behind) <= 300
    assert max(behind) <= 200
    newest = sum(1 for one, two in pairwise(late) if two[3] < one[3])
    assert newest > 100


def test_taxi_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = list(taxi.write_files(tmp_path, 250, seed=1, per_file=100))
    assert [path.name for path in paths] == ["trips-0001.csv", "trips-0002.csv", "trips-0003.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]
    joined = "".join(path.read_text() for path in paths)
    assert joined.splitlines() == list(taxi.lines(250, seed=1))
    assert taxi.main(["--rows", "250", "--seed", "1"]) == 0
    assert capsys.readouterr().out == joined
    assert taxi.main(["--rows", "250", "--files", "4", "--out", str(tmp_path / "four")]) == 0
    assert len(list((tmp_path / "four").iterdir())) == 4


def test_taxi_refuses_impossible_shares() -> None:
    with pytest.raises(ValueError, match="late"):
        taxi.trips(5, late=2)
    with pytest.raises(SystemExit):
        taxi.main(["--bad", "-1"])


def test_debs_trips_are_those_of_the_taxis_each_at_its_garage(tmp_path: Path) -> None:
    files = list(debs.write_files(tmp_path, 900, seed=4, late=0.1, per_file=400))
    assert len(files) == 3 * len(GARAGES)
    found: list[str] = []
    for garage in GARAGES:
        lines = "".join(path.read_text() for path in sorted((tmp_path / garage).glob("*.csv"))).splitlines()
        assert lines and {debs.garage_of(line.split(",")[0]) for line in lines} == {garage}
        found += lines
    assert sorted(found) == sorted(taxi.lines(900, seed=4, late=0.1))
    with pytest.raises(ValueError, match="per_file"):
        list(debs.write_files(tmp_path, 10, per_file=0))


def test_vehicles_report_each_half_minute_from_where_they_can_be(tmp_path: Path) -> None:
    reports = list(roads.reports(12, seed=3, segments=6, rate=30))
    assert reports == list(roads.reports(12, seed=3, segments=6, rate=30))
    assert [r.second for r in reports] == sorted(r.second for r in reports)
    by_vehicle: dict[int, list[roads.Report]] = {}
    for report in reports:
        assert report.segment == report.position // roads.MILE and 0 <= report.segment < 6
        by_vehicle.setdefault(report.vehicle, []).append(report)
    for mine in by_vehicle.values():
        for before, after in pairwise(mine):
            assert after.second - before.second == 30
            assert (after.expressway, after.direction) == (before.expressway, before.direction)
            assert before.lane != 4
            moved = abs(after.position - before.position)
            assert moved <= max(after.speed * roads.FEET + 1, roads.MILE)  # two that collide meet within a mile


def test_some_vehicles_collide_and_stand_at_one_place() -> None:
    standing = Counter(
        (r.second // 60, r.expressway, r.direction, r.lane, r.position)
        for r in roads.reports(15, seed=2, rate=30, accidents=0.5)
        if r.speed == 0
    )
    assert max(standing.values()) >= 4  # two vehicles, two reports a minute
    assert not any(r.speed == 0 for r in roads.reports(15, seed=2, rate=30, accidents=0.0))


def test_reports_are_in_the_files_of_their_stretches(tmp_path: Path) -> None:
    assert roads.main(["--minutes", "4", "--segments", "4", "--per-file", "500", "--out", str(tmp_path)]) == 0
    lines = 0
    for stretch, segments in {"x0-west": "01", "x0-east": "23", "x1-west": "01", "x1-east": "23"}.items():
        rows = [
            r for path in sorted((tmp_path / stretch).glob("*.csv")) for r in csv.reader(path.read_text().splitlines())
        ]
        assert {row[6] for row in rows} == set(segments) and {row[3] for row in rows} == {stretch[1]}
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
        lines += len(rows)
    assert lines == len(list(roads.reports(4, segments=4)))
    with pytest.raises(SystemExit):
        roads.main(["--minutes", "0", "--out", str(tmp_path)])


def test_packs_are_those_of_their_city_with_the_given_shares_of_faults(tmp_path: Path) -> None:
    faults = riot.Faults(outside=0.1, unreadable=0.05, missing=0.08, late=0.1)
    files = list(riot.write_files(tmp_path, 20, seed=6, faults=faults, per_file=300))
    packs = definition.packs_in([f for f in files if "packs" in f.parts])
    assert len(packs) == 20 * 12 * (len(SENSORS) + len(CITIES)), "of each sensor, and one unknown in each city"
    assert all(p.sensor.startswith(p.city) for p in packs)
    assert len({(p.sensor, p.at) for p in packs}) == len(packs)
    values = [(name, p.readings[name]) for p in packs for name in p.readings]
    assert 1 - len(values) / (5 * len(packs)) == pytest.approx(0.08, abs=0.02)
    numbers = [(name, value) for name, value in values if value is not None]
    assert 1 - len(numbers) / len(values) == pytest.approx(0.05, abs=0.02)
    outside = [1 for name, value in numbers if not RANGES[name][0] <= value <= RANGES[name][1]]
    assert len(outside) / len(numbers) == pytest.approx(0.1, abs=0.02)
    for city in CITIES:
        lines = "".join(f.read_text() for f in sorted((tmp_path / "packs" / city).iterdir())).splitlines()
        times = [json.loads(line)["bt"] for line in lines]
        late = [max(times[:n]) - time for n, time in enumerate(times) if n and time < max(times[:n])]
        assert late and max(late) < 10_000, "no pack is later than the watermark waits"
        ticks = [json.loads(f.read_text()) for f in sorted((tmp_path / "ticks" / city).iterdir())]
        assert [t["start"] for t in ticks[1:]] == [t["end"] for t in ticks[:-1]] and len(ticks) == 10
    assert list(riot.packs("geneva", 2, seed=1)) == list(riot.packs("geneva", 2, seed=1))
    assert list(riot.packs("geneva", 2, seed=1)) != list(riot.packs("geneva", 2, seed=2))
    with pytest.raises(ValueError, match="late"):
        riot.Faults(late=1.5)
    with pytest.raises(SystemExit):
        riot.main(["--minutes", "0", "--out", str(tmp_path)])


def test_riot_dataflows_publish_to_a_broker_where_one_is_given() -> None:
    broker = "localhost:1883"
    flows = {
        "clean": etl.etl("d", "r", broker=broker),
        "figures": stats.stats("d", "r", broker=broker),
        "models": train.train("d", "t", "/b", "r", broker=broker),
        "predictions": pred.pred("d", "m", "/b", "r", broker=broker),
    }
    for sink, flow in flows.items():
        assert flow[sink].kind == "callback", sink
