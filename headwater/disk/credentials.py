"""Secrets of outside systems, such as passwords: read where they are used, never stored or shown.

A dataflow names a secret. Its value is in an environment variable of the process with the prefix HEADWATER_SECRET_, or
in a file of the directory that HEADWATER_SECRETS_DIR names. Other variables hold what belongs to the agent, such as
its token, and are out of reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from headwater.core.errors import RuntimeFailure
from headwater.core.permissions import SECRET_PREFIX, Permissions

SECRETS_DIR_ENV = "HEADWATER_SECRETS_DIR"
_HARMLESS = frozenset({SECRETS_DIR_ENV, "HEADWATER_CA"})
"""Variables of Headwater's own without a secret that processes with code of dataflows need."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def read_secret(name: str | None, *, where: str) -> str | None:
    """Read the secret ``name``; None without a name. Raise RuntimeFailure, with its name, where there is none."""
    if name is None:
        return None
    if name.startswith(SECRET_PREFIX) and (value := os.environ.get(name)) is not None:
        return value
    directory = os.environ.get(SECRETS_DIR_ENV)
    short = name.removeprefix(SECRET_PREFIX)
    if directory and _NAME.fullmatch(short):
        for file in (Path(directory) / short, Path(directory) / name):
            try:
                return file.read_text(encoding="utf-8").removesuffix("\n")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise RuntimeFailure(f"the secret {name} cannot be read: {type(error).__name__}", where=where) from None
    if not name.startswith(SECRET_PREFIX):
        raise RuntimeFailure(
            f"the environment variable {name} is not a secret for dataflows",
            where=where,
            hint=f"name it {SECRET_PREFIX}{name} in the dataflow and where the unit runs, or put its value into a file "
            f"{name} of the directory that {SECRETS_DIR_ENV} names there",
        )
    raise RuntimeFailure(
        f"the environment variable {name} is not set",
        where=where,
        hint=f"set {name} where the unit runs: values are read there and stored nowhere",
    )


def code_environment(secrets: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process that runs code of dataflows: Headwater's own variables are left out.

    ``secrets``: the names, perhaps with ``*``, of the secrets for dataflows that it may know.
    """
    allowed = Permissions(secrets=tuple(secrets))

    def may_have(name: str) -> bool:
        if name.startswith(SECRET_PREFIX):
            return allowed.may_know(name)
        return not name.startswith("HEADWATER_") or name in _HARMLESS

    return {name: value for name, value in os.environ.items() if may_have(name)}
