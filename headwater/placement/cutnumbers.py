"""The numbers of cut tables: what stays, what changes, and what makes the one the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headwater.placement.network import Link, Tree
from headwater.placement.problem import Bools, Ints, Problem
from headwater.placement.queueing import Floats


class CutShape(NamedTuple):
    """What stays. b: branch, c: choice, i: operator of a branch, k: stream out of one; −1 fills rows up.

    Nodes of the trunk are numbered from ``width`` on in ``edge_to``. *Shared* hosts and links are those that
    several branches can use: what the others take there is a matter of their choices.
    """

    choices: Ints
    """[b]: how many."""
    operators: Ints
    """[b]"""
    edges: Ints
    """[b]"""
    process: Ints
    """[b, c, i]: the process that it is in, with its like of other branches; −1: pinned."""
    edge_from: Ints
    """[b, k], those nearest to sinks first."""
    edge_to: Ints
    way: Ints
    """[b, c, k]: which of the delays."""
    key: Ints
    """[b, c, k]: a stream in a zone that other branches can be in, too; −1: none can."""
    zone: Ints
    """[b, c, k]: where that stream goes: to one zone for all."""
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
    """[edge], those nearest to sinks first."""
    trunk_to: Ints
    width: int
    """The most operators of a branch."""
    keys: int


class Numbers(NamedTuple):
    """What changes; memory in bytes, links in bits/s. s: shared host, l: shared link."""

    allowed: Bools
    """[b, c]: there is a way for the data, and room where no other branch can be."""
    work: Floats
    """[b, i]"""
    rate: Floats
    """[b, i]"""
    memory: Floats
    """[b, c, s]"""
    bits: Floats
    """[b, c, l]"""
    into_cloud: Floats
    """[b, c]: of B."""
    cost: Floats
    """[b, c]: of RU, without other branches."""
    delay: Floats
    """[way]"""
    memory_price: Floats
    """[s]: RU for bytes × bytes."""
    link_price: Floats
    """[l]"""
    memory_free: Floats
    """[s]"""
    link_free: Floats
    """[l]"""
    cpu: Floats
    """[host]"""
    others: Ints
    """[host]: processes of others."""
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
    """What changes from moment to moment.

    ``rates``: events/s by source. What others take: ``memory`` (bytes) and ``processes`` by host, ``links``
    (bits/s) by the zone below.
    """

    rates: Mapping[int, float]
    memory: Floats
    processes: Ints
    links: Floats

    @classmethod
    def idle(cls, problem: Problem, rates: Mapping[int, float]) -> CutLoad:
        """Take what a problem says of others, and other rates."""
        found = cls.of(problem)
        return cls(rates=rates, memory=found.memory, processes=found.processes, links=found.links)

    @classmethod
    def of(cls, problem: Problem) -> CutLoad:
        """Take what a problem says."""
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
    """What choices take of hosts or links: ``fixed`` + ``grows`` × rate of the branch, one row each.

    ``cell``: [b, c] flat. ``where``: host, or the zone below a link; ``column``: its number among the shared
    ones, −1: it is none.
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
        """Give [cell, column] of what is shared."""
        found = np.zeros((cells, columns))
        inside = self.column >= 0
        found[self.cell[inside], self.column[inside]] = amounts[inside]
        return found

    def summed(self, terms: Floats | Bools, cells: int) -> Floats:
        """Give [cell] the sum of its rows."""
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
        """Give the seconds of each; ``slow``: s per bit, by link."""
        found: Floats = self.propagation + (self.once + self.grows * rates) * (self.over @ slow)
        return found


@dataclass(frozen=True)
class Trunk:
    """What the trunk takes: bytes by host, bits/s by link, work and events/s by node, and its delays.

    ``ways``: for each stream s, bits that have to pass at once, links.
    """

    memory: Floats
    bits: Floats
    work: Floats
    rate: Floats
    ways: tuple[tuple[float, float, tuple[int, ...]], ...]
