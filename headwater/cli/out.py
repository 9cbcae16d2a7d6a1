"""Output of commands: JSON and results on standard output, messages on standard error."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headwater.core.jsonform import dump

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def print_json(data: object) -> None:
    """Print a value as one indented document."""
    typer.echo(json.dumps(dump(data), indent=2, ensure_ascii=False))


def print_line(data: object) -> None:
    """Print a value as one of several documents, in a line."""
    typer.echo(json.dumps(dump(data), ensure_ascii=False))


def say(text: str) -> None:
    """Print a message that is not a result."""
    typer.echo(text, err=True)
