"""Test the dashboard in a real browser, over a real controller of simulated zones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headwater.app import observe, pools, stores
from headwater.control import tables
from headwater.control.store import Store
from tests import crowd
from tests.web import scene
from tests.web.conftest import WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.web.conftest import Open, Server

Serve = Callable[..., "Server"]
Shot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def quick_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")


def expect(found: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=WAIT)
    return playwright_expect(found)


def zone(page: Page, name: str) -> Any:
    return page.locator(f"[aria-label^='Zone {name},']")


def unit(page: Page, name: str) -> Any:
    return page.locator(f"[aria-label^='Unit {name} ']")


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_from_nothing_to_a_fission_that_was_approved(serve: Serve, browser: Open, shot: Shot) -> None:
    server = serve()
    page = browser(server.url)
    expect(page.get_by_text("There is no store yet")).to_be_hidden()  # the controller has made one
    expect(page.get_by_text("Nothing runs yet")).to_be_visible()
    expect(page.get_by_text("headwater apply flow.py -c plant.yaml")).to_be_visible()

    # Units appear as the controller starts them.
    version = scene.apply(server.store_url, server.directory)
    expect(unit(page, "warm@E1")).to_be_visible()
    expect(unit(page, "hottest@C1")).to_have_attribute("aria-label", re.compile("running"))
    expect(page.get_by_text("Nothing runs yet")).to_be_hidden()
    assert unit(page, "warm@E5").count() == 1
    scene.until_runs(server.store_url, version)
    expect(unit(page, "means@S1")).to_have_attribute("aria-label", re.compile(r"/s, lag \d+ rows"))
    shot(page, "dashboard-map")

    # A unit's panel shows its operators, schema, state and lag.
    unit(page, "means@S1").click()
    panel = page.get_by_role("complementary", name="Details")
    expect(panel.get_by_role("heading", name="means@S1")).to_be_visible()
    expect(panel.get_by_text("mean double")).to_be_visible()
    expect(panel.get_by_text("120 rows, 48.0 kB")).to_be_visible()
    expect(panel.get_by_role("cell", name="warm@E1")).to_be_visible()
    shot(page, "dashboard-unit")

    # A proposal waits; its effect is shown before it is approved.
    number = scene.propose_fission(server.store_url)
    page.get_by_role("link", name=re.compile("Proposals *1")).click()
    page.get_by_role("link", name=re.compile("cut behind watermark")).click()
    summary = page.locator(".hw-turns li")
    expect(summary.first).to_contain_text("split")
    expect(summary.first).to_contain_text("watermark@E1, warm@E1")
    predicted = page.get_by_role("region", name="Predicted figures")
    expect(predicted.get_by_role("row", name=re.compile("cut behind watermark"))).to_contain_text("1.2 s")
    shot(page, "dashboard-proposal")
    watching = browser(server.url)
    expect(unit(watching, "warm@E1")).to_be_visible()
    assert unit(watching, "watermark@E1").count() == 0
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Version 2 is wanted now.")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_be_hidden()

    # Every open map shows the fission.
    expect(unit(watching, "watermark@E1")).to_be_visible()
    expect(unit(watching, "watermark@E5")).to_have_attribute("aria-label", re.compile("running"))
    expect(watching.get_by_role("status").filter(has_text=re.compile("new", re.I))).to_have_count(1)
    scene.until_runs(server.store_url, version + 1)
    assert observe.status("machines", server.store_url)[0].version == 2
    with stores.existing(server.store_url) as store:
        assert store.decision(number).version == 2

    # The deployment's history shows the change.
    page.goto(f"{server.url}/dataflows/machines")
    expect(page.get_by_text(re.compile(r"Version 2 run: done"))).to_be_visible()
    expect(page.get_by_role("link", name=f"Decision {number}")).to_be_visible()
    expect(page.locator(".hw-chart canvas")).to_be_visible()
    shot(page, "dashboard-deployment")


@pytest.mark.long
def test_a_proposal_is_rejected(serve: Serve, browser: Open) -> None:
    server = serve()
    scene.until_runs(server.store_url, scene.apply(server.store_url, server.directory))
    number = scene.propose_fission(server.store_url)
    page = browser(f"{server.url}/proposals/{number}")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_text("Rejected: nothing changes.")).to_be_visible()
    expect(page.get_by_role("button", name="Reject")).to_be_hidden()
    with stores.existing(server.store_url) as store:
        assert store.decision(number).state == "rejected" and store.deployment("machines").version == 1


def test_who_may_what(serve: Serve, browser: Open) -> None:
    server = serve()
    scene.until_runs(server.store_url, scene.apply(server.store_url, server.directory))
    number = scene.propose_fission(server.store_url)
    admin = pools.set_owner("admin", server.store_url, token=True)
    viewer = pools.set_owner("vera", server.store_url, token=True, role="viewer", shown=admin)
    assert admin and viewer
    page = browser(f"{server.url}/proposals/{number}")
    expect(page.get_by_role("heading", name="Headwater")).to_be_visible()
    assert page.url.startswith(f"{server.url}/signin")
    sign_in(page, "nobodys")
    expect(page.get_by_role("alert")).to_contain_text("Unknown token")
    sign_in(page, viewer)
    expect(page.get_by_text("An operator can approve or reject it; you may look.")).to_be_visible()
    assert page.url == f"{server.url}/proposals/{number}"
    assert not page.get_by_role("button", name="Approve").is_visible()
    cookies = page.context.cookies()
    assert viewer not in str(cookies) and viewer not in page.content()
    (session,) = (c for c in cookies if c["name"] == "headwater_session")
    assert session["httpOnly"] and session["sameSite"] == "Strict"
    page.get_by_role("link", name="Sign out").click()
    page.goto(server.url)
    assert page.url.startswith(f"{server.url}/signin")

    # A role that is taken away while the page is open is gone at once.
    pools.set_owner("olga", server.store_url, token=False, role="operator", shown=admin)
    operator = pools.set_owner("olga", server.store_url, token=True, shown=admin)
    page.goto(f"{server.url}/proposals/{number}")
    sign_in(page, operator or "")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    pools.set_owner("olga", server.store_url, role="viewer", shown=admin)
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text(re.compile("olga is a viewer"))).to_be_visible()
    assert observe.status("machines", server.store_url)[0].version == 1


@pytest.mark.long
def test_a_server_is_lost_and_comes_back(serve: Serve, browser: Open) -> None:
    server = serve()
    scene.until_runs(server.store_url, scene.apply(server.store_url, server.directory))
    page = browser(server.url)
    expect(unit(page, "warm@E1")).to_be_visible()
    lost = page.locator("#popup")
    expect(lost).to_be_hidden()
    server.end()
    expect(lost).to_be_visible()
    expect(lost).to_contain_text("Connection lost")
    expect(unit(page, "warm@E1")).to_be_visible()  # the last figures stay
    server.options = ("--idle",)
    server.start()
    expect(lost).to_be_hidden()
    expect(page.get_by_text("No controller acts on this store")).to_be_visible()
    expect(unit(page, "warm@E1")).to_be_visible()


@pytest.mark.long
def test_without_a_store_it_says_so_and_goes_on(serve: Serve, browser: Open) -> None:
    server = serve("--idle")
    page = browser(server.url)
    expect(page.get_by_text("There is no store yet")).to_be_visible()
    for path in ("dataflows", "letters", "proposals", "dataflows/none", "proposals/7"):
        page.goto(f"{server.url}/{path}")
        expect(page.get_by_text(re.compile("no store", re.I)).first).to_be_visible()
    page.goto(server.url)
    store = Store(server.store_url)
    crowd.fill(store, 12, 2)
    store.close()
    expect(zone(page, "E1.1")).to_be_visible()
    expect(page.get_by_text("There is no store yet")).to_be_hidden()


def test_on_a_phone(serve: Serve, browser: Open, shot: Shot) -> None:
    server = serve()
    scene.until_runs(server.store_url, scene.apply(server.store_url, server.directory))
    page = browser(server.url, width=390, height=844, color_scheme="dark", has_touch=True)
    expect(unit(page, "warm@E5")).to_be_attached()
    unit(page, "warm@E5").tap()
    panel = page.get_by_role("complementary", name="Details")
    expect(panel.get_by_role("heading", name="warm@E5")).to_be_visible()
    shot(page, "dashboard-phone")
    panel.get_by_role("button", name="Close").tap()
    expect(panel).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 22)"
    for path in ("", "dataflows", "dataflows/machines", "letters", "proposals"):
        page.goto(f"{server.url}/{path}")
        expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_by_keyboard_alone(serve: Serve, browser: Open) -> None:
    server = serve()
    scene.until_runs(server.store_url, scene.apply(server.store_url, server.directory))
    page = browser(server.url, reduced_motion="reduce")
    expect(unit(page, "warm@E1")).to_be_visible()
    focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "treeitem":
            break
    assert page.evaluate(focused).startswith("Zone C1, cloud")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused).startswith("Zone S1, site: 1 unit")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith("Unit means@S1 of machines: running")
    page.keyboard.press("Enter")
    panel = page.get_by_role("complementary", name="Details")
    expect(panel.get_by_role("heading", name="means@S1")).to_be_visible()
    expect(panel).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "Close":
            break
    assert page.evaluate(focused) == "Close"
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    page.wait_for_function(f"({focused}).startsWith('Unit means@S1')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("Zone C1")
    # The focused element stays focused while figures around it change.
    before = page.locator(".hw-map").get_attribute("data-updates")
    page.wait_for_function(f"document.querySelector('.hw-map').dataset.updates > {int(before or 0) + 2}")
    assert page.evaluate(focused).startswith("Zone C1")


@pytest.mark.long
def test_five_hundred_zones_and_two_hundred_dataflows(serve: Serve, browser: Open, shot: Shot) -> None:
    server = serve("--idle")
    store = Store(server.store_url)
    plans = crowd.fill(store, 500, 200)
    page = browser(server.url)
    expect(page.locator(".hw-map[data-zones='500']")).to_be_attached()
    expect(zone(page, "C1")).to_be_visible()
    assert page.locator("[aria-label*='zones below']").count() > 0  # zones that are too small are combined
    group = page.locator("[aria-label*='zones below S25,']")
    page.get_by_role("button", name="Show all").click()
    shot(page, "dashboard-500-zones")
    group.click()
    expect(zone(page, "E25.9")).to_be_attached()
    drawn = page.locator(".hw-zone").count()
    assert drawn <= 101 + 9
    before = int(page.locator(".hw-map").get_attribute("data-updates") or 0)
    crowd.tell(store, plans, 2000.0, at=time.time())
    page.wait_for_function(f"document.querySelector('.hw-map').dataset.updates > {before}")
    print("map update took", page.locator(".hw-map").get_attribute("data-ms"), "ms")
    page.goto(f"{server.url}/dataflows")
    expect(page.get_by_role("row")).to_have_count(201)
    page.get_by_label("Find by name or owner").fill("d19")
    expect(page.get_by_role("row")).to_have_count(12)  # d19, d190 to d199, and the head
    store.close()
