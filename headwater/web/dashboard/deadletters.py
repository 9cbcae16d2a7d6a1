"""The page of dead letters: list them, and replay them, corrected or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from headwater.app import deadletters
from headwater.app.view import View
from headwater.core.errors import HeadwaterError
from headwater.web.dashboard import words
from headwater.web.dashboard.frame import Frame, nothing_yet, trouble
from headwater.web.dashboard.rich import Node, Rich, empty, node, table, tag

SHOWN = 200
READ = 1000


class LettersPage:
    """The dead letters of the chosen deployment."""

    def __init__(self, frame: Frame, of: str | None) -> None:
        self._frame = frame
        self._names: list[str] = []
        self._letters: Sequence[Mapping[str, Any]] = ()
        self._letter: Mapping[str, Any] = {}
        self._may = frame.may("operator")
        with frame.build("letters"), ui.element("div").classes("hw-page"):
            ui.html("<h1>Dead letters</h1>", sanitize=False)
            lead = "Records that did not fit their schema, kept in their zones."
            Rich(node("p", lead, cls="hw-lead"))
            with ui.element("div").classes("hw-form") as self._form:
                self._of = ui.select([], label="Dataflow", on_change=self._read).props("dense outlined")
                self._of.style("min-width: 220px")
                ui.button("Read again", on_click=self._read).props("outline color=primary")
            self._rich = Rich(on_act=self._acted)
        with ui.dialog() as self._dialog, ui.card().classes("hw-dialog"):
            ui.html("<h2>Replay a dead letter</h2>", sanitize=False)
            self._about = Rich()
            self._record = ui.textarea("The corrected record").props("outlined autogrow")
            self._force = ui.checkbox("Even if it does not fit, or was replayed before")
            with ui.element("div").classes("hw-actions"):
                ui.button("Replay", on_click=self._replay).props("unelevated color=primary")
                ui.button("Cancel", on_click=self._dialog.close).props("flat color=primary")
        self._wanted = of
        frame.on_view(self._show)

    async def _show(self, view: View) -> None:
        names = [d.name for d in view.deployments]
        self._form.set_visibility(bool(names))
        if not names:
            self._rich.show(nothing_yet(view))
            return
        if names != self._names:
            self._names = names
            kept = self._of.value if self._of.value in names else self._wanted
            most = max(view.deployments, key=lambda d: d.dead_letters)
            self._of.set_options(names, value=kept if kept in names else most.name)

    async def _read(self) -> None:
        name = self._of.value
        if not name:
            return
        self._rich.show(node("p", "Asking the zones…", cls="hw-soft"))
        place = self._frame.place
        try:
            letters, silent = await run_in_threadpool(read, str(name), place.store, place.home)
        except HeadwaterError as error:
            self._rich.show(trouble(error))
            return
        if self._of.value == name:
            self._letters = letters
            self._rich.show(*nodes(letters, silent, may_replay=self._may))

    async def _acted(self, number: Any) -> None:
        if self._may and isinstance(number, int) and number < len(self._letters):
            self._letter = self._letters[number]
            self._about.show(node("p", str(self._letter.get("reason", "")), cls="hw-soft"))
            self._record.value = _record(self._letter.get("record"))
            self._force.value = False
            self._dialog.open()

    async def _replay(self) -> None:
        name, id_, record = str(self._of.value), str(self._letter.get("id")), str(self._record.value or "")
        records = {} if record == self._letter.get("record") else {id_: record}
        place, silent = self._frame.place, list[str]()
        found = await self._frame.act(
            "operator",
            lambda: deadletters.replay(
                name, [id_], place.store, records=records, force=bool(self._force.value), home=place.home,
                say=silent.append,
            ),
        )  # fmt: skip
        if not found:
            return
        (one,) = found
        if one.outcome == "replayed":
            self._dialog.close()
            ui.notify(f"Replayed, to {one.target}", type="positive", position="top")
            await self._read()
        else:
            self._about.show(node("p", f"It was not replayed: {one.reason}", cls="hw-bad", role="alert"))


def read(name: str, store_url: str | None, home: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the first dead letters of a deployment, and the unreachable zones."""
    silent: list[str] = []
    letters = list(islice(deadletters.dead_letters(name, store_url, home=home, say=silent.append), READ))
    return letters, silent


def nodes(letters: Sequence[Mapping[str, Any]], silent: Sequence[str], *, may_replay: bool) -> list[Node]:
    """Tabulate dead letters, after the most frequent reasons."""
    found: list[Node] = [node("p", f"Unreachable: {text}", cls="hw-bad") for text in silent]
    if not letters:
        if not silent:
            found.append(empty("No dead letters", "Every record fits the schema of its source."))
        return found
    reasons = Counter(str(one.get("reason", "")) for one in letters).most_common(5)
    found.append(node("p", *(tag(f"{count} × {reason[:90]}") for reason, count in reasons), cls="hw-ops"))
    rows = (_row(number, one, may_replay) for number, one in enumerate(letters[:SHOWN]))
    found.append(table(["Unit", "Record", "Reason", "From", ""], rows, caption="Dead letters"))
    if len(letters) > SHOWN:
        most = f"at least {READ}" if len(letters) == READ else words.count(len(letters))
        found.append(node("p", f"The first {SHOWN} of {most}.", cls="hw-soft"))
    return found


def _row(number: int, one: Mapping[str, Any], may_replay: bool) -> Node:
    replayed = one.get("replayed")
    state: Node | None = None
    if isinstance(replayed, Mapping):
        state = tag("replayed", "on") if replayed.get("done") else tag("cut off", "busy")
    button = node("button", "Replay…", act=number, type="button", cls="hw-unit-link")
    return node(
        "tr",
        node("td", str(one.get("unit", ""))),
        node("td", node("code", _record(one.get("record"))[:400])),
        node("td", str(one.get("reason", ""))),
        node("td", _where(one), cls="hw-soft"),
        node("td", state, " " if state else None, button if may_replay and one.get("id") else None),
        key=str(one.get("id") or number),
    )


def _record(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _where(one: Mapping[str, Any]) -> str:
    source = str(one.get("source") or "").rpartition("/")[2]
    line = f"line {one['line']}" if one.get("line") else ""
    parts = (one.get("operator"), one.get("location"), source, line)
    return " · ".join(str(p) for p in parts if p)
