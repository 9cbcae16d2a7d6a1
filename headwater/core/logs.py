"""Log messages as lines of JSON, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

FIELDS = ("zone", "deployment", "unit", "epoch")
"""What a message may be about: given with it as ``extra``, in this order."""
LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """Formats a message as an object in one line: time (UTC), level, message, and what it is about."""

    def __init__(self, **about: str) -> None:
        """``about``: fields of all messages of this process, such as ``zone``."""
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        known = {**self._about, **{name: vars(record)[name] for name in FIELDS if name in vars(record)}}
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **{name: known[name] for name in FIELDS if name in known},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def begin_logging(form: LogFormat, **about: str) -> None:
    """Write messages from ``info`` on to standard error, as text or as lines of JSON."""
    writer = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    writer.setFormatter(JsonFormatter(**about) if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[writer])
    logging.captureWarnings(form == "json")
