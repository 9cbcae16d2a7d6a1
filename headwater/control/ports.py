"""The open ports of nodes, shared by all work of one controller."""

from __future__ import annotations

import threading

from headwater.continuum.model import Node
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodePort, OpenNode, TakeStamp


class Ports:
    """Opens a node's port at its first use, and again when the node's description changes."""

    def __init__(self, open_node: OpenNode, stamps: TakeStamp) -> None:
        self._open = open_node
        self._stamps = stamps
        self._ports: dict[tuple[str, str], tuple[Node, NodePort]] = {}
        self._opening: dict[tuple[str, str], threading.Lock] = {}

    def of(self, plan: DeploymentPlan, node: str) -> NodePort:
        """Return the port of a plan's node."""
        return self.to(plan.continuum.name, plan.continuum.node(node))

    def to(self, continuum: str, node: Node) -> NodePort:
        """Return the port of a node; raise Unavailable where it cannot be reached."""
        key = (continuum, node.name)
        found = self._ports.get(key)
        if found is None or found[0] != node:
            with self._opening.setdefault(key, threading.Lock()):
                found = self._ports.get(key)
                if found is None or found[0] != node:
                    found = self._ports[key] = (node, self._open(node, self._stamps))
        return found[1]
