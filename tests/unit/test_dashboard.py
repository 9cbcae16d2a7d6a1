"""The dashboard without a browser: updates of pages, sessions, sign-in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nicegui")

from headwater.app import pools
from headwater.app.view import DeploymentSeen, LinkSeen, UnitSeen, View, ZoneSeen
from headwater.control import sharing
from headwater.web.access import TRIAL_FILE, Access, Asker, NotAllowed, NotKnown, trial_token
from headwater.web.dashboard import sessions, signin
from headwater.web.dashboard.feed import DRAWN, ViewFeed, link_piece, zone_piece
from headwater.web.dashboard.frame import NAMED, banner
from headwater.web.dashboard.mappage import unit_nodes
from headwater.web.dashboard.rich import node
from headwater.web.dashboard.sessions import Sessions, Visitor


def zone(name: str, *units: UnitSeen, parent: str | None = None) -> ZoneSeen:
    return ZoneSeen(
        name=name, layer="edge", parent=parent, locations=(), hosts=(), units=units, heartbeat=1.0, error=None
    )


def unit(name: str, **values: object) -> UnitSeen:
    return UnitSeen(unit=name, deployment="d", zone="E1", layer="edge", **{"status": "running", **values})  # type: ignore[arg-type]


def view(*zones: ZoneSeen, links: tuple[LinkSeen, ...] = ()) -> View:
    return View(at=1.0, store="s", layers=("edge",), zones=zones, links=links)


def test_every_page_names_deployments_with_a_broken_slo() -> None:
    def seen(number: int, *broken: str) -> DeploymentSeen:
        values = dict.fromkeys(("plan", "continuum", "rows_per_s", "latency_p95_s", "lag", "slo_latency_s"))
        counts = dict.fromkeys(("units", "running", "failed", "dead_letters", "late_rows", "version", "updated"), 0)
        return DeploymentSeen(
            name=f"d{number}", phase="running", message="", busy=False, has_slo=True, broken=broken, **values, **counts
        )  # type: ignore[arg-type]

    assert banner(replace(view(), controller="c", deployments=(seen(1),))) == []
    late = [seen(n, "max_latency: 3 s > 2 s") for n in range(NAMED + 2)]
    (line,) = banner(replace(view(), controller="c", deployments=(seen(9), *late)))
    text = str(line)
    assert "SLO broken" in text and "d0" in text and "3 s > 2 s" in text and "and 2 more" in text
    assert "d9" not in text and f"d{NAMED}" not in text


def test_a_unit_names_late_rows_and_idle_locations() -> None:
    shown = json.dumps(unit_nodes(unit("a@E1", late_rows=3, idle=("L1", "L2")), None))
    assert all(text in shown for text in ("Late rows", '"3"', "Idle, left out", "L1, L2"))


def test_a_page_is_told_what_it_has_not_had() -> None:
    feed = ViewFeed(None)
    feed.take(view(zone("C1"), zone("E1", unit("a@E1"), parent="C1")))
    version, whole = feed.since(0)
    assert whole is not None and whole["whole"] and whole["order"] == ["C1", "E1"]
    assert feed.since(version) == (version, None)
    feed.take(view(zone("C1"), zone("E1", unit("a@E1"), parent="C1")))
    assert feed.since(version)[1] is None  # no difference
    feed.take(view(zone("C1"), zone("E1", unit("a@E1", rows_in_per_s=12.0), parent="C1")))
    newer, piece = feed.since(version)
    assert piece is not None and [z["id"] for z in piece["zones"]] == ["E1"] and "order" not in piece
    feed.take(view(zone("C1")))
    _, piece = feed.since(newer)
    assert piece is not None and piece["order"] == ["C1"] and not piece["whole"]


def test_pages_wait_for_the_next_snapshot_and_no_longer() -> None:
    feed = ViewFeed(None)

    async def waits() -> list[bool]:
        """Return for each wait whether it ended before its limit."""
        found = []
        for arrives in (True, False, True):
            waiting = [asyncio.create_task(feed.newer(feed.version, 60.0 if arrives else 0.05)) for _ in range(3)]
            await asyncio.sleep(0)
            assert len(feed._waiting) == 3
            if arrives:
                await asyncio.get_running_loop().run_in_executor(None, feed.take, view(zone("C")))
            begun = time.monotonic()
            await asyncio.gather(*waiting)
            found.append(time.monotonic() - begun < 30.0)
            assert not feed._waiting
        await feed.newer(feed.version - 1, 60.0)  # it is there
        return found

    assert asyncio.run(waits()) == [True, True, True]


def test_a_page_whose_event_loop_has_ended_delays_nobody() -> None:
    feed, ended = ViewFeed(None), asyncio.new_event_loop()
    task = ended.create_task(feed.newer(feed.version, 60.0))
    ended.call_soon(ended.stop)
    ended.run_forever()
    (wake,) = feed._waiting
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        ended.run_until_complete(task)
    assert not feed._waiting
    ended.close()
    feed._waiting.add(wake)
    feed.take(view(zone("D")))
    assert feed.version == 1 and not feed._waiting


def test_before_the_first_snapshot_a_page_waits() -> None:
    feed = ViewFeed(None)
    begun = time.monotonic()
    asyncio.run(feed.newer(-1, 0.1))
    assert time.monotonic() - begun >= 0.1


def test_the_map_tells_links_beside_the_tree_from_those_to_parents() -> None:
    feed = ViewFeed(None)
    links = tuple(LinkSeen(link=f"{a}-{b}", lower=a, upper=b) for a, b in (("E1", "C1"), ("E1", "C2"), ("C1", "C2")))
    feed.take(replace(view(zone("C1"), zone("C2"), zone("E1", parent="C1")), links=links))
    _, piece = feed.since(0)
    assert piece is not None
    assert {x["id"]: (x["lower"], x["upper"], x["cross"]) for x in piece["links"]} == {
        "E1-C1": ("E1", "C1", False),
        "E1-C2": ("E1", "C2", True),
        "C1-C2": ("C1", "C2", True),
    }


def test_of_many_units_the_map_has_those_in_trouble() -> None:
    many = [unit(f"u{n}@E1") for n in range(50)] + [unit("bad@E1", status="failed", error="no")]
    piece = zone_piece(zone("E1", *many))
    assert piece["count"] == 51 and piece["failed"] == 1
    assert len(piece["units"]) == DRAWN and piece["units"][0]["id"] == "bad@E1"


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"bytes_per_s": 10.0, "capacity_bytes_per_s": 100.0}, "calm"),
        ({"bytes_per_s": 70.0, "capacity_bytes_per_s": 100.0}, "busy"),
        ({"bytes_per_s": 90.0, "capacity_bytes_per_s": 100.0}, "full"),
        ({"bytes_per_s": 10.0}, "calm"), ({}, "quiet"), ({"bytes_per_s": 0.0}, "quiet"),
        ({"bytes_per_s": 10.0, "up": False}, "down"),
    ],
)  # fmt: skip
def test_a_link_is_drawn_by_what_goes_over_it(values: dict[str, float | bool], state: str) -> None:
    piece = link_piece(LinkSeen(link="E1-C1", lower="E1", upper="C1", **values))  # type: ignore[arg-type]
    assert piece["state"] == state and 0 <= piece["flow"] <= piece["bed"]


def test_a_link_shows_its_rows_and_bytes() -> None:
    link = LinkSeen(link="E1-C1", lower="E1", upper="C1", rows_per_s=1234.0, bytes_per_s=5000.0)
    assert link_piece(link)["text"] == "1.2k/s · 5.0 kB/s"
    assert link_piece(replace(link, bytes_per_s=None))["text"] == "1.2k/s"
    full = link_piece(replace(link, capacity_bytes_per_s=10_000.0))
    assert "10.0 kB/s at most (50 %)" in full["about"] and link_piece(replace(link, up=False))["text"] == "down"


def test_a_wider_link_has_a_wider_bed() -> None:
    link = LinkSeen(link="E1-C1", lower="E1", upper="C1", bytes_per_s=1.0)
    beds = [link_piece(replace(link, capacity_bytes_per_s=c))["bed"] for c in (1e4, 1e6, 1e8)]
    assert beds == sorted(set(beds))


def test_a_node_is_text_and_never_markup() -> None:
    assert node("p", "<b>", cls="x") == ["p", {"class": "x"}, ["<b>"]]
    for bad in ({"onclick": "x"}, {"innerHTML": "x"}):
        with pytest.raises(ValueError, match="not an allowed attribute"):
            node("p", **bad)
    with pytest.raises(ValueError, match="not an allowed tag"):
        node("script", "x")


def visitor(place: str, session: str | None) -> Visitor:
    """Return a visitor of a server that has just started."""
    return Visitor(Sessions(Access(place)), session)


def signed_in(place: str, session: str) -> bool:
    try:
        return visitor(place, session).asker().name is not None
    except NotKnown:
        return False


def test_a_session_outlives_its_server_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "s.db")
    admin = pools.set_owner("admin", place, token=True)
    token = pools.set_owner("vera", place, token=True, role="viewer", shown=admin)
    assert admin and token
    sessions_ = Sessions(Access(place))
    with pytest.raises(NotKnown, match="unknown token"):
        sessions_.begin("another")
    name, other = sessions_.begin(token), sessions_.begin(token)
    assert visitor(place, name).asker() == Asker(name="vera", role="viewer")
    known = b"".join(file.read_bytes() for file in tmp_path.glob("s.db*"))
    assert name.encode() not in known and token.encode() not in known
    sessions_.end(name)
    assert not signed_in(place, name) and signed_in(place, other) and not signed_in(place, "x" * 43)
    assert not signed_in(place, "x" * 5000)
    again = pools.set_owner("vera", place, token=True, shown=token)
    assert again and not signed_in(place, other), "the token that it began with is revoked"
    third = Sessions(Access(place)).begin(again)
    assert signed_in(place, third)
    late = SimpleNamespace(time=lambda: time.time() + sessions.LASTS + 1)
    monkeypatch.setattr(sharing, "time", late)
    assert not signed_in(place, third), "it has lasted long enough"


def test_the_oldest_session_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "s.db")
    token = pools.set_owner("admin", place, token=True)
    monkeypatch.setattr(sessions, "MOST", 2)
    names = [Sessions(Access(place)).begin(token or "") for _ in range(3)]
    assert [signed_in(place, name) for name in names] == [False, True, True]


def test_a_session_of_the_trial_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRIAL_FILE, str(tmp_path / "trial"))
    place = str(tmp_path / "s.db")
    with pytest.raises(NotKnown):
        Sessions(Access(place)).begin("another")
    name = Sessions(Access(place)).begin(trial_token())
    assert trial_token() not in name and not (tmp_path / "s.db").exists(), "it needs no store"
    assert visitor(place, name).asker().on_trial
    kind, until, signature = name.split(".")
    for text in (f"{int(until) + 1}.{signature}", f"x.{signature}", f"{until}.", "", "é.é"):
        with pytest.raises(NotKnown, match="the session is over"):
            visitor(place, f"{kind}.{text}").asker()
    with pytest.raises(NotKnown):
        Visitor(Sessions(Access(place, loopback=False)), name).asker()
    monkeypatch.setattr(sessions, "LASTS", -1.0)
    with pytest.raises(NotKnown):
        visitor(place, Sessions(Access(place)).begin(trial_token())).asker()
    pools.set_owner("admin", place, token=True)
    with pytest.raises(NotKnown):
        visitor(place, name).asker()


def test_a_role_is_looked_up_before_each_act(tmp_path: Path) -> None:
    place = str(tmp_path / "s.db")
    admin = pools.set_owner("admin", place, token=True)
    token = pools.set_owner("olga", place, token=True, role="operator", shown=admin)
    open_ = Sessions(Access(place))
    asking = Visitor(open_, open_.begin(token or ""))
    asking.check("operator")
    pools.set_owner("olga", place, role="viewer", shown=admin)
    with pytest.raises(NotAllowed):
        asking.check("operator")
    open_.end(asking.session)
    with pytest.raises(NotKnown):
        asking.asker()
    with pytest.raises(NotKnown):
        Visitor(open_, None).asker()
    assert Visitor(None, None).asker().on_trial


@pytest.mark.parametrize(
    ("asked", "goes_to"),
    [
        ("/proposals/3", "/proposals/3"), ("//evil.example", "/"), ("https://evil.example", "/"),
        ("/\\evil.example", "/"), ("/signout", "/"), ("", "/"), ("/a\nb", "/"),
    ],
)  # fmt: skip
def test_signing_in_leads_nowhere_else(asked: str, goes_to: str) -> None:
    assert signin._inside(asked) == goes_to
    assert 'value="/&quot;&gt;' in signin._page('/">')
