"""Channels with a broker that requires a password over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels import kafkacluster
from headwater.channels.open import open_log
from headwater.core.errors import HeadwaterError
from headwater.dataflow.optionlists import SASL_MECHANISMS
from headwater.spark.broker import LocalBroker
from tests.conftest import running_broker
from tests.patience import PATIENCE

from .conftest import ids, table

SECRET = "correct horse battery"
SCRAM = [mechanism for mechanism in SASL_MECHANISMS if mechanism.startswith("SCRAM")]
USER, PASSWORD = "HEADWATER_SECRET_TEST_KAFKA_USER", "HEADWATER_SECRET_TEST_KAFKA_PASSWORD"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBroker, Path]]:
    """Yield a broker that accepts one user over TLS, by all mechanisms, and the file of the authority to trust."""
    trustme = pytest.importorskip("trustme")
    from cryptography.hazmat.primitives import serialization

    place = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(place / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    plain = key.private_bytes(  # Kafka reads a key in this form only
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    (place / "broker.pem").write_bytes(plain + chain)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    users = f'{login} required username="admin" password="{SECRET}" user_admin="{SECRET}";'
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place / "ca.pem"),
        "sasl.enabled.mechanisms": ",".join(SASL_MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
    }
    for mechanism in SCRAM:
        setting = f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config"
        settings[setting] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    with running_broker(place / "broker", protocol="SASL_SSL", settings=settings) as broker:
        _add_user(broker, place / "ca.pem")
        yield broker, place / "ca.pem"


def _add_user(broker: LocalBroker, authority: Path) -> None:
    """Give the user a password for SCRAM, by a connection with PLAIN."""
    import confluent_kafka.admin

    admin: Any = confluent_kafka.admin  # its types do not name what it re-exports
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": SECRET}
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority)}
    client = admin.AdminClient({**login, **tls, "bootstrap.servers": broker.address})
    kinds = (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512)
    for kind in kinds:  # the broker takes one change of a user in a request
        password = admin.ScramCredentialInfo(kind, 4096)
        change = admin.UserScramCredentialUpsertion("admin", password, SECRET.encode())
        for done in client.alter_user_scram_credentials([change], request_timeout=PATIENCE).values():
            done.result(PATIENCE)


@pytest.fixture
def spec(secured: tuple[LocalBroker, Path], tmp_path: Path) -> dict[str, Any]:
    broker, authority = secured
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": str(authority),
    }
    return {
        "kind": "kafka",
        "servers": broker.address,
        "topic": tmp_path.name,
        "staging": str(tmp_path / "staging"),
        "settings": settings,
        "user_env": USER,
        "password_env": PASSWORD,
    }


@pytest.mark.parametrize(
    ("delivery", "mechanism"),
    [
        ("exactly_once", "PLAIN"),
        ("at_least_once", "PLAIN"),
        ("exactly_once", "SCRAM-SHA-512"),
        pytest.param("exactly_once", "SCRAM-SHA-256", marks=pytest.mark.long),
    ],
)
def test_user_and_password_come_from_the_environment(
    spec: dict[str, Any], delivery: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec["settings"]["sasl.mechanism"] = mechanism
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD, SECRET)
    log = open_log({**spec, "delivery": delivery, "event_time": "ts"})
    log.create()
    log.register("r")
    rows: pa.Table = table([1, 2, 3])
    assert log.append(rows, epoch=1, batch=0)
    monkeypatch.setattr(kafkacluster, "_clusters", {})  # as another process would
    assert ids(open_log({**spec, "delivery": delivery})) == [1, 2, 3]
    assert SECRET not in repr(spec)


@pytest.mark.parametrize("mechanism", ["PLAIN", *(pytest.param(name, marks=pytest.mark.long) for name in SCRAM)])
def test_a_wrong_password_is_said_and_not_shown(
    spec: dict[str, Any], mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec["settings"]["sasl.mechanism"] = mechanism
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD, "wrong horse")
    monkeypatch.setattr("headwater.channels.kafkaclient.SECONDS", 5.0)
    with pytest.raises(HeadwaterError) as caught:
        open_log(spec).create()
    assert "wrong horse" not in str(caught.value)
    assert "uthentication" in str(caught.value)


def test_a_variable_that_is_not_set_is_named(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER, "admin")
    monkeypatch.delenv(PASSWORD, raising=False)
    with pytest.raises(HeadwaterError, match=PASSWORD):
        open_log(spec).create()
