"""Values from another version of Headwater: fields that this version does not know.

Counters and log entries may gain fields that a reader ignores. An order may not: skipped, it would be another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known(of: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of the dataclass ``of``; a newer version may have added others.

    >>> from headwater.core.metrics import LinkProgress
    >>> known(LinkProgress, {"link": "E1-S1", "colour": "red"})
    {'link': 'E1-S1'}
    """
    names = {field.name for field in fields(of)}
    return {name: value for name, value in values.items() if name in names}


def surplus(data: object, read: object, at: str = "") -> str | None:
    """Return the path of a field of JSON data that the value read from it lacks; None where there is none.

    ``read``: the JSON form of that value, in which further fields have defaults.

    >>> surplus({"unit": {"id": "a", "mode": 1}}, {"unit": {"id": "a"}})
    'unit.mode'
    >>> surplus([{"id": "a"}], [{"id": "a", "mode": 0}])
    """
    if isinstance(data, Mapping) and isinstance(read, Mapping):
        for name, own in data.items():
            if name not in read:
                return f"{at}{name}"
            if (found := surplus(own, read[name], f"{at}{name}.")) is not None:
                return found
    elif isinstance(data, list) and isinstance(read, list):
        for number, (own, other) in enumerate(zip(data, read, strict=False)):
            if (found := surplus(own, other, f"{at}{number}.")) is not None:
                return found
    return None
