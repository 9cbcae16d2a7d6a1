"""A session of Spark Connect without a server: it answers from the dataflow that its DataFrames become."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.sql import SparkSession as SparkSessionOfUsers
from pyspark.sql.connect import proto
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_json_value

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder
from headwater.frames.pipelines import Pipeline
from headwater.frames.queries import written
from headwater.frames.relations import PlanReader
from headwater.frames.types import spark_json, type_of_text

_MEANING = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
"""Settings that change the meaning of expressions."""
LOCATIONS = "headwater.locations"
"""A setting of the session: the locations of the dataflow."""
_MOST = str(2**31 - 1)
_ORIGINS = "spark.python.sql.dataFrameDebugging.enabled"
"""Whether PySpark looks for the line of each Column: DataFrames are checked at their lines anyway."""
_OF_LOCAL_ROWS = {
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.session.localRelationCacheThreshold": _MOST,
    "spark.sql.session.localRelationSizeLimit": _MOST,
    "spark.sql.session.localRelationChunkSizeRows": _MOST,
    "spark.sql.session.localRelationChunkSizeBytes": _MOST,
    "spark.sql.session.localRelationBatchOfChunksSizeBytes": _MOST,
    "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
    "spark.sql.execution.pandas.inferPandasDictAsMap": "false",
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "false",
    "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "false",
    "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""Settings that ``createDataFrame`` asks for: Spark's defaults, and sizes that make one message of all rows."""
_ACTIONS = {
    "to_table": "collect",
    "to_pandas": "toPandas",
    "to_table_as_iterator": "collect",
    "explain_string": "explain",
}


class LocalClient:
    """The client of an offline session: plans and commands of the protocol become streams and sinks."""

    is_closed = False
    _user_id = None

    def __init__(self, flow: DataflowBuilder) -> None:
        self._session_id = str(uuid.uuid4())
        self.relations = PlanReader(flow)
        self._settings = {_ORIGINS: "false", **_OF_LOCAL_ROWS}

    def _set_relation_in_plan(self, plan: Any, relation: Any) -> None:
        plan.root.CopyFrom(relation)

    def read(self, frame: Any) -> None:
        """Translate a DataFrame as soon as it is made, so that an error is one of its line."""
        self.relations.frame(frame._plan.plan(self))

    def schema(self, plan: Any, *_: Any) -> StructType:
        """Return the schema of a DataFrame, by Headwater's own inference."""
        return StructType.fromJson(spark_json(self.relations.row_type(plan.root)))

    def _analyze(self, method: str, **given: Any) -> Any:
        """Answer questions about a DataFrame; keeping its rows has no meaning here, and changes none."""
        match method:
            case "is_streaming":
                return SimpleNamespace(is_streaming=self.relations.is_streaming(given["plan"].root))
            case "tree_string":
                return SimpleNamespace(
                    tree_string=self.schema(given["plan"]).treeString(*([given["level"]] if given.get("level") else []))
                )
            case "ddl_parse":
                return SimpleNamespace(parsed=_parse_datatype_json_value(spark_json(type_of_text(given["ddl_string"]))))
            case "persist" | "unpersist":
                return SimpleNamespace()
        raise DataflowError(f"{method} needs a running Spark", hint=_spark(""))

    def config(self, operation: Any) -> Any:
        """Take settings of Spark; those that change the meaning of expressions are refused."""
        for pair in operation.set.pairs:
            if pair.key in _MEANING:
                raise DataflowError(
                    f"{pair.key} would change the meaning of expressions",
                    where="spark.conf",
                    hint="leave it out: Headwater's zones run in UTC, with ANSI mode, and names ignore case",
                )
            self._settings[pair.key] = pair.value
        for key in operation.unset.keys:
            self._settings.pop(key, None)
        asked = {key: None for key in operation.get.keys} | {p.key: p.value for p in operation.get_with_default.pairs}
        asked |= self._settings if operation.HasField("get_all") else {}
        return SimpleNamespace(pairs=[(k, self._settings.get(k, v)) for k, v in asked.items()], warnings=[])

    def get_config_dict(self, *keys: str) -> dict[str, str | None]:
        """Return settings, as ``createDataFrame`` asks for them."""
        return {key: self._settings.get(key) for key in keys}

    def execute_command(self, command: Any, *_: Any) -> tuple[None, dict[str, Any], None]:
        """Take a command: start a query, or name a view; waiting for a query ends at once."""
        match command.WhichOneof("command_type"):
            case "write_stream_operation_start":
                start = command.write_stream_operation_start
                written(self.relations.stream(start.input, "writing"), start)
                result = proto.WriteStreamOperationStartResult(name=start.query_name)
                result.query_id.id, result.query_id.run_id = str(uuid.uuid4()), str(uuid.uuid4())
                return None, {"write_stream_operation_start_result": result}, None
            case "streaming_query_command":
                return None, {"streaming_query_command_result": proto.StreamingQueryCommandResult()}, None
            case "streaming_query_manager_command":
                answer = proto.StreamingQueryManagerCommandResult()
                return None, {"streaming_query_manager_command_result": answer}, None
            case "sql_command":
                return None, {}, None  # the DataFrame of the statement is translated as others are
            case "create_dataframe_view":
                view = command.create_dataframe_view
                self.relations.name_view(view.name, self.relations.frame(view.input))
                return None, {}, None
            case other:
                raise DataflowError(f"{other} needs a running Spark", hint=_spark(""))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DataflowError(f"{name.strip('_')} needs a running Spark", hint=_spark(_ACTIONS.get(name, "")))


def _spark(habit: str) -> str:
    line = habits.STREAM.get(habit, "")
    instead = f"; in a dataflow of hw.flow(...), write .{line}" if line and not line.startswith("nothing") else ""
    return f"leave it out: Spark starts later, on the zones{instead}"


class LocalSession(SparkSession):
    """A session of which nothing listens anywhere."""

    is_offline = True

    def __init__(self, flow: DataflowBuilder) -> None:
        self._client: Any = LocalClient(flow)
        self.pipeline = Pipeline(self._client.relations, self._client)
        self._session_id = self._client._session_id

    def __del__(self) -> None:
        pass

    def stop(self) -> None:
        """Do nothing: the dataflow is described, and the command runs it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = habits.BUILDER.get(name, "")
        raise DataflowError(f"spark.{cut(name, 80)} is no part of a dataflow", hint=hint or _spark(""))


@contextlib.contextmanager
def offline(flow: DataflowBuilder) -> Iterator[LocalSession]:
    """Let ``SparkSession.builder...getOrCreate()`` return an offline session; its DataFrames are checked when made."""
    session = LocalSession(flow)
    builder: Any = SparkSessionOfUsers.Builder
    create, begin = builder.getOrCreate, DataFrame.__init__

    def get_or_create(self: Any) -> LocalSession:
        options = dict(self._options)
        flow.name = flow_name(options.get("spark.app.name"), flow.name)
        if locations := options.get(LOCATIONS):
            flow.locations = tuple(part.strip() for part in str(locations).split(","))
        return session

    def checked(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        if self._session is session:
            session._client.read(self)

    frames: Any = DataFrame
    builder.getOrCreate, frames.__init__ = get_or_create, checked
    before = getattr(SparkSession._active_session, "session", None)
    SparkSession._active_session.session = session
    try:
        with graph_element_registration_context(session.pipeline):
            yield session
    finally:
        builder.getOrCreate, frames.__init__ = create, begin
        SparkSession._active_session.session = before


def flow_name(given: Any, otherwise: str) -> str:
    """Return the application's name as the name of a dataflow."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "-" for c in str(given or "")).strip("-.")
    return letters[:100] or otherwise
