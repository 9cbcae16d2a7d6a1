"""The HTTP server of API and dashboard."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

import headwater
from headwater.continuum.model import Zone
from headwater.control.tables import HOME
from headwater.core.address import is_loopback
from headwater.serving.listening import TRIES, listen, url_of
from headwater.serving.running import running
from headwater.tls.listener import ListenerTls, listener_tls
from headwater.web import problems
from headwater.web.access import Access
from headwater.web.api import about, changes, decisions, deployments, events, pools, worlds, zones
from headwater.web.api.dependencies import Served, known_query
from headwater.web.computing import Computing
from headwater.web.guard import MAX_BODY, Guard

DASHBOARD = "headwater.web.dashboard"
_ABOUT = """
The functions of the command line, over HTTP. Read with a token of any role; change deployments as `operator`;
submit and remove shared dataflows as `owner`. Desired states are stored and answered with 202: the
controller executes them, and `/events` reports its progress.

Errors are answered as `application/problem+json` (RFC 9457), with what to do next in `hint`.
"""


def make_app(served: Served) -> FastAPI:
    """Create the app over a store."""
    app = _App(
        title="Headwater",
        summary="One dataflow over edge, site and cloud: Spark inside a zone, Headwater between zones.",
        description=_ABOUT,
        version=headwater.__version__,
        openapi_url="/api/v1/openapi.json",
        # Their pages would load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        # A redundant slash is a mistake, not another address.
        redirect_slashes=False,
    )
    app.state.served = served
    api = APIRouter(prefix="/api/v1", dependencies=[Depends(known_query)])
    for part in (about, deployments, changes, decisions, pools, zones, worlds, events):
        api.include_router(part.router)
    app.include_router(api)
    problems.install(app)
    app.add_middleware(Guard, access=served.access, lanes=served.lanes)
    return app


class _App(FastAPI):
    """Describes the API with its problems."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            self.openapi_schema = problems.describe(super().openapi())
        return self.openapi_schema


class WithPages:
    """The API below ``/api``, and pages elsewhere: each answers unknown addresses in its own way."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api = api
        self.app = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or the server's start and end, which the pages need."""
        own = scope["type"] != "lifespan" and f"{scope['path']}/".startswith("/api/")
        await (self._api if own else self.app)(scope, receive, send)


_has_pages = False
"""Whether this process has a dashboard: NiceGUI supports one per process."""


def with_dashboard(api: FastAPI, served: Served) -> ASGIApp:
    """Add the dashboard where it is installed and the process has none yet."""
    global _has_pages
    if _has_pages or not (importlib.util.find_spec(DASHBOARD) and importlib.util.find_spec("nicegui")):
        return api
    _has_pages = True
    pages = FastAPI(openapi_url=None)
    importlib.import_module(DASHBOARD).attach(pages, served.store_url, served.access, served.home, served.computing)
    pages.add_middleware(Guard, access=served.access, lanes=served.lanes)
    return WithPages(api, pages)


@contextmanager
def serving(
    store_url: str | None,
    host: str,
    port: int,
    *,
    home: Path = HOME,
    tls: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    trust_code: bool = False,
    zones: Iterable[Zone] = (),
    compute_limit: float | None = None,
) -> Iterator[str]:
    """Serve a store's API and dashboard in a thread of this process, and return the URL; port 0 takes a free one.

    ``tls``: None: outside of loopback; with the certificate in ``home``. Where the port is taken, the next ones are
    tried. Raises DeploymentError where none is free, or where other machines could reach a server in trial mode.
    """
    Access(store_url, loopback=is_loopback(host)).check()
    secured = listener_tls(host, home / "tls", asked=tls)
    listening = listen(host, port, tries=TRIES)
    url = url_of(listening, host, tls=secured is not None)
    if port and not url.endswith(f":{port}"):
        say(f"port {port} is taken: listening at {url.rpartition(':')[2]}")
    options: dict[str, Any] = {"trust_code": trust_code, "zones": zones, "compute_limit": compute_limit}
    with serving_at(listening, store_url, host, home=home, tls=secured, **options):
        yield url


@contextmanager
def serving_at(
    listening: socket.socket,
    store_url: str | None,
    host: str,
    *,
    home: Path,
    tls: ListenerTls | None = None,
    trust_code: bool = False,
    zones: Iterable[Zone] = (),
    compute_limit: float | None = None,
) -> Iterator[threading.Thread]:
    """Serve a store's API and dashboard at a socket, in a thread.

    ``compute_limit``: seconds for a plan or simulation; None: no limit.
    """
    served = Served(
        store_url=store_url,
        access=Access(store_url, loopback=is_loopback(host)),
        home=home,
        trust_code=trust_code,
        zones=tuple(zones),
        ends=threading.Event(),
        computing=Computing(compute_limit),
    )
    app = with_dashboard(make_app(served), served)
    with (
        closing(served.computing),
        running(app, listening, option="--listen", tls=tls, ends=served.ends.set, ws_max_size=MAX_BODY) as thread,
    ):
        yield thread
