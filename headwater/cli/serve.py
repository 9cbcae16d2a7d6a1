"""Options of a command that serves the REST API and the dashboard. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.continuum.model import Zone
    from headwater.tls.listener import ListenerTls

LISTEN = "127.0.0.1:8470"
"""Default address."""
NEEDED = ("fastapi", "nicegui")
"""Modules of the extra ``web``."""

Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="HEADWATER_LISTEN",
        help="[HOST:]PORT of the REST API and the dashboard, or none; the default goes on to the next free port.",
        show_default=f"{LISTEN} with headwater[web]",
    ),
]
TrustHttp = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Accept dataflows with pickled functions, and zones at new addresses, over HTTP as well.",
    ),
]
ComputeLimit = Annotated[
    str,
    typer.Option("--compute-limit", help="Longest computation of a plan, prediction or simulation over HTTP, or none."),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", help="Certificate (PEM) of an authority that its clients trust.", show_default=False),
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).", show_default=False)]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--insecure",
        help="TLS also on loopback; or clear text also where other machines reach it.",
        show_default="TLS, but not on loopback",
    ),
]


@dataclass(frozen=True)
class TlsOptions:
    """The options of a listener's TLS: --tls or --insecure, and the user's certificate with its key."""

    asked: bool | None
    certificate: Path | None
    key: Path | None


@contextmanager
def served(
    listen: str | None,
    metrics: str | None,
    store: str | None,
    home: Path,
    *,
    say: Callable[[str], None],
    trust_code: bool,
    zones: Sequence[Zone],
    tls: TlsOptions,
    compute_limit: float | None = None,
) -> Iterator[None]:
    """Serve API, dashboard and metrics in a process of its own, unless all are off; say where."""
    from importlib.util import find_spec

    from headwater.core.address import is_loopback
    from headwater.core.errors import Unavailable
    from headwater.serving.listening import RELEASED, TRIES, address, url_of
    from headwater.serving.listening import listen as listening_at
    from headwater.tls.listener import clear_text_warning, listener_tls
    from headwater.web.access import Access, trial_file, trial_token
    from headwater.web.beside import ServerSettings, beside

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and listen not in (None, "none"):
        raise Unavailable(
            f"this needs {', '.join(missing)}, not installed here",
            where="--listen",
            hint="pip install 'headwater[web]', or give --listen none",
        )
    settings = ServerSettings(
        store_url=store, home=home, trust_code=trust_code, zones=tuple(zones), compute_limit=compute_limit
    )

    def secured(host: str) -> ListenerTls | None:
        return listener_tls(host, home / "tls", asked=tls.asked, certificate=tls.certificate, key=tls.key)

    def protected(host: str, chosen: ListenerTls | None) -> str:
        if chosen is not None:
            return f"; certificate {chosen.certificate}, {chosen.fingerprint}"
        warning = clear_text_warning(host)
        return f"; {warning}" if warning else ""

    with ExitStack() as stack:
        if metrics is not None:
            host, port = address(metrics, option="--metrics")
            opened = stack.enter_context(listening_at(host, port, option="--metrics", wait=RELEASED))
            chosen = secured(host)
            settings = replace(settings, metrics=opened.fileno(), metrics_tls=chosen)
            say(f"metrics at {url_of(opened, host, tls=chosen is not None)}/metrics{protected(host, chosen)}")
        if listen != "none" and not missing:
            host, port = address(listen or LISTEN, option="--listen")
            access = Access(store, loopback=is_loopback(host))
            access.check()
            chosen = secured(host)
            only = listen is not None
            opened = stack.enter_context(
                listening_at(host, port, tries=1 if only else TRIES, wait=RELEASED if only else 0.0)
            )
            settings = replace(settings, listening=opened.fileno(), host=host, tls=chosen)
            url = url_of(opened, host, tls=chosen is not None)
            if port and not url.endswith(f":{port}"):
                say(f"port {port} is taken: listening at {url.rpartition(':')[2]}")
            token = trial_token() if access.on_trial else None
            shown = token is not None and sys.stdout.isatty()  # a service's log has other readers
            say(
                f"dashboard at {url}{f'/signin?token={token}' if shown else ''}, "
                f"REST API at {url}/api/v1{protected(host, chosen)}"
            )
            if token is not None:
                which = "this link, and the token" if shown else "the token"
                say(f"no owner has a token: {which} in {trial_file()} permit{'' if shown else 's'} everything")
        if settings.metrics is not None or settings.listening is not None:
            stack.enter_context(beside(settings, say=say))
        yield
