"""A store, a controller over simulated zones, and the server, for tests over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.app import loading, pools, storecache
from headwater.control import tables
from headwater.control.sharing import Role
from headwater.control.tables import STORE
from headwater.testing.nodes import SimulatedNodes
from headwater.web.access import trial_token
from headwater.web.server import serving
from tests.unit.test_cli_control import CONTINUUM, controller, tiny

ZONES = Path(CONTINUUM).read_text()
V1 = "/api/v1"


def fetch(method: str, url: str, **options: Any) -> httpx.Response:
    """Send a request with the trial mode's token unless another one is given, with a timeout for slow machines."""
    headers = {**trial(), **options.pop("headers", {})}
    return httpx.request(method, url, trust_env=False, timeout=60, headers=headers, **options)


def trial() -> dict[str, str]:
    """Return the header with the trial mode's token."""
    return {"Authorization": f"Bearer {trial_token()}"}


class Client(httpx.Client):
    """A client of a server; ``token``: the user's token, by default that of the trial mode."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else trial()
        super().__init__(base_url=url + V1, headers=headers, timeout=60, trust_env=False)

    def see(self, path: str, status: int = 200, **options: Any) -> Any:
        """Get an address; return the content of the answer."""
        return answer(self.get(path, **options), status)

    def ask(self, path: str, body: Any = None, status: int = 202) -> Any:
        """Post to an address; return the content of the answer."""
        return answer(self.post(path, json=body) if body is not None else self.post(path), status)

    def settled(self, name: str, version: int) -> None:
        """Wait until the controller has finished a version."""
        until(lambda: next(d for d in self.see("/deployments") if d["name"] == name)["observed_version"] >= version)


def answer(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, f"{response.request.url}: {response.status_code} {response.text}"
    kind = response.headers.get("content-type")
    assert status == 204 or kind == ("application/json" if status < 400 else "application/problem+json")
    return response.json() if response.content else None


def until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 20 s")


def flow(*places: str, **options: Any) -> dict[str, Any]:
    """Return the dataflow `tiny` as a document."""
    return loading.load_dataflow(tiny(*places, **options)[0]).dataflow.to_data()


@contextmanager
def place(directory: Path) -> Iterator[None]:
    """Work in a directory whose store does not sync to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(tables, "SYNCHRONOUS", "OFF")
        patch.setattr(storecache, "RECENT", 600.0)
        for name in (STORE, pools.TOKEN):
            patch.delenv(name, raising=False)
        yield


@contextmanager
def world(directory: Path, **options: Any) -> Iterator[tuple[str, SimulatedNodes]]:
    """Yield the URL of a server over a store with a controller, and the controller's zones."""
    with place(directory), controller() as zones, serving(None, "127.0.0.1", 0, **options) as url:
        yield url, zones


def token(name: str, role: Role = "owner") -> str:
    """Create a token; the first token ends the trial mode."""
    admin = pools.set_owner(pools.ADMIN, token=True) if name == pools.ADMIN else None
    made = admin or pools.set_owner(name, role=role, token=True)
    assert made is not None
    return made
