"""The policy that rejects pods of listed workloads, asked as one of Kubernetes' controllers that makes a pod.

An API server looks at its policies once a second, and may know a kind of ours half a minute after its CRD is there.
"""

from __future__ import annotations

from pathlib import Path

from bizrq.api import overlap
from bizrq.kube import config
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource
from controller.overlap import OVERLAPS
from tests.support.cluster import Cluster, eventually
from tests.support.objects import PODS, Object, template

#: An account of Kubernetes' own that may create pods.
MAKER = "system:serviceaccount:kube-system:replicaset-controller"
_PROBE = "probe-of-a-test"


def as_maker(kubeconfig: Path) -> KubeClient:
    """A client with the name of the account, for `async with`."""
    return KubeClient(config.from_kubeconfig(kubeconfig, None, config.Overrides(impersonated=MAKER)))


def pod_of(uid: str, *, namespace: str = "default", name: str = "probe", owner: str = "probe") -> Object:
    """A pod of a ReplicaSet of this uid."""
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": uid, "controller": True}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(0)["spec"]}


async def rejection(maker: KubeClient, obj: Object, resource: Resource = PODS) -> str:
    """The words of the policy for this object, "" where it may be created."""
    try:
        await maker.create(resource, obj, dry_run=True)
    except ApiError as error:
        if f"ValidatingAdmissionPolicy '{overlap.NAME}'" not in error.message:
            raise
        return error.message.partition("denied request: ")[2]
    return ""


async def applies(cluster: Cluster, admin: KubeClient) -> None:
    """Wait until the policy is applied with what the list has now. A controller may write the list meanwhile."""

    async def is_rejected() -> bool:
        await _mark(admin, _PROBE)
        return await rejection(maker, pod_of(_PROBE)) == _PROBE

    async with as_maker(cluster.kubeconfig) as maker:
        await eventually(is_rejected, 90, "the policy applies")
    await _mark(admin, None)


async def _mark(admin: KubeClient, text: str | None) -> None:
    try:
        await admin.patch(OVERLAPS, overlap.NAME, {"listed": {_PROBE: text}})
    except NotFound:
        body = overlap.overlap_list({_PROBE: text} if text else {})
        try:
            await admin.create(OVERLAPS, body)
        except AlreadyExists:
            await _mark(admin, text)
