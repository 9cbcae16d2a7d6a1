"""The numbers of cut tables: constant ones, changing ones, and the conversion between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headwater.placement.network import Link, Tree
from headwater.placement.problem import Bools, Ints, Problem
from headwater.placement.queueing import Floats


class CutShape(NamedTuple):
    """Constant numbers. b: branch, c: choice, i: operator of a branch, k: stream out of one; −1 pads rows.

    Nodes of the trunk are numbered from ``width`` on in ``edge_to``. *Shared* hosts and links are those that
    several branches can use: their load depends on the choices of the other branches.
    """

    choices: Ints
    """[b]: count."""
    operators: Ints
    """[b]"""
    edges: Ints
    """[b]"""
    process: Ints
    """[b, c, i]: its process, shared with its counterparts of other branches; −1: pinned."""
    edge_from: Ints
    """[b, k], nearest to sinks first."""
    edge_to: Ints
    way: Ints
    """[b, c, k]: index of the delay."""
    key: Ints
    """[b, c, k]: a stream in a zone that other branches can also use; −1: none can."""
    zone: Ints
    """[b, c, k]: destination of that stream: one zone for all."""
    process_host: Ints
    """[process]"""
    span: Floats
    """[process]"""
    slide: Floats
    window: Floats
    shared: Bools
    """[host]"""
    trunk_process: Ints
    """[node]; −1: pinned."""
    trunk_from: Ints
    """[edge], nearest to sinks first."""
    trunk_to: Ints
    width: int
    """Largest number of operators of a branch."""
    keys: int


class Numbers(NamedTuple):
    """Changing numbers; memory in bytes, links in bits/s. s: shared host, l: shared link."""

    allowed: Bools
    """[b, c]: the data has a route, and hosts that no other branch can use have room."""
    work: Floats
    """[b, i]"""
    rate: Floats
    """[b, i]"""
    memory: Floats
    """[b, c, s]"""
    bits: Floats
    """[b, c, l]"""
    into_cloud: Floats
    """[b, c]: share of B."""
    cost: Floats
    """[b, c]: share of RU, without other branches."""
    network: Floats
    """[b, c]: share of NRU, without other branches; not weighted."""
    delay: Floats
    """[way]"""
    memory_price: Floats
    """[s]: RU per bytes × bytes."""
    link_price: Floats
    """[l]"""
    memory_free: Floats
    """[s]"""
    link_free: Floats
    """[l]"""
    cpu: Floats
    """[host]"""
    others: Ints
    """[host]: processes of other applications."""
    trunk_work: Floats
    """[node]"""
    trunk_rate: Floats
    """[node]"""
    trunk_delay: Floats
    """[edge]"""
    trunk_cost: float
    trunk_cloud: float


@dataclass(frozen=True, kw_only=True)
class CutLoad:
    """Load that changes from moment to moment.

    ``rates``: events/s by source. Usage by others: ``memory`` (bytes) and ``processes`` by host, ``links``
    (bits/s) by the lower zone.
    """

    rates: Mapping[int, float]
    memory: Floats
    processes: Ints
    links: Floats

    @classmethod
    def idle(cls, problem: Problem, rates: Mapping[int, float]) -> CutLoad:
        """Return a problem's usage by others, with other rates."""
        found = cls.of(problem)
        return cls(rates=rates, memory=found.memory, processes=found.processes, links=found.links)

    @classmethod
    def of(cls, problem: Problem) -> CutLoad:
        """Return a problem's own load."""
        hosts, network = problem.hosts, problem.network
        used = network.used if isinstance(network, Tree) else None
        return cls(
            rates={s: problem.application.operators[s].rate for s in problem.application.sources},
            memory=np.zeros(len(hosts)) if hosts.memory_used is None else hosts.memory_used,
            processes=np.zeros(len(hosts), np.int64) if hosts.processes is None else hosts.processes,
            links=np.zeros(network.zones) if used is None else used,
        )


@dataclass(frozen=True)
class Takes:
    """Usage of hosts or links by choices: ``fixed`` + ``grows`` × rate of the branch, one row each.

    ``cell``: [b, c] flat. ``where``: host, or lower zone of a link; ``column``: its index among the shared ones,
    −1: not shared.
    """

    branch: Ints
    cell: Ints
    where: Ints
    column: Ints
    fixed: Floats
    grows: Floats

    @classmethod
    def of(cls, rows: Mapping[tuple[int, int, int], tuple[float, float]], choices: int, shared: Ints) -> Takes:
        index = np.array(list(rows), dtype=np.int64).reshape(-1, 3)
        amounts = np.array(list(rows.values()), dtype=np.float64).reshape(-1, 2)
        column = np.full(int(index[:, 2].max(initial=-1)) + 1, -1, dtype=np.int64)
        among = shared[shared < len(column)]
        column[among] = np.arange(len(among))
        return cls(index[:, 0], index[:, 0] * choices + index[:, 1], index[:, 2], column[index[:, 2]], *amounts.T)

    def filled(self, amounts: Floats, cells: int, columns: int) -> Floats:
        """Return [cell, column] of the shared part."""
        found = np.zeros((cells, columns))
        inside = self.column >= 0
        found[self.cell[inside], self.column[inside]] = amounts[inside]
        return found

    def summed(self, terms: Floats | Bools, cells: int) -> Floats:
        """Return [cell], the sum of its rows."""
        return np.bincount(self.cell, terms.astype(np.float64), cells).astype(np.float64)


@dataclass(frozen=True)
class Ways:
    """Delays: ``propagation`` + (``once`` + ``grows`` × rate of its branch) bits over each link."""

    branch: Ints
    propagation: Floats
    once: Floats
    grows: Floats
    over: Floats
    """[way, zone]: whether the link above a zone is on it."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, float, float, float, tuple[Link, ...]]], zones: int) -> Ways:
        over = np.zeros((len(rows), zones))
        for n, row in enumerate(rows):
            for link in row[4]:
                over[n, link[0]] = 1.0
        branch = np.array([row[0] for row in rows], dtype=np.int64)
        propagation, once, grows = (np.array([row[n] for row in rows]) for n in (1, 2, 3))
        return cls(branch, propagation, once, grows, over)

    def delays(self, rates: Floats, slow: Floats) -> Floats:
        """Return the delay of each way in seconds; ``slow``: s per bit, by link."""
        found: Floats = self.propagation + (self.once + self.grows * rates) * (self.over @ slow)
        return found


@dataclass(frozen=True)
class Trunk:
    """Usage by the trunk: bytes by host, bits/s by link, work and events/s by node, and its delays.

    ``ways``: for each stream s, bits transmitted at once, links.
    """

    memory: Floats
    bits: Floats
    work: Floats
    rate: Floats
    ways: tuple[tuple[float, float, tuple[int, ...]], ...]
