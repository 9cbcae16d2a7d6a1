"""Read back what sinks hold: directories of Parquet files, partitioned or not, tables, and PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headwater.dataflow.partitions import NULL_NAME
from headwater.dataflow.sinks import FileSink
from headwater.dataflow.tablesinks import DeltaSink, IcebergSink, PostgresSink
from headwater.testing.compare import NotEquivalent

if TYPE_CHECKING:
    import pyarrow as pa


def rows_in(sink: Any, schema: pa.Schema) -> pa.Table:
    """Return the rows of a sink, with the columns of a schema; raise NotEquivalent for a sink that keeps none."""
    import pyarrow as pa

    match sink:
        case FileSink(format="parquet"):
            root = Path(sink.path.split("{")[0])
            files = sorted(f for f in root.rglob("*.parquet") if ".headwater" not in f.parts)
            tables = [_file(f, root, schema) for f in files]
        case DeltaSink():
            from deltalake import DeltaTable

            found = [str(log.parent) for log in sorted(Path(sink.path.split("{")[0]).rglob("_delta_log"))]
            # A table that is being made has no version yet, and so no rows.
            tables = [DeltaTable(path).to_pyarrow_table() for path in found if DeltaTable.is_deltatable(path)]
        case IcebergSink():
            from headwater.connectors.icebergtable import IcebergAddress, existing, opened

            address = IcebergAddress.of(sink)
            with opened(address) as catalog:
                table = existing(catalog, address)
                tables = [] if table is None else [table.scan().to_arrow()]
        case PostgresSink():
            tables = [_postgres(sink, schema)]
        case _:
            raise NotEquivalent(
                f"sink '{sink.id}' cannot be read back",
                hint="use write.memory(...), write.parquet(...), write.delta(...), write.iceberg(...) or "
                "write.postgres(...)",
            )
    return pa.concat_tables([t.select(schema.names).cast(schema) for t in tables] or [schema.empty_table()])


def _postgres(sink: PostgresSink, schema: pa.Schema) -> pa.Table:
    """Read a table, which may be missing."""
    import pyarrow as pa

    from headwater.connectors.postgreswriter import PostgresTable, connected, quoted

    table = PostgresTable(
        url=sink.url, table=sink.table, columns=(), user_env=sink.user_env, password_env=sink.password_env
    )
    with connected(table, sink.where) as connection:
        if connection.execute("SELECT to_regclass(%s)", (table.name,)).fetchone()[0] is None:
            return schema.empty_table()
        names = ", ".join(map(quoted, schema.names))
        rows = connection.execute(f"SELECT {names} FROM {table.name}").fetchall()
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _file(file: Path, root: Path, schema: pa.Schema) -> pa.Table:
    """Read a file, with the columns that are names of directories."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file).read()
    for part in file.relative_to(root).parts[:-1]:
        escaped, mark, text = part.partition("=")
        name = unquote(escaped)
        if mark and name in schema.names:
            value = None if text == NULL_NAME else unquote(text)
            column = pa.array([value] * table.num_rows, pa.string()).cast(schema.field(name).type)
            table = table.append_column(name, column)
    return table
