"""The Nexmark generator: proportions, hot keys, bounds between events, lateness; the queries' plans."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from math import log10
from pathlib import Path
from statistics import mean

import pytest

from examples.nexmark.flow import HERE, QUERIES, nexmark
from examples.nexmark.generate import LATENESS_S, Event, Workload, events, home, in_order, main, write_files
from examples.nexmark.published import STATEMENTS
from examples.nexmark.streams import KINDS, LOCATIONS, SCHEMAS, WATERMARK, Bounds
from headwater.continuum.model import Continuum
from headwater.core.quantity import parse_duration
from headwater.plan.build import build

COLUMNS = {kind: [part.split()[0] for part in schema.split(", ")] for kind, schema in SCHEMAS.items()}


def read(event: Event) -> dict[str, str]:
    """Return an event's values by column."""
    return dict(zip(COLUMNS[event.kind], event.line.split(","), strict=True))


def seconds(row: dict[str, str], column: str = "dateTime") -> float:
    return datetime.fromisoformat(row[column]).replace(tzinfo=UTC).timestamp()


def test_shares_are_those_of_the_published_generator() -> None:
    found = list(in_order(50_000, Workload(seed=7)))
    assert Counter(event.kind for event in found) == {"person": 1000, "auction": 3000, "bid": 46_000}
    rows = {kind: [read(event) for event in found if event.kind == kind] for kind in KINDS}
    assert [int(row["id"]) for row in rows["person"]] == list(range(1000, 2000))
    assert [int(row["id"]) for row in rows["auction"]] == list(range(1000, 4000))
    hot = {
        "seller": (rows["auction"], lambda at: at // 3 // 100 * 100, 3 / 4),
        "bidder": (rows["bid"], lambda at: at // 46 // 100 * 100 + 1, 3 / 4),
        "auction": (rows["bid"], lambda at: (at // 46 * 3 + 2) // 100 * 100, 1 / 2),
    }
    for column, (found_rows, hottest, share) in hot.items():
        names = [int(row[column]) - 1000 == hottest(at) for at, row in enumerate(found_rows)]
        assert mean(names) == pytest.approx(share, abs=0.02), column
    prices = sorted(log10(int(row["price"])) for row in rows["bid"])
    assert [round(prices[len(prices) * part // 4], 1) for part in (1, 2, 3)] == [3.5, 5.0, 6.5]
    assert {int(row["category"]) for row in rows["auction"]} == {10, 11, 12, 13, 14}
    assert mean(row["channel"] in ("Google", "Facebook", "Baidu", "Apple") for row in rows["bid"]) == pytest.approx(
        0.5, abs=0.01
    )
    numbers = {"person": 1, "auction": 6, "bid": 4}
    texts = {
        "person": [*COLUMNS["person"][1:6], "extra"],
        "auction": ["itemName", "description", "extra"],
        "bid": ["extra"],
    }
    for kind, size in (("person", 200), ("auction", 500), ("bid", 100)):
        sizes = [8 * numbers[kind] + sum(len(row[column]) for column in texts[kind]) for row in rows[kind]]
        assert mean(sizes) == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize(
    "workload",
    [Workload(), Workload(rate=50, in_flight=10, active_people=10, seed=4), Workload(rate=300, in_flight=400, seed=5)],
)
def test_what_an_event_names_is_within_the_bounds(workload: Workload) -> None:
    rows: dict[str, list[dict[str, str]]] = {kind: [] for kind in KINDS}
    for event in in_order(20_000, workload):
        row = read(event)
        rows[event.kind].append(row)
        person = row["id"] if event.kind == "person" else row["seller"] if event.kind == "auction" else row["bidder"]
        assert event.location == home(int(person), workload.seed)
    begun = {row["id"]: seconds(row) for row in rows["auction"]}
    entered = {row["id"]: seconds(row) for row in rows["person"]}
    bounds = workload.bounds
    for row in rows["auction"]:
        assert 0 < seconds(row, "expires") - seconds(row) <= bounds.auction
    ages = [seconds(row) - begun[row["auction"]] for row in rows["bid"] if row["auction"] in begun]
    since = [
        seconds(row) - entered[row[column]]
        for kind, column in (("auction", "seller"), ("bid", "bidder"))
        for row in rows[kind]
        if row[column] in entered
    ]
    assert -bounds.lead <= min(ages) < 0 < max(ages) <= bounds.auction
    assert -bounds.lead <= min(since) < 0 < max(since) <= bounds.person


def test_the_default_bounds_are_those_of_the_default_workload() -> None:
    assert Workload().bounds == Bounds()


def test_late_events_come_within_the_watermarks_delay() -> None:
    workload = Workload(rate=200, late=0.2, seed=9)
    found = list(events(5000, workload))
    assert sorted(found, key=lambda e: e.micros) == list(in_order(5000, workload))
    newest, latest, late = 0, 0, 0
    for event in found:
        latest = max(latest, newest - event.micros)
        late += event.micros < newest
        newest = max(newest, event.micros)
    assert 0 < latest / 1e6 <= LATENESS_S < parse_duration(WATERMARK)
    assert 0.15 < late / len(found) < 0.25
    in_time = list(events(500, Workload(late=0)))
    assert all(a.micros <= b.micros for a, b in pairwise(in_time))


def test_files_have_all_events_and_seeds_differ(tmp_path: Path) -> None:
    one, again, other = Workload(seed=1), Workload(seed=1), Workload(seed=2)
    for name, workload in (("one", one), ("again", again), ("other", other)):
        for file in write_files(tmp_path / name, 2000, workload, files=3):
            assert file.is_file()

    def texts(name: str) -> dict[str, str]:
        return {str(p.relative_to(tmp_path / name)): p.read_text() for p in (tmp_path / name).rglob("*.csv")}

    assert texts("one") == texts("again") != texts("other")
    lines = [line for path, text in texts("one").items() if "/" in path for line in text.splitlines()]
    assert sorted(lines) == sorted(event.line for event in in_order(2000, one))
    assert {p.name for p in (tmp_path / "one").iterdir()} == {*LOCATIONS, "side_input.csv"}
    assert len((tmp_path / "one/side_input.csv").read_text().splitlines()) == 10_000


def test_generator_refuses_impossible_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="late"):
        Workload(late=1.5)
    with pytest.raises(ValueError, match="rate"):
        Workload(rate=0)
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--late", "2"])
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--events", "0"])
    capsys.readouterr()
    assert main(["--out", str(tmp_path), "--events", "100", "--files", "1"]) == 0
    assert capsys.readouterr().out.startswith("100 events in ")


def test_every_query_has_a_plan_and_a_published_statement() -> None:
    assert list(QUERIES) == list(STATEMENTS)
    continuum = Continuum.from_yaml(HERE / "continuum.yaml")
    for query in QUERIES:
        plan = build(nexmark("data", [query]), continuum)
        assert not plan.warnings
        assert {unit.layer for unit in plan.units} >= {"edge", "cloud"}
