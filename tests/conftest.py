"""Fixtures shared by all tests: one real Spark for the whole session."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from headwater.channels.credential import SiteSecret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.continuum.model import Continuum
    from headwater.spark.broker import LocalBroker
    from headwater.spark.endpoint import LocalEndpoint

SITE_TEXT = "the-site-secret-of-all-tests"
SITE = SiteSecret((SITE_TEXT,))
ZONE = SITE.of("E1")
"""The credential of the agent or log server of a test."""
# Servers in trial mode, also those in processes of their own, keep their token here and not in the user's home.
_TRIAL = tempfile.mkdtemp(prefix="headwater-trial-")
atexit.register(shutil.rmtree, _TRIAL, ignore_errors=True)
os.environ["HEADWATER_TRIAL_TOKEN_FILE"] = f"{_TRIAL}/web-token"

# Compiled modules are kept, whatever the machine's setting: a test run starts hundreds of Python processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ["HEADWATER_QUICK"] = "1"  # also for the commands that tests run: their Sparks live for seconds

# Without a profile a slow machine fails tests: each example has 200 ms, and drawing it a second.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

CONF = {"spark.sql.shuffle.partitions": "1"}


def free_port() -> int:
    """Return a port without a listener, outside of the range for outgoing connections.

    A port of the ephemeral range may be taken by a client before its server binds it, even by a
    client that asks whether that server is up: a connection to itself.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def start_endpoint(directory: Path, **options: Any) -> LocalEndpoint:
    """Start a zone's Spark with the settings of the tests."""
    from headwater.spark.endpoint import LocalEndpoint

    root = str(Path(__file__).resolve().parent.parent)
    settings = {"cores": 2, "memory_mb": 1536, "extra_conf": CONF, "python_path": (root,), "quick": True}
    return LocalEndpoint.start(directory, **{**settings, **options})


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield the session's Spark, as a zone's endpoint."""
    started = start_endpoint(tmp_path_factory.mktemp("spark"))
    try:
        yield started
    finally:
        started.stop()


@contextlib.contextmanager
def endpoint_with(packages: Sequence[str], directory: Path, **options: Any) -> Iterator[LocalEndpoint]:
    """Run a Spark with packages, which it fetches from Maven; skip where it cannot."""
    from headwater.core.errors import Unavailable

    try:
        started = start_endpoint(directory, packages=packages, **options)
    except Unavailable as error:
        if os.environ.get("HEADWATER_NO_SKIP"):
            raise
        pytest.skip(f"no {', '.join(packages)}: {error}")
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def kafka_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark with its Kafka connector."""
    from headwater.connectors.packages import KAFKA

    with endpoint_with([KAFKA], tmp_path_factory.mktemp("kafka-spark"), memory_mb=1024) as started:
        yield started


@pytest.fixture(scope="session")
def spark(endpoint: LocalEndpoint) -> SparkSession:
    """Return a session with Headwater's sink registered."""
    return endpoint.session()


@pytest.fixture
def spark_address(endpoint: LocalEndpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the session's Spark, for zones whose agents start none."""
    monkeypatch.setenv("HEADWATER_SECRET_ZONE_TOKEN", endpoint.token)
    return f"sc://localhost:{endpoint.port}/;token_env=HEADWATER_SECRET_ZONE_TOKEN"


def on_spark(continuum: Continuum, address: str) -> Continuum:
    """Return a continuum whose zones all use one Spark, each in a session of its own."""
    return replace(continuum, zones=tuple(replace(zone, spark=address) for zone in continuum.zones))


def activate(session: Any) -> None:
    """Make a session PySpark's active one in this thread."""
    type(session)._active_session.session = session


@pytest.fixture
def active_session(endpoint: LocalEndpoint) -> SparkSession:
    """Return the session of the tests' Spark as PySpark's active one, which that of another Spark may have been."""
    session = endpoint.session()
    activate(session)
    return session


@contextlib.contextmanager
def running_broker(directory: Path, **options: Any) -> Iterator[LocalBroker]:
    """Run a real broker; skip where none can run, or fail where tests may not be skipped."""
    pytest.importorskip("confluent_kafka")
    from headwater.core.errors import Unavailable
    from headwater.spark.broker import LocalBroker

    try:
        started = LocalBroker.start(directory, **options)
    except Unavailable as error:
        if os.environ.get("HEADWATER_NO_SKIP"):
            raise
        pytest.skip(f"no broker: {error}")
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Yield a real broker for the session; skip where none can run."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started
