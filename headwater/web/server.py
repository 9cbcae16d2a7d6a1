"""The HTTP server of API and dashboard, in a thread beside the controller."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

import headwater
from headwater.continuum.model import Zone
from headwater.control.tables import HOME
from headwater.core.errors import DeploymentError
from headwater.web import problems
from headwater.web.access import LOOPBACK, Access
from headwater.web.api import about, changes, decisions, deployments, events, pools, worlds, zones
from headwater.web.api.dependencies import Served, known_query
from headwater.web.guard import MAX_BODY, Guard

TRIES = 10
"""Number of ports that are tried, in order, where the first is taken."""
STARTS = 30.0
"""Seconds in which the server has to start."""
ENDS = 5.0
"""Seconds for open requests when it ends."""
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
    app.add_middleware(Guard, access=served.access)
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
    importlib.import_module(DASHBOARD).attach(pages, served.store_url, served.access, served.home)
    pages.add_middleware(Guard, access=served.access)
    return WithPages(api, pages)


@contextmanager
def serving(
    store_url: str | None,
    host: str,
    port: int,
    *,
    home: Path = HOME,
    say: Callable[[str], None] = lambda text: None,
    trust_code: bool = False,
    zones: Iterable[Zone] = (),
    only: bool = False,
) -> Iterator[str]:
    """Serve a store's API and dashboard in the background, and return the URL; port 0 takes a free one.

    Where the port is taken, the next ones are tried, unless it is the ``only`` one. Raises DeploymentError where none
    is free, or where other machines could reach a server in trial mode.
    """
    access = Access(store_url, loopback=host in LOOPBACK)
    access.check()
    served = Served(
        store_url=store_url,
        access=access,
        home=home,
        trust_code=trust_code,
        zones=tuple(zones),
        ends=threading.Event(),
    )
    app = with_dashboard(make_app(served), served)
    listening = _listen(host, port, tries=1 if only else TRIES)
    taken = listening.getsockname()[1]
    if port not in (0, taken):
        say(f"port {port} is taken: listening at {taken}")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(ENDS),
        ws_max_size=MAX_BODY,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="web", daemon=True)
    thread.start()
    try:
        _wait(server, thread)
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{taken}"
    finally:
        served.ends.set()
        server.should_exit = True
        thread.join(2 * ENDS)
        listening.close()


def _listen(host: str, port: int, *, tries: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = range(port, port + tries) if 0 < port <= 65535 - tries else (port,)
    why: OSError | None = None
    for one in tried:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, one))
            listening.listen(socket.SOMAXCONN)
            listening.set_inheritable(False)
            return listening
        except OSError as error:
            why = error
            listening.close()
    assert why is not None
    raise DeploymentError(
        f"cannot listen at {host}:{port}{', nor at the next ports' if tries > 1 else ''}: {why.strerror or why}",
        where="--listen",
        hint="give another [HOST:]PORT, or end what listens there",
    )


def _wait(server: uvicorn.Server, thread: threading.Thread) -> None:
    ends = time.monotonic() + STARTS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > ends:
            raise DeploymentError("the server did not start", where="--listen", hint="read its messages above")
        with contextlib.suppress(TimeoutError):
            thread.join(0.02)
