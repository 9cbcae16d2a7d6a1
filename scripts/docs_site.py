"""Hook of mkdocs (``mkdocs.yml``): show formulas as MathML, and warn of pages that load files from other servers.

A strict build ends with an error for a formula that cannot be converted and for each such warning.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|link(?![^>]*rel=["']?(?:canonical|next|prev)))\b[^>]*?"""
    r"""\s(?:src|href|srcset)=["']?((?:https?:)?//[^"'\s>]+)""",
    re.IGNORECASE,
)
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?((?:https?:)?//[^"')]+)""")
log = logging.getLogger("mkdocs.hooks.docs_site")


# ---------------------------------------------------------------- formulas


def mathml(formula: str, *, block: bool) -> str:
    """Convert a LaTeX formula to MathML.

    >>> "<mfrac>" in mathml(r"\\frac{1}{\\mu - \\lambda}", block=False)
    True
    """
    from latex2mathml.converter import convert

    made = convert(formula, display="block" if block else "inline")
    if "\\" in html.unescape(re.sub(r"<[^>]*>", "", made)):
        raise ValueError(f"unknown command in the formula: {formula}")
    return made


def with_formulas(page: str) -> str:
    """Replace the formulas of an HTML page, as arithmatex marks them, by MathML."""

    def made(match: re.Match[str]) -> str:
        text = html.unescape(match[2]).strip()
        block = text.startswith("\\[")
        found = mathml(text[2:-2].strip(), block=block)
        return found if not block else f'<div class="formula">{found}</div>'

    return FORMULA.sub(made, page)


def fetched(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield (page, address) of each file that a browser would load from another server to show the site."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            for address in (FETCHED if path.suffix == ".html" else IMPORTED).findall(text):
                yield path.relative_to(site), address


# ---------------------------------------------------------------- mkdocs


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Convert the formulas of a page."""
    from mkdocs.exceptions import PluginError

    try:
        return with_formulas(content)
    except Exception as error:  # latex2mathml raises an error of its own for each mistake
        raise PluginError(f"{page.file.src_uri}: {error!r}") from error


def on_post_build(*, config: Any) -> None:
    """Warn of files on other servers."""
    for path, address in fetched(Path(config.site_dir)):
        log.warning("%s would load %s", path, address)
