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
    typer.Argument(
        help="A unit, with or without its zone, or one of its operators.",
        show_default=False,
        autocompletion=complete.units_and_operators,
    ),
]
Layer = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="The layer of the new unit.",
        show_default="unchanged",
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
        typer.Argument(
            help="An operator, or a unit: its operators except sources.",
            show_default=False,
            autocompletion=complete.units_and_operators,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="The target layer, host or zone.",
            show_default=False,
            autocompletion=complete.layers,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="Move it for the rows of this location only.",
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
    """Move an operator with its state, while it runs, to another layer, host or zone, for all locations or for one.

    A zone that does not cover its locations takes the rows of all of them.

    On a move upwards the operators behind it move as well, on a move downwards those before it.
    """
    from headwater.plan.edit import Move

    _propose(Move(operator=operator, to=to, at=at), of, store, yes, wait=wait, as_json=as_json)


def fuse(
    first: Unit,
    second: Annotated[
        str,
        typer.Argument(
            help="A unit directly before or behind it.",
            show_default=False,
            autocompletion=complete.units_and_operators,
        ),
    ],
    to: Layer = None,
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Join two neighbouring units into one query, without a channel between them."""
    from headwater.plan.edit import Fuse

    _propose(Fuse(first=first, second=second, to=to), of, store, yes, wait=wait, as_json=as_json)


def split(
    unit: Unit,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            help="The operator to cut behind.",
            show_default="the operator named instead of a unit",
            autocompletion=complete.operators,
        ),
    ] = None,
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Cut a unit in two behind one of its operators, with a channel between them."""
    from headwater.plan.edit import Split

    _propose(Split(unit=unit, after=after or unit), of, store, yes, wait=wait, as_json=as_json)


def spread(
    unit: Unit,
    over: Annotated[
        str,
        typer.Option("--over", help="Hosts of its zone, separated by commas."),
    ],
    of: Of = None,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Run a unit on one host of its zone, or divide its rows by key among several."""
    from headwater.plan.edit import Spread

    hosts = tuple(host.strip() for host in over.split(",") if host.strip())
    _propose(Spread(unit=unit, over=hosts), of, store, yes, wait=wait, as_json=as_json)


def _propose(edit: Edit, of: str | None, store: str | None, yes: bool, *, wait: bool, as_json: bool) -> None:
    from headwater.app.client import Client, PlanRequest

    client = Client(store)
    request = PlanRequest(of=of or client.only(), edits=(edit,))
    propose(client, client.propose(request), yes, wait=wait, as_json=as_json)
