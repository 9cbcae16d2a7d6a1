"""Dead letters of MQTT sources, replayed through a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.connectors.deadletters import dead_letters_of, read_dead_letters
from headwater.connectors.offermqtt import MqttOffer
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.replaying import ReplayedSource, ReplayRequest, replay
from headwater.dataflow.sources import Source
from headwater.plan.port import Replayed
from tests.conformance.mqttbrokers import (
    Bridges,
    Broker,
    bridges,
    broker,
    shared_broker,
    source,
    topic,
)
from tests.conftest import free_port
from tests.unit.test_deadletters import put, rows

__all__ = ["bridges", "broker", "shared_broker", "topic"]  # fixtures


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def letter(place: Path, topic: str, record: str = '{"v": "x"}') -> str:
    put(place, 0, rows(record, operator="mqtt_1", source=f"mqtt:{topic}", location="edge1", format="json"))
    (found,) = dead_letters_of(place)
    return found.id


def replayed(place: Path, id_: str, of: Source, record: str | None, *, force: bool = False) -> Replayed:
    def find(name: str, location: str | None) -> ReplayedSource:
        return ReplayedSource(source=of, location=str(location), directory=place)

    (found,) = replay(place, [ReplayRequest(id=id_, record=record)], find, force=force)
    return found


def test_a_corrected_message_is_published_once(broker: Broker, topic: str, bridges: Bridges, tmp_path: Path) -> None:
    place, of = tmp_path / "dead", source(broker, topic)
    id_ = letter(place, topic)
    bridges.start()
    refused = replayed(place, id_, of, None)
    assert refused.outcome == "refused" and '"x" is not a bigint' in str(refused.reason)
    found = replayed(place, id_, of, '{"v": 1}')
    assert (found.outcome, found.target) == ("replayed", f"mqtt:{topic}"), found
    assert replayed(place, id_, of, '{"v": 1}').outcome == "refused"
    broker.publish(topic, '{"v": 2}')
    bridges.await_values(['{"v": 1}', '{"v": 2}'])
    assert replayed(place, id_, of, '{"v": 3}', force=True).outcome == "replayed"
    bridges.await_values(['{"v": 1}', '{"v": 2}', '{"v": 3}'])


def test_what_was_no_text_is_sent_as_the_bytes_it_was(
    broker: Broker, topic: str, bridges: Bridges, tmp_path: Path
) -> None:
    place, of = tmp_path / "dead", source(broker, topic)
    id_ = letter(place, topic, NOT_UTF8 + "/w==")
    bridges.start()
    assert "not UTF-8" in str(replayed(place, id_, of, None).reason)
    assert replayed(place, id_, of, None, force=True).outcome == "replayed"
    bridges.await_values([NOT_UTF8 + "/w=="])


@pytest.mark.parametrize("sent", [False, True])
def test_after_a_kill_nobody_knows_and_nothing_is_sent_again_by_itself(
    broker: Broker, topic: str, bridges: Bridges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    place, of = tmp_path / "dead", source(broker, topic)
    id_ = letter(place, topic)
    bridges.start()
    real = MqttOffer.offer

    def offer(self: Any) -> None:
        if sent:
            real(self)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(MqttOffer, "offer", offer)
        with pytest.raises(Killed):
            replayed(place, id_, of, '{"v": 1}')
    again = replayed(place, id_, of, '{"v": 1}')
    assert again.outcome == "refused" and "it is unknown whether the record arrived" in str(again.reason)
    (known,) = read_dead_letters(place)
    assert not known["replayed"]["done"]
    assert replayed(place, id_, of, '{"v": 1}', force=True).outcome == "replayed"
    bridges.await_values(['{"v": 1}'] * (2 if sent else 1))


def test_without_a_broker_nothing_is_begun(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, id_ = tmp_path / "dead", letter(tmp_path / "dead", topic)
    away = source(broker, topic)
    away = type(away)(**{**vars(away), "broker": f"127.0.0.1:{free_port()}"})
    assert "did not take the message" in str(replayed(place, id_, away, '{"v": 1}').reason)
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_PASSWORD", "wrong-secret")
    refused = replayed(place, id_, source(broker, topic), '{"v": 1}')
    assert refused.outcome == "refused" and "wrong-secret" not in str(refused.reason)
    (known,) = read_dead_letters(place)
    assert known["replayed"] is None
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_PASSWORD", "secret")
    assert replayed(place, id_, source(broker, topic), '{"v": 1}').outcome == "replayed"
