"""Fair shares by role, bounds of expensive requests, and the end of what a revoked token has opened."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from nicegui import ui
from starlette.requests import Request

import headwater as hw
from headwater.app import pools
from headwater.app.observe import look
from headwater.app.view import View
from headwater.cli.serve import TlsOptions, served
from headwater.core.errors import Denied, DeploymentError
from headwater.dataflow.graph import Dataflow
from headwater.web import lanes
from headwater.web.access import Access, NotKnown, trial_file, trial_token
from headwater.web.api import about, events
from headwater.web.dashboard import frame as framing
from headwater.web.dashboard.feed import ViewFeed
from headwater.web.dashboard.frame import DashboardContext, Frame
from headwater.web.dashboard.sessions import Sessions, Visitor
from headwater.web.server import serving
from tests.conftest import free_port
from tests.unit.served import V1, ZONES, Client, fetch, flow, place, token

LIMIT = 120.0
"""Seconds for each event: long enough for a busy machine."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with place(tmp_path), serving(None, "127.0.0.1", 0) as found:
        yield found


class Blocked:
    """A slow use case: it waits until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, store_url: str | None) -> View:
        self.entered.release()
        assert self.go.wait(LIMIT)
        return look(store_url)


def test_many_requests_of_viewers_delay_nobody_else(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer, operator = token("v", "viewer"), token("o", "operator")
    slow = Blocked()
    monkeypatch.setattr(about, "look", slow)

    def ask() -> int:
        headers = {"Authorization": f"Bearer {viewer}"}
        return httpx.get(f"{url}{V1}/view", headers=headers, trust_env=False, timeout=LIMIT).status_code

    with ThreadPoolExecutor(60) as many:
        flood = [many.submit(ask) for _ in range(60)]
        try:
            for _ in range(lanes.WIDTHS["viewer"]):
                assert slow.entered.acquire(timeout=LIMIT)
            assert fetch("GET", f"{url}{V1}/health").status_code == 200
            with Client(url, operator) as client:
                assert client.see("/deployments") == []
                assert client.see("/me")["role"] == "operator"
            assert not slow.entered.acquire(blocking=False), "a viewer has more than the viewers' share"
        finally:
            slow.go.set()
        assert {one.result() for one in flood} <= {200, 503} and 200 in {one.result() for one in flood}


def test_too_many_waiting_requests_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lanes.WIDTHS, "viewer", 1)
    monkeypatch.setattr(lanes, "QUEUE", 0)
    with place(tmp_path), serving(None, "127.0.0.1", 0) as url:
        viewer = token("v", "viewer")
        with Client(url, viewer) as client:
            refused = client.see("/me", 429)
        assert "requests of the role viewer are waiting" in refused["detail"] and refused["hint"] == "try again later"


def test_a_request_has_bounds(url: str) -> None:
    much = flow("L1")
    much["locations"] = [f"L{i}" for i in range(10_001)]
    with Client(url) as client:
        found = client.ask("/plans", {"dataflow": much, "continuum": ZONES}, 422)
        assert found["detail"] == "dataflow: 10,001 locations, 10,000 are allowed in a request"
        found = client.ask("/continuum/check", {"continuum": "#" * (2**20 + 1)}, 422)
        assert "1,048,576 are allowed" in found["detail"]
    viewer, operator = token("v", "viewer"), token("o", "operator")
    body = {"continuum": ZONES, "other": " " * 5 * 2**20}
    with Client(url, viewer) as client:
        assert "4,194,304 bytes" in client.ask("/continuum/check", body, 413)["detail"]
    with Client(url, operator) as client:
        client.ask("/continuum/check", body, 422)


class Counted(str):
    """A name that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def test_locations_are_checked_in_linear_time() -> None:
    builder = hw.flow("f", locations=["L0"])
    builder.read.csv("in/{location}", "v double").write.memory("out")
    operators, many = builder.build().operators, 500
    Counted.compared = 0
    Dataflow("f", operators, tuple(Counted(f"L{i}") for i in range(many)))
    assert Counted.compared < 20 * many, "quadratic"


# ---------------------------------------------------------------- revoked tokens


def test_a_revoked_token_ends_its_stream(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT", 3600.0)
    mine = token("v", "viewer")
    headers = {"Authorization": f"Bearer {mine}"}
    with httpx.stream("GET", f"{url}{V1}/events", headers=headers, trust_env=False, timeout=LIMIT) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(": here")
        pools.set_owner("v", token=True, shown=mine)
        assert not [line for line in lines if line]


def test_a_page_whose_token_is_revoked_shows_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    went: list[str] = []
    monkeypatch.setattr(ui.navigate, "to", went.append)
    monkeypatch.setattr(framing, "ASKED", 0.0)
    with place(tmp_path):
        mine, store_url = token("v", "viewer"), None
        access = Access(store_url)
        sessions = Sessions(access)
        session = sessions.begin(mine)
        context = DashboardContext(store=store_url, sessions=sessions, feed=ViewFeed(None), home=tmp_path)
        request = Request({"type": "http", "path": "/letters", "headers": [], "query_string": b"", "server": ("h", 1)})
        page = Frame(context, Visitor(sessions, session), access.asker(mine), request)
        shown: list[View] = []
        page.on_view(lambda view: shown.append(view))
        context.feed.take(look(store_url))
        asyncio.run(page._beat())
        assert len(shown) == 1 and not went
        pools.set_owner("v", token=True, shown=mine)
        for _ in range(2):
            context.feed.take(look(store_url))
            asyncio.run(page._beat())
        assert len(shown) == 1 and went == ["/signin?next=/letters"]
        with pytest.raises(NotKnown):
            sessions.asker(session)


# ---------------------------------------------------------------- trial mode


def test_the_log_of_a_service_holds_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    said: list[str] = []
    options: dict[str, Any] = {"home": tmp_path, "say": said.append, "trust_code": False, "zones": ()}
    with place(tmp_path), served(str(free_port()), None, None, tls=TlsOptions(None, None, None), **options):
        text = "\n".join(said)
        assert "dashboard at" in text and str(trial_file()) in text
        assert trial_token() not in text


def test_the_link_of_up_signs_a_browser_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said: list[str] = []
    port = free_port()
    tls = TlsOptions(None, None, None)
    options: dict[str, Any] = {"home": tmp_path, "say": said.append, "trust_code": False, "zones": (), "tls": tls}
    with place(tmp_path), served(str(port), None, None, **options), httpx.Client(trust_env=False, timeout=LIMIT) as one:
        (link,) = [text.split()[2].rstrip(",") for text in said if "dashboard at" in text]
        url = f"http://127.0.0.1:{port}"
        assert one.get(f"{url}/").headers["location"].startswith("/signin")
        unknown = one.get(f"{url}{V1}/me")
        assert unknown.status_code == 401 and str(trial_file()) in unknown.json()["hint"]
        assert one.get(f"{url}/signin", params={"token": "wrong"}).status_code == 200
        assert not one.cookies
        assert one.get(link).headers["location"] == "/"
        assert one.get(f"{url}/").status_code == 200, "the cookie is that of a session"
        mine = token("a")
        assert one.get(f"{url}/").headers["location"].startswith("/signin"), "the first token ends the trial"
        one.cookies.clear()
        assert one.get(f"{url}/signin", params={"token": mine}).status_code == 200 and not one.cookies


# ---------------------------------------------------------------- roles


def test_new_owners_of_a_token_are_viewers(tmp_path: Path) -> None:
    with place(tmp_path):
        pools.set_owner("a", token=True)
        pools.set_owner(pools.ADMIN, token=True)
        assert (pools.role_of("a"), pools.role_of(pools.ADMIN)) == ("viewer", "owner")


def test_owners_do_not_demote_each_other_over_http(url: str) -> None:
    ann, bob, eve = token("ann"), token("bob"), token("eve", "viewer")
    body: dict[str, Any] = {"role": "viewer"}
    with Client(url, ann) as client:
        for change in (body, {"dataflows": 0}):
            refused = client.patch("/owners/bob", json=change)
            assert refused.status_code == 403 and "bob is an owner, and ann another one" in refused.text
        assert client.patch("/owners/eve", json={"role": "operator"}).status_code == 200
        assert client.patch("/owners/new", json={"dataflows": 1}).json()["role"] == "viewer"
    with Client(url, eve) as client:
        assert client.patch("/owners/eve", json={"role": "owner"}).status_code == 403
    with Client(url, bob) as client:
        assert client.patch("/owners/bob", json=body).json()["role"] == "viewer"
    with Client(url, ann) as client:
        last = client.patch("/owners/ann", json=body)
        assert last.status_code == 409 and "ann is the last owner" in last.json()["detail"]


def test_admin_and_the_command_line_demote_owners(tmp_path: Path) -> None:
    with place(tmp_path):
        admin, ann, bob = token(pools.ADMIN), "", ""
        ann = str(pools.set_owner("ann", role="owner", token=True, shown=admin) or "")
        bob = str(pools.set_owner("bob", role="owner", token=True, shown=admin) or "")
        with pytest.raises(Denied):
            pools.set_owner("bob", role="viewer", shown=ann, by="ann")
        pools.set_owner("bob", role="operator", shown=bob, by="bob")
        pools.set_owner("ann", role="viewer", shown=admin, by=pools.ADMIN)
        assert (pools.role_of("ann"), pools.role_of("bob")) == ("viewer", "operator")
        with pytest.raises(Denied, match="admin needs a token"):
            pools.set_owner("bob", role="owner", shown=bob, by="bob")
        with pytest.raises(DeploymentError):
            pools.set_owner(pools.ADMIN, role="viewer", shown=admin)
