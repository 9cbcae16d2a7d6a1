"""``access:`` of a zone in a continuum file: the resources that dataflows may use there."""

from __future__ import annotations

from headwater.continuum.yamltree import Fields, Items, Leaf, Problems, YamlNode
from headwater.core.errors import suggestion
from headwater.core.permissions import KINDS, Permissions, malformed

_HINT = "write access: {read: [/data/in], write: [/data/out], connect: ['broker:1883'], secrets: [DB_PASSWORD]}"


def access_of(node: YamlNode | None, *, of: str, problems: Problems) -> Permissions | None:
    """Read ``access:`` of a zone; errors are added to ``problems``. A list that is left out allows nothing."""
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    if not isinstance(node, Fields):
        problems.add(f"access of {of} must be a mapping, not {node}", where=node.where, hint=_HINT)
        return None
    found: dict[str, tuple[str, ...]] = {}
    for key, value in node.entries:
        if key.text not in KINDS:
            hint = suggestion(key.text, KINDS, "the keys are")
            problems.add(f"unknown key '{key.text}' in access of {of}", where=key.where, hint=hint)
            continue
        found[key.text] = _entries(key.text, value, of, problems)
    return Permissions(**found)


def _entries(kind: str, node: YamlNode, of: str, problems: Problems) -> tuple[str, ...]:
    if not isinstance(node, Items):
        problems.add(f"{kind} in access of {of} must be a list, not {node}", where=node.where, hint=_HINT)
        return ()
    found = []
    for item in node.nodes:
        text = item.text if isinstance(item, Leaf) else ""
        if (hint := malformed(kind, text)) is not None:
            problems.add(f"{kind} in access of {of} cannot have {item}", where=item.where, hint=hint)
        found.append(text)
    return tuple(found)


def access_data(access: Permissions) -> dict[str, list[str]]:
    """Return it in the form of the YAML file."""
    return {kind: list(getattr(access, kind)) for kind in KINDS if getattr(access, kind)}
