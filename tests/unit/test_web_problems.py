"""Errors as RFC 9457 problems: they name the remedy, and reveal no internals."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.control.store import Store
from headwater.control.tables import resolved_url
from headwater.core import errors
from headwater.core.quantity import QuantityError
from headwater.web.access import NotAllowed, NotKnown
from headwater.web.api import about
from headwater.web.problems import MEDIA_TYPE, ProblemDetails, problem_of
from headwater.web.server import serving
from tests.unit.served import V1, ZONES, Client, fetch, flow, place


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with place(tmp_path_factory.mktemp("problems")), serving(None, "127.0.0.1", 0) as found:
        Store(resolved_url(None)).close()
        yield found


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (NotKnown("a"), 401, "not-known"),
        (NotAllowed("a"), 403, "denied"),
        (errors.Missing("a"), 404, "missing"),
        (errors.Busy("a"), 409, "busy"),
        (errors.DeploymentError("a"), 409, "conflict"),
        (errors.DataflowError("a"), 422, "dataflow"),
        (errors.ContinuumError("a"), 422, "continuum"),
        (QuantityError("a"), 422, "quantity"),
        (errors.PlacementError("a"), 422, "placement"),
        (errors.Unavailable("a"), 503, "unavailable"),
        (errors.RuntimeFailure("a"), 500, "failure"),
    ],
)
def test_each_kind_of_error_is_a_problem(error: errors.HeadwaterError, status: int, name: str) -> None:
    found = problem_of(type(error)("what", where="there", hint="do this"))
    assert (found.status, found.type) == (status, f"urn:headwater:problem:{name}")
    assert (found.detail, found.where, found.hint, found.errors) == ("what", "there", "do this", [])


def test_of_several_errors_each_is_told() -> None:
    first, second = errors.DataflowError("one", where="a", hint="x"), errors.DataflowError("two", where="b")
    found = problem_of(errors.ErrorList([errors.ErrorList([first]), second]))
    assert (found.status, found.detail, found.where, found.hint) == (422, "one\ntwo", "a", "x")
    assert [(e.detail, e.where, e.hint) for e in found.errors] == [("one", "a", "x"), ("two", "b", None)]
    assert problem_of(errors.ErrorList([])).status == 500


@pytest.mark.parametrize(
    ("method", "address", "status", "detail"),
    [
        ("GET", f"{V1}/nothing", 404, "GET /api/v1/nothing"),
        ("GET", f"{V1}/deployments/", 404, "Not Found"),
        ("GET", "/api/v2", 404, "/api/v2"),
        ("PUT", f"{V1}/deployments", 405, "Method Not Allowed"),
        ("GET", f"{V1}/deployments/nobody", 404, "no deployment 'nobody'"),
        ("GET", f"{V1}/deployments/a%00b", 422, "path.name"),
        ("GET", f"{V1}/deployments/{'x' * 101}", 422, "path.name"),
        ("GET", f"{V1}/decisions/{2**40}", 422, "path.number"),
        ("GET", f"{V1}/decisions?state=strange", 422, "query.state.0"),
        ("GET", f"{V1}/events?after=-1", 422, "query.after"),
        ("GET", f"{V1}/events?deployment=%2F", 422, "query.deployment"),
    ],
)
def test_what_is_asked_wrongly(url: str, method: str, address: str, status: int, detail: str) -> None:
    response = fetch(method, url + address)
    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE), response.text
    found = ProblemDetails.model_validate(response.json())
    assert found.status == status and detail in found.detail and found.hint and found.title
    assert status != 405 or response.headers["Allow"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "JSON decode error"),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b"[]", "body: "),
        (b'{"dataflow": {}, "more": 1}', "body.more: Extra inputs are not permitted"),
        (b'{"dataflow": 7}', "body.dataflow"),
        (b'{"dataflow": {}}', "not a Headwater dataflow"),
        (b'{"dataflow": "f\\u0000"}', ""),
        (b'{"dataflow": "\\ud800"}', ""),
        (b'{"dataflow": "f", "limits": {"max_latency_s": NaN}}', "body.limits.max_latency_s"),
        (b'{"dataflow": "f", "limits": {"max_latency_s": 1e999}}', "body.limits.max_latency_s"),
    ],
)
def test_bodies_that_cannot_be_read(url: str, body: bytes, detail: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = fetch("POST", f"{url}{V1}/plans", content=body, headers=headers)
    assert response.status_code in (400, 404, 422), response.text
    assert detail in ProblemDetails.model_validate(response.json()).detail


def test_the_users_own_mistakes_have_their_place(url: str) -> None:
    wrong = flow("L1")
    next(o for o in wrong["operators"] if o["kind"] == "where")["condition"] = "w > 1"
    with Client(url) as client:
        found = client.ask("/plans", {"dataflow": wrong, "continuum": ZONES}, 422)
        assert found["type"].endswith(":dataflow") and "w" in found["detail"] and found["where"]
        nowhere = client.ask("/plans", {"dataflow": flow("L9"), "continuum": ZONES}, 422)
        assert nowhere["type"].endswith(":placement") and "L9" in str(nowhere)
        new = client.ask("/plans", {"dataflow": flow("L1")}, 422)
        assert new["where"] == "continuum" and new["hint"] == "give `continuum`"
        asked = {"dataflow": flow("L1"), "continuum": ZONES, "strategy": "optimum"}
        assert client.ask("/plans", asked, 422)["hint"] == "did you mean 'optimal'?"


def test_what_should_not_go_wrong_is_not_told(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("the password is s3cret")

    monkeypatch.setattr(about, "existing", lambda place: broken())
    response = fetch("GET", f"{url}{V1}/health")
    assert response.status_code == 500 and "s3cret" not in response.text
    assert response.headers["content-type"] == MEDIA_TYPE and response.headers["X-Frame-Options"] == "DENY"
    assert "s3cret" in caplog.text, "it is in the log"


def test_a_database_that_is_away_is_no_mistake(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no server listens there
        store = f"postgresql://me:s3cret@127.0.0.1:{taken.getsockname()[1]}/x"
        with serving(store, "127.0.0.1", 0) as found:
            for address in ("/health", "/me", "/deployments"):
                response = fetch("GET", f"{found}{V1}{address}")
                assert response.status_code == 503 and response.headers["Retry-After"]
                assert "s3cret" not in response.text and response.json()["hint"]
