"""Draw series as charts; needs the ``plots`` extra where the dataflow runs."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwater.dataflow.stream import Stream
from headwater.iot.folds import accumulate, keys_of
from headwater.sql.lexer import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (6.4, 3.2)  # inches
_AXES = (0.13, 0.16, 0.84, 0.78)  # left, bottom, width and height, as shares of that
_NAMED = 12  # lines of a chart, at most, whose names are written
_APART = 0.075  # distance of two names, as a share of the axes
_kept = threading.local()


def plot_lines(
    readings: Stream,
    *,
    size: int = 20,
    keys: Sequence[str] | None = None,
    value: str = "value",
    name: str = "chart",
) -> Stream:
    """Draw ``size`` readings as a chart, a line for each label: the keys, ``ts``, ``name``, ``content`` (SVG).

    By default a chart has the readings of one location.
    """
    keys = keys_of(readings, keys, ())
    series = accumulate(readings, size=size, keys=keys, value=value)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = batch.to_pylist()
            yield pa.RecordBatch.from_arrays(
                [
                    *(batch[key] for key in keys),
                    batch["ts"],
                    pa.array([_called(name, row, keys) for row in rows]),
                    pa.array([svg(row["series"]) for row in rows]),
                ],
                names=[*keys, "ts", "name", "content"],
            )

    kept = "".join(f"{quoted(key)} {series.schema.column(key).type.text}, " for key in keys)
    return series.map_batches(draw, f"{kept}ts timestamp, name string, content string")


def svg(series: Sequence[dict[str, Any]]) -> str:
    """Draw points ``{"label", "at", "value"}`` as an SVG line chart; the same points give the same text."""
    from matplotlib import rc_context

    # Text as text, fixed margins, names at fixed places: a legend's layout takes as long to compute as all the rest.
    with rc_context({"svg.hashsalt": "headwater", "svg.fonttype": "none"}):
        figure, axes = _paper()
        for label in dict.fromkeys(point["label"] for point in series):
            mine = [p for p in series if p["label"] == label]
            axes.plot([p["at"] for p in mine], [p["value"] for p in mine], marker=".", label=str(label))
        for n, line in enumerate(axes.lines if len(axes.lines) <= _NAMED else ()):
            name, colour = str(line.get_label()), line.get_color()
            axes.text(
                0.99, 0.98 - n * _APART, name,
                color=colour, fontsize="small", ha="right", va="top", transform=axes.transAxes, parse_math=False,
            )  # fmt: skip
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _paper() -> tuple[Figure, Axes]:
    """Return an empty chart, one per thread: creating axes is a third of the work."""
    from matplotlib.figure import Figure

    found: tuple[Figure, Axes] | None = getattr(_kept, "paper", None)
    if found is None:
        figure = Figure(figsize=_SIZE)
        found = _kept.paper = figure, figure.add_axes(_AXES)
        found[1].set_xlabel("seconds since 1970")
        found[1].xaxis.set_label_coords(0.5, -0.12)  # fixed, too
        found[1].yaxis.set_label_coords(-0.1, 0.5)
    axes = found[1]
    for drawn in (*axes.lines, *axes.texts):
        drawn.remove()
    axes.set_prop_cycle(None)
    axes.relim()
    return found


def _called(name: str, row: dict[str, object], keys: Sequence[str]) -> str:
    parts = [name, *(str(row[k]) for k in keys), f"{row['ts']:%Y%m%dT%H%M%S%f}"]
    return "-".join("".join(c if c.isalnum() or c in "-_" else "_" for c in part) for part in parts) + ".svg"
