"""``headwater broker``: a Kafka broker on this machine, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli import bounds
from headwater.cli.bars import Bar
from headwater.cli.out import Json, print_json, say

app = typer.Typer(help="A Kafka broker on this machine, for tests: loopback only, one node.")

Directory = Annotated[Path, typer.Option("--dir", help="Directory of its data.")]
DIRECTORY = Path(".headwater/broker")


@app.command()
def start(
    directory: Directory = DIRECTORY,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1, 1 to 65535.", parser=bounds.PORT)] = 9092,
    as_json: Json = False,
) -> None:
    """Start a broker that keeps running after this command."""
    from headwater.app import brokers

    if not as_json:
        say("starting Kafka (its jars are fetched the first time)")
    with Bar("starting Kafka"):
        found = brokers.start(directory, port=port)
    _show(found, as_json, "runs at")


@app.command()
def stop(directory: Directory = DIRECTORY, as_json: Json = False) -> None:
    """End the broker; its data stays."""
    from headwater.app import brokers

    _show(brokers.stop(directory), as_json, "was stopped at")


@app.command()
def status(directory: Directory = DIRECTORY, as_json: Json = False) -> None:
    """Show whether the broker runs, and its address."""
    from headwater.app import brokers

    _show(brokers.status(directory), as_json, "runs at")


def _show(found: dict[str, Any], as_json: bool, verb: str) -> None:
    if as_json:
        print_json(found)
    elif found["pid"] is None:
        typer.echo(f"no broker runs in {found['directory']}")
    else:
        typer.echo(f"the broker {verb} {found['address']} (process {found['pid']})")
