"""Commands that edit a running deployment: move an operator, fuse units, split or spread one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import complete
from headwater.cli.control import StoreOption, Wait, Yes, propose
from headwater.cli.out import Json

if TYPE_CHECKING:
    from headwater.plan.edit import Edit

Of = Annotated[
    str | None,
    typer.Option(
        "--of",
        help="The deployment.",
        show_default="the only one there is",
        autocompletion=complete.deployments,
    ),
]
Unit = Annotated[
    str,
    typer.Argument(help="A unit, with or without its zone.", show_default=False, autocompletion=complete.units),
]
Layer = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="The layer it is to run in.",
        show_default="where it is",
        autocompletion=complete.layers,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (move, fuse, split, spread):
        app.command()(command)


def move(
    operator: Annotated[
        str,
        typer.Argument(help="The operator's name.", show_default=False, autocompletion=complete.operators),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="The layer, or the host, it is to run in.",
            show_default=False,
            autocompletion=complete.layers,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="The location whose rows it is to take there.",
            show_default="all",
            autocompletion=complete.locations,
        ),
    ] = None,
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Move an operator with its state, while it runs, to another layer or host, for all locations or for one.

    Upwards what comes after it goes along, downwards what comes before it.
    """
    from headwater.plan.edit import Move

    _propose(Move(operator=operator, to=to, at=at), of, store, yes, wait=wait, as_json=as_json)


def fuse(
    first: Unit,
    second: Annotated[
        str,
        typer.Argument(help="One that it feeds, or is fed by.", show_default=False, autocompletion=complete.units),
    ],
    to: Layer = None,
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Make two neighbouring units one query, without a channel between them."""
    from headwater.plan.edit import Fuse

    _propose(Fuse(first=first, second=second, to=to), of, store, yes, wait=wait, as_json=as_json)


def split(
    unit: Unit,
    after: Annotated[
        str,
        typer.Option(
            "--after",
            help="The operator to cut behind.",
            show_default=False,
            autocompletion=complete.operators,
        ),
    ],
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Cut a unit in two behind one of its operators, with a channel between them."""
    from headwater.plan.edit import Split

    _propose(Split(unit=unit, after=after), of, store, yes, wait=wait, as_json=as_json)


def spread(
    unit: Unit,
    over: Annotated[
        str,
        typer.Option("--over", help="Hosts of its zone, with commas between; one: it runs there alone."),
    ],
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Run a unit on one host of its zone, or on several that share its rows out by key."""
    from headwater.plan.edit import Spread

    hosts = tuple(host.strip() for host in over.split(",") if host.strip())
    _propose(Spread(unit=unit, over=hosts), of, store, yes, wait=wait, as_json=as_json)


def _propose(edit: Edit, of: str | None, store: str | None, yes: bool, *, wait: bool, as_json: bool) -> None:
    from headwater.app.client import Client, PlanRequest

    client = Client(store)
    request = PlanRequest(of=of or client.only(), edits=(edit,))
    propose(client, client.propose(request), yes, wait=wait, as_json=as_json)
