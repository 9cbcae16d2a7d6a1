"""Commands of sharing: submit, remove, defragment, shared, owner. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import bounds, complete
from headwater.cli.control import (
    Append,
    ContinuumFile,
    Flow,
    Overwrite,
    StoreOption,
    Trust,
    Wait,
    Yes,
    agree_on_terminal,
    follow,
    former_output,
    show_change,
)
from headwater.cli.out import Json, print_json, say

if TYPE_CHECKING:
    from headwater.app.pools import Joined, PoolChange

OwnerName = Annotated[
    str,
    typer.Option("--owner", help="The owner.", show_default=False, autocompletion=complete.owners),
]
PoolName = Annotated[
    str,
    typer.Option("--pool", help="The pool of dataflows that run as one.", autocompletion=complete.pools),
]
Submitted = Annotated[
    str,
    typer.Argument(help="The dataflow's name.", show_default=False, autocompletion=complete.submissions),
]


class RightOf(StrEnum):
    """Rights to another owner's dataflows."""

    read = "read"
    remove = "remove"


class RoleOf(StrEnum):
    """Roles of an owner."""

    viewer = "viewer"
    operator = "operator"
    owner = "owner"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (submit, remove, defragment, shared, owner):
        app.command()(command)


def submit(
    flow: Flow,
    continuum: ContinuumFile,
    owner: OwnerName,
    pool: PoolName = "commons",
    store: StoreOption = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the running dataflow of this name; what stays keeps its state.")
    ] = False,
    own_windows: Annotated[
        bool, typer.Option("--own-windows", help="Compute no window from shorter windows of other dataflows.")
    ] = False,
    append: Append = False,
    overwrite: Overwrite = False,
    trust_code: Trust = False,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Run a dataflow together with others: operators in common run once.

    It shows what would change in the pool, and asks on a terminal. A changed continuum takes the place of the pool's.
    An owner with a token sets it in HEADWATER_OWNER_TOKEN.
    """
    from headwater.app import loading, pools
    from headwater.continuum.model import Continuum

    loaded = loading.load_dataflow(flow)
    loading.check_trust(loaded, trust_code=trust_code)
    zones = Continuum.from_yaml(continuum)
    choice = former_output(append, overwrite)
    planned = partial(
        pools.plan_submission,
        loaded.dataflow,
        zones,
        owner,
        store,
        pool=pool,
        former_output=choice,
        update=update,
        own_windows=own_windows,
    )
    found = _in_turn(planned, yes=yes, as_json=as_json)
    if found.cores and not as_json:
        for how, cores in found.cores.items():
            say(f"{'->' if how == found.how else '  '} {how}: {cores:.2f} cores predicted")
    _told(
        found,
        f"{loaded.dataflow.name}: {len(found.reused)} operators run already, {len(found.new)} are new"
        + (f", {len(found.ended)} end" if update else ""),
        store,
        wait=wait,
        as_json=as_json,
    )


def remove(
    name: Submitted,
    owner: OwnerName,
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Remove a submitted dataflow, with the operators that no other one needs; the others keep running."""
    from headwater.app import pools

    found = _in_turn(partial(pools.plan_removal, name, owner, store), yes=yes, as_json=as_json)
    words = f"{name}: {len(found.new)} operators end, {len(found.reused)} run on for others"
    _told(found, words, store, wait=wait, as_json=as_json)


def defragment(
    pool: Annotated[str, typer.Argument(help="The pool.", autocompletion=complete.pools)] = "commons",
    store: StoreOption = None,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Merge the units that submissions and removals have split: fewer queries, all state kept."""
    from headwater.app import pools

    found = _in_turn(partial(pools.plan_defragmentation, pool, store), yes=yes, as_json=as_json)
    _told(found, f"{pool} is defragmented", store, wait=wait, as_json=as_json)


def _in_turn(planned: Callable[[], PoolChange], *, yes: bool, as_json: bool) -> Joined:
    """Show a change of a pool and ask, behind the change that is under way."""
    from headwater.app import pools

    def waits() -> None:
        if not as_json:
            say("another change of the pool is under way: this one waits for its end")

    def agree(change: PoolChange) -> None:
        if as_json:
            return
        if change.proposal is None:
            say(f"{change.pool.name}: no dataflow is left; its units are stopped, and their data is deleted")
        else:
            show_change(change.proposal.plan, change.proposal.change)
        for note in change.result.notes:
            say(f"note: {note}")
        agree_on_terminal(yes, as_json=as_json)

    return pools.in_turn(planned, waits=waits, agree=agree)


def _told(found: Joined, words: str, store: str | None, *, wait: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        before, after = found.queries
        say(f"{words}; {before} queries become {after}")
        say(f"{found.pool}: version {found.version} is wanted")
    if wait:
        follow(found.pool, found.version, store, quiet=as_json)


def shared(store: StoreOption = None, as_json: Json = False) -> None:
    """List the submitted dataflows: owner, sinks, and who shares which operators with whom."""
    from rich.console import Console

    from headwater.app import pools
    from headwater.render.share import pool_view

    found = [pools.pool_outline(pool) for pool in pools.pools(store)]
    if as_json:
        print_json(found)
        return
    for pool in found:
        Console(highlight=False).print(pool_view(pool))
    if not any(pool.dataflows for pool in found):
        say("nothing was submitted")


def owner(
    name: Annotated[
        str | None,
        typer.Argument(help="The owner.", show_default="all", autocompletion=complete.owners),
    ] = None,
    max_dataflows: Annotated[
        int | None, typer.Option(parser=bounds.COUNT, help="Maximum number of dataflows, 0 to 1000000.")
    ] = None,
    max_operators: Annotated[
        int | None, typer.Option(parser=bounds.COUNT, help="Maximum number of operators, shared or not, 0 to 1000000.")
    ] = None,
    max_cores: Annotated[
        float | None,
        typer.Option(parser=bounds.LOAD, help="Load in cores from which no more dataflows are accepted, 0 to 1000000."),
    ] = None,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Remove all limits.")] = False,
    role: Annotated[
        RoleOf | None,
        typer.Option("--role", help="viewer: reads; operator: also changes deployments; owner: also submits."),
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="Create a token, which is required from now on.")] = False,
    grant: Annotated[RightOf | None, typer.Option("--grant", help="Grant this right to --to.")] = None,
    revoke: Annotated[RightOf | None, typer.Option("--revoke", help="Revoke this right of --to.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Another owner.", autocompletion=complete.owners)] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show owners, or set an owner's role, limits and rights of others.

    Where the owner "admin" has a token, limits and roles need that token.
    """
    from dataclasses import asdict, replace

    from headwater.app import pools
    from headwater.control.sharing import OwnerLimits

    if name is None:
        found = pools.owners(store)
        if as_json:
            print_json(found)
        for one in () if as_json else found:
            words = [f"{k} {v:g}" for k, v in asdict(one.limits).items() if v is not None]
            guarded = "token" if one.guarded else "no token"
            typer.echo(f"{one.name}: {one.role}, {guarded}, {', '.join(words) or 'no limits'}")
        return
    if (grant or revoke) and not to:
        raise typer.BadParameter("--grant and --revoke need --to OWNER")
    if grant:
        pools.grant(name, str(to), grant.value, store)
    if revoke:
        pools.grant(name, str(to), revoke.value, store, given=False)
    limits = OwnerLimits() if no_limits else pools.limits_of(name, store)
    given: dict[str, Any] = {"dataflows": max_dataflows, "operators": max_operators, "cores": max_cores}
    limits = replace(limits, **{k: v for k, v in given.items() if v is not None})
    changed = no_limits or any(v is not None for v in given.values())
    made = pools.set_owner(
        name,
        store,
        limits=limits if changed else None,
        role=role.value if role is not None else None,
        token=token,
    )
    if as_json:
        now = role.value if role is not None else pools.role_of(name, store)
        print_json({"name": name, "role": now, "limits": limits, "token": made})
    elif made is not None:
        typer.echo(made)
        say("shown this once: keep it, and set HEADWATER_OWNER_TOKEN to it")
