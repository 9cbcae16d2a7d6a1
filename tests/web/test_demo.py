"""Test the dashboard over real zones with real Sparks: units, a fission, a replayed dead letter."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.app import deployments, loading
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from tests.web import scene
from tests.web.test_dashboard import expect, unit

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.web.conftest import Open, Server

SMALL = Continuum.from_text("""
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
""")
STARTS = 300_000
"""Milliseconds within which three Sparks are up."""


@pytest.fixture
def real(serve: Callable[..., Server]) -> Iterator[Server]:
    server = serve("--real")
    yield server
    server.end()
    deployments.down(server.directory)


@contextmanager
def machines(directory: Path) -> Iterator[None]:
    """Write a file of readings every second, and in the first a reading that is no number."""
    directory.mkdir(parents=True)
    over = threading.Event()

    def feed() -> None:
        for number in range(3600):
            rows = [f"{n},2026-01-01T{8 + number // 60:02}:{number % 60:02}:00Z,{41 + n % 20}" for n in range(60)]
            bad = [] if number else ["7,2026-01-01T08:00:00Z,hot"]
            part = directory / f".{number}.part"
            part.write_text("\n".join([*rows, *bad, ""]))
            part.rename(directory / f"{number}.csv")
            if over.wait(1.0):
                return

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield
    finally:
        over.set()
        feeding.join(10)


@pytest.mark.long
def test_real_zones(real: Server, browser: Open, shot: Callable[[Page, str], None]) -> None:
    with machines(real.directory / "in" / "L1"):
        look(real, browser, shot)


def look(real: Server, browser: Open, shot: Callable[[Page, str], None]) -> None:
    """Watch units appear, replay a dead letter, watch a fission, predict other rates."""
    flow = real.directory / "flow.py"
    text = scene.FLOW.replace('"in/{location}"', f'"{real.directory}/in/{{location}}"')
    flow.write_text(text.replace('["L1", "L2", "L3", "L4", "L5"]', '["L1"]'))
    request = PlanRequest(dataflow=loading.load_dataflow(str(flow)).dataflow, continuum=SMALL)
    version = (client := Client(real.store_url)).apply(client.propose(request))

    page = browser(real.url)
    expect(unit(page, "warm@E1")).to_have_attribute("aria-label", re.compile("running"), timeout=STARTS)
    expect(unit(page, "hottest@C1")).to_have_attribute("aria-label", re.compile("running"), timeout=STARTS)
    scene.until_runs(real.store_url, version, 300)

    page.goto(f"{real.url}/letters?of=machines")
    row = page.get_by_role("row", name=re.compile("7,2026-01-01T08:00:00Z,hot"))
    for _ in range(20):
        if row.is_visible():
            break
        page.get_by_role("button", name="Read again").click()
        page.wait_for_timeout(3000)
    shot(page, "dashboard-letters")
    row.get_by_role("button", name="Replay…").click()
    page.get_by_label("The corrected record").fill("7,2026-01-01T08:00:00Z,55.0")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text("replayed", exact=True)).to_be_visible()

    number = scene.propose_fission(real.store_url)
    page.goto(f"{real.url}/proposals/{number}")
    page.get_by_role("button", name="Approve").click()
    page.goto(real.url)
    expect(unit(page, "watermark@E1")).to_have_attribute("aria-label", re.compile("running"), timeout=STARTS)
    page.goto(f"{real.url}/whatif?of=machines")
    page.get_by_label("Rates").fill("3x")
    told = page.get_by_role("heading", name=re.compile("Supposed: .*3 times"))
    for _ in range(20):  # rates are known some seconds after a change
        page.get_by_role("button", name="Predict").click()
        page.wait_for_timeout(3000)
        if told.is_visible():
            break
    expect(told).to_be_visible()
    shot(page, "dashboard-whatif")
