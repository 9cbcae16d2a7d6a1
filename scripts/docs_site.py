"""What the docs' site is given when it is built: formulas as MathML, and reference pages made from the code.

mkdocs loads this file as a hook (``mkdocs.yml``). Where a page says ``<!-- generate: NAME -->`` there comes
what the code knows best. What cannot be made, or a page that would fetch something from elsewhere
to be shown, ends a strict build.
"""

from __future__ import annotations

import html
import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

GENERATE = re.compile(r"^<!-- generate: ([\w. -]+?) -->$", re.MULTILINE)
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
    """Make MathML of a formula in LaTeX's notation.

    >>> "<mfrac>" in mathml(r"\\frac{1}{\\mu - \\lambda}", block=False)
    True
    """
    from latex2mathml.converter import convert

    made = convert(formula, display="block" if block else "inline")
    if "\\" in html.unescape(re.sub(r"<[^>]*>", "", made)):
        raise ValueError(f"a command of this formula is not known: {formula}")
    return made


def with_formulas(page: str) -> str:
    """Put MathML in the place of the formulas of a page, in HTML, as arithmatex marks them."""

    def made(match: re.Match[str]) -> str:
        text = html.unescape(match[2]).strip()
        block = text.startswith("\\[")
        found = mathml(text[2:-2].strip(), block=block)
        return found if not block else f'<div class="formula">{found}</div>'

    return FORMULA.sub(made, page)


# ---------------------------------------------------------------- the command line


def _commands(command: Any, context: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Give all commands below one: path, command, context."""
    for name, below in command.commands.items():
        if below.hidden:
            continue
        own = type(context)(below, info_name=name, parent=context)
        if hasattr(below, "commands"):
            yield from _commands(below, own, (*path, name))
        else:
            yield (*path, name), below, own


def command_line() -> list[tuple[tuple[str, ...], Any, Any]]:
    """Give the commands of ``headwater`` by name, each with a context to ask it for its help."""
    import typer

    from headwater import cli

    command = typer.main.get_command(cli.app)
    context = typer.Context(command, info_name="headwater")
    return sorted(_commands(command, context, ()), key=lambda found: found[0])


def cli_reference() -> str:
    """Describe every command with its arguments and options, as ``--help`` does."""
    parts = []
    for path, command, context in command_line():
        usage = re.sub(r"\s+", " ", command.get_usage(context)).removeprefix("Usage: ")
        parts += [f"## {' '.join(path)}", _paragraphs(command.help or ""), f"```text\n{usage}\n```"]
        rows = [r for p in command.params if (r := p.get_help_record(context)) is not None]
        rows += [("--help", "Show the help of this command.")]
        parts.append(
            "\n".join(["| argument, option | |", "|---|---|", *(f"| `{_cell(a)}` | {_cell(b)} |" for a, b in rows)])
        )
    return "\n\n".join(parts)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n")).replace("<", "&lt;")


def _cell(text: str) -> str:
    return re.sub(r"<list\[(\w+)\]>", r"<\1> ...", " ".join(text.split())).replace("|", "\\|")


def exit_codes() -> str:
    """List the exit codes that the command line tells of, and the errors that lead to each."""
    from headwater import cli
    from headwater.core import errors

    told = re.findall(r"(?:^|[:;])\s*(\d+) ([^;]+?)(?=;|\.?$)", str(cli.app.info.epilog))
    if len(told) < 2:
        raise ValueError("the command line's epilog tells of no exit codes")
    by_code: dict[int, list[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.HeadwaterError):
            if value in (errors.HeadwaterError, errors.ErrorList):
                continue
            by_code.setdefault(value.exit_code, []).append(value.__name__)
    missing = by_code.keys() - {int(code) for code, _ in told}
    if missing:
        raise ValueError(f"the command line's epilog does not tell of the exit codes {sorted(missing)}")
    lines = ["| code | meaning | errors |", "|---|---|---|"]
    for code, meaning in told:
        names = ", ".join(f"`{name}`" for name in by_code.get(int(code), []))
        lines.append(f"| {code} | {_cell(meaning)} | {names} |")
    return "\n".join(lines)


def errors_reference() -> str:
    """List the errors: what each means, and whether it may go away by itself."""
    from headwater.core import errors

    lines = ["| error | meaning | may go away by itself |", "|---|---|---|"]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HeadwaterError):
            first = (value.__doc__ or "").strip().split("\n")[0]
            lines.append(f"| `{name}` | {_cell(first)} | {'yes' if value.retryable else 'no'} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- Python


def members(package: str) -> str:
    """Ask mkdocstrings for everything that a package gives out (its ``__all__``)."""
    module = importlib.import_module(package)
    places = []
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", None) if callable(value) else None
        places.append(f"::: {home or package}.{name}")
    return "\n\n".join(places)


def python_page(package: str, *beside: str) -> Callable[[], str]:
    """Give what makes the page of a package, and of classes that its functions give."""
    return lambda: "\n\n".join([members(package), *(f"::: {place}" for place in beside)])


GENERATED: dict[str, Callable[[], str]] = {
    "commands": cli_reference,
    "exit codes": exit_codes,
    "errors": errors_reference,
    "headwater": python_page(
        "headwater",
        "headwater.dataflow.builder.DataflowBuilder",
        "headwater.dataflow.builder.Reader",
        "headwater.dataflow.stream.Grouped",
        "headwater.dataflow.stream.Counted",
        "headwater.dataflow.stream.Writer",
        "headwater.dataflow.stream.WrittenStream",
    ),
    "headwater.iot": python_page("headwater.iot"),
    "headwater.testing": python_page("headwater.testing"),
}


def with_generated(markdown: str) -> str:
    """Put what is made from the code in its place on a page."""

    def made(match: re.Match[str]) -> str:
        if match[1] not in GENERATED:
            raise ValueError(f"nothing is generated as '{match[1]}'; there are {', '.join(GENERATED)}")
        return GENERATED[match[1]]()

    return GENERATE.sub(made, markdown)


def fetched(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield (page, address) for all that a browser would fetch from elsewhere to show the site."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            for address in (FETCHED if path.suffix == ".html" else IMPORTED).findall(text):
                yield path.relative_to(site), address


# ---------------------------------------------------------------- mkdocs


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill a page in before it is made HTML."""
    from mkdocs.exceptions import PluginError

    try:
        return with_generated(markdown)
    except (ValueError, AttributeError, ImportError) as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Make formulas MathML."""
    from mkdocs.exceptions import PluginError

    try:
        return with_formulas(content)
    except Exception as error:  # latex2mathml raises an error of its own for each mistake
        raise PluginError(f"{page.file.src_uri}: {error!r}") from error


def on_post_build(*, config: Any) -> None:
    """Look for what would be fetched from elsewhere."""
    for path, address in fetched(Path(config.site_dir)):
        log.warning("%s would be fetched by %s", address, path)
