"""Commands that edit a running deployment: move an operator, fuse units, split one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import complete
from headwater.cli.control import StorePlace, Wait, Yes, propose
from headwater.cli.out import Json

if TYPE_CHECKING:
    from headwater.plan.model import Deployment, DeploymentPlan

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
        help="A unit, with or without its zone.", show_default=False, autocompletion=complete.units
    ),
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
    for command in (move, fuse, split):
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
            help="The layer it is to run in.",
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
    store: StorePlace = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Put an operator into another layer while it runs, with its state: for all locations, or for one.

    Upwards what comes after it goes along, downwards what comes before it.
    """
    from headwater.plan import edit

    _propose(
        lambda plan: edit.move(plan, operator, to, location=at), of, store, yes, wait=wait, as_json=as_json
    )


def fuse(
    first: Unit,
    second: Annotated[
        str,
        typer.Argument(
            help="One that it feeds, or is fed by.", show_default=False, autocompletion=complete.units
        ),
    ],
    to: Layer = None,
    of: Of = None,
    store: StorePlace = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Make two neighbouring units one query, without a channel between them."""
    from headwater.plan import edit

    _propose(
        lambda plan: edit.fuse(plan, first, second, layer=to), of, store, yes, wait=wait, as_json=as_json
    )


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
    store: StorePlace = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Cut a unit in two behind one of its operators, with a channel between them."""
    from headwater.plan import edit

    _propose(lambda plan: edit.split(plan, unit, after), of, store, yes, wait=wait, as_json=as_json)


def _propose(
    change: Callable[[DeploymentPlan], Deployment],
    of: str | None,
    store: str | None,
    yes: bool,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    from headwater import live

    propose(live.edited(change, of, store), store, yes, wait=wait, as_json=as_json)
