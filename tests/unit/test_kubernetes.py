"""Files of ``deploy/kubernetes``: by the published schemas, and in agreement with each other and with the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.continuum.model import Continuum
from headwater.core.quantity import parse_size
from scripts import reference
from tests import missing
from tests.patience import PATIENCE

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"
VERSIONS = ("1.29", "1.33")
"""Versions of Kubernetes whose schemas the resources fit."""
LABEL = "app.kubernetes.io/component"


def resources() -> list[dict[str, Any]]:
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted(names) == sorted(f.name for f in BASE.iterdir() if f.name != "kustomization.yaml")
    return [one for name in names for one in yaml.safe_load_all((BASE / name).read_text())]


ALL = resources()
SETS = {r["metadata"]["name"]: r for r in ALL if r["kind"] == "StatefulSet"}


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SETS[name]["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    return dict(found)


def labels(name: str) -> dict[str, str]:
    return dict(SETS[name]["spec"]["template"]["metadata"]["labels"])


def chosen(selector: dict[str, Any]) -> set[str]:
    wanted = selector.get("matchLabels", selector)
    return {name for name in SETS if wanted.items() <= labels(name).items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", ALL, ids=lambda r: f"{r['kind']}-{r['metadata']['name']}")
def test_it_fits_the_published_schema(resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def test_the_schema_refuses_what_is_misspelt() -> None:
    broken = {**SETS["controller"], "spec": {**SETS["controller"]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_kustomize_renders_the_same_resources() -> None:
    if shutil.which("kubectl") is None:
        missing.skip("no kubectl")
    done = subprocess.run(["kubectl", "kustomize", str(BASE)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    rendered = {(r["kind"], r["metadata"]["name"]): r for r in yaml.safe_load_all(done.stdout)}
    assert rendered.keys() == {(r["kind"], r["metadata"]["name"]) for r in ALL}
    for name in SETS:
        (only,) = rendered["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
        assert re.fullmatch(r"headwater:\d.*", only["image"]), "an image with a version"
        assert rendered["StatefulSet", name]["metadata"]["namespace"] == "headwater"


@pytest.mark.parametrize("name", SETS)
def test_selectors_ports_and_volumes_agree(name: str) -> None:
    spec, own = SETS[name]["spec"], container(name)
    assert chosen(spec["selector"]) == {name}
    (service,) = (r for r in ALL if r["kind"] == "Service" and r["metadata"]["name"] == spec["serviceName"])
    assert chosen(service["spec"]["selector"]) == {name}
    ports = {p["name"]: p["containerPort"] for p in own["ports"]}
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    listen = own["args"][own["args"].index("--listen") + 1]
    assert int(listen.rpartition(":")[2]) in ports.values()
    mounted = {m["name"] for m in own["volumeMounts"]}
    claims = {c["metadata"]["name"] for c in spec["volumeClaimTemplates"]}
    assert mounted == {v["name"] for v in pod(name)["volumes"]} | claims
    there = {(r["kind"], r["metadata"]["name"]) for r in ALL}
    for volume in pod(name)["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in there
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
    assert ("ServiceAccount", pod(name)["serviceAccountName"]) in there


def test_each_zone_has_its_agent_and_its_secret() -> None:
    (config,) = (r for r in ALL if r["kind"] == "ConfigMap")
    zones = Continuum.from_text(config["data"]["plant.yaml"])
    assert {f"agent-{zone.name.lower()}" for zone in zones.zones} == SETS.keys() - {"controller"}
    secrets = set()
    for zone in zones.zones:
        name, (host,) = f"agent-{zone.name.lower()}", zone.hosts
        assert (labels(name)["zone"], container(name)["args"][1]) == (zone.name, zone.name)
        assert zones.node(zone.name).at == f"grpc+tls://{SETS[name]['spec']['serviceName']}:7070"
        limit = container(name)["resources"]["limits"]["memory"].replace("Gi", "GiB")
        assert host.capabilities["memory"] == parse_size(limit)
        (secret,) = (v["secret"] for v in pod(name)["volumes"] if "secret" in v)
        secrets.add(secret["secretName"])
    assert secrets == {"headwater-c1", "headwater-e1"}
    assert not [r for r in ALL if r["kind"] == "Secret"], "secrets are made apart"


@pytest.mark.parametrize("name", SETS)
def test_its_command_is_such_as_there_is(name: str) -> None:
    command, *words = container(name)["args"]
    found, context = {path: (c, x) for path, c, x in reference.command_line()}[(command,)]
    if command == "up":
        words.remove("-c")
        words.remove("/etc/headwater/plant.yaml")  # it has to exist
    mounts = [Path(m["mountPath"]) for m in container(name)["volumeMounts"] if not m.get("readOnly")]
    with found.make_context(command, words, parent=context.parent) as made:
        place = made.params["directory" if command == "zone" else "home"]
    assert any(place.is_relative_to(mount) for mount in mounts)
    variables = {e["name"]: e["value"] for e in container(name)["env"]}
    assert any(Path(variables["HOME"]) == mount for mount in mounts)
    assert not any(re.fullmatch(r"HEADWATER_(TOKEN|OWNER_TOKEN|SECRET_.*)", v) for v in variables)


@pytest.mark.parametrize("name", SETS)
def test_it_has_no_rights_of_root(name: str) -> None:
    """The rules of the restricted pod security standard, and a read-only root."""
    own, whole = container(name)["securityContext"], pod(name)["securityContext"]
    assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert whole["runAsNonRoot"] and whole["runAsUser"] == whole["fsGroup"] == 10001
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod(name)["automountServiceAccountToken"]
    assert container(name)["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container(name).keys()


def test_each_pod_is_in_one_budget_and_no_policy_misses_it() -> None:
    budgets = [chosen(r["spec"]["selector"]) for r in ALL if r["kind"] == "PodDisruptionBudget"]
    assert sorted(name for budget in budgets for name in budget) == sorted(SETS)
    policies = [r["spec"] for r in ALL if r["kind"] == "NetworkPolicy"]
    both = [p for p in policies if set(p["policyTypes"]) == {"Ingress", "Egress"}]
    assert [chosen(p["podSelector"]) for p in both] == [set(SETS)], "all else is refused"
    (reached,) = (p for p in policies if "ingress" in p)
    agents = {name for name in SETS if labels(name)[LABEL] == "agent"}
    assert chosen(reached["podSelector"]) == agents
    for rule in (*reached["ingress"], *_to_agents(both[0])):
        assert [p["port"] for p in rule["ports"]] == [7070]


def _to_agents(policy: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = [r for r in policy["egress"] if any("namespaceSelector" not in to for to in r["to"])]
    assert len(found) == 1 and chosen(found[0]["to"][0]["podSelector"])
    yield from found
