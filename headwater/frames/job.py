"""Take a whole job written for plain PySpark as a dataflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from headwater.core.errors import DataflowError
from headwater.core.rules import Refused, Rule, a_type
from headwater.dataflow.arguments import checked
from headwater.dataflow.builder import DataflowBuilder, flow
from headwater.dataflow.function import accepts
from headwater.dataflow.settings import Label
from headwater.sql.columns import columns_allowed, is_frame


@dataclass(frozen=True)
class FrameRule(Rule):
    """A DataFrame of PySpark."""

    def check(self, value: Any, name: str) -> Any:
        if not is_frame(value):
            raise Refused(f"{name} is {a_type(value)}", hint="give a DataFrame of spark.readStream")
        return value


Frame = Annotated[Any, FrameRule()]


@checked
def from_pyspark(name: Label, job: Callable[..., Any], *, locations: Sequence[Label] = ()) -> DataflowBuilder:
    """Return the dataflow of ``job(spark)``, a function that starts streaming queries as plain PySpark does.

    ``spark`` has no server: nothing is read, and each query's ``start()`` adds a sink to the dataflow.
    """
    if not accepts(job, 1):
        raise DataflowError(
            "the job cannot be called with a session",
            where="hw.from_pyspark",
            hint="give a function of one argument, the session",
        )
    with columns_allowed():
        from headwater.frames.session import offline

        found = flow(name, locations=locations)
        with offline(found) as session:
            job(session)
            session.pipeline.finish()
    found.name = name
    return found


@checked
def layer(frame: Frame, name: Label) -> Frame:
    """Run the operators after a DataFrame of PySpark in a layer; under plain Spark, return the DataFrame as it is."""
    if not getattr(frame.sparkSession, "is_offline", False):
        return frame
    from headwater.frames.relations import LAYER

    return frame.hint(LAYER, name)
