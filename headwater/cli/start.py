"""Commands with which one begins: init, doctor. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.control import Home
from headwater.cli.out import Json, print_json, say


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (init, doctor):
        app.command()(command)


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


def doctor(
    continuum: Annotated[
        Path | None, typer.Option("--continuum", "-c", help="Zones whose agents are asked.", show_default=False)
    ] = None,
    home: Home = Path(".headwater"),
    as_json: Json = False,
) -> None:
    """Examine this host: what a run needs, what is there, and the next step where something is missing.

    Exit code 7 where something is missing that a run needs.
    """
    from headwater.app import doctor as examining
    from headwater.continuum.model import Continuum
    from headwater.core.errors import Unavailable

    known = Continuum.from_yaml(continuum) if continuum else None
    findings = []
    for finding in examining.examined(home, known):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{finding.state:8} {finding.check}: {finding.text}")
            if finding.hint:
                typer.echo(f"{'':8}   -> {finding.hint}")
    if as_json:
        print_json(findings)
    if not examining.is_complete(findings):
        raise typer.Exit(Unavailable.exit_code)
