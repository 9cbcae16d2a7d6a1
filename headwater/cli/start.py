"""The command with which a project begins. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.out import Json, print_json, say


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(init)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the project.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a first project: flow.py, continuum.yaml, data, a test and a file for continuous integration."""
    from headwater.app.newproject import write_project

    written = write_project(directory, overwrite=overwrite)
    if as_json:
        print_json({"files": [str(file) for file in written]})
        return
    for file in written:
        typer.echo(file)
    say(f"run it: cd {directory} && headwater run flow.py -c continuum.yaml --until-drained")
    say("test it: pytest")
