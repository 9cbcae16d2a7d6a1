"""Brokers in a continuum, and the channels that a plan assigns to them."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import headwater as hw
from headwater.channels.channelspec import channel_spec, member_spec, topic_of
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList
from headwater.core.jsonform import dump
from headwater.disk.layout import Layout
from headwater.plan.build import build
from headwater.plan.diff import diff
from headwater.plan.document import from_document, to_document
from headwater.plan.model import DeploymentPlan
from headwater.plan.outline import outline
from headwater.plan.spec import spec_of
from headwater.render.deployment import plan_view
from headwater.spark import broker


def continuum(*, e1: str = "", e2: str = "", s1: str = "", c1: str = "") -> Continuum:
    return Continuum.from_text(
        f"""
name: test
layers: [edge, site, cloud]
zones:
  C1: {{layer: cloud{c1}}}
  S1: {{layer: site, parent: C1{s1}}}
  E1: {{layer: edge, parent: S1, locations: [L1]{e1}}}
  E2: {{layer: edge, parent: S1, locations: [L2]{e2}}}
"""
    )


def plan(where: Continuum, *, name: str = "test") -> DeploymentPlan:
    builder = hw.flow(name, locations=["L1", "L2"])
    rows = builder.read.json("/in/{location}", "id bigint").where("id > 0").named("clean")
    rows.to_layer("site").where("id > 1").named("more").to_layer("cloud").write.memory("out")
    return build(builder.build(), where)


def hosts(where: Continuum) -> dict[str, str | None]:
    return {c.zone: c.broker for c in plan(where).channels}


BROKER = ", broker: 'b:9092'"


def test_a_channel_that_goes_to_a_broker_is_another_one() -> None:
    decided = diff(plan(continuum()), plan(continuum(s1=BROKER)))
    found = {u.unit: (u.action, u.reason) for u in decided.changed}
    moved = "the channel of 'clean' goes to the broker of S1, b:9092"
    assert found["clean@E1"] == found["clean@E2"] == ("replace", moved)
    assert found["more@S1"][0] == "replace"
    assert found["out@C1"][0] == "update_inputs"
    assert sorted(c.action for c in decided.channels) == ["begins"] * 3 + ["ends"] * 3
    back = diff(decided.wanted, plan(continuum()))
    assert {u.reason for u in back.changed if u.unit != "out@C1"} == {
        "the channel of 'clean' goes to the disk of its zone",
        "the channel of 'more' goes to the disk of its zone",
    }


def test_a_broker_with_a_new_address_keeps_its_channels() -> None:
    decided = diff(plan(continuum(s1=BROKER)), plan(continuum(s1=BROKER.replace("9092", "9093"))))
    assert {u.unit: u.action for u in decided.changed} == {
        "clean@E1": "replace", "clean@E2": "replace", "more@S1": "replace", "out@C1": "update_inputs",
    }  # fmt: skip
    assert {c.action for c in decided.channels} == {"continues"}


def test_a_channel_is_with_the_nearest_broker_on_the_way_to_its_reader() -> None:
    assert hosts(continuum()) == {"E1": None, "E2": None, "S1": None}
    assert hosts(continuum(c1=BROKER)) == {"E1": None, "E2": None, "S1": "C1"}  # C1 is not on E1's path
    assert hosts(continuum(s1=BROKER)) == {"E1": "S1", "E2": "S1", "S1": "S1"}
    assert hosts(continuum(e1=BROKER, s1=BROKER)) == {"E1": "E1", "E2": "S1", "S1": "S1"}
    wanted = continuum(s1=BROKER, e1=", channels: filelog")
    assert hosts(wanted) == {"E1": None, "E2": "S1", "S1": "S1"}


def test_of_several_readers_the_lowest_decides() -> None:
    builder = hw.flow("two", locations=["L1", "L2"])
    rows = builder.read.json("/in/{location}", "id bigint").where("id > 0").named("clean")
    rows.to_layer("cloud").write.memory("high")
    rows.to_layer("site").write.memory("low")
    (channel, *_) = build(builder.build(), continuum(c1=BROKER)).channels
    assert {unit.partition("@")[2] for unit in channel.consumers} == {"S1", "C1"}
    assert channel.broker is None


def test_what_stops_with_a_link_is_said() -> None:
    made = plan(continuum(s1=BROKER, e1=", channels: filelog"))
    assert made.warnings == (
        "E2 stops writing 'clean' while link E2-S1 is down: its channel is with the broker of S1. "
        "Give E2 a broker of its own, or channels: filelog.",
    )
    assert plan(continuum(e1=BROKER, e2=BROKER, s1=BROKER)).warnings == ()
    far = plan(continuum(c1=BROKER, e1=", channels: kafka")).warnings
    assert "'clean' of E1 is a filelog although E1 wants channels: kafka" in far[0]
    assert "S1 stops writing 'more' while link S1-C1 is down" in far[1]


def test_the_plan_shows_where_channels_are() -> None:
    made = plan(continuum(s1=BROKER))
    data = {c["id"].partition("@")[2]: (c["kind"], c.get("broker")) for c in dump(outline(made))["channels"]}
    assert data == {"E1": ("kafka", "S1"), "E2": ("kafka", "S1"), "S1": ("kafka", "S1")}
    screen = Console(width=200, file=io.StringIO())
    with screen.capture() as capture:
        screen.print(plan_view(made))
    shown = capture.get()
    assert "Kafka of S1" in shown
    assert "Kafka at b:9092" in shown
    assert "filelog of" not in shown
    assert from_document(json.loads(json.dumps(to_document(made)))).channels == made.channels


def test_a_broker_is_read_and_written_back() -> None:
    long = (
        ", broker: {servers: 'a:9092, b:9093', security.protocol: SASL_SSL, sasl.mechanism: PLAIN,"
        " user_env: U, password_env: P, replication: 3}, channels: kafka"
    )
    read = continuum(e1=long, s1=BROKER)
    broker = read.zone("E1").broker
    assert broker is not None
    assert (broker.servers, broker.user_env, broker.password_env) == ("a:9092,b:9093", "U", "P")
    assert dict(broker.settings) == {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert (read.zone("E1").channels, read.zone("E2").channels) == ("kafka", None)
    assert Continuum.from_data(json.loads(json.dumps(read.to_data()))) == read
    data: Any = read.to_data()
    assert data["zones"]["S1"]["broker"] == "b:9092"


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("broker: nohost", "cannot be at 'nohost'", "host:port"),
        ("broker: 'h:99999'", "cannot be at 'h:99999'", "host:port"),
        ("broker: [a, b]", "must be an address or a mapping", "servers"),
        ("broker: {user_env: U}", "has no servers", "servers"),
        (
            "broker: {servers: 'h:1', sasl.password: s3cret}",
            "cannot have the setting sasl.password",
            "password_env",
        ),
        (
            "broker: {servers: 'h:1', password_env: 's3cret!'}",
            "not the name of an environment variable",
            "set that",
        ),
        ("broker: {servers: 'h:1', acks: 0}", "cannot have the setting acks", "exactly-once"),
        ("broker: {servers: 'h:1', user: u}", "unknown key 'user'", "user_env"),
        ("broker: {servers: 'h:1', security.protocol: }", "has no value", "write one"),
        ("broker: {servers: 'h:1', replication: 0}", "replication", "from 1 on"),
        ("channels: rabbit", "channels of zone E1 cannot be 'rabbit'", "filelog or kafka"),
        ("channels: kafka", "wants its channels on Kafka, but neither", "channels: filelog"),
    ],
)
def test_what_is_wrong_with_a_broker_is_said(text: str, says: str, hint: str) -> None:
    with pytest.raises(ErrorList) as error:
        continuum(e1=f", {text}")
    (problem,) = error.value.errors
    assert says in problem.what
    assert hint in str(problem.hint)
    assert "s3cret" not in str(problem)


def test_a_spec_says_all_that_a_process_needs(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    secure = ", broker: {servers: 'b:9092', security.protocol: SSL, password_env: P}"
    made = plan(continuum(e1=", channels: filelog", s1=secure))
    first, last = made.channels[0], made.channels[-1]
    for id_ in (first.producer, *first.consumers):  # every unit of a channel receives the same data about it
        spec = spec_of(made, id_)
        assert member_spec(spec, first, layout) == str(layout.channel(first))
        assert channel_spec(spec, first, layout) == {"kind": "filelog", "path": str(layout.channel(first))}
    for id_ in (last.producer, *last.consumers):
        spec = spec_of(made, id_)
        assert (
            channel_spec(spec, last, layout)
            == member_spec(spec, last, layout)
            == {
                "kind": "kafka",
                "servers": "b:9092",
                "topic": f"headwater.test.more-{made.tags['more']}.via.S1.S1",
                "staging": str(layout.channel(last) / "staging"),
                "settings": {"security.protocol": "SSL"},
                "password_env": "P",
            }
        )


def test_topics_have_names_that_kafka_takes() -> None:
    where = continuum(s1=BROKER)
    long = plan(where, name="x" * 90)
    names = [topic_of(p.dataflow.name, c) for p in (plan(where), long) for c in p.channels]
    assert len(set(names)) == len(names)
    assert all(len(n) + len(".readers") <= 249 and set(n) <= _LEGAL for n in names)


_LEGAL = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def test_jars_are_fetched_once_by_all_who_want_them_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []

    def slowly(cache: Path) -> None:
        fetched.append(cache)
        time.sleep(0.3)
        cache.mkdir()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(broker, "_fetch", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: broker.fetch_jars(), range(4)))
    assert len(fetched) == 1
    assert set(found) == set(fetched)
