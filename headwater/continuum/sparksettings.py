"""Packages, settings and size of a Spark that an agent or a run starts: in a continuum file, and as options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.continuum.yamltree import Fields, Items, Leaf, Problems, YamlNode
from headwater.core.errors import ContinuumError
from headwater.core.text import shown

_PACKAGE = re.compile(r"[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+")
_PACKAGE_HINT = "write Maven coordinates, group:artifact:version, such as org.postgresql:postgresql:42.7.4"
_CONF = re.compile(r"spark\.[A-Za-z0-9_.-]+")
_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_FORM = "{packages: [org.postgresql:postgresql:42.7.4], conf: {spark.driver.maxResultSize: 2g}}"

MASTER = "spark.master"
_LOCAL = re.compile(r"local\[([1-9]\d{0,2})\]")
_MASTER_HINT = "write local[8] for 8 task slots, or spark: {at: spark://host:7077} in the zone for a cluster"

RESERVED: Mapping[str, str] = {
    "spark.jars.packages": "give its value as packages: in the zone, or by --packages",
    "spark.driver.memory": "give the host memory:, or give --memory",
    "spark.driver.extraJavaOptions": "leave it out: Headwater gives Java options that its units need",
    "spark.local.dir": "leave it out: it is below the directory of the agent or the run (--dir)",
    "spark.sql.warehouse.dir": "leave it out: it is below the directory of the agent or the run (--dir)",
    "spark.sql.session.timeZone": "leave it out: all times are UTC",
    "spark.sql.shuffle.partitions": "leave it out: the state of units is divided by it",
    "spark.ui.enabled": "leave it out: the dashboard of `headwater up` shows the units",
    **dict.fromkeys(
        (
            "spark.driver.host",
            "spark.driver.bindAddress",
            "spark.connect.grpc.binding.address",
            "spark.connect.grpc.binding.port",
            "spark.connect.authenticate.token",
            "spark.python.unix.domain.socket.dir",
            "spark.python.unix.domain.socket.enabled",
        ),
        "leave it out: Headwater chooses the address and the token of its own connection",
    ),
    **dict.fromkeys(
        (
            "spark.hadoop.fs.file.impl",
            "spark.log.level",
            "spark.python.unix.domain.socket.dir",
            "spark.python.unix.domain.socket.enabled",
            "spark.sql.artifact.isolation.alwaysApplyClassloader",
            "spark.sql.artifact.isolation.enabled",
            "spark.sql.catalogImplementation",
            "spark.sql.codegen.cache.maxEntries",
            "spark.sql.codegen.hugeMethodLimit",
            "spark.sql.csv.parser.columnPruning.enabled",
            "spark.sql.sources.parallelPartitionDiscovery.threshold",
            "spark.sql.streaming.checkpointFileManagerClass",
            "spark.sql.streaming.minBatchesToRetain",
            "spark.sql.streaming.multipleWatermarkPolicy",
            "spark.sql.streaming.numRecentProgressUpdates",
            "spark.sql.streaming.offsetLog.formatVersion",
            "spark.sql.streaming.pollingDelay",
            "spark.sql.streaming.queryEvolution.enableSourceEvolution",
            "spark.sql.streaming.stateStore.checkpointFormatVersion",
            "spark.sql.streaming.stateStore.providerClass",
            "spark.sql.variable.substitute",
        ),
        "leave it out: units rely on Headwater's value",
    ),
}
"""The settings that Headwater gives Spark itself, each with what to do instead of setting it."""


@dataclass(frozen=True)
class SparkSettings:
    """Maven coordinates that Spark fetches before it starts, and further settings of it, sorted.

    ``small``: it is started for a small host, with little memory (``profile: small`` of a zone).
    """

    packages: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = ()
    small: bool = False

    @classmethod
    def of_options(cls, packages: str, conf: Iterable[str], *, where: str = "--conf") -> SparkSettings:
        """Read ``--packages`` (separated by commas) and settings (key=value) of ``where``; raise ContinuumError."""
        named = tuple(dict.fromkeys(p.strip() for p in packages.split(",") if p.strip()))
        for package in named:
            if not _PACKAGE.fullmatch(package):
                raise ContinuumError(f"{shown(package)} is no package", where="--packages", hint=_PACKAGE_HINT)
        pairs = {}
        for text in conf:
            key, sign, value = text.partition("=")
            if not sign:
                raise ContinuumError(f"{shown(text)} has no value", where=where, hint="write spark.some.key=value")
            if problem := _refused(key, value):
                raise ContinuumError(problem[0], where=where, hint=problem[1])
            if "\n" in value or "\r" in value:
                raise ContinuumError(f"the value of {key} has a line break", where=where, hint="write it in one line")
            pairs[key] = value
        return cls(named, tuple(sorted(pairs.items())))

    def overridden_by(self, other: SparkSettings) -> SparkSettings:
        """Return these settings with those of another added, which win: of a package the other's version."""
        artifacts = {_artifact(p) for p in other.packages}
        packages = (*(p for p in self.packages if _artifact(p) not in artifacts), *other.packages)
        conf = tuple(sorted({**dict(self.conf), **dict(other.conf)}.items()))
        return SparkSettings(packages, conf, self.small or other.small)

    def secret_keys(self) -> tuple[str, ...]:
        """Return the names of the settings that may hold a secret, by their names."""
        return tuple(key for key, _ in self.conf if _SECRET.search(key))

    def to_data(self) -> dict[str, object]:
        """Return packages and settings in the form of ``spark:`` of the YAML file."""
        found = {"packages": list(self.packages), "conf": dict(self.conf)}
        return {key: value for key, value in found.items() if value}


def settings_of(node: Fields, *, of: str, problems: Problems) -> SparkSettings:
    """Read ``packages:`` and ``conf:`` of a zone's ``spark:``; errors are added to ``problems``."""
    packages: list[str] = []
    conf: dict[str, str] = {}
    for key, value in node.entries:
        if key.text == "packages":
            packages = list(_packages(value, of, problems))
        elif key.text == "conf":
            conf = dict(_conf(value, of, problems))
        elif key.text != "at":
            problems.add(f"unknown key {key} in spark of {of}", where=key.where, hint="the keys are at, packages, conf")
    return SparkSettings(tuple(dict.fromkeys(packages)), tuple(sorted(conf.items())))


def small_of(node: YamlNode | None, *, of: str, problems: Problems) -> bool:
    """Read ``profile:`` of a zone; an error is added to ``problems``."""
    if node is None or (isinstance(node, Leaf) and node.value in (None, "usual")):
        return False
    if not isinstance(node, Leaf) or node.value != "small":
        problems.add(f"profile of {of} cannot be {node}", where=node.where, hint="write small or usual")
    return True


def _packages(node: YamlNode, of: str, problems: Problems) -> Iterable[str]:
    if not isinstance(node, Items):
        problems.add(f"packages of spark of {of} must be a list, not {node}", where=node.where, hint=f"write {_FORM}")
        return
    for item in node.nodes:
        if isinstance(item, Leaf) and _PACKAGE.fullmatch(item.text):
            yield item.text
        else:
            problems.add(f"{item} in spark of {of} is no package", where=item.where, hint=_PACKAGE_HINT)


def _conf(node: YamlNode, of: str, problems: Problems) -> Iterable[tuple[str, str]]:
    if not isinstance(node, Fields):
        problems.add(f"conf of spark of {of} must be a mapping, not {node}", where=node.where, hint=f"write {_FORM}")
        return
    for key, value in node.entries:
        if problem := _refused(key.text, value.text if isinstance(value, Leaf) else ""):
            problems.add(f"spark of {of}: {problem[0]}", where=key.where, hint=problem[1])
        elif _SECRET.search(key.text):
            problems.add(
                f"spark of {of}: {key.text} may hold a secret, and plans are stored with the continuum",
                where=key.where,
                hint="give it to the agent alone: headwater zone ... --conf-file FILE, which only its user can read",
            )
        elif not isinstance(value, Leaf) or value.value is None:
            problems.add(f"{key.text} in spark of {of} has no value", where=value.where, hint="write one")
        else:
            yield key.text, value.text


def slots_of(master: str) -> int:
    """Return the number of task slots of a local master.

    >>> slots_of("local[6]")
    6
    """
    found = _LOCAL.fullmatch(master)
    if found is None:
        raise ContinuumError(f"{MASTER} cannot be {shown(master)}", where=MASTER, hint=_MASTER_HINT)
    return int(found[1])


def _refused(key: str, value: str) -> tuple[str, str] | None:
    """Return why a key cannot be set to a value, and what to do."""
    if key == MASTER and not _LOCAL.fullmatch(value):
        return f"{MASTER} cannot be {shown(value)}", _MASTER_HINT
    if key in RESERVED:
        return f"{key} is set by Headwater", RESERVED[key]
    if not _CONF.fullmatch(key):
        return f"{shown(key)} is no setting of Spark", "the keys begin with spark., as spark.driver.maxResultSize"
    return None


def _artifact(package: str) -> str:
    return package.rpartition(":")[0]
