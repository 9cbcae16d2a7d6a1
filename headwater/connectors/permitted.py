"""The resources that a unit uses - paths, hosts, secrets - checked against the permissions of its zone.

Two lists must both allow a resource: the agent's own, given on its command line, and the one of the zone in the
continuum, where it has one. Headwater's own files are out of reach whichever roots are allowed: they hold tokens,
records of other dataflows, and the state on which exactness rests.

Paths are resolved before they are matched: symbolic links, ``..``, ``file:`` URIs, and the fixed part of a pattern.
What a pattern or a directory really holds is known when files are read: ``PermittedPaths.refuse_file`` checks each
file of a batch before the batch becomes visible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headwater.connectors.globs import alternatives, is_glob
from headwater.connectors.kafkasettings import servers_at
from headwater.connectors.mqtt import broker_address
from headwater.connectors.mqttwriter import sink_address
from headwater.connectors.opcuaclient import OpcuaAddress
from headwater.connectors.registry import server_of
from headwater.continuum.broker import Broker
from headwater.core.errors import DeploymentError
from headwater.core.permissions import OPEN, Permissions, is_below
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.databaserows import DatabaseRows
from headwater.dataflow.httpsource import HttpSource
from headwater.dataflow.jdbcurl import DatabaseAddress, parse_jdbc_url
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.opcua import OpcuaSink, OpcuaSource
from headwater.dataflow.operators import MapBatches, Operator, Transform
from headwater.dataflow.optionlists import check_kafka_settings, check_options
from headwater.dataflow.predictor import Predictor
from headwater.dataflow.sinks import FileSink, JdbcSink, KafkaSink, MqttSink
from headwater.dataflow.sources import FileSource, MqttSource
from headwater.dataflow.tablesinks import DeltaSink, IcebergSink, PostgresSink, check_iceberg
from headwater.dataflow.tablesources import DeltaSource, IcebergSource
from headwater.disk.layout import full_path, sink_directory
from headwater.plan.content import source_locations
from headwater.plan.spec import UnitSpec

Kind = Literal["read", "write", "connect", "secrets"]

SCHEMES = frozenset(
    [
        "hdfs",
        "webhdfs",
        "swebhdfs",
        "s3",
        "s3a",
        "s3n",
        "gs",
        "abfs",
        "abfss",
        "wasb",
        "wasbs",
        "oss",
        "cosn",
        "o3fs",
        "ofs",
    ]
)
"""Remote file systems; other schemes, such as ``har:``, may lead back to the local one."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(\[[0-9A-Fa-f:.]+\]|[^:\s]+)(?::(\d+))?")
_DEFAULT_PORTS = {"kafka": 9092, "sc": 15002, "spark": 7077}
_OWN_VARIABLES = ("HEADWATER_SECRETS_DIR", "HEADWATER_TOKEN_FILE", "HEADWATER_TRIAL_TOKEN_FILE")
"""Environment variables with paths of secrets and tokens."""
_OPTION: Mapping[Kind, str] = {
    "read": "--allow-read",
    "write": "--allow-write",
    "connect": "--allow-connect",
    "secrets": "--allow-secret",
}


@dataclass(frozen=True, kw_only=True)
class AgentPermissions:
    """The permissions of an agent: its own lists, which no controller can widen, and the ``reserved`` paths."""

    own: Permissions = OPEN
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """One use of a resource by an operator, or by a unit: a path, ``host:port``, or the name of a secret."""

    kind: Kind
    target: str
    where: str

    @property
    def host(self) -> tuple[str, int]:
        name, _, port = self.target.rpartition(":")
        return name.strip("[]"), int(port)


def check_unit(spec: UnitSpec, agent: AgentPermissions) -> PermittedPaths:
    """Raise the error of the first resource or option of a unit that is not permitted; return its permitted paths."""
    for operator in spec.flow.operators:
        check_options(operator)
    for zone, broker in spec.brokers.items():
        check_kafka_settings(dict(broker.settings), where=f"broker of zone {zone}")
    paths = PermittedPaths.of(agent, spec.node.access)
    for use in uses_of(spec):
        at = f"{use.where}, unit {spec.id}, zone {spec.unit.zone}"
        reason = paths.refuse(use.kind, use.target) if use.kind in ("read", "write") else None
        lists = [(agent.own, f"{_OPTION[use.kind]} {_quoted(use.target)} at its agent (`headwater zone`)")]
        if spec.node.access is not None:
            lists.append(
                (spec.node.access, f"'{use.target}' in access: {{{use.kind}: [...]}} of zone {spec.unit.zone}")
            )
        if reason is not None:
            raise DeploymentError(reason, where=at, hint="choose another path: Headwater's own files are out of reach")
        for permissions, how in lists:
            if not _allows(permissions, use):
                raise DeploymentError(_refusal(use), where=at, hint=f"allow it: give {how}, or change the dataflow")
    return paths


def uses_of(spec: UnitSpec) -> Iterator[ResourceUse]:
    """Yield the resources that a unit uses."""
    locations = source_locations(spec.flow, spec.unit)
    for operator in spec.flow.operators:
        yield from _uses(operator, spec, locations.get(operator.id, ()))
    for zone, broker in spec.brokers.items():
        yield from _of_broker(broker, f"broker of zone {zone}")
    if spec.node.spark is not None and (match := re.match(r"(sc|spark)://(.+)", spec.node.spark)):
        servers = re.split(r"[/;]", match[2])[0]
        yield from _servers(servers, f"spark of zone {spec.unit.zone}", _DEFAULT_PORTS[match[1]])


def table_directories(spec: UnitSpec) -> tuple[list[str], list[str]]:
    """Return the directories of tables that a unit reads and writes."""
    read: list[str] = []
    written: list[str] = []
    locations = source_locations(spec.flow, spec.unit)
    for operator in spec.flow.operators:
        match operator:
            case DeltaSource():
                read += [full_path(operator.path.replace("{location}", at)) for at in locations.get(operator.id, ())]
            case IcebergSource():
                read.append(full_path(operator.warehouse))
            case DeltaSink():
                written.append(sink_directory(operator.path, spec.unit))
            case IcebergSink():
                written.append(full_path(operator.warehouse))
    return read, written


def _uses(operator: Operator, spec: UnitSpec, locations: Iterable[str]) -> Iterator[ResourceUse]:
    where = operator.where
    match operator:
        case FileSource():
            options = {name.lower(): value for name, value in operator.options}
            cleans = options.get("cleansource", "off").lower() != "off"
            for location in locations:
                path = full_path(operator.path.replace("{location}", location))
                yield ResourceUse(kind="read", target=path, where=where)
                if cleans:
                    yield ResourceUse(kind="write", target=path, where=f"{where} (cleanSource)")
            if "basepath" in options:
                yield ResourceUse(kind="read", target=full_path(options["basepath"]), where=where)
            if "sourcearchivedir" in options:
                target = full_path(options["sourcearchivedir"])
                yield ResourceUse(kind="write", target=target, where=f"{where} (sourceArchiveDir)")
        case DeltaSource():
            for location in locations:
                path = full_path(operator.path.replace("{location}", location))
                yield ResourceUse(kind="read", target=path, where=where)
        case IcebergSource():
            yield ResourceUse(kind="read", target=full_path(operator.warehouse), where=where)
            found = check_iceberg(operator.table, operator.catalog, operator.warehouse, where=where)
            yield from _database(found, where)
            yield from _secrets(where, operator.user_env, operator.password_env)
        case (
            MapBatches(function=BuiltinFunction(model=Predictor(path=str() as path)))
            | Transform(function=BuiltinFunction(model=Predictor(path=str() as path)))
        ):
            yield ResourceUse(kind="read", target=full_path(path), where=where)
        case MapBatches(function=BuiltinFunction(container=str() as path)):
            yield ResourceUse(kind="read", target=full_path(path), where=where)
        case Lookup(database=DatabaseRows() as rows):
            yield from _database(parse_jdbc_url(operator.path, where=where), where)
            yield from _secrets(where, rows.user_env, rows.password_env)
        case Lookup(embedded=None):
            yield ResourceUse(kind="read", target=full_path(operator.path), where=where)
        case MqttSource():
            for location in locations:
                yield ResourceUse(kind="connect", target=broker_address(operator, location).server, where=where)
            yield from _secrets(where, operator.username_env, operator.password_env)
        case HttpSource():
            for location in locations:
                yield ResourceUse(kind="connect", target=operator.endpoint(location).server, where=where)
            for file in filter(None, (operator.certificate, operator.key)):
                yield ResourceUse(kind="read", target=full_path(file), where=where)
            yield from _secrets(where, operator.token_env)
        case OpcuaSource():
            for location in locations:
                yield from _of_opcua(OpcuaAddress.of(operator, where=where, location=location))
        case OpcuaSink():
            yield from _of_opcua(OpcuaAddress.of(operator, where=where))
        case MqttSink():
            yield ResourceUse(kind="connect", target=sink_address(operator).server, where=where)
            yield from _secrets(where, operator.username_env, operator.password_env)
        case KafkaSource():
            for servers in dict.fromkeys(servers_at(operator, location) for location in locations):
                yield from _servers(servers, where, _DEFAULT_PORTS["kafka"])
            if operator.registry is not None:
                host, port = server_of(operator.registry)
                yield ResourceUse(kind="connect", target=f"{host}:{port}", where=f"{where} (registry)")
            yield from _files_of_kafka(dict(operator.options), where)
            named = (operator.user_env, operator.password_env)
            yield from _secrets(where, *named, operator.registry_user_env, operator.registry_password_env)
        case FileSink():
            yield ResourceUse(kind="write", target=sink_directory(operator.path, spec.unit), where=where)
        case KafkaSink():
            yield from _servers(operator.bootstrap_servers, where, _DEFAULT_PORTS["kafka"])
            yield from _files_of_kafka(dict(operator.options), where)
            yield from _secrets(where, operator.user_env, operator.password_env)
        case DeltaSink():
            yield ResourceUse(kind="write", target=sink_directory(operator.path, spec.unit), where=where)
        case IcebergSink():
            yield ResourceUse(kind="write", target=full_path(operator.warehouse), where=where)
            found = check_iceberg(operator.table, operator.catalog, operator.warehouse, where=where)
            yield from _database(found, where)
            yield from _secrets(where, operator.user_env, operator.password_env)
        case PostgresSink():
            yield from _database(operator.address, where)
            yield from _secrets(where, operator.user_env, operator.password_env)
        case JdbcSink():
            yield from _database(parse_jdbc_url(operator.url, where=where), where)
            yield from _secrets(where, operator.user_env, operator.password_env)


def _database(address: DatabaseAddress, where: str) -> Iterator[ResourceUse]:
    for host, port in address.hosts:
        yield ResourceUse(kind="connect", target=f"{host}:{port}", where=where)
    if address.file is not None:
        yield ResourceUse(kind="write", target=full_path(address.file), where=where)


def _of_opcua(address: OpcuaAddress) -> Iterator[ResourceUse]:
    yield ResourceUse(kind="connect", target=address.server, where=address.where)
    for file in address.files:
        yield ResourceUse(kind="read", target=file, where=address.where)
    yield from _secrets(address.where, address.username_env, address.password_env)


def _of_broker(broker: Broker, where: str) -> Iterator[ResourceUse]:
    yield from _servers(broker.servers, where, _DEFAULT_PORTS["kafka"])
    yield from _files_of_kafka(dict(broker.settings), where)
    yield from _secrets(where, broker.user_env, broker.password_env)


def _servers(text: str, where: str, port: int) -> Iterator[ResourceUse]:
    for server in text.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None:
            raise DeploymentError(f"'{server.strip()}' is not host:port", where=where, hint="write host:port")
        yield ResourceUse(kind="connect", target=f"{match[1]}:{match[2] or port}", where=where)


def _files_of_kafka(settings: Mapping[str, str], where: str) -> Iterator[ResourceUse]:
    for name, value in settings.items():
        if name.endswith(".location"):
            yield ResourceUse(kind="read", target=full_path(value), where=f"{where} ({name})")


def _secrets(where: str, *names: str | None) -> Iterator[ResourceUse]:
    for name in names:
        if name is not None:
            yield ResourceUse(kind="secrets", target=name, where=where)


def _allows(permissions: Permissions, use: ResourceUse) -> bool:
    match use.kind:
        case "connect":
            return permissions.may_connect(*use.host)
        case "secrets":
            return permissions.may_know(use.target)
        case "read" | "write":
            roots = permissions.read if use.kind == "read" else permissions.write
            return all(is_below(path, _real(roots)) for path in stems(use.target))


def _refusal(use: ResourceUse) -> str:
    match use.kind:
        case "read":
            return f"the dataflow may not read '{use.target}'"
        case "write":
            return f"the dataflow may not write to '{use.target}'"
        case "connect":
            return f"the dataflow may not connect to {use.target}"
        case "secrets":
            return f"the dataflow may not use the secret {use.target}"


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./:@%+=-]+", text) else f"'{text}'"


# ---------------------------------------------------------------- paths


def stems(path: str) -> list[str]:
    """Return the resolved fixed parts of a path or pattern: all that it reaches lies below one of them.

    Raise DeploymentError for a pattern with ``..``, or a file system that is not known.
    """
    if (url := _URL.fullmatch(path)) is not None:
        if url[1].lower() not in SCHEMES:
            raise DeploymentError(
                f"files behind '{url[1]}://' cannot be read",
                where=path,
                hint=f"use a path of this machine, or one of {', '.join(sorted(SCHEMES))}",
            )
        rests = [_fixed(rest) for rest in _plain_alternatives(url[3])]
        return [f"{url[1].lower()}://{url[2]}{rest.rstrip('/')}" for rest in rests]
    if not is_glob(path) and "\\" not in path:
        return [os.path.realpath(path)]
    return [os.path.realpath(_fixed(one)) for one in _plain_alternatives(path)]


def _plain_alternatives(pattern: str) -> Iterator[str]:
    for one in alternatives(pattern):
        if ".." in re.sub(r"\\(.)", r"\1", one).split("/"):
            raise DeploymentError("a pattern with '..'", where=pattern, hint="write the directory without '..'")
        yield one


def _fixed(pattern: str) -> str:
    """Return the directory in front of the first part of a pattern that is no plain name."""
    fixed = []
    for part in pattern.split("/"):
        if is_glob(part):
            break
        fixed.append(re.sub(r"\\(.)", r"\1", part))
    return "/".join(fixed) or "/"


def _real(roots: Iterable[str]) -> tuple[str, ...]:
    return tuple(root if not root.startswith("/") else os.path.realpath(root) for root in roots)


@dataclass(frozen=True, kw_only=True)
class PermittedPaths:
    """The paths that a unit may use: each of the lists must allow a path, and it is not ``reserved``.

    ``own``: Headwater's directory of records replayed to the unit's sources, which it may read.
    """

    read: tuple[tuple[str, ...], ...]
    write: tuple[tuple[str, ...], ...]
    reserved: tuple[str, ...]
    own: str | None = None

    @classmethod
    def of(cls, agent: AgentPermissions, zone: Permissions | None) -> PermittedPaths:
        """Return the paths that an agent and a zone of the continuum both allow."""
        lists = [agent.own] if zone is None else [agent.own, zone]
        return cls(
            read=tuple(p.read for p in lists),
            write=tuple(p.write for p in lists),
            reserved=_real(agent.reserved),
        )

    def with_own(self, directory: Path) -> PermittedPaths:
        """Return these paths for a unit that reads records replayed to its sources from a directory."""
        return replace(self, own=str(directory))

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"read": self.read, "write": self.write, "reserved": self.reserved, "own": self.own}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PermittedPaths:
        """Read the JSON form."""
        read, write = (tuple(tuple(one) for one in data[kind]) for kind in ("read", "write"))
        return cls(read=read, write=write, reserved=tuple(data["reserved"]), own=data["own"])

    def refuse(self, kind: Literal["read", "write"], path: str) -> str | None:
        """Return why a path is Headwater's own; None where it is not."""
        if kind == "write" and _URL.fullmatch(path):
            return f"files are written on this machine only, not to '{path}'"
        for stem in stems(path):
            for reserved in self.reserved:
                if is_below(stem, (reserved,)):
                    return f"'{path}' is a path of Headwater's own, of '{reserved}'"
        return None

    def refuse_file(self, kind: Literal["read", "write"], path: str) -> str | None:
        """Return why a file or directory, resolved now, may not be used; None where it may."""
        real = path if _URL.fullmatch(path) else os.path.realpath(path)
        if self.own is not None and kind == "read" and is_below(real, (os.path.realpath(self.own),)):
            return None
        if is_below(real, self.reserved):
            return f"'{path}' is a file of Headwater's own"
        lists = self.read if kind == "read" else self.write
        if not all(is_below(real, _real(roots)) for roots in lists):
            to = f", which is '{real}'," if real != path else ""
            return f"'{path}'{to} is outside the directories that the zone lets dataflows {kind}"
        return None


def own_paths(directory: Path, state_store: str | None, more: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return Headwater's own paths on this machine, from an agent's directory and its store of state."""
    found = [directory, Path.home() / ".headwater", Path(".headwater").absolute(), *more]
    if state_store is not None and "://" not in state_store:
        found.append(Path(state_store))
    found += [Path(os.environ[name]) for name in _OWN_VARIABLES if os.environ.get(name)]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found))
