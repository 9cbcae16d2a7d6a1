"""Refuse a run before Spark starts, which takes seconds: a finished run, endless input, bad paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from headwater.connectors.permitted import AgentPermissions, check_unit, own_paths
from headwater.control.store import Store
from headwater.core.errors import DeploymentError, ErrorList, HeadwaterError
from headwater.dataflow.customs import CustomSource
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sinks import FileSink
from headwater.dataflow.sources import FileSource, SensorSource, Source
from headwater.dataflow.tablesinks import DeltaSink, IcebergSink
from headwater.dataflow.tablesources import DeltaSource, IcebergSource
from headwater.disk.credentials import read_secret
from headwater.disk.layout import full_path, sink_directory
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spec import spec_of

_SECRETS = ("user_env", "username_env", "password_env", "registry_user_env", "registry_password_env")


def check_run(plan: DeploymentPlan, directory: Path, store: Path | None, *, until_drained: bool) -> None:
    """Raise all errors of a run that are known without Spark; ``store``: that of a run that goes on."""
    if store is not None and store.exists():
        with closing(Store(store)) as opened:
            refuse_finished(opened, plan.dataflow.name, directory)
    if until_drained:
        refuse_endless(plan)
    agent = AgentPermissions(reserved=own_paths(directory.resolve(), None))
    found = [error for unit in plan.units for error in (*_refused(plan, unit, agent), *_errors(plan, unit))]
    if found:
        raise found[0] if len(found) == 1 else ErrorList(found)


def refuse_finished(store: Store, name: str, directory: Path) -> None:
    """Refuse to continue a deployment whose input has ended."""
    record = store.find(name)
    if record is None or record.version != record.observed_version or record.active_plan is None:
        return
    if store.desired(name).goal == "finish" and record.phase == "stopped":
        raise DeploymentError(
            "this deployment has finished: its input had ended and its windows are closed",
            where=str(directory),
            hint="start afresh with --fresh",
        )


def refuse_endless(plan: DeploymentPlan) -> None:
    """Refuse to wait for the end of sources that have none."""
    endless = [s.id for s in plan.dataflow.sources if not _ends(s)]
    if endless:
        raise DeploymentError(
            f"{', '.join(endless)} never ends",
            where="--until-drained",
            hint="run without it and stop with Ctrl-C",
        )


def _ends(source: Source) -> bool:
    if isinstance(source, CustomSource):
        return source.bounded
    return isinstance(source, FileSource | KafkaSource | DeltaSource | IcebergSource) or (
        isinstance(source, SensorSource) and source.rows is not None
    )


def _refused(plan: DeploymentPlan, unit: Unit, agent: AgentPermissions) -> Iterator[HeadwaterError]:
    """Yield the error of a resource that the unit may not use."""
    try:
        check_unit(spec_of(plan, unit.id), agent)
    except HeadwaterError as error:
        yield error


def _errors(plan: DeploymentPlan, unit: Unit) -> Iterator[HeadwaterError]:
    for operator in (plan.dataflow[id_] for id_ in unit.operators):
        for setting in _SECRETS:
            try:
                read_secret(getattr(operator, setting, None), where=operator.where)
            except HeadwaterError as error:
                yield error
        if isinstance(operator, FileSink | DeltaSink):
            if (problem := _unwritable(sink_directory(operator.path, unit))) is not None:
                yield operator.error(f"files cannot be written: {problem}", "write to another path")
        elif isinstance(operator, IcebergSink):
            if (problem := _unwritable(full_path(operator.warehouse))) is not None:
                yield operator.error(f"the warehouse cannot be written: {problem}", "give another directory")
        elif isinstance(operator, FileSource):
            for location in unit.locations:
                yield from _unreadable(operator, full_path(operator.path.replace("{location}", location)))


def _unreadable(source: FileSource, path: str) -> Iterator[HeadwaterError]:
    """Check the directory of a source; a missing one is created, and files may come later."""
    if "://" in path or any(c in path for c in "*?[{"):
        return
    if Path(path).is_file():
        yield source.error(f"'{path}' is a file", "give its directory, or a pattern such as in/*.csv")
    elif Path(path).is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            yield source.error(f"'{path}' cannot be read", "give the user that runs Headwater the right to read it")
    elif (problem := _unwritable(path)) is not None:
        yield source.error(f"there is no '{path}', and {problem}", "correct the path")


def _unwritable(path: str) -> str | None:
    """Return why a directory cannot be made and written, if it cannot."""
    if "://" in path:
        return None
    there = Path(path)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"'{there}' is not a directory"
    return None if os.access(there, os.W_OK | os.X_OK) else f"'{there}' is not writable"
