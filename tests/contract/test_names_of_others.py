"""Nothing of ours has a name of Kubernetes or of a common add-on: `kubectl get quota` means ResourceQuota.

names_of_others.yaml has their names, with sources. kubectl takes a word for a plural, a singular, a short name or a
category, and a category wins over a short name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

import crds
from bizrq import registration
from bizrq.api import overlap
from bizrq.api.group import API_GROUP, FINALIZER
from bizrq.cli.manifests_of_bizrq import InstallPlan, install_objects
from bizrq.cli.manifests_of_web import WebPlan, web_objects
from bizrq.kube.client import KubeClient
from bizrq.settings import settings
from bizrq.store.processes import WEB, ProcessInfo, lease_of
from bizrq.workloads.labels import LABEL, MODEL_LABELS, REQUIRED
from controller.manager import LEASE
from tests.support.objects import CRDS, Object

OTHERS = yaml.safe_load(Path(__file__).with_name("names_of_others.yaml").read_text("utf-8"))
PLAN = InstallPlan("bizrq-system", "bizrq:1", 2, " ", " ", "x", ("10.0.0.0/24",))
INSTALLED = [*install_objects(settings({}), PLAN), *web_objects(PLAN, WebPlan("https://quota.example.com"))]
#: Kubernetes recommends these for everybody's objects; the values are ours.
SHARED = ("app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/managed-by")
#: Kubernetes adds the rules of roles with this label to its role `view`.
AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-view"


def of_others(what: str) -> set[str]:
    """All that the projects have of this."""
    return {word for project in OTHERS["projects"] for word in project.get(what, "").split()}


def _names() -> list[dict[str, Any]]:
    return [definition["spec"]["names"] for definition in crds.load()]


def _words(names: dict[str, Any]) -> list[str]:
    return [names["plural"], names["singular"], *names.get("shortNames", ()), *names.get("categories", ())]


@pytest.mark.parametrize("names", _names(), ids=lambda names: names["kind"])
def test_no_kind_answers_to_a_name_of_others(names: dict[str, Any]) -> None:
    assert not of_others("words").intersection(_words(names))


def test_every_kind_is_in_the_category_and_has_a_short_name_of_its_own() -> None:
    found = _names()
    assert all(names["categories"] == ["bizgroup"] for names in found)
    short = [name for names in found for name in names["shortNames"]]
    assert len(set(short)) == len(found)
    # `kubectl get bizrq NAME` fails where a category has the name of a short name.
    everything = [word for names in found for word in (names["plural"], names["singular"], *names["shortNames"])]
    assert len(set(everything)) == len(everything)
    assert "bizgroup" not in everything


@pytest.mark.real
async def test_the_list_has_every_name_of_kubernetes(real_cluster: Any) -> None:
    """A name that a new version adds fails here, and then is compared with ours."""
    async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as client:

        async def read(path: str) -> Object:
            return orjson.loads(await client.request("GET", path))

        # Other tests store kinds of other projects, and one of those has a group of Kubernetes' domain.
        custom = {definition["spec"]["group"] for definition in (await client.list(CRDS))[0]}
        groups = [group for group in (await read("/apis"))["groups"] if group["name"] not in custom]
        paths = ["/api/v1", *(f"/apis/{v['groupVersion']}" for group in groups for v in group["versions"])]
        resources = [each for path in paths for each in (await read(path))["resources"] if "/" not in each["name"]]
    words = {word for each in resources for word in _served_words(each)}
    assert len(words) > 100
    [kubernetes] = [project for project in OTHERS["projects"] if project["name"] == "Kubernetes"]
    missing = " ".join(sorted(words - set(kubernetes["words"].split())))
    assert not missing


def _served_words(resource: Object) -> Iterator[str]:
    yield resource["name"]
    yield from (word for word in (resource.get("singularName"),) if word)
    yield from (*resource.get("shortNames", ()), *resource.get("categories", ()))


def _keys(value: Any) -> Iterator[tuple[str, str]]:
    """The labels and annotations that stand anywhere in an object."""
    if isinstance(value, dict):
        for name in ("labels", "annotations", "matchLabels"):
            if isinstance(value.get(name), dict):
                yield from ((key, text) for key, text in value[name].items() if isinstance(text, str))
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def test_labels_annotations_finalizers_and_the_group_of_the_api_are_of_no_other_domain() -> None:
    theirs = of_others("groups")
    read = [LABEL, REQUIRED, *MODEL_LABELS.values(), FINALIZER]
    # A CRD's schema has a property `labels`, and bases on it no label.
    written = [
        (key, text) for obj in INSTALLED if obj["kind"] != "CustomResourceDefinition" for key, text in _keys(obj)
    ]
    shared = {text for key, text in written if key in SHARED}
    own = {key for key, _ in written if key not in (*SHARED, AGGREGATED)}
    assert shared == {"bizrq", "bizrq-install", "webhooks", "controller", "certs", "web"}
    assert own
    for key in {*read, *own, f"{API_GROUP}/x"}:
        domain = key.partition("/")[0]
        assert domain.endswith("biz.group") or domain.startswith("biz.group"), key
        assert not any(domain == other or domain.endswith(f".{other}") for other in theirs), key


def test_webhooks_policies_and_leases_have_names_of_their_own() -> None:
    made = registration.configuration(settings({}), registration.by_service("bizrq-system"), namespace="bizrq-system")
    webhooks = {webhook["name"] for webhook in made["webhooks"]}
    assert len(webhooks) > 10
    assert all(name.endswith(f".{API_GROUP}") for name in webhooks)
    names = {registration.NAME, overlap.NAME, *webhooks}
    assert not names & of_others("webhooks")
    theirs = of_others("leases")
    for process in ("bizrq-webhooks", "bizrq-controller", "bizrq-certs", WEB):
        info = ProcessInfo(process, f"host_1_{'0' * 8}", "1", ("1",))
        metadata = lease_of(info, "bizrq-system")["metadata"]
        assert metadata["name"].startswith("bizrq-")
        assert metadata["name"] not in theirs
    assert LEASE not in theirs
    cluster_wide = [obj for obj in INSTALLED if "namespace" not in obj["metadata"]]
    for obj in cluster_wide:
        if obj["kind"] != "CustomResourceDefinition":
            assert obj["metadata"]["name"].startswith("bizrq"), obj["metadata"]


def test_ports_are_free_in_a_pod_with_a_sidecar_and_take_none_of_a_node() -> None:
    """In a pod's network only what is in the pod can have taken one. In a node's, some of ours may be taken."""
    sidecars = {port for mesh in OTHERS["sidecars"] for port in mesh["ports"]}
    nodes = {port for user in OTHERS["nodes"] for port in user["ports"]}
    specs = [obj["spec"]["template"]["spec"] for obj in INSTALLED if obj["kind"] == "Deployment"]
    ports = [port for spec in specs for container in spec["containers"] for port in container["ports"]]
    assert len(specs) == 4
    assert not sidecars & {port["containerPort"] for port in ports}
    assert not any(spec.get("hostNetwork") for spec in specs)
    assert not any("hostPort" in port for port in ports)
    taken = {port["containerPort"] for port in ports} & nodes
    assert taken == {9091, 9093}, "docs/operations.md names the ports that another program of a node may have"
