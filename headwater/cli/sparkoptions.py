"""Options for the packages and settings of a Spark, and the file of settings that are secrets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.continuum.sparksettings import SparkSettings

Packages = Annotated[
    str, typer.Option("--packages", help="Maven coordinates for Spark, separated by commas.", show_default=False)
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        help="A setting of Spark, key=value; repeatable. All users of the machine can see it in `ps`.",
        show_default=False,
    ),
]
ConfFile = Annotated[
    Path | None,
    typer.Option(
        "--conf-file",
        help="File of settings of Spark, key=value in each line, for secrets; only its owner may read it.",
        show_default=False,
    ),
]

_QUICK = "Start Spark with half the processor time, at the price of throughput later: for short runs"
Quick = Annotated[bool, typer.Option("--quick", envvar="HEADWATER_QUICK", help=f"{_QUICK}.")]
QuickRun = Annotated[
    bool | None,
    typer.Option(
        "--quick/--no-quick",
        envvar="HEADWATER_QUICK",
        help=f"{_QUICK}. Default: with --until-drained and at most 32 MiB of input.",
        show_default=False,
    ),
]


def spark_settings(packages: str, conf: Sequence[str] | None, file: Path | None) -> SparkSettings:
    """Return the settings of the options, of which `--conf` wins; warn of secrets on the command line."""
    from headwater.continuum.sparksettings import SparkSettings

    given = SparkSettings.of_options(packages, conf or ())
    for key in given.secret_keys():
        typer.echo(
            f"warning: all users of this machine can see the value of {key} in `ps`: give it in a --conf-file", err=True
        )
    return given if file is None else SparkSettings.of_options("", _lines(file), where=str(file)).overridden_by(given)


def write_settings(file: Path, settings: SparkSettings) -> None:
    """Write the file that `--conf-file` reads; only its owner may read it."""
    from headwater.disk.durable import write_atomically

    write_atomically(file, "".join(f"{key}={value}\n" for key, value in settings.conf), mode=0o600)


def _lines(file: Path) -> list[str]:
    from headwater.core.errors import ContinuumError

    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContinuumError(
            f"cannot read it: {error}", where=str(file), hint="name a file of lines spark.some.key=value"
        ) from error
    if mode & 0o077:
        raise ContinuumError(
            "other users may read or change this file of settings", where=str(file), hint=f"chmod 600 {file}"
        )
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
