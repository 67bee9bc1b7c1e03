"""docs/operations.md, "While no webhook answers": requests of people, operators and Kubernetes to a real API server.

Each is sent as kubectl or the component sends it, while nothing listens where the webhooks are registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
import pytest_asyncio

import crds
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.workloads.labels import LABEL
from tests.docs.test_entries import LABELS, SPACES, table, unanswered
from tests.support.binaries import program
from tests.support.cluster import Real, eventually, has_kinds, sweep
from tests.support.objects import CLAIMS, DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object, correction, namespace

pytestmark = pytest.mark.real

#: Where each resource is served.
SERVED = {
    resource: prefix
    for prefix, resources in {
        "/api/v1": "configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims persistentvolumes "
        "pods podtemplates replicationcontrollers resourcequotas secrets serviceaccounts services",
        "/apis/apps/v1": "controllerrevisions daemonsets deployments replicasets statefulsets",
        "/apis/batch/v1": "cronjobs jobs",
        "/apis/autoscaling/v2": "horizontalpodautoscalers",
        "/apis/policy/v1": "poddisruptionbudgets",
        "/apis/coordination.k8s.io/v1": "leases",
        "/apis/discovery.k8s.io/v1": "endpointslices",
        "/apis/networking.k8s.io/v1": "ingresses ingressclasses networkpolicies",
        "/apis/rbac.authorization.k8s.io/v1": "clusterrolebindings clusterroles rolebindings roles",
        "/apis/authorization.k8s.io/v1": "selfsubjectaccessreviews subjectaccessreviews",
        "/apis/authentication.k8s.io/v1": "tokenreviews",
        "/apis/storage.k8s.io/v1": "csidrivers storageclasses",
        "/apis/scheduling.k8s.io/v1": "priorityclasses",
        "/apis/node.k8s.io/v1": "runtimeclasses",
        "/apis/resource.k8s.io/v1": "deviceclasses resourceclaims resourceclaimtemplates resourceslices",
        "/apis/apiextensions.k8s.io/v1": "customresourcedefinitions",
        "/apis/certificates.k8s.io/v1": "certificatesigningrequests",
        "/apis/admissionregistration.k8s.io/v1": "validatingwebhookconfigurations validatingadmissionpolicies",
        "/apis/flowcontrol.apiserver.k8s.io/v1": "flowschemas",
        "/apis/quota.biz.group/v1alpha1": "bizgroupcorrections bizgrouprecords bizgroupresourcequotas",
    }.items()
    for resource in resources.split()
}
#: How kubectl and client-go change an object.
PATCHES = {
    "patch": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
#: What is applied server-side, and our own kinds: an API server does not take these without their kind.
KINDS = {
    "bizgroupcorrections": "BizGroupCorrection",
    "bizgroupresourcequotas": "BizGroupResourceQuota",
    "configmaps": "ConfigMap",
    "deployments": "Deployment",
    "statefulsets": "StatefulSet",
}
KUBE_SYSTEM = "system:serviceaccount:kube-system:"
SCHEDULER = "system:kube-scheduler"


Clients = dict[str, KubeClient]
Targets = Callable[["Sent"], dict[str, "Target"]]


@dataclass(frozen=True, eq=False)
class Sent:
    """A request: the verb, the resource with its subresource, the body, and the object that is there before.

    `user` is a component of Kubernetes; "" is the administrator. `name` is that of the object; "" is one of its own.
    """

    verb: str
    what: str
    body: Any = None
    on: Object | None = None
    user: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


class Target:
    """Sends requests about one object."""

    def __init__(self, space: str, name: str, owner: str = "") -> None:
        """`owner` is the uid of the Deployment that owns what the request names as owned."""
        self.space, self.name, self.owner = space, name, owner

    async def send(self, client: KubeClient, verb: str, what: str, body: Any = None) -> Object:
        """Send one request. Raises ApiError."""
        resource, _, sub = what.partition("/")
        space = f"/namespaces/{self.space}" if self.space else ""
        collection = f"{SERVED[resource]}{space}/{resource}"
        one = f"{collection}/{self.name}" + (f"/{sub}" if sub else "")
        params: dict[str, str] = {}
        match verb:
            case "create":
                method, path, body = "POST", one if sub else collection, self._whole(resource, body)
            case "update":
                method, path, body = "PUT", one, self._whole(resource, body)
            case "delete":
                method, path = "DELETE", one
            case "deletecollection":
                method, path, params = "DELETE", collection, {"fieldSelector": f"metadata.name={self.name}"}
            case "apply":
                method, path, body = "PATCH", one, self._whole(resource, body)
                params = {"fieldManager": "kubectl", "force": "true"}
            case _:
                method, path = "PATCH", one
        answer = await client.request(
            method,
            path,
            body=orjson.dumps(body) if body is not None else None,
            params=params,
            content_type=PATCHES.get(verb, "application/json"),
        )
        return orjson.loads(answer)

    def _whole(self, resource: str, body: Object) -> Object:
        if resource.endswith("reviews"):
            return body
        metadata = {**body.get("metadata", {}), "name": self.name, **({"namespace": self.space} if self.space else {})}
        if "ownerReferences" in metadata:
            metadata["ownerReferences"] = [{**each, "uid": self.owner} for each in metadata["ownerReferences"]]
        if "involvedObject" in body:
            body = {**body, "involvedObject": {"namespace": self.space}}
        api_version = SERVED[resource].removeprefix("/api/").removeprefix("/apis/")
        typed = {"apiVersion": api_version, "kind": KINDS[resource]} if resource in KINDS else {}
        return {**typed, **body, "metadata": metadata}


def labelled(body: Object) -> Object:
    """The object with the label of a group."""
    metadata = body.get("metadata", {})
    return {**body, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), LABEL: "nlp"}}}


def owned(body: Object, kind: str, api_version: str = "apps/v1") -> Object:
    """The object with a controller, that of the namespace where it is a Deployment."""
    owner = {"apiVersion": api_version, "kind": kind, "name": OWNER, "controller": True}
    return {**body, "metadata": {**body.get("metadata", {}), "ownerReferences": [owner]}}


def cpu(amount: str) -> Object:
    return {"resources": {"limits": {"cpu": amount}, "requests": {"cpu": amount}}}


def template(**container: Any) -> Object:
    return {"template": {"spec": {"containers": [{"name": "c", **container}]}}}


OWNER = "owner"
LIVES = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "x", **cpu("1")}]}}
APP = {"selector": {"matchLabels": {"app": "x"}}, "template": LIVES}
POD = {"spec": LIVES["spec"]}
DEPLOYMENT = {"spec": {**APP, "replicas": 2}}
STATEFUL = {"spec": {**APP, "replicas": 2, "serviceName": "x"}}
DAEMON = {"spec": APP}
REPLICAS = {"spec": {**APP, "replicas": 0}}
OLD_REPLICAS = {"spec": {"selector": {"app": "x"}, "template": LIVES, "replicas": 0}}
RUNS = {"metadata": LIVES["metadata"], "spec": {**LIVES["spec"], "restartPolicy": "Never"}}
JOB = {"spec": {"template": RUNS}}
CRON = {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": RUNS}}}}
RESTART = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}}}
RESTARTED = {"spec": {"template": RESTART}}
ANNOTATED = {"metadata": {"annotations": {"a": "b"}}}
DEVICES = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
CLAIM = {"spec": DEVICES}
CLAIM_TEMPLATE = {"spec": {"spec": DEVICES}}
POD_TEMPLATE = {"template": LIVES}
SCALED = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}, "maxReplicas": 3}
SCALE = {"apiVersion": "autoscaling/v1", "kind": "Scale"}
KEPT = {"metadata": {"finalizers": ["example.com/kept"]}}
FINALIZED = {"metadata": {"finalizers": None}}
RULES = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
ROLE_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
SUBJECTS = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]
MAY = {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}

APART = {
    "selector": {"matchLabels": {"app": "apart"}},
    "template": {"metadata": {"labels": {"app": "apart"}}, "spec": LIVES["spec"]},
}
#: The Deployment keeps it: its controller would take the owner out of any other at some moment.
KEPT_REPLICAS = {**REPLICAS, "metadata": {"labels": {"app": "apart"}}}

#: Requests about objects in a namespace, by the row of the page that has them.
IN_NAMESPACE: dict[str, list[Sent]] = {
    "make a pod": [
        Sent("create", "pods", POD),
    ],
    "make a workload with the label: any charged kind, by `create` or `apply`": [
        Sent("create", "pods", labelled(POD)),
        Sent("create", "jobs", labelled(JOB)),
        Sent("create", "cronjobs", labelled(CRON)),
        Sent("apply", "statefulsets", labelled(STATEFUL)),
        Sent("create", "replicationcontrollers", labelled(OLD_REPLICAS)),
    ],
    "make a workload without the label": [
        Sent("create", "jobs", JOB),
        Sent("create", "cronjobs", CRON),
        Sent("apply", "statefulsets", STATEFUL),
        Sent("apply", "deployments", DEPLOYMENT),
        Sent("create", "daemonsets", DAEMON),
    ],
    "change image, resources, count or `suspend` of one without the label, restart or pause it": [
        Sent("patch", "statefulsets", {"spec": template(image="y")}, STATEFUL),
        Sent("patch", "statefulsets", {"spec": template(**cpu("2"))}, STATEFUL),
        Sent("patch", "daemonsets", RESTARTED, DAEMON),
        Sent("patch", "deployments", {"spec": {"paused": True}}, DEPLOYMENT),
        Sent("merge", "deployments", {"spec": {"replicas": 3}}, DEPLOYMENT),
        Sent("patch", "cronjobs", {"spec": {"suspend": True}}, CRON),
        Sent("patch", "jobs", {"spec": {"suspend": True}}, JOB),
    ],
    "the same of one with the label, also to fewer replicas in its spec": [
        Sent("patch", "daemonsets", RESTARTED, labelled(DAEMON)),
        Sent("patch", "deployments", {"spec": {"replicas": 1}}, labelled(DEPLOYMENT)),
        Sent("patch", "cronjobs", {"spec": {"suspend": True}}, labelled(CRON)),
    ],
    "give a workload the label, or take it off": [
        Sent("merge", "deployments", {"metadata": {"labels": {LABEL: "nlp"}}}, DEPLOYMENT),
        Sent("merge", "deployments", {"metadata": {"labels": {LABEL: None}}}, labelled(DEPLOYMENT)),
    ],
    "scale up by `/scale`, as an autoscaler does": [
        Sent("merge", "statefulsets/scale", {"spec": {"replicas": 3}}, STATEFUL),
        Sent(
            "update",
            "deployments/scale",
            {**SCALE, "spec": {"replicas": 3}},
            DEPLOYMENT,
            user=f"{KUBE_SYSTEM}horizontal-pod-autoscaler",
        ),
    ],
    "scale down by `/scale`, as an autoscaler does": [
        Sent("merge", "statefulsets/scale", {"spec": {"replicas": 0}}, labelled(STATEFUL)),
        Sent(
            "update",
            "deployments/scale",
            {**SCALE, "spec": {"replicas": 1}},
            labelled(DEPLOYMENT),
            user=f"{KUBE_SYSTEM}horizontal-pod-autoscaler",
        ),
    ],
    "write annotations, other labels, finalizers or a status": [
        Sent("patch", "pods", ANNOTATED, labelled(POD)),
        Sent("patch", "statefulsets", ANNOTATED, labelled(STATEFUL)),
        Sent("patch", "jobs", {"metadata": {"labels": {"team": "a"}}}, labelled(JOB)),
        Sent("merge", "deployments", {"metadata": {"finalizers": ["foregroundDeletion"]}}, labelled(DEPLOYMENT)),
        Sent("merge", "pods", FINALIZED, labelled({**POD, **KEPT})),
        Sent("merge", "deployments/status", {"status": {"observedGeneration": 1}}, labelled(DEPLOYMENT)),
        Sent("patch", "pods/status", {"status": {"phase": "Running"}}, labelled(POD)),
        Sent("merge", "jobs/status", {"status": {"active": 1}}, labelled(JOB)),
    ],
    "delete, with any propagation policy": [
        Sent("delete", "pods", {"gracePeriodSeconds": 0}, labelled(POD)),
        Sent("deletecollection", "pods", None, labelled(POD)),
        Sent("delete", "deployments", {"propagationPolicy": "Foreground"}, labelled(DEPLOYMENT)),
        Sent("delete", "deployments", {"propagationPolicy": "Orphan"}, labelled(DEPLOYMENT)),
        Sent("delete", "jobs", {"propagationPolicy": "Background"}, labelled(JOB)),
        Sent("delete", "cronjobs", None, labelled(CRON)),
    ],
    "evict, bind or debug a pod, as a drain, the scheduler or an ephemeral container does": [
        Sent("create", "pods/eviction", {}, labelled(POD)),
        Sent("create", "pods/binding", {"target": {"kind": "Node", "name": "n1"}}, labelled(POD), user=SCHEDULER),
        Sent(
            "patch",
            "pods/ephemeralcontainers",
            {"spec": {"ephemeralContainers": [{"name": "debugger", "image": "x"}]}},
            labelled(POD),
        ),
    ],
    "resize a pod in place": [
        Sent("patch", "pods/resize", {"spec": {"containers": [{"name": "c", **cpu("2")}]}}, POD),
    ],
    "Kubernetes makes pods, makes and scales ReplicaSets": [
        Sent("create", "pods", owned(POD, "ReplicaSet"), user=f"{KUBE_SYSTEM}replicaset-controller"),
        Sent("create", "pods", labelled(owned(POD, "ReplicaSet")), user=f"{KUBE_SYSTEM}replicaset-controller"),
        Sent("create", "pods", labelled(owned(POD, "Job", "batch/v1")), user=f"{KUBE_SYSTEM}job-controller"),
        Sent(
            "create",
            "replicasets",
            labelled(owned(KEPT_REPLICAS, "Deployment")),
            user=f"{KUBE_SYSTEM}deployment-controller",
        ),
        Sent(
            "merge",
            "replicasets",
            {"spec": {"replicas": 2}},
            labelled(owned(KEPT_REPLICAS, "Deployment")),
            user=f"{KUBE_SYSTEM}deployment-controller",
        ),
    ],
    "a CronJob makes a Job whose template has the label": [
        Sent("create", "jobs", labelled(owned(JOB, "CronJob", "batch/v1")), user=f"{KUBE_SYSTEM}cronjob-controller"),
    ],
    "a CronJob makes another Job": [
        Sent("create", "jobs", owned(JOB, "CronJob", "batch/v1"), user=f"{KUBE_SYSTEM}cronjob-controller"),
    ],
    "Kubernetes orphans a ReplicaSet with the label, of a Deployment deleted with `--cascade=orphan`": [
        Sent(
            "merge",
            "replicasets",
            {"metadata": {"ownerReferences": None}},
            labelled(owned(KEPT_REPLICAS, "Deployment")),
            user=f"{KUBE_SYSTEM}generic-garbage-collector",
        ),
    ],
    "Kubernetes orphans another ReplicaSet": [
        Sent(
            "merge",
            "replicasets",
            {"metadata": {"ownerReferences": None}},
            owned(KEPT_REPLICAS, "Deployment"),
            user=f"{KUBE_SYSTEM}generic-garbage-collector",
        ),
    ],
    "make or change an autoscaler": [
        Sent("create", "horizontalpodautoscalers", {"spec": SCALED}),
        Sent("merge", "horizontalpodautoscalers", {"spec": {"maxReplicas": 9}}, {"spec": SCALED}),
    ],
    "give a PodTemplate another image": [
        Sent("patch", "podtemplates", {"template": template(image="y")["template"]}, POD_TEMPLATE),
    ],
    "make a PodTemplate, or change its resources": [
        Sent("create", "podtemplates", POD_TEMPLATE),
        Sent("patch", "podtemplates", {"template": template(**cpu("2"))["template"]}, POD_TEMPLATE),
    ],
    "make or delete claims and claim templates by hand": [
        Sent("create", "resourceclaims", CLAIM),
        Sent("create", "resourceclaimtemplates", CLAIM_TEMPLATE),
        Sent("delete", "resourceclaimtemplates", None, CLAIM_TEMPLATE),
        Sent("delete", "resourceclaims", None, CLAIM),
    ],
    "Kubernetes makes a pod's own claim, or writes a status": [
        Sent("create", "resourceclaims", owned(CLAIM, "Pod", "v1"), user=f"{KUBE_SYSTEM}resource-claim-controller"),
        Sent("merge", "resourceclaims/status", {"status": {}}, CLAIM),
    ],
    "write anything else: ConfigMaps, Secrets, Services, tokens, roles, volumes, Leases, events …": [
        Sent("create", "configmaps", {"data": {"a": "b"}}),
        Sent("apply", "configmaps", {"data": {"a": "b"}}),
        Sent("merge", "configmaps", {"data": {"a": "c"}}, {"data": {"a": "b"}}),
        Sent("delete", "configmaps", None, {}),
        Sent("create", "secrets", {"stringData": {"a": "b"}}),
        Sent("create", "services", {"spec": {"ports": [{"port": 80}]}}),
        Sent("create", "endpointslices", {"addressType": "IPv4", "endpoints": []}),
        Sent("create", "serviceaccounts", {}),
        Sent("create", "serviceaccounts/token", {"spec": {"expirationSeconds": 600}}, {}),
        Sent("create", "roles", RULES),
        Sent("create", "rolebindings", {"roleRef": ROLE_REF, "subjects": SUBJECTS}),
        Sent(
            "create",
            "persistentvolumeclaims",
            {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
        ),
        Sent("create", "ingresses", {"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}}),
        Sent("create", "networkpolicies", {"spec": {"podSelector": {}}}),
        Sent("create", "poddisruptionbudgets", {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
        Sent("create", "limitranges", {"spec": {"limits": [{"type": "Container", "max": {"cpu": "99"}}]}}),
        Sent("create", "resourcequotas", {"spec": {"hard": {"count/secrets": "99"}}}),
        Sent("create", "leases", {"spec": {"holderIdentity": "a"}}),
        Sent("merge", "leases", {"spec": {"holderIdentity": "b"}}, {"spec": {"holderIdentity": "a"}}),
        Sent("create", "events", {"involvedObject": {}, "reason": "a"}),
        Sent("create", "controllerrevisions", {"revision": 1, "data": {}}),
    ],
}

GROUP = {"spec": {"hard": {"limits.cpu": "4"}}}
NODE = {"spec": {}, "status": {}}
DRIVER = {"provisioner": "example.com/disk"}
VOLUME = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
MANAGED = {"metadata": {"labels": {"quota": "on"}}}
CHARGES = {"metadata": {"labels": {LABEL: "nlp"}}}
BOTH = {"metadata": {"labels": {"quota": "on", LABEL: "nlp"}}}


SCHEMA = {"openAPIV3Schema": {"type": "object"}}
THINGS = {
    "spec": {
        "group": "example.com",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "scope": "Cluster",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    }
}


#: Requests about objects of the cluster, by the row of the page that has them.
OF_CLUSTER: dict[str, list[Sent]] = {
    "create, change or delete a group": [
        Sent("create", "bizgroupresourcequotas", GROUP),
        Sent("merge", "bizgroupresourcequotas", {"spec": {"hard": {"limits.cpu": "5"}}}, GROUP),
        Sent("delete", "bizgroupresourcequotas", None, GROUP),
    ],
    "annotate a group, or write its status": [
        Sent("merge", "bizgroupresourcequotas", ANNOTATED, GROUP),
        Sent("merge", "bizgroupresourcequotas/status", {"status": {"used": {"limits.cpu": "1"}}}, GROUP),
    ],
    "correct hours": [
        Sent("create", "bizgroupcorrections", correction("", "nlp", {"cash/nvidia.com/gpu": "1"})),
    ],
    "create, annotate or delete namespaces; label unmanaged ones": [
        Sent("create", "namespaces", {}),
        Sent("create", "namespaces", MANAGED),
        Sent("create", "namespaces", CHARGES),
        Sent("patch", "namespaces", ANNOTATED, BOTH),
        Sent("patch", "namespaces", CHARGES, {}),
        Sent("delete", "namespaces", None, BOTH),
    ],
    "bring a namespace under management, or take it out": [
        Sent("patch", "namespaces", MANAGED, {}),
        Sent("merge", "namespaces", {"metadata": {"labels": {"quota": None}}}, MANAGED),
    ],
    "give a managed namespace a default group, or take it off": [
        Sent("create", "namespaces", BOTH),
        Sent("patch", "namespaces", CHARGES, MANAGED),
        Sent("merge", "namespaces", {"metadata": {"labels": {LABEL: None}}}, BOTH),
    ],
    "add, label, cordon or remove nodes, write their status": [
        Sent("create", "nodes", NODE),
        Sent("patch", "nodes", {"spec": {"unschedulable": True}}, NODE),
        Sent("patch", "nodes", {"metadata": {"labels": {"a": "b"}}}, NODE),
        Sent("delete", "nodes", None, NODE),
        Sent("patch", "nodes/status", {"status": {"capacity": {"cpu": "9"}}}, NODE),
    ],
    "write anything else: volumes, classes, roles, CRDs, reviews of tokens and rights …": [
        Sent("create", "customresourcedefinitions", THINGS, name="things.example.com"),
        Sent("create", "persistentvolumes", {"spec": VOLUME}),
        Sent("create", "storageclasses", DRIVER),
        Sent("create", "csidrivers", {"spec": {}}),
        Sent("create", "priorityclasses", {"value": 1}),
        Sent("create", "runtimeclasses", {"handler": "x"}),
        Sent("create", "deviceclasses", {"spec": {}}),
        Sent("create", "ingressclasses", {"spec": {"controller": "example.com/x"}}),
        Sent("create", "clusterroles", RULES),
        Sent("create", "clusterrolebindings", {"roleRef": ROLE_REF, "subjects": SUBJECTS}),
        Sent("create", "tokenreviews", {"spec": {"token": "x"}}),
        Sent("create", "subjectaccessreviews", {"spec": MAY}),
        Sent("create", "selfsubjectaccessreviews", {"spec": {"resourceAttributes": MAY["resourceAttributes"]}}),
        Sent("create", "validatingwebhookconfigurations", {"webhooks": []}),
        Sent(
            "create",
            "flowschemas",
            {"spec": {"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 9}},
        ),
    ],
}


#: A namespace that is deleted while nobody answers.
ENDS = "outage-ends"
#: Whether anybody makes ReplicaSets and empties namespaces.
ACTS = program("kube-controller-manager") is not None
IN_SPACES = [sent for each in IN_NAMESPACE.values() for sent in each]
WITHOUT_SPACE = [sent for each in OF_CLUSTER.values() for sent in each]
NAMES = {id(sent): sent.name or f"r{number}" for number, sent in enumerate((*IN_SPACES, *WITHOUT_SPACE))}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(real_cluster: Real) -> AsyncIterator[Clients]:
    """A client of each user."""
    async with contextlib.AsyncExitStack() as stack:
        found: Clients = {}
        for user in sorted({sent.user for sent in IN_SPACES}):
            service = ("system:serviceaccounts", "system:serviceaccounts:kube-system")
            groups = ("system:authenticated", *(service if user.startswith(KUBE_SYSTEM) else ()))
            who = Overrides(impersonated=user, groups=groups) if user else Overrides()
            client = KubeClient(from_kubeconfig(real_cluster.kubeconfig, None, who))
            found[user] = await stack.enter_async_context(client)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def targets(clients: Clients) -> AsyncIterator[Targets]:
    """What each request is about, by the kind of its namespace; the objects are there, and nobody answers."""
    client = clients[""]
    await has_kinds(client, crds.load())
    await client.create(NAMESPACES, namespace(ENDS, **LABELS["managed, with a default group"]))
    for resource, body in (("deployments", labelled(DEPLOYMENT)), ("resourceclaims", CLAIM)):
        await Target(ENDS, "x").send(client, "create", resource, body)
    if ACTS:
        # Nobody answers for it once the webhooks are registered, and controllers act on all else that is there by then.
        await eventually(lambda: _held(client, REPLICASETS), 60, f"the Deployment in {ENDS} has a ReplicaSet")
    spaces = {space: f"outage-{number}" for number, space in enumerate(SPACES)}
    owners: dict[str, str] = {}
    for space, name in spaces.items():
        await client.create(NAMESPACES, namespace(name, **LABELS.get(space, {})))
        made = await Target(name, OWNER).send(client, "create", "deployments", {"spec": {**APART, "replicas": 0}})
        owners[space] = made["metadata"]["uid"]

    def of(sent: Sent) -> dict[str, Target]:
        if sent in WITHOUT_SPACE:
            return {"": Target("", NAMES[id(sent)])}
        return {space: Target(name, NAMES[id(sent)], owners[space]) for space, name in spaces.items()}

    for sent in (*IN_SPACES, *WITHOUT_SPACE):
        for target in of(sent).values() if sent.on is not None else ():
            await target.send(client, "create", sent.what.partition("/")[0], sent.on)
    async with unanswered(client, spaces):
        yield of
    for sent in WITHOUT_SPACE:
        if not sent.what.endswith("reviews"):
            with contextlib.suppress(NotFound):
                await of(sent)[""].send(client, "delete", sent.what.partition("/")[0])
    for name in spaces.values():
        await client.delete(NAMESPACES, name)
    await sweep(client)
    if ACTS:
        # What is left there would be charged to the groups of the next tests.
        await eventually(lambda: _are_gone(client, set(spaces.values())), 120, "the namespaces are gone")


async def _are_gone(client: KubeClient, spaces: set[str]) -> bool:
    """Return whether namespaces that are being deleted are gone. No node ends their pods."""
    for pod in (await client.list(PODS))[0]:
        if (space := pod["metadata"]["namespace"]) in spaces:
            path = PODS.path(space, pod["metadata"]["name"])
            with contextlib.suppress(NotFound):
                await client.request("DELETE", path, body=orjson.dumps({"gracePeriodSeconds": 0}))
    return spaces.isdisjoint(each["metadata"]["name"] for each in (await client.list(NAMESPACES))[0])


async def _held(client: KubeClient, *resources: Resource) -> list[str]:
    """Return the names of what is in the namespace that is deleted."""
    return [obj["metadata"]["name"] for each in resources for obj in (await client.list(each, ENDS))[0]]


async def outcome(clients: Clients, sent: Sent, target: Target) -> str:
    """In the words of the page, or what is wrong with the request."""
    try:
        await target.send(clients[sent.user], sent.verb, sent.what, sent.body)
    except ApiError as error:
        return "refused" if "failed calling webhook" in error.message else error.message
    return "passes"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("row", table("other request"), ids=lambda row: row[0])
async def test_a_request_in_a_namespace_does_what_the_page_says(
    clients: Clients, targets: Targets, row: list[str]
) -> None:
    request, *cells = row
    for sent in IN_NAMESPACE[request]:
        found = [await outcome(clients, sent, target) for target in targets(sent).values()]
        said = ["passes", "passes", "passes", *cells]
        assert dict(zip(SPACES, found, strict=True)) == dict(zip(SPACES, said, strict=True)), str(sent)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("row", table("request to the cluster"), ids=lambda row: row[0])
async def test_a_request_to_the_cluster_does_what_the_page_says(
    clients: Clients, targets: Targets, row: list[str]
) -> None:
    request, said = row
    for sent in OF_CLUSTER[request]:
        assert await outcome(clients, sent, targets(sent)[""]) == said, str(sent)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("targets")
@pytest.mark.skipif(not ACTS, reason="nobody empties a namespace where no kube-controller-manager is found")
async def test_a_namespace_goes_with_all_that_is_charged_in_it(clients: Clients) -> None:
    """Kubernetes deletes its workloads, pods and claims, and asks no webhook for it."""
    client, charged = clients[""], (DEPLOYMENTS, REPLICASETS, CLAIMS)
    assert all([await _held(client, each) for each in charged])
    await client.delete(NAMESPACES, ENDS)

    async def is_empty() -> bool:
        return not await _held(client, *charged)

    await eventually(is_empty, 60, f"all that is charged in {ENDS} is gone")


def test_the_page_has_a_row_for_each_of_these_requests() -> None:
    assert [row[0] for row in table("other request")] == list(IN_NAMESPACE)
    assert [row[0] for row in table("request to the cluster")] == list(OF_CLUSTER)


def test_at_least_forty_kinds_of_request_are_made_in_each_kind_of_namespace() -> None:
    assert len({str(sent) for sent in IN_SPACES}) >= 40
