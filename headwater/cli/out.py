"""Output of commands: JSON and results on standard output, messages on standard error."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

LogLines = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log-format",
        envvar="HEADWATER_LOG_FORMAT",
        help="Messages on standard error as text, or as JSON, one object per line.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def print_json(data: object) -> None:
    """Print a value as one indented document."""
    from headwater.core.jsonform import dump  # pydantic takes time to import

    typer.echo(json.dumps(dump(data), indent=2, ensure_ascii=False))


def print_line(data: object) -> None:
    """Print a value as one of several documents, in a line."""
    from headwater.core.jsonform import dump

    typer.echo(json.dumps(dump(data), ensure_ascii=False))


def say(text: str) -> None:
    """Print a message that is not a result."""
    typer.echo(text, err=True)
