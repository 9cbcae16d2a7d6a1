"""What commands print: JSON and results on standard output, what is said beside them on standard error."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headwater.core.jsonform import dump

Json = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else.")]


def print_json(data: object) -> None:
    """Print a value as one document, for eyes, too."""
    typer.echo(json.dumps(dump(data), indent=2, ensure_ascii=False))


def print_line(data: object) -> None:
    """Print a value as one of several documents: a line each."""
    typer.echo(json.dumps(dump(data), ensure_ascii=False))


def say(text: str) -> None:
    """Say something that is no result."""
    typer.echo(text, err=True)
