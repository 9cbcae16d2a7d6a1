"""Measure the dashboard's delay in a real browser: few zones beside very many.

A page is ready when the map has drawn all zones and the browser has painted it. An update takes from the
commit of new figures to the store until the browser has painted them; drawing is counted besides.

python -m benchmarks.dashboard --json FILE
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common
from headwater.control.store import Store
from tests import crowd
from tests.conftest import free_port
from tests.web.conftest import ARGUMENTS, CHROMIUM, Server, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

SIZES = {"small": (10, 5), "large": (500, 200)}
"""Zones and dataflows."""
_PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
_READY = "zones => document.querySelector(`.hw-map[data-zones='${zones}']`) !== null"
_UPDATED = "before => Number(document.querySelector('.hw-map').dataset.updates || 0) > before"
_WAIT = 60_000


@contextmanager
def _page(driver: Playwright, profile: Path) -> Iterator[Page]:
    context = driver.chromium.launch_persistent_context(
        str(profile), executable_path=str(CHROMIUM), args=ARGUMENTS, headless=True
    )
    try:
        yield context.pages[0]
    finally:
        context.close()


def _seconds_until(page: Page, condition: str, argument: int, begun: float) -> float:
    page.wait_for_function(condition, arg=argument, polling="raf", timeout=_WAIT)
    page.evaluate(_PAINTED)
    return time.monotonic() - begun


def _opened(page: Page, url: str, zones: int) -> float:
    begun = time.monotonic()
    page.goto(url, wait_until="commit")
    return _seconds_until(page, _READY, zones, begun)


def measure(driver: Playwright, place: Path, size: str, repeats: int, updates: int) -> dict[str, Any]:
    """Open the map with a cold and a warm cache; measure updates of one dataflow, and of all at once."""
    zones, dataflows = SIZES[size]
    place.mkdir()
    server = Server(place, free_port(), ("--idle",))
    server.start()
    store = Store(server.store_url)
    cold, warm, drawn = [], [], []
    seen: dict[int, list[float]] = {1: [], dataflows: []}
    draw = random.Random(1)
    try:
        plans = crowd.fill(store, zones, dataflows)
        for n in range(repeats):
            with _page(driver, place / f"profile{n}") as page:
                sign_in(page, server.url)
                first = _opened(page, server.url, zones)
                if n or repeats == 1:  # the first visitor of all waits for the server's first snapshot, too
                    cold.append(first)
                warm.append(_opened(page, server.url, zones))
                for k in range(updates):
                    for many, own in seen.items():
                        time.sleep(draw.uniform(0.5, 1.5))
                        before = int(page.locator(".hw-map").get_attribute("data-updates") or 0)
                        tells = draw.sample(plans, many)
                        crowd.tell(store, tells, 2000.0 + 10 * (n * updates + k) + many / 1000, at=time.time())
                        begun = time.monotonic()
                        own.append(_seconds_until(page, _UPDATED, before, begun))
                        drawn.append(float(page.locator(".hw-map").get_attribute("data-ms") or 0))
    finally:
        store.close()
        server.end()
    return {
        "zones": zones,
        "dataflows": dataflows,
        "ready_s": common.middle(cold),
        "ready_again_s": common.middle(warm),
        "update_ms": _ms(seen[1]),
        "update_of_all_ms": _ms(seen[dataflows]),
        "draw_ms": common.middle(drawn, 1),
        "updates": len(drawn),
    }


def _ms(seconds: list[float]) -> dict[str, float]:
    return {"p50": round(common.middle(seconds) * 1000), "p95": round(common.quantile(seconds, 0.95) * 1000)}


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=5)
    options = parser.parse_args()
    facts = common.facts(quick=options.quick)
    from playwright.sync_api import sync_playwright

    found = {}
    with tempfile.TemporaryDirectory(prefix="headwater-dashboard-") as place, sync_playwright() as driver:
        for size in SIZES:
            repeats = common.repeats_of(options)
            found[size] = measure(driver, Path(place) / size, size, repeats, 3 if options.quick else 6)
            print(f"{size}: {found[size]}", flush=True)
    common.write_result(options.json, {"dashboard": found}, facts=facts)


if __name__ == "__main__":
    main()
