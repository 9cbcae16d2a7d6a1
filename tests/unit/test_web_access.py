"""Access: tokens, their roles, and the trial mode while there is no token."""

from __future__ import annotations

import hmac
import json
import stat
from pathlib import Path

import pytest

from headwater.app import pools
from headwater.app.pools import ADMIN, TOKEN
from headwater.control import sharing, tables
from headwater.control.sharing import ROLES, Role, includes
from headwater.control.store import Store
from headwater.control.tables import STORE
from headwater.core.errors import DeploymentError
from headwater.web.access import TRIAL_FILE, Access, Asker, NotAllowed, NotKnown, trial_file, trial_token
from tests.unit.test_cli_control import invoke


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    for name in (STORE, TOKEN):
        monkeypatch.delenv(name, raising=False)
    return str(tmp_path / "store.db")


def token(place: str, name: str, role: Role | None = None) -> str:
    made = pools.set_owner(name, place, role=role, token=True)
    assert made is not None
    return made


def test_a_token_tells_whose_it_is_and_what_may_be_done(place: str) -> None:
    tokens = {role: token(place, f"a-{role}", role) for role in ROLES}
    access = Access(place)
    for role in ROLES:
        asker = access.asker(tokens[role])
        assert (asker.name, asker.role, asker.on_trial) == (f"a-{role}", role, False)
        allowed = [other for other in ROLES if includes(asker.role, other)]
        assert allowed == list(ROLES[: ROLES.index(role) + 1])
    with pytest.raises(NotAllowed, match="a-viewer is a viewer; this is for an operator") as refused:
        access.asker(tokens["viewer"]).check("operator")
    assert refused.value.hint == "admin can change that: headwater owner a-viewer --role operator"
    access.asker(tokens["operator"]).check("viewer")


def test_a_token_that_is_nobodys_is_refused(place: str) -> None:
    mine = token(place, "a")
    access = Access(place)
    for wrong in (mine + "x", mine[:-1], "x" * 10_000, "ä", "\0"):
        with pytest.raises(NotKnown, match="unknown token"):
            access.asker(wrong)
    for none in (None, ""):
        with pytest.raises(NotKnown, match="a token is needed"):
            access.asker(none)
    newer = pools.set_owner("a", place, token=True, shown=mine)
    with pytest.raises(NotKnown):
        access.asker(mine)
    assert access.asker(newer).name == "a"


def test_who_has_no_token_cannot_be_asked_for(place: str) -> None:
    pools.set_owner("b", place, role="viewer")
    token(place, "a")
    with pytest.raises(NotKnown):
        Access(place).asker("")
    with pytest.raises(NotKnown):
        Access(place).asker("None")


def test_without_any_token_the_servers_user_is_an_owner(place: str) -> None:
    for there in (False, True):
        if there:
            Store(place).close()
        access = Access(place)
        assert access.on_trial
        access.check()
        assert access.asker(trial_token()) == Asker(name=None, role="owner", token=trial_token())
        for given in (None, "", "any", "ä"):
            with pytest.raises(NotKnown) as unknown:
                access.asker(given)
            assert f"$(cat {trial_file()})" in str(unknown.value)
        with pytest.raises(DeploymentError, match="no owner has a token") as refused:
            Access(place, loopback=False).check()
        assert "headwater owner admin --token" in str(refused.value)
        with pytest.raises(NotKnown):
            Access(place, loopback=False).asker(trial_token())
    token(place, "a", "viewer")
    assert not access.on_trial, "the first token ends it, for servers that run already too"
    for given in (None, trial_token()):
        with pytest.raises(NotKnown):
            access.asker(given)
    Access(place, loopback=False).check()


def test_the_trial_token_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRIAL_FILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = trial_token()
    file = tmp_path / ".headwater" / "web-token"
    assert trial_file() == file and file.read_text() == mine == trial_token() and len(mine) > 30
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [f.name for f in file.parent.iterdir()] == ["web-token"]
    file.chmod(0o640)
    with pytest.raises(DeploymentError, match="other users may know this token"):
        trial_token()
    file.unlink()
    assert trial_token() != mine


def test_all_hashes_are_compared_whichever_fits(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = token(place, "a"), token(place, "z")
    compared: list[bool] = []

    def counting(one: str, other: str) -> bool:
        compared.append(hmac.compare_digest(one, other))
        return compared[-1]

    class Counting:
        compare_digest = staticmethod(counting)

    monkeypatch.setattr(sharing, "hmac", Counting)
    for given, fits in ((first, [True, False]), (last, [False, True])):
        compared.clear()
        Access(place).asker(given)
        assert compared == fits


def test_no_token_is_shown_or_stored(place: str) -> None:
    mine = token(place, "a")
    assert mine not in repr(Access(place).asker(mine))
    assert mine.encode() not in Path(place).read_bytes()


def test_roles_are_the_admins_to_set(place: str) -> None:
    admin = token(place, ADMIN)
    with pytest.raises(DeploymentError, match="admin needs a token"):
        pools.set_owner("a", place, role="operator")
    pools.set_owner("a", place, role="viewer", shown=admin)
    mine = token(place, "a")
    with pytest.raises(DeploymentError, match="admin needs a token"):
        pools.set_owner("a", place, role="owner", shown=mine)
    assert pools.role_of("a", place) == "viewer", "a token of one's own leaves the role as it is"
    with pytest.raises(DeploymentError, match="admin may do all"):
        pools.set_owner(ADMIN, place, role="viewer", shown=admin)
    assert (pools.role_of(ADMIN, place), pools.role_of("nobody", place)) == ("owner", "owner")


def test_the_role_is_set_and_shown_by_the_command(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE, place)
    code, made, err = invoke("owner", "eve", "--role", "viewer", "--token")
    assert code == 0, err
    assert Access(place).asker(made.strip()).role == "viewer"
    assert invoke("owner")[1] == "eve: viewer, token, no limits\n"
    code, out, _ = invoke("owner", "eve", "--role", "operator", "--json")
    assert (code, json.loads(out)["role"], json.loads(out)["token"]) == (0, "operator", None)
    assert invoke("owner", "eve", "--role", "king")[0] == 2
    monkeypatch.setenv(TOKEN, made.strip())
    with pytest.raises(DeploymentError, match="eve has the role operator") as refused:
        pools.plan_removal("any", "eve").apply()
    assert "--role owner" in str(refused.value)
