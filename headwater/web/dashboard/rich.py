"""Text and figures as nodes that the page updates without flicker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

Node = str | list[Any]
"""Text, or ``[tag, attributes, children]``."""
_TAGS = frozenset(
    (
        *("a", "button", "caption", "code", "dd", "div", "dl", "dt", "h1", "h2", "h3", "li", "ol", "p"),
        *("span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    )
)


def node(tag: str, *children: Node | None, **attributes: Any) -> Node:
    """Make a node; ``act`` is the message to the server when it is clicked, ``cls`` its class.

    Text stays text: there is no way to give markup.

    >>> node("p", "a < b", cls="note")
    ['p', {'class': 'note'}, ['a < b']]
    """
    if tag not in _TAGS:
        raise ValueError(f"not an allowed tag: {tag}")
    own: dict[str, Any] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        name = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
        if name.lower().startswith("on") or name.lower() in ("innerhtml", "textcontent"):
            raise ValueError(f"not an allowed attribute: {name}")
        own[name] = value
    return [tag, own, [child for child in children if child is not None]]


def link(text: str, href: str, **attributes: Any) -> Node:
    """Make a link to a page of the dashboard."""
    return node("a", text, href=href, **attributes)


def table(head: Sequence[str], rows: Iterable[Node], *, caption: str) -> Node:
    """Make a table; columns whose title begins with # hold figures."""
    titles = [(h.removeprefix("#"), "n" if h.startswith("#") else None) for h in head]
    return node(
        "div",
        node(
            "table",
            node("caption", caption, cls="hw-sr"),
            node("thead", node("tr", *(node("th", text, cls=cls, scope="col") for text, cls in titles))),
            node("tbody", *rows),
        ),
        cls="hw-scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def facts(pairs: Iterable[tuple[str, Node | None]]) -> Node:
    """Make a list of terms with their values; those without a value are left out."""
    return node(
        "dl",
        *(node("div", node("dt", term), node("dd", value)) for term, value in pairs if value is not None),
    )


def tag(text: str, kind: str = "plain") -> Node:
    """Make a short label with the colour of a state."""
    return node("span", text, cls=f"hw-tag hw-tag-{kind}")


def empty(title: str, text: str, command: str | None = None) -> Node:
    """Show that there is nothing, and how to change that."""
    return node(
        "div",
        node("h2", title),
        node("p", text),
        node("code", command) if command else None,
        cls="hw-empty",
    )


class Rich(Element, component="rich.js"):
    """Shows nodes; ``on_act`` gets the message of a click."""

    def __init__(self, *content: Node, on_act: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._props["content"] = list(content)
        if on_act is not None:

            async def acted(event: GenericEventArguments) -> None:
                await on_act(event.args)

            self.on("act", acted)

    def show(self, *content: Node) -> None:
        """Show other nodes, if they differ."""
        if self._props["content"] != list(content):
            self._props["content"] = list(content)
            self.update()
