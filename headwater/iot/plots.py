"""Series as pictures: the ``plots`` extra draws them where the dataflow runs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwater.dataflow.stream import Stream
from headwater.iot.folds import accumulate

if TYPE_CHECKING:
    import pyarrow as pa

_SIZE = (6.4, 3.2)  # inches
_AXES = (0.13, 0.16, 0.84, 0.78)  # left, bottom, width and height, as shares of that


def plot_lines(
    readings: Stream,
    *,
    size: int = 20,
    keys: Sequence[str] = (),
    value: str = "value",
    name: str = "chart",
) -> Stream:
    """Draw ``size`` readings as a chart, a line for each label: rows ``ts``, ``name``, ``content`` (SVG)."""
    series = accumulate(readings, size=size, keys=keys, value=value)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = batch.to_pylist()
            yield pa.RecordBatch.from_arrays(
                [
                    batch["ts"],
                    pa.array([_called(name, row, keys) for row in rows]),
                    pa.array([svg(row["series"]) for row in rows]),
                ],
                names=["ts", "name", "content"],
            )

    return series.map_batches(draw, "ts timestamp, name string, content string")


def svg(series: Sequence[dict[str, Any]]) -> str:
    """Draw points ``{"label", "at", "value"}`` as an SVG line chart; the same points give the same text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text as text, fixed margins, a fixed place for the legend: finding them takes longer than drawing.
    with rc_context({"svg.hashsalt": "headwater", "svg.fonttype": "none"}):
        figure = Figure(figsize=_SIZE)
        axes = figure.add_axes(_AXES)
        for label in dict.fromkeys(point["label"] for point in series):
            mine = [p for p in series if p["label"] == label]
            axes.plot([p["at"] for p in mine], [p["value"] for p in mine], marker=".", label=str(label))
        if len(axes.lines) <= 12:
            axes.legend(fontsize="small", loc="upper right")
        axes.set_xlabel("seconds since 1970")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _called(name: str, row: dict[str, object], keys: Sequence[str]) -> str:
    parts = [name, *(str(row[k]) for k in keys), f"{row['ts']:%Y%m%dT%H%M%S%f}"]
    return "-".join("".join(c if c.isalnum() or c in "-_" else "_" for c in part) for part in parts) + ".svg"
