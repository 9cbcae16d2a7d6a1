"""Errors of a zone as the client receives them over a real connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.channels.logserver import LogServer
from headwater.channels.wire import Credentials, Wire
from headwater.core.errors import DeploymentError, HeadwaterError, RuntimeFailure, Unavailable
from headwater.disk.ports import free_ports
from tests.conftest import ZONE


def no_log(id_: str) -> Any:
    raise AssertionError(id_)


@pytest.fixture
def failing() -> Iterator[Callable[[Exception], HeadwaterError]]:
    """Return a function that raises an error at the other side, and returns it as the client receives it."""
    raised: list[Exception] = []

    def fail(body: dict[str, Any]) -> Any:
        raise raised[-1]

    server = LogServer("127.0.0.1:0", credential=ZONE, find=no_log, actions={"fail": fail})
    wire = Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token))

    def ask(error: Exception) -> HeadwaterError:
        raised.append(error)
        with pytest.raises(HeadwaterError) as got:
            wire.ask("fail", {})
        return got.value

    yield ask
    wire.close()
    server.shutdown()


def test_an_error_arrives_with_its_parts(failing: Callable[[Exception], HeadwaterError]) -> None:
    got = failing(DeploymentError("wrong", where="unit a", hint="mend it"))
    assert type(got) is DeploymentError and (got.what, got.where, got.hint) == ("wrong", "unit a", "mend it")


@pytest.mark.parametrize("letter", ["x", "\n", "é", "世", "🌊"])
def test_of_a_long_error_the_beginning_arrives(failing: Callable[[Exception], HeadwaterError], letter: str) -> None:
    """A response that does not arrive counts as a broken link, and the client would repeat the request for ever."""
    got = failing(RuntimeFailure("It failed: " + letter * 100_000, where=letter * 9000, hint=letter * 9000))
    assert type(got) is RuntimeFailure and got.what.startswith("It failed: " + letter * 900)
    got = failing(Unavailable("away" + letter * 100_000))
    assert type(got) is Unavailable and got.retryable


def test_what_nobody_foresaw_arrives(failing: Callable[[Exception], HeadwaterError]) -> None:
    got = failing(ValueError("what a plan: " + "世" * 100_000))
    assert type(got) is RuntimeFailure and "ValueError: what a plan: 世" in got.what


def test_an_error_names_the_node_not_its_address() -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unavailable) as silent:
        Wire(f"127.0.0.1:{port}", Credentials(ZONE.order_token), "E1").ask("hello", {}, seconds=2)
    assert "E1" in str(silent.value) and str(port) not in str(silent.value)
