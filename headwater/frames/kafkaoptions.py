"""Options of ``spark.readStream.format("kafka")`` as arguments of ``f.read.kafka``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headwater.core.errors import DataflowError
from headwater.dataflow.optionlists import option_name

_OWN = ("user_env", "password_env", "layer")
_SERVERS, _TOPIC = "kafka.bootstrap.servers", "subscribe"
_START = "startingoffsets"


def topic_settings(options: Mapping[str, str], *, where: str) -> dict[str, Any]:
    """Return the arguments; raise DataflowError where they name no topic, or one in another way."""
    given = {name.lower(): (name, value) for name, value in options.items()}
    missing = [name for name in (_SERVERS, _TOPIC) if name not in given]
    if missing:
        raise DataflowError(
            f"no option {missing[0]}",
            where=where,
            hint='.option("kafka.bootstrap.servers", "broker:9092").option("subscribe", "topic")',
        )
    topic = given.pop(_TOPIC)[1]
    found: dict[str, Any] = {"bootstrap_servers": given.pop(_SERVERS)[1], "topic": topic}
    if given.pop("includeheaders", ("", "false"))[1].lower() == "true":
        found["headers_as"] = "headers"
    if (start := given.pop(_START, None)) is not None:
        found["starting"] = _start(start[1], topic, where=where)
    elif (start := given.pop("startingtimestamp", None)) is not None:
        found["starting"] = _time(start[1], where=where)
    for name in _OWN:
        if name in given:
            found[name] = given.pop(name)[1]
    return found | {option_name(name): value for name, value in given.values()}


def _start(text: str, topic: str, *, where: str) -> Any:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return {int(partition): int(offset) for partition, offset in json.loads(text)[topic].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataflowError(
            f"startingOffsets is {text[:60]!r}",
            where=where,
            hint=f'write "earliest", "latest" or {json.dumps({topic: {"0": 17, "1": -2}})}',
        ) from None


def _time(text: str, *, where: str) -> str:
    try:
        return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        raise DataflowError(
            f"startingTimestamp is {text[:60]!r}", where=where, hint="give milliseconds since 1970"
        ) from None
