"""The files of a deployment's directory on a node: orders (tasks.json) and descriptions of units (specs/)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import DeploymentError
from headwater.core.jsonform import dump_json, load_json
from headwater.disk.durable import write_atomically
from headwater.plan.port import Wanted
from headwater.plan.spec import UnitSpec


@dataclass(frozen=True)
class Task:
    """The newest order for a unit, which is described by the spec with this digest."""

    unit: str
    digest: str
    wanted: Wanted


def stored_tasks(file: Path) -> list[dict[str, Any]]:
    """Return the entries of a tasks file; raise DeploymentError if it is damaged."""
    try:
        return list(json.loads(file.read_text())["tasks"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"damaged: {error!r}", where=str(file), hint="restore it, or delete it and apply again"
        ) from error


def specs_in(root: Path) -> list[UnitSpec]:
    """Return the specs in a deployment's directory."""
    files = sorted((root / "specs").glob("*.json"))
    return [load_json(UnitSpec, file.read_text(), what="a unit's description") for file in files]


def upgrade_tasks(root: Path) -> None:
    """Derive the specs of units in a directory that an older version left with whole plans."""
    plans, file = root / "plans", root / "tasks.json"
    if not plans.is_dir():
        return
    from headwater.plan.document import from_document
    from headwater.plan.spec import spec_of
    from headwater.plan.upgrade import upgraded

    tasks = []
    for entry in stored_tasks(file):
        document = json.loads((plans / f"{entry['digest']}.json").read_text())
        spec = spec_of(from_document(upgraded(document)), entry["unit"])
        write_atomically(root / "specs" / f"{spec.digest}.json", dump_json(spec).decode())
        tasks.append({**entry, "digest": spec.digest})
    write_atomically(file, json.dumps({"tasks": tasks}))
    shutil.rmtree(plans)
