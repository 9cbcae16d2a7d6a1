"""A unit waits for the entries of its inputs that are still to arrive over a link."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.agent.relays import Relays
from headwater.channels.linkmeter import LinkMeter
from headwater.channels.relay import RelayState
from headwater.core.errors import NoSuchLog, Unavailable
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.model import Channel, DeploymentPlan


class _Elsewhere:
    """The original of a channel, with ``end`` entries."""

    def __init__(self, end: int) -> None:
        self.end, self.closed = end, 0

    def latest(self) -> int:
        return self.end

    def close(self) -> None:
        self.closed += 1


def test_a_copy_is_whole_when_it_has_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, wire = UnitSettings(), cast(Any, None)
    relays = Relays("d", "C1", Layout(tmp_path), settings, {}, wire)
    elsewhere, here = _Elsewhere(5), SimpleNamespace(end=3)
    monkeypatch.setattr(relays, "connect", lambda plan, channel: elsewhere)
    relay = SimpleNamespace(replica=SimpleNamespace(latest=lambda: here.end), link="E1-C1")
    monkeypatch.setattr(relays, "_relays", {"clean-1@E1": relay})
    plan = cast(DeploymentPlan, None)
    copied, own = (cast(Channel, SimpleNamespace(id=id_)) for id_ in ("clean-1@E1", "own-1@C1"))
    relays.check_whole(plan, [own])  # no entry of it comes over a link
    with pytest.raises(Unavailable, match=r"2 entries of clean-1@E1 are still to arrive over link E1-C1"):
        relays.check_whole(plan, [copied, own])
    assert elsewhere.closed == 1
    # Entries written meanwhile are not waited for: that might never end.
    elsewhere.end, here.end = 9, 5
    relays.check_whole(plan, [copied, own])
    # A new call counts the entries from now on.
    with pytest.raises(Unavailable, match="4 entries"):
        relays.check_whole(plan, [copied])


def test_an_empty_copy_is_whole_where_its_writer_was_never_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays = Relays("d", "C1", Layout(tmp_path), UnitSettings(), {}, cast(Any, None))
    here = SimpleNamespace(end=0)
    relay = SimpleNamespace(replica=SimpleNamespace(latest=lambda: here.end), link="E1-C1")
    monkeypatch.setattr(relays, "_relays", {"clean-1@E1": relay})

    def latest(spec: Any, channel: Any) -> int:
        raise NoSuchLog("there is no such log (yet)", where="E1")

    monkeypatch.setattr(relays, "latest", latest)
    copied = cast(Channel, SimpleNamespace(id="clean-1@E1"))
    relays.check_whole(cast(Any, None), [copied])
    here.end = 1
    with pytest.raises(NoSuchLog):
        relays.check_whole(cast(Any, None), [copied])


def test_relays_of_one_link_tell_together_what_it_does(tmp_path: Path) -> None:
    relays = Relays("d", "C1", Layout(tmp_path), UnitSettings(), {}, cast(Any, None))
    now = [1000.0]
    meter = LinkMeter(lambda: now[0])
    state = RelayState(True, 0.0, None, 0)
    own = {name: SimpleNamespace(link="E1-C1", state=state, meter=meter) for name in ("a", "b")}
    relays._relays.update(cast(Any, own))
    (link,) = relays.links()
    assert (link.link, link.up, link.delay_s, link.bytes_per_s, link.capacity) == (
        "E1-C1",
        True,
        None,
        0,
        None,
    )
    meter.took(0.05)
    for relay in ("a", "b", "a", "b"):
        meter.came(relay, 50_000, 1.0)
        now[0] += 0.1
    (link,) = relays.links()
    assert (link.delay_s, link.bytes_per_s, link.capacity) == (0.025, 200_000, pytest.approx(500_000))
