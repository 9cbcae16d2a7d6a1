"""Commands for dead letters: list them, replay them. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli import complete
from headwater.cli.control import Home, StoreOption
from headwater.cli.out import print_line, say

Replay = Annotated[
    list[str] | None,
    typer.Option("--replay", help="Id of a dead letter to replay to its source; repeatable.", show_default=False),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--replay-from",
        help="Replay the dead letters of this file, an edited output of --json; - is standard input.",
        show_default=False,
    ),
]
Record = Annotated[
    str | None,
    typer.Option("--record", help="The corrected record, for one dead letter.", show_default="unchanged"),
]
Force = Annotated[bool, typer.Option("--force", help="Replay even if the record does not fit, or was replayed before.")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(deadletters)


def deadletters(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A deployment of the store.",
            show_default="that of --dir",
            autocompletion=complete.deployments,
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Directory of a deployment of `run`.",
            show_default="the only one in .headwater",
        ),
    ] = None,
    replay: Replay = None,
    replay_from: From = None,
    record: Record = None,
    force: Force = False,
    store: StoreOption = None,
    home: Home = Path(".headwater"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the records that did not fit their source's schema, or replay some of them, corrected or not.

    Replayed records are checked against the schema, and go once to their source.
    """
    from headwater.app import deadletters, running

    if name and directory:
        raise typer.BadParameter("a name and --dir exclude each other")
    if replay or replay_from:
        _replay(name, _wanted(replay, replay_from, record), force, store, home, as_json=as_json)
        return
    if record is not None or force:
        raise typer.BadParameter("--record and --force go with --replay")
    if name:
        letters = deadletters.dead_letters(name, store, home=home, say=say)
    else:
        letters = deadletters.in_directory(directory or running.only_deployment())
    count = 0
    for letter in letters:
        count += 1
        if as_json:
            print_line(letter)
        else:
            _show(letter)
    if not as_json:
        say(f"{count} dead letters")


def _show(letter: dict[str, Any]) -> None:
    origin = " ".join(str(letter[k]) for k in ("source", "offset") if letter.get(k) is not None)
    typer.echo(f"{letter.get('id')} {letter.get('unit')} {letter.get('operator')}: {letter.get('reason')}")
    typer.echo(f"  {letter.get('record')!r}" + (f"  ({origin})" if origin else ""))
    if replayed := letter.get("replayed"):
        how = "replayed" if replayed.get("done") else "its replay was cut off, replay it again; begun"
        typer.echo(f"  {how} {replayed.get('at')}, to {replayed.get('target')}")


def _wanted(ids: list[str] | None, file: Path | None, record: str | None) -> dict[str, str | None]:
    """Return the dead letters to replay, each with its corrected record where one is given."""
    from headwater.app import deadletters as letters

    if file is None:
        if record is not None and len(ids or ()) != 1:
            raise typer.BadParameter("--record is for one dead letter; --replay-from takes several")
        return dict.fromkeys(ids or (), record)
    if ids or record is not None:
        raise typer.BadParameter("--replay-from excludes --replay and --record")
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--replay-from {file}: {error}") from None
    return letters.read_wanted(text, where=str(file))


def _replay(
    name: str | None,
    wanted: dict[str, str | None],
    force: bool,
    store: str | None,
    home: Path,
    *,
    as_json: bool,
) -> None:
    """Replay dead letters of a deployment; exit with 1 where any was not replayed."""
    from headwater.app import deadletters

    if name is None:
        raise typer.BadParameter(
            "name a deployment over zones: a deployment of `run` takes corrected records as new files"
        )
    records = {id_: record for id_, record in wanted.items() if record is not None}
    found = deadletters.replay(name, list(wanted), store, records=records, force=force, home=home, say=say)
    for one in found:
        if as_json:
            print_line(one)
        else:
            about = f", to {one.target}" if one.target else f": {one.reason}"
            outcome = "not found" if one.outcome == "unknown" else one.outcome
            typer.echo(f"{one.id} {outcome}{about}")
    done = sum(one.outcome == "replayed" for one in found)
    if not as_json:
        say(f"{done} of {len(found)} replayed")
    if done < len(found):
        raise typer.Exit(1)
