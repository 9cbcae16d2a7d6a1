"""A rewrite rule and its results as values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwater.dataflow.graph import Dataflow


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """An equivalent dataflow, and the change in words.

    ``origins``: for new operators, and operators that keep only a part of their work, the operator of the former
    dataflow whose selectivity they have; '' for one that keeps all rows. ``moved``: operators that the same rule may
    move further.
    """

    dataflow: Dataflow
    what: str
    origins: Mapping[str, str] = field(default_factory=dict)
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotRewritten:
    """The reason why a rule does not apply to an operator that it is about."""

    reason: str


RuleResult = Rewritten | NotRewritten | None
"""None: the rule is not about operators of this kind or in this place."""


@dataclass(frozen=True, kw_only=True)
class RewriteRule:
    """A rewrite rule: its name, its effect in one line, and its function over a dataflow and an operator's name.

    ``behind``: it is about the stream behind the operator; otherwise about the streams before it. ``saves``: it is
    applied where it saves bytes over links, or processor load without more bytes. ``makes_state``: its dataflow has
    other state. ``gathers``: it adds a unit in a zone between. It is applied to a dataflow that is marked with the
    layers chosen so far, and leaves the layer of that unit open.
    """

    name: str
    summary: str
    apply: Callable[[Dataflow, str], RuleResult]
    behind: bool = False
    saves: Literal["bytes", "load"] = "bytes"
    makes_state: bool = False
    gathers: bool = False
