"""The rules of continuum files, each with the line in its error, and hostile files."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.continuum.model import Continuum
from headwater.continuum.yamltree import MAX_PROBLEMS
from headwater.core.errors import ContinuumError, ErrorList

HEAD = """\
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {vm1: {}}}
  S1: {layer: site, parent: C1}
  S2: {layer: site, parent: C1}
"""


def errors_of(text: str) -> tuple[ContinuumError, ...]:
    with pytest.raises(ErrorList) as caught:
        Continuum.from_text(text, source="c.yaml")
    assert all(isinstance(error, ContinuumError) and error.hint for error in caught.value.errors)
    return tuple(error for error in caught.value.errors if isinstance(error, ContinuumError))


# One rule per row: the text, the line of the wrong node, the error message.


def edge(rest: str, name: str = "E1") -> str:
    """Return a continuum that ends, on line 6, with an edge zone below S1."""
    return f"{HEAD}  {name}: {{layer: edge, parent: S1, {rest}}}\n"


RULES = {
    "host without address": (
        edge("hosts: {a: {at: local}, b: {}}"),
        6,
        "a of zone E1 has an address, but not b",
    ),
    "hosts of a zone with an address": (
        edge("at: '10.0.0.1:7070', hosts: {a: {at: '10.0.0.2:7070'}}"),
        6,
        "zone E1 has at: 10.0.0.1:7070, and hosts with addresses",
    ),
    "Spark of a host without agent": (
        edge("hosts: {a: {spark: 'spark://10.0.0.1:7077'}, b: {}}"),
        6,
        "host a of zone E1 has a Spark of its own, but no address",
    ),
    "node named as a zone": (
        edge("hosts: {E1: {at: local}}"),
        6,
        "host E1 of zone E1 has an agent of its own, but also the name of a zone",
    ),
    "address of a host": (
        edge("hosts: {a: {at: nowhere}}"),
        6,
        "at of host 'a' is 'nowhere', not an address",
    ),
    "not a package": (edge("spark: {packages: [postgresql]}"), 6, "'postgresql' in spark of zone E1 is no package"),
    "packages not a list": (edge("spark: {packages: a:b:1}"), 6, "packages of spark of zone E1 must be a list"),
    "not a setting of Spark": (edge("spark: {conf: {driver.cores: 2}}"), 6, "'driver.cores' is no setting of Spark"),
    "a setting of Headwater": (
        edge("spark: {conf: {spark.sql.session.timeZone: CET}}"),
        6,
        "spark of zone E1: spark.sql.session.timeZone is set by Headwater",
    ),
    "a setting without value": (edge("spark: {conf: {spark.a: }}"), 6, "spark.a in spark of zone E1 has no value"),
    "a secret setting": (
        edge("spark: {conf: {spark.hadoop.fs.s3a.secret.key: x}}"),
        6,
        "spark.hadoop.fs.s3a.secret.key may hold a secret",
    ),
    "conf not a mapping": (edge("spark: {conf: [a]}"), 6, "conf of spark of zone E1 must be a mapping"),
    "unknown key of spark": (edge("spark: {jars: [a]}"), 6, "unknown key 'jars' in spark of zone E1"),
    "settings of a Spark that runs": (
        edge("spark: {at: 'sc://10.0.0.7:15002', packages: [a:b:1]}"),
        6,
        "zone E1 has packages or conf for a Spark, and uses one that runs already: sc://10.0.0.7:15002",
    ),
    "unclosed": ("layers: [a]\nzones: {A: [", 2, "this is not YAML"),
    "indentation": ("layers: [a]\n zones: 1\n", 2, "this is not YAML"),
    "tab": ("layers: [a]\nzones:\n\tA: {layer: a}\n", 3, "this is not YAML"),
    "control character": ("layers: [a]\nzones:\n  A\x00: {}\n", 3, "control character"),
    "second document": (HEAD + "---\na: 1\n", 6, "a second document"),
    "empty": ("", 1, "the file is empty"),
    "only a comment": ("# nothing\n\n", 1, "the file is empty"),
    "a list": ("# c\n- a\n", 2, "a continuum is a mapping, not a list"),
    "a text": ("\n\nhello\n", 3, "a continuum is a mapping, not 'hello'"),
    "unknown key": ("zoness: {}\n" + HEAD, 1, "unknown key 'zoness' in the continuum"),
    "unknown key of zone": (
        HEAD + "  E1:\n    layer: edge\n    parnt: S1\n    parent: S1\n",
        8,
        "unknown key 'parnt'",
    ),
    "unknown key of link": (
        HEAD + "  E1: {layer: edge, parent: S1, link: {\n    latncy: 1ms}}\n",
        7,
        "unknown key 'latncy'",
    ),
    "no layers": ("zones: {A: {layer: a}}\n", 1, "no layers"),
    "empty layers": ("name: x\nlayers: []\nzones: {A: {layer: a}}\n", 2, "no layers"),
    "layers not a list": ("name: x\nlayers: edge\nzones: {A: {layer: edge}}\n", 2, "no layers"),
    "too many layers": (
        f"layers: [{','.join(f'l{i}' for i in range(65))}]\nzones: {{A: {{layer: l1}}}}",
        1,
        "64 layers",
    ),
    "duplicate layer": (
        "layers:\n  - a\n  - b\n  - a\nzones: {A: {layer: a}}\n",
        4,
        "layer a is listed twice",
    ),
    "no zones": ("layers: [a]\nzones: {}\n", 2, "no zones"),
    "zones absent": ("name: x\nlayers: [a]\n", 1, "no zones"),
    "zone not a mapping": (HEAD + "  E1: edge\n", 6, "zone E1 must be a mapping, not 'edge'"),
    "unknown layer": (
        HEAD + "  E1:\n    parent: S1\n    layer: edgy\n",
        8,
        "zone E1 has the unknown layer 'edgy'",
    ),
    "missing layer": (HEAD + "  E1:\n    parent: S1\n", 6, "zone E1 has no layer"),
    "two parents": (HEAD + "  E1:\n    layer: edge\n    parent: [S1, S2]\n", 8, "zone E1 has 2 parents"),
    "duplicate zone": (
        HEAD + "  S1: {layer: edge, parent: C1}\n",
        6,
        "'S1' is written twice, first at line 4",
    ),
    "unknown parent": (
        HEAD + "  E1:\n    layer: edge\n    parent: S3\n",
        8,
        "zone E1 has the unknown parent 'S3'",
    ),
    "cycle": (
        "layers: [edge, site, cloud]\nzones:\n  C: {layer: cloud}\n  A: {layer: edge, parent: B}\n"
        "  B: {layer: site, parent: D}\n  D: {layer: cloud, parent: A}\n  X: {layer: edge, parent: B}\n",
        4,
        "the parents form a cycle: A -> B -> D -> A",
    ),
    "own parent": ("layers: [a]\nzones:\n  A: {layer: a, parent: A}\n", 3, "cycle: A -> A"),
    "two roots": (
        HEAD + "  C2: {layer: cloud}\n",
        6,
        "zone C2 has no parent, but zone C1, line 3, is already",
    ),
    "same layer": (
        HEAD + "  S3:\n    parent: S1\n    layer: site\n",
        8,
        "zone S3 of layer site is below zone S1 of the same",
    ),
    "higher layer": (HEAD + "  C2: {parent: S1, layer: cloud}\n", 6, "below zone S1 of the lower layer site"),
    "location twice in a layer": (
        edge("locations: [L1]") + "  E2: {layer: edge, parent: S1, locations:\n    [L1]}\n",
        8,
        "location L1 is covered twice in layer edge: by zone E1 and by zone E2",
    ),
    "location twice through a child": (
        edge("locations: [L1]") + "  S3: {layer: site, parent: C1, locations: [L1]}\n",
        7,
        "covered twice in layer site: by zone S1 (through E1) and by zone S3",
    ),
    # One zone per layer, but data of E1 could not reach S3.
    "location on two branches": (
        HEAD + "  E1: {layer: edge, parent: C1, locations: [L1]}\n  S3: {layer: site, parent: C1, locations: [L1]}\n",
        7,
        "location L1 is listed by zones E1 and S3, which are not on one path",
    ),
    "location twice in a zone": (
        HEAD + "  E1: {layer: edge, parent: S1, locations: [L1,\n  L1]}\n",
        7,
        "listed twice by zone E1",
    ),
    "locations not a list": (
        HEAD + "  E1: {layer: edge, parent: S1,\n   locations: L1}\n",
        7,
        "must be a list, not 'L1'",
    ),
    "duplicate host": (
        HEAD + "  E1:\n    layer: edge\n    parent: S1\n    hosts:\n      vm1: {}\n",
        10,
        "host vm1 of zone E1 has the name of a host of zone C1, line 3",
    ),
    "host of an anonymous host's name": (
        edge("hosts: {S2: {}}"),
        5,
        "but zone E1 has a host S2, line 6",
    ),
    "hosts a list": (
        HEAD + "  E1: {layer: edge, parent: S1, hosts:\n    [a]}\n",
        7,
        "hosts of zone E1 must be a mapping",
    ),
    "host not a mapping": (
        HEAD + "  E1: {layer: edge, parent: S1, hosts: {h:\n    4}}\n",
        7,
        "capabilities of host 'h'",
    ),
    "capability a list": (
        HEAD + "  E1: {layer: edge, parent: S1, hosts: {h: {\n    n: [1]}}}\n",
        7,
        "n of host 'h' cannot be a list",
    ),
    "capability null": (
        HEAD + "  E1:\n    layer: edge\n    parent: S1\n    hosts:\n      h:\n        n:\n        m: 1\n",
        11,
        "n of host 'h' cannot be nothing",
    ),
    "capability not a number": (edge("hosts: {h: {n: .nan}}"), 6, "cannot be '.nan'"),
    "attribute name": (edge("hosts: {h: {'n cpu': 1}}"), 6, "not an attribute name"),
    "duplicate attribute": (edge("hosts: {h: {n: 1, n: 2}}"), 6, "'n' is written twice"),
    "bandwidth": (
        HEAD + "  E1: {layer: edge, parent: S1, link:\n   {bandwidth: 10Mbps}}\n",
        7,
        "'10Mbps' is not a bandwidth",
    ),
    "bandwidth without unit": (edge("link: {bandwidth: 10}"), 6, "bandwidth '10' has no unit"),
    "bandwidth zero": (edge("link: {bandwidth: 0bit/s}"), 6, "carries no data"),
    "bandwidth a list": (edge("link: {bandwidth: [1]}"), 6, "bandwidth a list"),
    "latency": (
        HEAD + "  E1: {layer: edge, parent: S1, link:\n   {latency: -1ms}}\n",
        7,
        "'-1ms' is not a duration",
    ),
    "latency without unit": (edge("link: {latency: 20}"), 6, "latency '20' has no unit"),
    "link a text": (edge("link: fast"), 6, "must be a mapping, not 'fast'"),
    "link of the root": (
        "layers: [a]\nzones:\n  A:\n    layer: a\n    link: {latency: 1ms}\n",
        5,
        "leads nowhere",
    ),
    "zone named by a number": (
        HEAD + "  7: {layer: edge, parent: S1}\n",
        6,
        "a zone's name must be text, not '7'",
    ),
    "location named by a number": (
        HEAD + "  E1: {layer: edge, parent: S1, locations: [a,\n    7]}\n",
        7,
        "must be text, not '7'",
    ),
    "host named by a truth": (edge("hosts: {true: {}}"), 6, "must be text, not 'true'"),
    "zone named like a path": (
        HEAD + "  ../x: {layer: edge, parent: S1}\n",
        6,
        "a zone's name cannot be '../x'",
    ),
    "zone named ..": (HEAD + "  ..: {layer: edge, parent: S1}\n", 6, "a zone's name cannot be '..'"),
    "host name": (edge("hosts: {a b: {}}"), 6, "a host of zone E1 cannot be 'a b'"),
    "location name": (HEAD + "  E1: {layer: edge, parent: S1, locations:\n   [a/b]}\n", 7, "cannot be 'a/b'"),
    "long name": (HEAD + f"  {'x' * 101}: {{layer: edge, parent: S1}}\n", 6, "a zone's name cannot be"),
    "a list for a name": ("name: [x]\n" + HEAD, 1, "the continuum's name must be text, not a list"),
    "a mapping as a key": (HEAD + "  ? {a: b}\n  : {layer: edge}\n", 6, "a mapping cannot be a key"),
    "half a surrogate pair": (
        HEAD + '  E1: {layer: edge, parent: S1, hosts: {h: {n: "\\ud800"}}}\n',
        6,
        "half of a surrogate pair",
    ),
    "merge key": (edge("<<: {}"), 6, "merge keys are not supported"),
    "tag": (
        HEAD + "  E1: !!python/object/apply:os.system {layer: edge, parent: S1}\n",
        6,
        "is not supported",
    ),
    "unknown anchor": (HEAD + "  E1: *there\n", 6, "no anchor 'there'"),
    "alias within itself": (
        HEAD + "  E1: &e {layer: edge, parent: S1, hosts: {h: *e}}\n",
        6,
        "contains itself",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    text, line, what = RULES[rule]
    (error,) = errors_of(text)
    assert what in error.what
    assert error.where == f"c.yaml:{line}"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("zoness: {}\n" + HEAD, "did you mean zones?"),
        (HEAD + "  E1: {layer: edgy, parent: S1}\n", "did you mean edge?"),
        (HEAD + "  E1: {layer: edge, parent: S11}\n", "did you mean S1?"),
        (HEAD + "  7: {layer: edge, parent: S1}\n", 'write it in quotes: "7"'),
    ],
)
def test_hint(text: str, hint: str) -> None:
    assert errors_of(text)[0].hint == hint


def test_all_problems_in_one_pass() -> None:
    errors = errors_of(
        """\
nam: acme
layers: [edge, site, edge]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C2, link: {bandwidth: 10, latency: soon}}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {h: {n: null}}}
  E2: {layer: edge, parent: S1, locations: [L1], hosts: {h: {}}}
"""
    )
    # Errors of single values in written order, then errors of the tree.
    assert [str(error.where).removeprefix("c.yaml:") for error in errors] == list("124556757")


# Hostile input: refused quickly, without a crash.

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
BROAD = (
    "layers: [a]\nzones:\n  Z: {layer: a, hosts: &h {"
    + ", ".join(f"h{i}: {{}}" for i in range(1000))
    + "}}\n"
    + "".join(f"  Z{i}: {{layer: a, hosts: *h}}\n" for i in range(1000))
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (BOMB, "aliases expanded"),
        (BROAD, "aliases expanded"),
        ("[" * 100_000, "nested deeper"),
        ("{a: " * 10_000, "nested deeper"),
        ("- " * 10_000, "nested deeper"),
        ("".join(" " * i + "a:\n" for i in range(2000)), "nested deeper"),
        ("x: " + "9" * 10_000, "unknown key"),
        (
            HEAD + "  E1: {layer: edge, parent: S1, hosts: {h: {n: " + "9" * 5000 + "}}, x: 1}\n",
            "unknown key",
        ),
        (
            "layers: [a]\nzones:\n" + "".join(f"  Z{i}: {{layer: b}}\n" for i in range(300)),
            "more than 99 problems",
        ),
        ("layers: [a]\nzones: {" + "x" * 900 + ": {layer: " + "y" * 100_000 + "}}\n", "cannot be 'xxx"),
    ],
)
def test_hostile(text: str, what: str) -> None:
    began = time.monotonic()
    errors = errors_of(text)
    assert any(what in error.what for error in errors)
    assert len(errors) <= MAX_PROBLEMS + 1
    assert all(len(str(error)) < 1000 for error in errors)
    assert time.monotonic() - began < 10


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.sampled_from(
            [
                "layers",
                "zones",
                "A",
                "edge",
                ":",
                " ",
                "\n",
                "- ",
                "{",
                "}",
                "[",
                "]",
                ",",
                "&a ",
                "*a",
                "!!x ",
                "? ",
                "|",
                "'",
                '"',
                "#",
                "%YAML 1.1\n",
                "---\n",
                "\u2028",
                "\t",
                "1",
                "<<",
            ]
        ),
        max_size=30,
    ).map("".join)
    | st.text(max_size=40)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        Continuum.from_text(text)
    except ErrorList as caught:
        assert all(error.where and error.where.startswith("<text>:") for error in caught.errors)
