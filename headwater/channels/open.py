"""Open a log of any kind by its description.

A description is JSON: a path alone is a filelog; otherwise ``{"kind": "filelog", "path": ...}`` or
``{"kind": "kafka", "servers": "host:port,...", "topic": ..., "staging": <directory of the writer>,
"settings": {<librdkafka>}, "user_env": ..., "password_env": ..., "replication": n}``. Settings of a
writer (``delivery``, ``lineage``, ``fsync``, ``compression`` and ``bytes_per_s`` of the link, the fields of
ChannelLimits) may stand beside these. User names and passwords are never part of it, only the environment
variables that hold them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headwater.channels.base import ChannelLimits, OnCorrupt
from headwater.channels.log import Log
from headwater.channels.segments import FOR_LINK
from headwater.core.errors import ChannelError

LogSpec: TypeAlias = str | Mapping[str, Any]

_LIMITS = ("max_bytes", "max_age", "when_full", "block_timeout")
_KAFKA = ("staging", "settings", "user_env", "password_env", "replication")


@dataclass(frozen=True, kw_only=True)
class LogKind:
    """One kind of log.

    ``open`` makes the log of a description and the settings that all kinds take. ``sink_writer`` names the
    kind in the description of a sink writer.
    """

    open: Callable[[Mapping[str, Any], dict[str, Any]], Log]
    sink_writer: str


# Each kind imports its module when it is opened: a process without a channel on Kafka does not load its client.


def _filelog(spec: Mapping[str, Any], common: dict[str, Any]) -> Log:
    from headwater.channels.filelog import FileLog

    return FileLog(spec["path"], fsync=bool(spec.get("fsync", True)), **common)


def _kafka(spec: Mapping[str, Any], common: dict[str, Any]) -> Log:
    from headwater.channels.kafkalog import KafkaLog

    own = {n: spec[n] for n in _KAFKA if spec.get(n) is not None}
    return KafkaLog(spec["servers"], spec["topic"], **own, **common)


LOG_KINDS: Mapping[str, LogKind] = {
    "filelog": LogKind(open=_filelog, sink_writer="filelog"),
    "kafka": LogKind(open=_kafka, sink_writer="kafkalog"),  # as a sink writer "kafka" is the sink
}
"""All kinds of logs by name."""


def open_log(spec: LogSpec, *, on_corrupt: OnCorrupt = "quarantine") -> Log:
    """Open the log that ``spec`` describes; this neither creates nor reads it."""
    if isinstance(spec, str):
        spec = {"kind": "filelog", "path": spec}
    name = spec.get("kind") or ("filelog" if "path" in spec else None)
    kind = next((k for n, k in LOG_KINDS.items() if name in (n, k.sink_writer)), None)
    if kind is None:
        raise ChannelError(
            f"unknown kind of log {name!r}", where="log description", hint=f"use {' or '.join(LOG_KINDS)}"
        )
    common: dict[str, Any] = {
        "limits": ChannelLimits(**{n: spec[n] for n in _LIMITS if spec.get(n) is not None}),
        "on_corrupt": on_corrupt,
        "event_time": spec.get("event_time"),
        "delivery": spec.get("delivery") or "exactly_once",
        "lineage": spec.get("lineage"),
    }
    if common["delivery"] not in ("exactly_once", "at_least_once"):
        raise ChannelError(
            f"unknown delivery {common['delivery']!r}",
            where="log description",
            hint="use exactly_once or at_least_once",
        )
    try:
        return _compressing(spec, kind.open(spec, common))
    except KeyError as error:
        raise ChannelError(
            f"{error} is missing", where="log description", hint="give a filelog its path, kafka its servers and topic"
        ) from None


def _compressing(spec: Mapping[str, Any], log: Log) -> Log:
    """Set a log's compression from its description."""
    log.compression = str(spec.get("compression") or log.compression)
    if log.compression not in ("lz4", "zstd", FOR_LINK):
        raise ChannelError(
            f"unknown compression {log.compression!r}", where="log description", hint=f"use lz4, zstd or {FOR_LINK}"
        )
    log.bytes_per_s = spec.get("bytes_per_s")
    return log


def remove_log(spec: LogSpec) -> None:
    """Delete a log and its content; a missing one is no error."""
    log = open_log(spec)
    drop = getattr(log, "drop", None)
    if drop is not None:
        drop()
    else:
        shutil.rmtree(log.where, ignore_errors=True)
