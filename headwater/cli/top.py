"""The command that shows everything, refreshed. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import bounds
from headwater.cli.control import StoreOption
from headwater.cli.out import print_json, print_line
from headwater.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from headwater.app.view import View
    from headwater.render.top import Order


class By(StrEnum):
    """Orders of deployments; zones and links are ordered by load then, by name with ``name``."""

    name = "name"
    rate = "rate"
    lag = "lag"
    latency = "latency"
    cores = "cores"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(top)


def top(
    sort: Annotated[By, typer.Option("--sort", help="Order of deployments; zones and links by load then.")] = By.name,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", parser=bounds.ROWS, help="Maximum rows per table, 1 to 100000.", show_default="as many as fit"
        ),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", parser=bounds.REFRESH, help="Seconds between refreshes, 0.1 to 86400.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON only: one document with --once, else a line per refresh.")
    ] = False,
) -> None:
    """Show deployments, zones and links, and their load: live, until q or Ctrl-C."""
    from headwater.app import observe

    if once:
        found = observe.look(store)
        if as_json:
            print_json(found)
        else:
            _print(found, sort.value, rows)
        return
    stop = stopped_by_signals()
    views = observe.watch(store, every=every, stop=stop)
    if not as_json and sys.stdout.isatty():
        _screen(views, sort.value, rows, stop)
        return
    for view in views:
        if as_json:
            print_line(view)
        else:
            _print(view, sort.value, rows)


def _print(view: View, order: Order, rows: int | None) -> None:
    from rich.console import Console

    from headwater.render.top import Top

    Console(highlight=False).print(Top(view=view, order=order, rows=rows))


def _screen(views: Iterable[View], order: Order, rows: int | None, stop: threading.Event) -> None:
    """Show each view in place of the former one; keys change the order, or end it."""
    from rich.console import Console
    from rich.live import Live

    from headwater.cli.keys import Keys
    from headwater.render.top import KEYS, Top

    console = Console(highlight=False)
    typed = sys.stdin.isatty()
    seen: list[View] = []
    with contextlib.ExitStack() as stack:
        screen = stack.enter_context(Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop"))

        def show() -> None:
            for view in seen:
                height = console.size.height
                shown = Top(view=view, order=order, rows=rows, height=height, typed=typed)
                screen.update(shown, refresh=True)

        def on_key(key: str) -> None:
            nonlocal order
            if key in ("q", "Q"):
                stop.set()
            elif key in KEYS:
                order = KEYS[key]
                show()

        if typed:
            stack.enter_context(Keys(on_key))
        for view in views:
            seen[:] = [view]
            show()
