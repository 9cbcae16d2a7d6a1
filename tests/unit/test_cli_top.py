"""``headwater top``: its content, its order, its fit to the screen, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headwater.adapt.slo import SLO
from headwater.app import observe
from headwater.app.view import View, ZoneSeen
from headwater.cli.app import app
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.render.top import KEYS, Order, Top, shares
from tests.crowd import fill
from tests.unit.terminal import Terminal


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Yield a store with 5 deployments over 20 zones that get no more reports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    opened = Store(resolved_url(None))
    fill(opened, 20, 5)
    yield opened
    opened.close()


def shown(top: Top, *, height: int = 100, width: int = 160) -> list[str]:
    console = Console(width=width, height=height, record=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(top)
    return captured.get().splitlines()


def first_words(lines: list[str], heading: str) -> list[str]:
    """Return the first word of each row below a heading."""
    begin = next(n for n, line in enumerate(lines) if line.startswith(heading)) + 1
    rows = lines[begin : lines.index("", begin) if "" in lines[begin:] else None]
    return [row.split()[0] for row in rows if not row.startswith("and ")]


def test_once_shows_everything(store: Store) -> None:
    result = CliRunner().invoke(app, ["top", "--once"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert first_words(lines, "Deployment") == [f"d{n}" for n in range(5)]
    assert len(first_words(lines, "Zone")) == 20 and len(first_words(lines, "Link")) == 19
    assert "no controller acts on the store: start one with `headwater up`" in result.stdout
    view = observe.look()
    one = next(d for d in view.deployments if d.name == "d0")
    row = next(line for line in lines if line.startswith("d0 ")).split()
    assert row[1:4] == ["running", "1", f"{one.running}/{one.units}"]
    assert one.rows_per_s is not None and row[4] == f"{one.rows_per_s:,.0f}"
    assert one.lag is not None and row[5] == f"{one.lag:,}"
    cores = sum(u.cpu for u in view.units if u.deployment == "d0" and u.cpu is not None)
    assert cores > 0 and row[8] == f"{cores:.2f}"


def test_latency_stands_beside_its_limit(store: Store) -> None:
    store.set_slo("d1", SLO(max_latency=0.001))
    store.set_slo("d2", SLO(max_latency=3600.0))
    lines = shown(Top(view=observe.look()))
    has_slo = {line.split()[0]: line.split()[7] for line in lines if line[:3] in ("d0 ", "d1 ", "d2 ")}
    assert has_slo == {"d0": "-", "d1": "1ms", "d2": "60min"}
    assert any(line.startswith("d1: SLO broken: max_latency") for line in lines)
    assert not any(line.startswith("d2: SLO broken") for line in lines)


@pytest.mark.parametrize(("order", "column"), [("rate", 4), ("lag", 5), ("latency", 6), ("cores", 8)])
def test_the_highest_come_first(store: Store, order: Order, column: int) -> None:
    view = observe.look()
    unknown = replace(view.deployments[0], name="new", rows_per_s=None, lag=None, latency_p95_s=None)
    view = replace(view, deployments=(unknown, *view.deployments), zones=tuple(map(uneven, view.zones)))
    names = first_words(shown(Top(view=view, order=order)), "Deployment")
    cores = {d.name: sum(u.cpu or 0 for u in view.units if u.deployment == d.name) for d in view.deployments}
    figures = {
        "rate": {d.name: d.rows_per_s for d in view.deployments},
        "lag": {d.name: d.lag for d in view.deployments},
        "latency": {d.name: d.latency_p95_s for d in view.deployments},
        "cores": cores,
    }[order]
    known = [figures[n] for n in names[:-1]]
    assert names[-1] == "new" and known == sorted(known, key=lambda v: v or 0, reverse=True)
    assert len(set(known)) > 1


def test_zones_and_links_go_by_load_but_by_name_where_asked(store: Store) -> None:
    view = observe.look()
    loads = {z.name: max((h.load for h in z.hosts if h.load is not None), default=-1.0) for z in view.zones}
    zones = first_words(shown(Top(view=view, order="rate")), "Zone")
    assert [loads[z] for z in zones] == sorted(loads.values(), reverse=True) and len(set(loads.values())) > 1
    down = replace(view, links=(*view.links[:-1], replace(view.links[-1], up=False)))
    assert first_words(shown(Top(view=down, order="rate")), "Link")[0] == view.links[-1].link
    links = first_words(shown(Top(view=down)), "Link")
    assert links == sorted(links)


@pytest.mark.parametrize("height", [8, 12, 24, 40])
def test_it_fits_the_screen(store: Store, height: int) -> None:
    lines = shown(Top(view=observe.look(), height=height))
    assert len(lines) <= height
    if height >= 24:
        assert any("more zones" in line for line in lines) and any("more links" in line for line in lines)
    left = sum(int(line.split()[1]) for line in lines if line.startswith("and "))
    assert left + sum(line.split()[0] in names(observe.look()) for line in lines if line) == 5 + 20 + 19 or height < 20


def uneven(zone: ZoneSeen) -> ZoneSeen:
    """Give units CPU shares that differ by deployment."""
    units = (replace(u, cpu=u.cpu and u.cpu * (1 + int(u.deployment[1:]) % 3)) for u in zone.units)
    return replace(zone, units=tuple(units))


def names(view: View) -> set[str]:
    return {d.name for d in view.deployments} | {z.name for z in view.zones} | {x.link for x in view.links}


def test_rows_are_limited(store: Store) -> None:
    lines = shown(Top(view=observe.look(), rows=2))
    assert first_words(lines, "Deployment") == ["d0", "d1"] and "and 3 more deployments" in lines
    assert "and 18 more zones" in lines and "and 17 more links" in lines


def test_lines_are_shared_out() -> None:
    for room in range(60):
        found = shares(room, [3, 20, 7])
        assert sum(found) == min(room, 30) and all(f <= w for f, w in zip(found, [3, 20, 7], strict=True))
    assert min(shares(9, [20, 20, 20])) == 3


def test_one_document_or_a_line_for_each_look(store: Store, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--json"])
    data = json.loads(result.stdout)
    assert {d["name"] for d in data["deployments"]} == {f"d{n}" for n in range(5)} and len(data["zones"]) == 20
    running = subprocess.Popen(
        [sys.executable, "-m", "headwater", "top", "--json", "--every", "0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        looks = [json.loads(running.stdout.readline()) for _ in range(3)]
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait(20)
        assert running.stdout is not None
        running.stdout.close()
    assert looks[0]["at"] < looks[1]["at"] < looks[2]["at"] and len(looks[2]["links"]) == 19


def test_without_a_store_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(STORE, raising=False)
    result = CliRunner().invoke(app, ["top", "--once"])
    assert result.exit_code == 6 and "no store here" in result.stderr and result.stdout == ""
    lines = shown(Top(view=View(at=time.time(), store="s.db", error="no store here\n  -> make one")))
    assert "no store here" in lines and not any("no deployments" in line for line in lines)
    empty = shown(Top(view=View(at=time.time(), store="s.db", controller="me")))
    assert any("no deployments: create one with `headwater apply`" in line for line in empty)


def test_what_was_seen_stays_when_the_store_is_gone(store: Store) -> None:
    view = replace(observe.look(), error="the store cannot be used")
    lines = shown(Top(view=view))
    assert "the store cannot be used" in lines and any("last read at" in line for line in lines)
    assert "d0" in first_words(lines, "Deployment")
    assert not any("nobody acts" in line for line in lines)


def test_a_zone_that_is_silent_says_for_how_long(store: Store) -> None:
    view = observe.look()
    zone = replace(view.zones[1], heartbeat=view.at - 300.0, error="cannot be reached")
    late = replace(view.zones[2], heartbeat=view.at - 60.0)
    lines = shown(Top(view=replace(view, zones=(view.zones[0], zone, late))))
    assert next(x for x in lines if x.startswith(f"{zone.name} ")).endswith("silent for 5.0 min")
    assert next(x for x in lines if x.startswith(f"{late.name} ")).endswith("60 s ago")


def test_on_a_terminal_it_is_sorted_by_keys_and_ends_with_q(store: Store, tmp_path: Path) -> None:
    by_lag = first_words(shown(Top(view=observe.look(), order="lag")), "Deployment")
    assert by_lag != sorted(by_lag)
    with Terminal(["top", "--every", "30"], tmp_path, lines=24) as terminal:
        terminal.until(lambda text: "more links" in text)
        assert b"\x1b[?1049h" in terminal.raw  # the alternate screen
        seen = len(terminal.text)
        terminal.type("l")
        text = terminal.until(lambda text: "by lag" in text and "more links" in text, since=seen)
        rows = [line.split()[0] for line in text.splitlines() if line.startswith("d")]
        assert rows == by_lag[: len(rows)] and len(rows) > 2
        terminal.type("xq")  # unknown keys have no effect
        assert terminal.ended() == 0
        assert b"\x1b[?1049l" in terminal.raw and terminal.settings == terminal.before
    assert set(KEYS) == set("nrlpc")


def test_ctrl_c_ends_it_and_a_store_may_come_later(tmp_path: Path) -> None:
    with Terminal(["top", "--every", "0.2"], tmp_path, lines=30) as terminal:
        terminal.until(lambda text: "no store here" in text)
        opened = Store(tmp_path / ".headwater" / "headwater.db")
        fill(opened, 5, 1)
        opened.close()
        terminal.until(lambda text: "deployments 1," in text)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 0
        assert terminal.settings == terminal.before
