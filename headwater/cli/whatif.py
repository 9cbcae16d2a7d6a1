"""The what-if command. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.control import Name, StoreOption
from headwater.cli.out import Json, print_json

Rates = Annotated[
    list[str] | None,
    typer.Option(
        "--rate",
        help="2x: all sources; read=500: rows/s of one; read=2x, read@L1=500: at one location. Repeatable.",
        show_default="unchanged",
    ),
]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        help="E1=1Mbit/s,40ms: bandwidth, delay or both from that zone to its parent. Repeatable.",
        show_default="unchanged",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("what-if")(what_if)


def what_if(
    name: Name, rate: Rates = None, link: Links = None, store: StoreOption = None, as_json: Json = False
) -> None:
    """Predict a deployment under other rates or links, and the change that would follow.

    Nothing is changed. Predictions come from the newest measurements, by the model behind SLOs.
    """
    from rich.console import Console

    from headwater.app import whatif
    from headwater.core.jsonform import dump
    from headwater.render.whatif import what_if_view

    supposed = whatif.Supposed.read(rate or (), link or ())
    found = dump(whatif.what_if(name, supposed, store).shown())
    if as_json:
        print_json(found)
    else:
        Console(highlight=False).print(what_if_view(found))
