"""What commands print: JSON and results on standard output, what is said beside them on standard error."""

from __future__ import annotations

import json
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else.")]


def print_json(data: object) -> None:
    """Print one document, for eyes, too."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_line(data: object) -> None:
    """Print one of several documents: a line each."""
    typer.echo(json.dumps(data, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Say something that is no result."""
    typer.echo(text, err=True)
