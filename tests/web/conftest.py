"""A real browser, and servers of the dashboard for it; tests are skipped where there is no Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from headwater.web.access import trial_token
from tests.conftest import free_port

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SHOTS = "HEADWATER_SCREENSHOTS"
"""The environment variable with the directory that screenshots go to; without it none are made."""
WAIT = 90_000
"""Time limit of every wait in milliseconds, long enough for a busy machine."""
STARTS = 240.0
"""Seconds within which a server is up, on a busy machine too."""


# It has an event loop in this thread, which tests of other modules must not find.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Playwright]:
    """Yield the browser's driver; skip where there is none, or fail where tests may not be skipped."""
    try:
        from playwright.sync_api import sync_playwright

        if not CHROMIUM.exists():
            raise FileNotFoundError(CHROMIUM)
    except (ImportError, FileNotFoundError) as error:
        if os.environ.get("HEADWATER_NO_SKIP"):
            raise
        pytest.skip(f"no browser: {error}")
    with sync_playwright() as driver:
        yield driver


Open = Callable[..., "Page"]


def sign_in(page: Page, url: str) -> None:
    """Sign a browser in by the link of `headwater up`, where no owner has a token; no page is loaded."""
    parts = urlsplit(url)
    page.request.get(f"{parts.scheme}://{parts.netloc}/signin?token={trial_token()}", max_redirects=0)


@pytest.fixture
def browser(chromium: Playwright, tmp_path: Path) -> Iterator[Open]:
    """Yield a function that opens pages, each with a profile of its own; an error in a page fails the test."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_(url: str, *, width: int = 1280, height: int = 800, **options: Any) -> Page:
        context = chromium.chromium.launch_persistent_context(
            str(tmp_path / f"profile{len(contexts)}"),
            executable_path=str(CHROMIUM),
            args=ARGUMENTS,
            headless=True,
            viewport={"width": width, "height": height},
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(WAIT)
        page = context.pages[0]
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda r: None if "//127.0.0.1:" in r.url or r.url.startswith("data:") else wrong.append(r.url),
        )
        sign_in(page, url)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


@dataclass
class Server:
    """A server of the dashboard in a separate process, which can be ended and started again."""

    directory: Path
    port: int
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store_url(self) -> str:
        return str(self.directory / "store.db")

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.web.serve",
            str(self.directory),
            str(self.port),
            *self.options,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "NICEGUI_"))}
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + STARTS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/api/v1/health", timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.directory / "server.log").read_text()) from None
                time.sleep(0.1)

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            self.process = None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Yield a function that starts servers over a store in this test's directory."""
    servers: list[Server] = []

    def start(*options: str) -> Server:
        server = Server(tmp_path, free_port(), options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def shot() -> Callable[[Page, str], None]:
    """Return a function that saves a screenshot of a page for the docs, where that is requested."""
    directory = os.environ.get(SHOTS)

    def keep(page: Page, name: str) -> None:
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(directory) / f"{name}.png"))

    return keep
