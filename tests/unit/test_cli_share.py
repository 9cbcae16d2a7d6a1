"""Sharing from the command line: submit, show, remove; a refusal names the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.app.pools import TOKEN
from headwater.control import tables
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from tests.unit.test_cli_control import CONTINUUM, controller, invoke

FLOW = """
import headwater as hw
f = hw.flow("{name}", locations=["L1"])
rows = f.read.csv("in/{{location}}", "id int, ts timestamp, v double", location_as="location")
low = rows.where("v > 1").to_layer("site")
low.where("v > {above}").write.memory("out")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.setenv("COLUMNS", "200")
    for name in (STORE, TOKEN):
        monkeypatch.delenv(name, raising=False)


def submit(name: str, owner: str, *more: str, above: int = 5) -> tuple[int, str, str]:
    Path(f"{name}.py").write_text(FLOW.format(name=name, above=above))
    return invoke("submit", f"{name}.py", "-c", CONTINUUM, "--owner", owner, *more)


def test_dataflows_come_are_seen_and_go() -> None:
    with controller():
        code, out, err = submit("one", "team-a", "--wait")
        assert code == 0, err
        assert "one: 0 operators run already" in err and "commons: version 1 is wanted" in err
        code, out, err = submit("two", "team-b", "--wait", "--json", above=7)
        data = json.loads(out)
        assert code == 0 and len(data["reused"]) >= 2 and "two.out" in data["new"], err
        code, out, _ = invoke("shared", "--json")
        (pool,) = json.loads(out)
        assert [(d["name"], d["owner"]) for d in pool["dataflows"]] == [("one", "team-a"), ("two", "team-b")]
        assert pool["dataflows"][1]["sinks"] == {"out": "two.out"}
        (common,) = pool["common"]
        assert common["dataflows"] == ["one", "two"] and "two.out" not in common["operators"]
        assert len(common["operators"]) == pool["dataflows"][1]["shared"]
        code, out, _ = invoke("shared")
        assert code == 0 and "commons: 2 dataflows" in out and "team-b" in out
        assert [line.split()[:2] for line in out.splitlines() if "one.files" in line] == [["●", "●"]], out
        code, out, err = invoke("remove", "one", "--owner", "team-b")
        assert code == 6 and "headwater owner team-a --grant remove --to team-b" in err
        code, _, err = invoke("remove", "one", "--owner", "team-a", "--wait")
        assert code == 0 and "run on for others" in err, err
        code, _, err = invoke("defragment", "--wait")
        assert code == 0 and "commons is defragmented" in err, err
        code, _, err = invoke("remove", "two", "--owner", "team-b", "--wait")
        assert code == 0, err
    code, _, err = invoke("shared")
    assert code == 0 and "nothing was submitted" in err


def test_owners_are_set_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    Store(resolved_url(None)).close()
    code, token, err = invoke("owner", "team-a", "--max-dataflows", "0", "--role", "owner", "--token")
    assert code == 0 and "shown this once" in err
    code, _, err = submit("one", "team-a")
    assert code == 6 and f"set {TOKEN}" in err
    monkeypatch.setenv(TOKEN, token.strip())
    code, _, err = submit("one", "team-a")
    assert code == 6 and "dataflows 1, 0 are allowed" in err
    code, out, _ = invoke("owner")
    assert code == 0 and out == "team-a: owner, token, dataflows 0\n"
    code, out, _ = invoke("owner", "team-a", "--no-limits", "--json")
    assert code == 0 and json.loads(out)["limits"] == {"dataflows": None, "operators": None, "cores": None}
    code, _, err = invoke("owner", "team-a", "--grant", "read")
    assert code == 2 and "--to OWNER" in err
    assert invoke("owner", "team-a", "--grant", "read", "--to", "team-b")[0] == 0
