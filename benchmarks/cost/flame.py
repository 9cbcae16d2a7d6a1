"""Flame graphs as SVG: stacks as boxes, a caller below the frames it calls, widths by processor time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from zlib import crc32

WIDTH, ROW = 1200, 16
_LEAST = 0.004  # share of the whole below which a box is left out
_LETTER = 6.3  # pixels


@dataclass
class _Box:
    seconds: float = 0.0
    above: dict[str, _Box] = field(default_factory=dict)


def flame_graph(file: Path, title: str, stacks: Mapping[tuple[str, ...], float]) -> None:
    """Draw stacks, with their seconds."""
    root = _Box()
    for frames, seconds in stacks.items():
        root.seconds += seconds
        at = root
        for frame in frames:
            at = at.above.setdefault(frame, _Box())
            at.seconds += seconds
    if not root.seconds:
        return
    boxes = list(_boxes(root, root.seconds, 0.0, 0))
    height = (max((row for *_, row in boxes), default=0) + 3) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="monospace" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fffdf7"/>',
        f'<text x="6" y="13">{escape(title)}: {root.seconds:.1f} processor seconds</text>',
    ]
    for name, seconds, left, row in boxes:
        x, width, y = left * WIDTH, seconds / root.seconds * WIDTH, height - (row + 1) * ROW
        letters = int((width - 4) / _LETTER)
        text = f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(_short(name)[:letters])}</text>' if letters > 2 else ""
        lines.append(
            f"<g><title>{escape(name)}: {seconds:.2f} s, {seconds / root.seconds:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" fill="{_colour(name)}"/>{text}</g>'
        )
    file.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def _boxes(box: _Box, whole: float, left: float, row: int) -> Iterable[tuple[str, float, float, int]]:
    for name, above in sorted(box.above.items()):
        if above.seconds / whole >= _LEAST:
            yield name, above.seconds, left, row
            yield from _boxes(above, whole, left, row + 1)
        left += above.seconds / whole


def _short(frame: str) -> str:
    """Leave out a frame's package or directory."""
    if ".py:" in frame:
        return frame.rpartition("/")[2].replace(".py:", " ")
    parts = frame.split(".")
    return ".".join(parts[-2:]) if len(parts) > 2 else frame


def _colour(frame: str) -> str:
    light = 72 + crc32(frame.encode()) % 14
    hue = 150 if frame.startswith("headwater") else 205 if ".py:" in frame else 32
    return f"hsl({hue},{70 if hue != 32 else 85}%,{light}%)"
