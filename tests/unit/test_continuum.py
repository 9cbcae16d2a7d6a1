"""The continuum: the paper's example, forms of values, files and generated trees."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.continuum.model import Continuum
from headwater.continuum.sparksettings import SparkSettings
from headwater.continuum.yamltree import MAX_BYTES
from headwater.core.errors import ContinuumError, ErrorList
from headwater.core.requirement import Requirement

ACME = Path(__file__).parents[2] / "examples" / "acme" / "continuum.yaml"
ML = Requirement.parse("gpu = true and n_cpu >= 4")

HEAD = """\
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {vm1: {}}}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
"""


@pytest.fixture(scope="module")
def acme() -> Continuum:
    return Continuum.from_yaml(ACME)


def names(things: Any) -> list[str]:
    return [thing.name for thing in things]


# The paper's example.


def test_shape_of_acme(acme: Continuum) -> None:
    assert acme.name == "acme"
    assert names(acme.layers) == ["edge", "site", "cloud"]
    assert acme.root.name == "C1"
    assert acme.locations == ("L1", "L2", "L3", "L4", "L5")
    assert names(acme.children("S1")) == ["E1", "E2", "E3"]
    assert names(acme.children("S2")) == ["E4", "E5"]
    assert acme.children("E1") == ()
    assert names(acme.ancestors("E4")) == ["S2", "C1"]
    assert acme.parent("E4") == acme.zone("S2")
    assert acme.parent("C1") is None
    assert [acme.layer_index(layer.name) for layer in acme.layers] == [0, 1, 2]
    assert len(acme.hosts) == 10


@pytest.mark.parametrize(
    ("layer", "location", "zone"),
    [("edge", "L1", "E1"), ("site", "L3", "S1"), ("site", "L4", "S2"), ("cloud", "L5", "C1")],
)
def test_covering(acme: Continuum, layer: str, location: str, zone: str) -> None:
    assert acme.covering(layer, location) == acme.zone(zone)
    assert location in acme.covered(zone)


def test_covering_nothing(acme: Continuum) -> None:
    assert acme.covering("edge", "L9") is None
    assert acme.covered("S1") == ("L1", "L2", "L3")
    assert acme.covered("C1") == acme.locations


def test_way_up(acme: Continuum) -> None:
    assert names(acme.path_up("E4", "C1")) == ["E4", "S2", "C1"]
    assert names(acme.path_up("S2", "S2")) == ["S2"]
    assert names(acme.links_up("E4", "C1")) == ["E4-S2", "S2-C1"]
    assert acme.links_up("C1", "C1") == ()
    link = acme.links_up("E4", "S2")[0]
    assert (link.lower, link.upper, link.bandwidth, link.latency) == ("E4", "S2", 4e6, 0.01)
    assert len(acme.links) == 7


@pytest.mark.parametrize(("lower", "upper"), [("E1", "S2"), ("C1", "E1"), ("S1", "S2")])
def test_no_way_up(acme: Continuum, lower: str, upper: str) -> None:
    with pytest.raises(ContinuumError, match=f"zone {upper} is not above zone {lower}"):
        acme.path_up(lower, upper)


def test_unknown_names_get_close_matches(acme: Continuum) -> None:
    with pytest.raises(ContinuumError, match="no zone 'E11'") as caught:
        acme.zone("E11")
    assert "did you mean E1" in str(caught.value.hint)
    with pytest.raises(ContinuumError, match="no layer 'clod'") as caught:
        acme.layer_index("clod")
    assert caught.value.hint == "did you mean cloud?"
    with pytest.raises(ContinuumError):
        acme.covering("fog", "L1")


def test_hosts_that_do_not_meet_a_requirement(acme: Continuum) -> None:
    assert acme.unmet("C1", Requirement()) == {}
    assert acme.unmet("E1", ML) == {
        "gw1": ("gpu = true: host has no attribute gpu", "n_cpu >= 4: host has 2"),
    }
    assert acme.unmet("C1", ML) == {"vm2": ("gpu = true: host has false",)}


def test_values_last(acme: Continuum) -> None:
    assert Continuum.from_data(json.loads(json.dumps(acme.to_data()))) == acme
    assert pickle.loads(pickle.dumps(acme)) == acme
    assert hash(Continuum.from_yaml(ACME)) == hash(acme)
    with pytest.raises(AttributeError):
        acme.name = "x"  # type: ignore[misc]


def test_forms_of_values() -> None:
    continuum = Continuum.from_text(
        """
layers: [edge, cloud]
zones:
  C:
    layer: cloud
    parent: null
    locations: [L0]
    hosts: {h: {a: yes, b: "yes", c: No, d: 1.0, e: "16GiB", f: 0x10, g: '8', h: 2024-01-01}, bare: }
  E: {layer: edge, parent: C, link: {latency: 0}}
"""
    )
    host, bare = continuum.zone("C").hosts
    assert dict(host.capabilities) == {
        "a": True, "b": "yes", "c": False, "d": 1, "e": 2**34, "f": 16, "g": "8", "h": "2024-01-01",
    }  # fmt: skip
    assert dict(bare.capabilities) == {}
    assert continuum.name == "continuum"
    # A zone without listed hosts has one host, with the zone's name and without capabilities.
    assert [(h.name, h.zone, dict(h.capabilities)) for h in continuum.zone("E").hosts] == [("E", "E", {})]
    # A link without values has unlimited bandwidth and no delay.
    assert [(link.name, link.bandwidth, link.latency) for link in continuum.links] == [("E-C", None, 0.0)]
    assert Continuum.from_data(continuum.to_data()) == continuum


def test_a_layer_may_be_skipped() -> None:
    continuum = Continuum.from_text(HEAD + "  E9: {layer: edge, parent: C1, locations: [L9]}\n")
    assert names(continuum.path_up("E9", "C1")) == ["E9", "C1"]
    assert continuum.covering("site", "L9") is None
    assert continuum.covering("cloud", "L9") == continuum.root


def test_a_location_may_be_listed_along_one_path() -> None:
    continuum = Continuum.from_text(
        "layers: [edge, site, cloud]\n"
        "zones:\n"
        "  C: {layer: cloud, locations: [L1]}\n"
        "  S: {layer: site, parent: C, locations: [L1, L2]}\n"
        "  E: {layer: edge, parent: S, locations: [L1]}\n"
    )
    assert [continuum.covering(layer, "L1") for layer in ("edge", "site", "cloud")] == [
        continuum.zone(name) for name in ("E", "S", "C")
    ]
    assert continuum.covering("edge", "L2") is None


def test_aliases_are_read() -> None:
    continuum = Continuum.from_text(
        HEAD + "  E1: {layer: edge, parent: S1, link: &l {latency: 1ms}}\n  E2: {layer: edge, parent: S1, link: *l}\n"
    )
    assert [link.latency for link in continuum.links] == [0.0, 0.0, 0.001, 0.001]


def test_errors_of_data_name_the_path(acme: Continuum) -> None:
    data: Any = acme.to_data()
    data["zones"]["E1"]["link"]["bandwidth"] = 10
    data["zones"]["E2"]["locations"] = ["L1"]
    with pytest.raises(ErrorList) as caught:
        Continuum.from_data(data, source="plan.json")
    assert [error.where for error in caught.value.errors] == [
        "plan.json: zones.E1.link.bandwidth",
        "plan.json: zones.E2.locations[0]",
    ]


@pytest.mark.parametrize("data", [None, [], 1, {}, {1: 2}, {"zones": {(1, 2): 3}}, {"layers": {"a"}}])
def test_data_of_another_kind(data: object) -> None:
    with pytest.raises(ErrorList):
        Continuum.from_data(data)


def test_data_that_contains_itself() -> None:
    data: dict[str, Any] = {"layers": ["a"]}
    data["zones"] = [data, data]
    with pytest.raises(ErrorList, match="too large or too deep"):
        Continuum.from_data(data)


# Files.


def test_file_errors(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for content, what, line in (
        (None, "cannot read the file", ""),
        (b"\xef\xbb\xbflayers: [a]\nzones: {}\n", "no zones", ":2"),
        (b"layers: [a]\nname: \xff\n", "not UTF-8", ":2"),
        (b"#" * (MAX_BYTES + 1), "larger than 8 MiB", ""),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ErrorList, match=what) as caught:
            Continuum.from_yaml(path)
        assert caught.value.errors[0].where == f"{path}{line}"
    with pytest.raises(ErrorList, match="cannot read the file"):
        Continuum.from_yaml(tmp_path)


NODES = """
layers: [edge, cloud]
zones:
  C1: {layer: cloud, at: 'c:7070', spark: 'spark://c:7077', hosts: {vm1: {n_cpu: 2}, vm2: {n_cpu: 8}}}
  E1:
    layer: edge
    parent: C1
    hosts: {gw1: {at: 'gw1:7070', n_cpu: 1}, gw2: {at: local, spark: 'sc://gw2:15002', n_cpu: 4}}
  E2: {layer: edge, parent: C1}
"""


def test_each_host_with_an_address_is_a_node_and_so_is_a_zone_of_others() -> None:
    continuum = Continuum.from_text(NODES)
    found = [(n.name, n.zone, n.at, n.spark, [h.name for h in n.hosts]) for n in continuum.nodes]
    assert found == [
        ("C1", "C1", "c:7070", "spark://c:7077", ["vm1", "vm2"]),
        ("gw1", "E1", "gw1:7070", None, ["gw1"]),
        ("gw2", "E1", None, "sc://gw2:15002", ["gw2"]),
        ("E2", "E2", None, None, ["E2"]),
    ]
    assert [continuum.node(n.name) for n in continuum.nodes] == list(continuum.nodes)
    assert {h.name: continuum.node_of(h.name).name for h in continuum.hosts} == {
        "vm1": "C1", "vm2": "C1", "gw1": "gw1", "gw2": "gw2", "E2": "E2",
    }  # fmt: skip
    assert (continuum.node("C1").host.name, continuum.node("gw1").host.name) == ("vm2", "gw1")
    assert {n.spark_settings for n in continuum.nodes} == {SparkSettings()}
    assert "at" not in continuum.host("gw1").capabilities and continuum.host("gw1").capabilities["n_cpu"] == 1
    assert Continuum.from_data(continuum.to_data()) == continuum
    with pytest.raises(ContinuumError, match="no node 'vm1'") as caught:
        continuum.node("vm1")
    assert "C1, gw1, gw2, E2" in str(caught.value.hint)


# Generated trees.

VALUES = (
    st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(-9e18, 9e18)
    | st.text(max_size=6).filter(lambda text: not text.strip().endswith("B"))
    | st.sampled_from(["16GiB", "yes", "true", "null", "", "4"])
)
CAPABILITIES = st.fixed_dictionaries(
    {},
    optional={
        "n_cpu": st.integers(1, 65_536) | st.floats(0.01, 65_536),
        "memory": st.integers(1, 2**63 - 1) | st.sampled_from(["16GiB", "1.5TB"]),
        **dict.fromkeys(("gpu", "os", "a-b.c"), VALUES),
    },
)


def test_the_nodes_of_a_zone_have_its_packages_and_settings_of_spark() -> None:
    given = "{packages: [a.b:c:1.2, d:e_2.13:3], conf: {spark.z: 1, spark.a.b: true}}"
    text = NODES.replace("spark: 'spark://c:7077'", f"spark: {{at: 'spark://c:7077', {given[1:]}")
    text = text.replace("    parent: C1\n", f"    parent: C1\n    spark: {given}\n", 1).replace(
        ", spark: 'sc://gw2:15002'", ""
    )
    continuum = Continuum.from_text(text)
    expected = SparkSettings(("a.b:c:1.2", "d:e_2.13:3"), (("spark.a.b", "true"), ("spark.z", "1")))
    assert [n.spark_settings for n in continuum.nodes] == [expected, expected, expected, SparkSettings()]
    assert [n.spark for n in continuum.nodes] == ["spark://c:7077", None, None, None]
    assert Continuum.from_data(continuum.to_data()) == continuum


def test_a_zone_on_small_hosts() -> None:
    text = "layers: [edge, site]\nzones:\n  S1: {layer: site, profile: usual}\n  E1: {layer: edge, parent: S1%s}"
    continuum = Continuum.from_text(text % ", profile: small")
    assert {n.name: n.spark_settings.small for n in continuum.nodes} == {"S1": False, "E1": True}
    assert Continuum.from_data(continuum.to_data()) == continuum
    for written, part in (
        (", profile: tiny", "profile of zone E1 cannot be 'tiny'"),
        (", profile: [small]", "profile of zone E1 cannot be"),
        (", profile: small, spark: 'sc://a:1'", "a Spark that its agents do not start alone: sc://a:1"),
        (", profile: small, spark: 'spark://a:1'", "a Spark that its agents do not start alone: spark://a:1"),
    ):
        with pytest.raises(ErrorList, match=part):
            Continuum.from_text(text % written)
    assert Continuum.from_text(text % ", profile: small, spark: local").zone("E1").spark_settings.small


LINKS = st.fixed_dictionaries(
    {},
    optional={
        "bandwidth": st.floats(1, 1e15).map(lambda b: f"{b:.6f}bit/s"),
        "latency": st.floats(0, 86_400).map(lambda s: f"{s:.9f}s"),
    },
)


@st.composite
def continua(draw: Any) -> dict[str, Any]:
    """Draw a tree over four layers; each of its leaves lists its own location."""
    zones: dict[str, dict[str, Any]] = {"Z0": {"layer": "l3"}}
    for i in range(1, draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([z for z in zones if zones[z]["layer"] != "l0"]))
        below = draw(st.integers(0, int(zones[parent]["layer"][1]) - 1))
        zones[f"Z{i}"] = {"layer": f"l{below}", "parent": parent, "link": draw(LINKS)}
    for name, zone in zones.items():
        own = draw(st.sampled_from([{}, {}, {"at": "local"}, {"at": "10.0.0.1:7070", "spark": "local"}]))
        hosts = range(draw(st.integers(0, 2)))
        zone["hosts"] = {f"{name}-h{i}": {**draw(CAPABILITIES), **own} for i in hosts}
        if draw(st.booleans()):
            zone["locations"] = [f"L-{name}"]
    order = draw(st.permutations(list(zones)))
    return {
        "name": "drawn",
        "layers": ["l0", "l1", "l2", "l3"],
        "zones": {name: zones[name] for name in order},
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(continua())
def test_data_round_trip(data: dict[str, Any]) -> None:
    continuum = Continuum.from_data(data)
    again = continuum.to_data()
    assert Continuum.from_data(json.loads(json.dumps(again))) == continuum
    # JSON is YAML: the text of the data gives the same continuum.
    assert Continuum.from_text(json.dumps(again)) == continuum
    assert Continuum.from_data(again).to_data() == again


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(continua())
def test_covering_zones_are_on_one_path(data: dict[str, Any]) -> None:
    continuum = Continuum.from_data(data)
    for location in continuum.locations:
        covering = [continuum.covering(layer.name, location) for layer in continuum.layers]
        found = [zone for zone in covering if zone is not None]
        assert found[-1] == continuum.root
        assert tuple(found) == continuum.path_up(found[0].name, found[-1].name)
        for zone in continuum.zones:
            assert (location in continuum.covered(zone.name)) == (zone in found)
