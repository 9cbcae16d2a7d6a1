"""Options of a command that serves the REST API and the dashboard. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.continuum.model import Zone

LISTEN = "127.0.0.1:8470"
"""Default address."""
NEEDED = ("fastapi", "uvicorn", "nicegui")
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


@contextmanager
def served(
    listen: str | None,
    store: str | None,
    home: Path,
    *,
    say: Callable[[str], None],
    trust_code: bool,
    zones: Sequence[Zone],
) -> Iterator[str | None]:
    """Serve them and return the URL; None where they are off, or not installed and not requested."""
    from importlib.util import find_spec

    from headwater.core.errors import Unavailable
    from headwater.web.prometheus import address

    missing = [name for name in NEEDED if find_spec(name) is None]
    if listen == "none" or (missing and listen is None):
        yield None
        return
    if missing:
        raise Unavailable(
            f"this needs {', '.join(missing)}, not installed here",
            where="--listen",
            hint="pip install 'headwater[web]', or give --listen none",
        )
    from headwater.web.server import serving

    host, port = address(listen or LISTEN, option="--listen")
    only = listen is not None
    with serving(store, host, port, home=home, say=say, trust_code=trust_code, zones=zones, only=only) as url:
        yield url
