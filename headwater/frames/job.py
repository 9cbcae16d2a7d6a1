"""Take a whole job written for plain PySpark as a dataflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headwater.dataflow.arguments import checked
from headwater.dataflow.builder import DataflowBuilder, flow
from headwater.dataflow.settings import Label, Place

Frame = TypeVar("Frame")
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


@checked
def from_pyspark(name: Label, job: Callable[..., Any], *, locations: Sequence[Label] = ()) -> DataflowBuilder:
    """Return the dataflow of ``job(spark)``, a function that starts streaming queries as plain PySpark does.

    ``spark`` has no server: nothing is read, and each query's ``start()`` adds a sink to the dataflow.
    """
    os.environ.setdefault(_CONNECT_MODE, "1")  # selects the functions of Spark Connect, which need no Java
    from headwater.frames.session import offline

    found = flow(name, locations=locations)
    with offline(found) as session:
        job(session)
        session.pipeline.finish()
    found.name = name
    return found


def layer(frame: Frame, name: Place) -> Frame:
    """Run the operators after a DataFrame of PySpark in a layer; under plain Spark, return the DataFrame as it is."""
    given: Any = frame
    if not getattr(given.sparkSession, "is_offline", False):
        return frame
    from headwater.frames.relations import LAYER

    return given.hint(LAYER, name)  # type: ignore[no-any-return]
