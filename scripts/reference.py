"""Write the reference pages of docs/ from the code: commands, exit codes, errors, and the public Python names.

``python scripts/reference.py`` replaces the text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` in
docs/reference/*.md. A test checks that the pages are current.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

PAGES = ROOT / "docs" / "reference"
GENERATED = re.compile(r"(?<=^<!-- generated: )([\w. -]+?)( -->\n)(.*?)(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------- the command line


def _commands(command: Any, context: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield path, command and context of all commands below one."""
    for name, below in command.commands.items():
        if below.hidden:
            continue
        own = type(context)(below, info_name=name, parent=context)
        if hasattr(below, "commands"):
            yield from _commands(below, own, (*path, name))
        else:
            yield (*path, name), below, own


def command_line() -> list[tuple[tuple[str, ...], Any, Any]]:
    """Return the commands of ``headwater`` by name, each with the context of its help."""
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
    """List the exit codes of the command line, and the errors with each."""
    from headwater import cli
    from headwater.core import errors

    described = re.findall(r"(?:^|[:;])\s*(\d+) ([^;]+?)(?=;|\.?$)", str(cli.app.info.epilog))
    if len(described) < 2:
        raise ValueError("the command line's epilog lists no exit codes")
    by_code: dict[int, list[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.HeadwaterError):
            if value in (errors.HeadwaterError, errors.ErrorList):
                continue
            by_code.setdefault(value.exit_code, []).append(value.__name__)
    missing = by_code.keys() - {int(code) for code, _ in described}
    if missing:
        raise ValueError(f"the command line's epilog does not list the exit codes {sorted(missing)}")
    lines = ["| code | meaning | errors |", "|---|---|---|"]
    for code, meaning in described:
        names = ", ".join(f"`{name}`" for name in by_code.get(int(code), []))
        lines.append(f"| {code} | {_cell(meaning)} | {names} |")
    return "\n".join(lines)


def errors_reference() -> str:
    """List the errors with their meaning, and whether a retry may help."""
    from headwater.core import errors

    lines = ["| error | meaning | may disappear by itself |", "|---|---|---|"]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HeadwaterError):
            first = (value.__doc__ or "").strip().split("\n")[0]
            lines.append(f"| `{name}` | {_cell(first)} | {'yes' if value.retryable else 'no'} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- Python


def _signature(name: str, value: Any, own: str) -> str:
    """Return a call's signature as it stands in the code; ``own``: the class that ``Self`` is."""
    signature = inspect.signature(value)
    parts, last = [], None
    for one in signature.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and last not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            parts.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        annotation = "" if one.annotation is one.empty else f": {_annotation(one.annotation, own)}"
        default = "" if one.default is one.empty else f"{' = ' if annotation else '='}{_default(one.default)}"
        parts.append(f"{stars}{one.name}{annotation}{default}")
        last = one.kind
    returns = signature.return_annotation
    silent = returns in (signature.empty, None, "None") or isinstance(value, type)
    arrow = "" if silent else f" -> {_annotation(returns, own)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){arrow}"


def _annotation(value: Any, own: str) -> str:
    """Return an annotation as text, with the type in place of an alias that adds a rule."""
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    text = re.sub(r"\bSelf\b", own, text)
    text = re.sub(r"\bS\b", "Stream", text).replace("[Stream]", "")  # streams are the only ones for users
    return re.sub(r"\w+", lambda m: _with_rules().get(m[0], m[0]), text)


@cache
def _with_rules() -> dict[str, str]:
    from headwater.dataflow import settings

    found = {name: value for name, value in vars(settings).items() if get_origin(value) is Annotated}
    return {name: getattr(get_args(value)[0], "__name__", str(get_args(value)[0])) for name, value in found.items()}


def _default(value: Any) -> str:
    return str(value.__name__) if callable(value) else "..." if repr(value).startswith("<") else repr(value)


def _prose(value: Any) -> str:
    """Return a docstring as Markdown: its examples become code blocks."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"^(>>> (?:.+\n?)+)", lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text, flags=re.MULTILINE)
    return re.sub(r"``(.+?)``", r"`\1`", text).strip()


def _entry(name: str, value: Any, level: str, own: str = "Stream") -> Iterator[str]:
    yield f"{level} {name}"
    if not (isinstance(value, type) and issubclass(value, Exception)):
        yield f"```text\n{_signature(name, value, own)}\n```"
    yield _prose(value)


_OWN = ("ReferenceTable",)
"""Classes with methods that return their own class; in the others, ``Self`` is a stream."""


def _class_entries(name: str, cls: type) -> Iterator[str]:
    """Describe a class, then its public methods and properties in the order of the code."""
    own = name if cls.__name__ in _OWN else "Stream"
    yield from _entry(name, cls, "##", own)
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__.startswith("headwater"):
            found |= {k: v for k, v in vars(base).items() if not k.startswith("_")}
    for member, value in found.items():
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, property):
            kind = _annotation(inspect.signature(value.fget).return_annotation, own) if value.fget else ""
            yield f"### {name}.{member}"
            yield f"```text\n{member}: {kind}\n```"
            yield _prose(value)
        elif inspect.isfunction(value):
            yield from _entry(f"{name}.{member}", value, "###", own)


def python_page(package: str, *beside: str) -> Callable[[], str]:
    """Return the function that describes a package's ``__all__``, and classes that its functions return."""

    def made() -> str:
        module = importlib.import_module(package)
        values = [(name, getattr(module, name)) for name in module.__all__]
        for place in beside:
            home, _, name = place.rpartition(".")
            values.append((name, getattr(importlib.import_module(home), name)))
        parts: list[str] = []
        for name, value in values:
            if isinstance(value, type):
                parts += _class_entries(name, value)
            elif callable(value):
                parts += _entry(name, value, "##")
        return "\n\n".join(part for part in parts if part)

    return made


SECTIONS: dict[str, Callable[[], str]] = {
    "commands": cli_reference,
    "exit codes": exit_codes,
    "errors": errors_reference,
    "headwater": python_page(
        "headwater",
        "headwater.dataflow.builder.DataflowBuilder",
        "headwater.dataflow.builder.Reader",
        "headwater.dataflow.tablereader.TableReader",
        "headwater.dataflow.lookup.ReferenceTable",
        "headwater.dataflow.grouped.Grouped",
        "headwater.dataflow.rowwindows.Counted",
        "headwater.dataflow.rowwindows.Windowed",
        "headwater.dataflow.writer.Writer",
        "headwater.dataflow.writer.WrittenStream",
    ),
    "headwater.iot": python_page("headwater.iot"),
    "headwater.testing": python_page("headwater.testing"),
}


def current(page: str) -> str:
    """Return a page with its generated text as the code gives it now."""

    def made(match: re.Match[str]) -> str:
        if match[1] not in SECTIONS:
            raise ValueError(f"nothing is generated as '{match[1]}'; there are {', '.join(SECTIONS)}")
        return f"{match[1]}{match[2]}\n{SECTIONS[match[1]]()}\n\n"

    return GENERATED.sub(made, page)


def main() -> None:
    """Write all pages that are not current."""
    for path in sorted(PAGES.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = current(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main()
