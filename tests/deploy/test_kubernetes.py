"""deploy/kubernetes.yaml: each object is accepted by its schema, and they agree with each other, with the image and with unilect."""

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support.servers.deployed import DEPLOY, ROOT
from unilect.config.load import load

KUBERNETES = "1.34"
#: What KubeRay's v1 API knows of the fields that are used: https://ray-project.github.io/kuberay/reference/api/
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
GROUP = {
    "type": "object",
    "required": ["template", "rayStartParams"],
    "additionalProperties": False,
    "properties": {"rayStartParams": PARAMETERS, "template": {"type": "object"}},
}
COUNT = {"type": "integer", "minimum": 0}
WORKERS = GROUP | {
    "required": ["groupName", "template", "rayStartParams"],
    "properties": GROUP["properties"]
    | {"groupName": {"type": "string"}, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT},
}  # fmt: skip
RAY_CLUSTER = {
    "type": "object",
    "required": ["headGroupSpec"],
    "additionalProperties": False,
    "properties": {
        "rayVersion": {"type": "string"},
        "authOptions": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"mode": {"enum": ["disabled", "token"]}},
        },
        "headGroupSpec": GROUP,
        "workerGroupSpecs": {"type": "array", "items": WORKERS},
    },
}


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """The objects by their kinds; there is one of each."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    kinds = {one["kind"]: one for one in found}
    assert len(kinds) == len(found)
    return kinds


@pytest.fixture(scope="module")
def groups(objects: dict[str, Any]) -> dict[str, Any]:
    """The groups of the cluster's pods, by name."""
    spec = objects["RayCluster"]["spec"]
    return {"head": spec["headGroupSpec"]} | {
        group["groupName"]: group for group in spec["workerGroupSpecs"]
    }


def container(group: Any, name: str) -> Any:
    """A container of a group."""
    (found,) = [one for one in group["template"]["spec"]["containers"] if one["name"] == name]
    return found


def test_the_objects_of_kubernetes(objects: dict[str, Any], groups: dict[str, Any]) -> None:
    """Kubernetes' schemas accept all of its own objects and the pods of the cluster, without unknown fields."""
    own = [one for kind, one in objects.items() if kind != "RayCluster"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} | group["template"]
        for name, group in groups.items()
    ]
    for one in own + pods:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pods[0] | {"spec": {"container": []}}, KUBERNETES, strict=True)


def test_the_cluster(objects: dict[str, Any], groups: dict[str, Any]) -> None:
    """KubeRay's fields have their names and types, its replicas their bounds, and Ray is of a version that unilect takes."""
    cluster = objects["RayCluster"]
    jsonschema.validate(cluster["spec"], RAY_CLUSTER)
    assert "ray.io/v1" == cluster["apiVersion"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = project["optional-dependencies"]["fleet"]
    version = cluster["spec"]["rayVersion"].split(".")
    least, below = re.findall(r"[><]=?(\d+)\.(\d+)", bounds)
    assert tuple(map(int, least)) <= tuple(map(int, version[:2])) < tuple(map(int, below))
    assert {"head", "gateway", "models"} == {*groups}
    for name in ("head", "gateway"):
        assert "0" == groups[name]["rayStartParams"]["num-cpus"]  # no model is placed there


def test_ray_comes_first(groups: dict[str, Any]) -> None:
    """KubeRay starts Ray in the first container of a pod, and gives it probes with wget where it has none of its own."""
    for group in groups.values():
        first = group["template"]["spec"]["containers"][0]
        assert "ray" == first["name"]
        assert "command" not in first
        for probe in ("readinessProbe", "livenessProbe"):
            assert "wget" not in str(first[probe])


def test_the_configuration(objects: dict[str, Any], groups: dict[str, Any], tmp_path: Path) -> None:
    """unilect accepts the configuration with the secrets that the pod has; its address and its token are those of the cluster."""
    gateway = container(groups["gateway"], "unilect")
    values = {
        "first_api_key": "sk-0123456789abcdef0123456789abcdef",
        "metrics_key": "sk-abcdef0123456789abcdef0123456789",
        "database_url": "postgresql://unilect:x@postgres/unilect",
        "redis_url": "redis://:x@redis:6379/0",
    }
    for name, value in values.items():
        (tmp_path / name).write_text(value)
    environment = {
        one["name"]: one["value"].replace("/run/secrets/unilect", str(tmp_path))
        for one in gateway["env"]
    }
    text = objects["ConfigMap"]["data"]["unilect.toml"]
    file = tmp_path / "unilect.toml"
    every = text.replace("# [models.mine]", "[models.mine]").replace("# source", "source")
    every = every.replace("# replicas", "replicas").replace("# resources", "resources")
    for one in (text, every):
        file.write_text(one)
        config = load(file, environment=environment)
        assert (values["first_api_key"], values["database_url"]) == (
            config.api_keys[0],
            config.store.url,
        )
    assert {"demo", "mine"} == {*config.models}
    assert all(model.replicas for model in config.models.values())
    name = objects["RayCluster"]["metadata"]["name"]
    assert f"{name}-head-svc:6379" == config.fleet.address
    assert 6379 in [port["containerPort"] for port in container(groups["head"], "ray")["ports"]]
    assert f"install -m 600 /run/fleet/auth_token {config.fleet.token_file}" in gateway["args"][0]
    assert config.port == gateway["ports"][0]["containerPort"]
    assert config.host == "0.0.0.0"


def test_the_gateway(objects: dict[str, Any], groups: dict[str, Any]) -> None:
    """The server shares its raylet's folder, has all volumes that it mounts, the operator's token, and time to stop."""
    spec = groups["gateway"]["template"]["spec"]
    gateway = container(groups["gateway"], "unilect")
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounts = {one["mountPath"]: one["name"] for one in gateway["volumeMounts"]}
    assert mounts["/tmp/ray"] in [one["name"] for one in container(groups["gateway"], "ray")["volumeMounts"]]  # fmt: skip
    assert {*mounts.values()} == {*volumes}
    assert spec["shareProcessNamespace"]
    assert objects["ConfigMap"]["metadata"]["name"] == volumes["config"]["configMap"]["name"]
    assert objects["RayCluster"]["metadata"]["name"] == volumes["token"]["secret"]["secretName"]
    assert "/etc/unilect/unilect.toml" in gateway["args"][0]
    assert mounts["/etc/unilect"] == "config"
    grace_s = tomllib.loads(objects["ConfigMap"]["data"]["unilect.toml"])["shutdown_grace_s"]
    assert grace_s + 10 < spec["terminationGracePeriodSeconds"]


def test_who_reaches_what(objects: dict[str, Any], groups: dict[str, Any]) -> None:
    """The service leads to gateways alone, and the policy lets nobody but the cluster's pods to any other port."""
    labels = groups["gateway"]["template"]["metadata"]["labels"]
    service, policy = objects["Service"]["spec"], objects["NetworkPolicy"]["spec"]
    assert labels == service["selector"]
    assert "http" == service["ports"][0]["targetPort"] == container(groups["gateway"], "unilect")["ports"][0]["name"]  # fmt: skip
    ours = {"ray.io/cluster": objects["RayCluster"]["metadata"]["name"]}
    assert ours == policy["podSelector"]["matchLabels"]
    inside, outside = policy["ingress"]
    assert ([{"podSelector": {"matchLabels": ours}}], [{"port": "http"}]) == (inside["from"], outside["ports"])  # fmt: skip
    assert "from" not in outside


def test_the_rights_of_pods(groups: dict[str, Any]) -> None:
    """No container runs as root, may become it, or has a token of Kubernetes; the user is the image's."""
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    for group in groups.values():
        spec = group["template"]["spec"]
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"]
        assert [int(id) for id in user.groups()] == [pod["runAsUser"], pod["runAsGroup"]]
        assert spec["automountServiceAccountToken"] is False
        for one in spec["containers"]:
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert ["ALL"] == one["securityContext"]["capabilities"]["drop"]
            assert "memory" in one["resources"]["limits"]


def test_the_image_for_a_login_shell() -> None:
    """KubeRay runs `ray start` in a login shell, which takes its PATH from /etc/profile: the image's programs are on it."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r'"PATH=/opt/unilect/bin:\\\$PATH" >/etc/profile\.d/\w+\.sh', text)
