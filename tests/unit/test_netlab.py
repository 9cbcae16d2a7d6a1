"""The parts of the network lab that use no network: addresses, routes, command lines."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

import pytest

from benchmarks.netlab import forwarder, links, namespaces
from benchmarks.netlab.topology import MOST_ZONES, Route, Topology, owner, plan
from headwater.continuum.model import Continuum
from headwater.core.errors import ContinuumError, Unavailable

TREE = Continuum.from_text("""
name: tree
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1, link: {bandwidth: 1Gbit/s, latency: 10ms}}
  S2: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1], link: {bandwidth: 10Mbit/s}}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E3: {layer: edge, parent: S2, locations: [L3]}
""")


def test_every_zone_has_an_address_and_a_namespace_of_its_own() -> None:
    topology = plan(TREE, "42")
    assert len({z.address for z in topology.zones.values()}) == 6
    assert {owner(z.namespace) for z in topology.zones.values()} == {42}
    assert topology.zones["E1"].namespace.endswith("-E1")


def test_links_have_networks_of_their_own_and_what_the_continuum_says() -> None:
    topology = plan(TREE, "42")
    networks = [ip_network(f"{link.lower_address}/30", strict=False) for link in topology.links.values()]
    assert len(set(networks)) == 5
    for link, network in zip(topology.links.values(), networks, strict=True):
        assert ip_address(link.upper_address) in network
    assert (topology.links["S1"].bandwidth, topology.links["S1"].delay) == (1e9, 0.01)
    assert (topology.links["E2"].bandwidth, topology.links["E2"].delay) == (None, 0.0)
    # The links of two children end at different devices of their parent.
    assert topology.links["S1"].upper_device != topology.links["S2"].upper_device


def test_a_packet_finds_its_way_between_any_two_zones() -> None:
    topology = plan(TREE, "42")
    tables: dict[str, dict[str, Route]] = {}
    for route in topology.routes:
        assert route.target not in tables.setdefault(route.zone, {})
        tables[route.zone][route.target] = route
    for start in topology.zones:
        for end in topology.zones:
            assert _way(topology, tables, start, topology.zones[end].address)[-1] == end
    assert _way(topology, tables, "E1", topology.zones["E3"].address) == ["E1", "S1", "C1", "S2", "E3"]


def _way(topology: Topology, tables: Mapping[str, Mapping[str, Route]], start: str, address: str) -> list[str]:
    way = [start]
    while topology.zones[way[-1]].address != address:
        table = tables[way[-1]]
        route = table.get(address) or table["default"]
        link = topology.links[route.link]
        way.append(link.upper if route.up else link.lower)
        assert len(way) < 10
    return way


def test_device_names_fit_the_kernel() -> None:
    last = plan(TREE, "42").links["E3"]
    longest = type(last)(MOST_ZONES, "a", "b", None, 0.0).upper_device + "t"
    assert len(longest) < 16


def test_a_continuum_too_large_is_refused() -> None:
    many = {f"Z{i}": {"layer": "edge", "parent": "C", "locations": [f"L{i}"]} for i in range(MOST_ZONES)}
    data = {"name": "many", "layers": ["edge", "cloud"], "zones": {"C": {"layer": "cloud"}, **many}}
    with pytest.raises(ContinuumError, match="more than a lab can address"):
        plan(Continuum.from_data(data), "1")


def test_bandwidth_alone_is_a_token_bucket() -> None:
    (command,) = links.shape("ns", "dev0", 10e6)
    assert " ".join(command) == (
        "tc -n ns qdisc replace dev dev0 root handle 1: tbf rate 10000000bit burst 6250 limit 68750"
    )


def test_delay_by_netem_comes_before_the_bucket() -> None:
    delay, rate = links.shape("ns", "dev0", 1e9, netem=0.1)
    assert delay[-2:] == ("delay", "100000us") and "netem" in delay and "root" in delay
    assert " ".join(rate[7:11]) == "parent 1:1 handle 10:" and "tbf" in rate


def test_no_limit_takes_limits_and_cuts_away() -> None:
    assert links.shape("ns", "dev0", None) == [("tc", "-n", "ns", "qdisc", "replace", "dev", "dev0", "root", "noqueue")]
    assert links.cut("ns", "dev0")[0][-1] == "blackhole"


@pytest.mark.parametrize("bandwidth", [1e5, 1e6, 1e7, 1e8, 1e9, 1e10])
def test_a_packet_always_fits_burst_and_queue(bandwidth: float) -> None:
    assert links.MTU + 14 <= links.burst(bandwidth) < links.queue(bandwidth)


def test_names_of_others_are_never_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "members", lambda name: [])
    with pytest.raises(namespaces.LabError, match="no namespace of a lab"):
        namespaces.remove(["production"])
    assert owner("production") is None


def test_only_labs_without_a_process_are_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    removed: list[str] = []
    listing = f"hwlab-{os.getpid()}-0-C1 (id: 3)\nhwlab-999999999-0-C1\nother\n"
    monkeypatch.setattr(namespaces, "run", lambda command: listing)
    monkeypatch.setattr(namespaces, "remove", removed.extend)
    assert namespaces.clean() == removed == ["hwlab-999999999-0-C1"]


def test_a_missing_tool_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(Unavailable, match="apt-get install iproute2"):
        namespaces.require()


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: "/sbin/ip")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="needs root"):
        namespaces.require()


def test_the_forwarder_keeps_order_when_the_delay_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import socket

    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    # Datagram sockets keep packets apart, as TUN devices do.
    (inside, source), (target, outside) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    for end in (source, outside):
        end.setblocking(False)
    with inside, source, target, outside:
        way = forwarder.Direction(source.fileno(), target.fileno())
        inside.send(b"first")
        way.take(0.1)
        inside.send(b"second")
        way.take(0.0)
        way.give()
        with pytest.raises(BlockingIOError):
            os.read(outside.fileno(), 10)
        clock[0] += 0.11
        way.give()
        assert [os.read(outside.fileno(), 10) for _ in range(2)] == [b"first", b"second"]
        assert way.bytes == 0
