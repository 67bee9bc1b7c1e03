"""What pods, claims and nodes show beyond what workloads declare: counted, reported, and metered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bizrq.api import hours as wire
from bizrq.api.hours import CardHours
from sandbox.clock import rfc3339
from tests.controller.conftest import Books
from tests.support.objects import (
    CLAIMS,
    NAMESPACES,
    NODES,
    PODS,
    TFJOBS,
    Object,
    allocation,
    claim,
    claim_template,
    device_class,
    node,
    slice_of,
    tfjob,
)

KNOBS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100"]}, "T4": {"aliases": ["Tesla-T4", "Tesla T4"]}}}
A100, T4 = "requests.nvidia.com/gpu.A100", "requests.nvidia.com/gpu.T4"
PRODUCT = "nvidia.com/gpu.product"
STRATEGIC = "application/strategic-merge-patch+json"
GPU_TYPE = "biz.group.resource.quota/gpu-type"


def job(name: str, model: str = "A100", gpu: int = 1) -> Object:
    made = tfjob(name, "vision", 1, gpu=gpu)
    made["metadata"]["labels"][GPU_TYPE] = model
    return made


async def claims(books: Books, name: str, count: int = 1, **metadata: Any) -> Object:
    """Return an unallocated claim of this many devices."""
    made = claim(name, count)
    made["metadata"] |= metadata
    return await books.create(made)


async def allocate(books: Books, name: str, *devices: str, ago: float = 0.0, told: bool = True, **status: Any) -> None:
    at = rfc3339(books.box.clock.now() - timedelta(seconds=ago)) if told else None
    body = {"status": {"allocation": allocation(*devices, at=at), **status}}
    await books.client.patch(CLAIMS, name, body, namespace="default", subresource="status")


async def free(books: Books, name: str) -> None:
    """Deallocate, as the claim controller does when the last pod is gone, and see that noted: it bears no time."""
    body = {"status": {"allocation": None, "reservedFor": None}}
    await books.client.patch(CLAIMS, name, body, namespace="default", subresource="status")
    await books.until_record("vision", lambda page: not _of_claims(page))


def _of_claims(page: CardHours) -> list[str]:
    """Return the running intervals of claims: their keys end with the time of the allocation."""
    return [uid for line in page.status.running for uid in wire.parse_running(line).since if "@" in uid]


def of_pod(pod: Object) -> dict[str, Any]:
    """Return the metadata of a claim that was created for a pod."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    return {"ownerReferences": [reference], "annotations": {"resource.kubernetes.io/pod-claim-name": "g"}}


ENTRY: Any = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "devices"}]}


async def test_a_pod_on_another_model_than_declared_is_charged_for_both_until_it_is_relabelled(books: Books) -> None:
    async with books.controller(KNOBS):
        await books.group("vision", gpu="8", **{A100: "8", T4: "8"})
        await books.create(node("n1", **{PRODUCT: "Tesla-T4"}))
        made = await books.create(job("train"))
        await books.uses("vision", gpu="1", **{A100: "1", T4: "0"})
        await books.pod("train-0", made, nodeName="n1")
        found = await books.uses("vision", gpu="1", **{A100: "1", T4: "1"})
        [told] = [c for c in found.status.conditions if c.type == "ModelMismatch"]
        assert told.status == "True"
        assert "tfjobs.kubeflow.org/default/train declares A100, but pod train-0 runs on T4" in told.message
        assert await books.says("vision", "ModelMismatch") == told.message
        assert not [event for event in await books.events("Drift") if "T4" in event]

        labels = {"metadata": {"labels": {GPU_TYPE: "T4"}}}
        await books.client.patch(TFJOBS, "train", labels, namespace="default")
        found = await books.uses("vision", gpu="1", **{A100: "0", T4: "1"})
        await books.until("vision", lambda g: not [c for c in g.status.conditions if c.type == "ModelMismatch"])


async def test_a_namespace_that_hami_leaves_alone_is_counted_anew(books: Books) -> None:
    """Its workloads and the pods that run there are counted again."""
    async with books.controller({"hami": {"enabled": True}}):
        await books.group("vision", gpu="8")
        made = tfjob("train", "vision", 1)
        limits = made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        limits["nvidia.com/gpumem"] = limits.pop("nvidia.com/gpu")
        await books.pod("train-0", await books.create(made), gpu=0)
        await books.uses("vision", gpu="1")
        for value, used in (("ignore", "0"), (None, "1")):
            labels = {"metadata": {"labels": {"hami.io/webhook": value}}}
            await books.client.patch(NAMESPACES, "default", labels)
            await books.uses("vision", gpu=used)


async def test_a_node_that_is_labelled_late_tells_its_pods_model(books: Books) -> None:
    async with books.controller(KNOBS):
        await books.group("vision", gpu="8", **{A100: "8", T4: "8"})
        await books.create(node("n1"))
        await books.pod("train-0", await books.create(job("train")), nodeName="n1")
        await books.uses("vision", **{A100: "1", T4: "0"})
        await books.client.patch(NODES, "n1", {"metadata": {"labels": {PRODUCT: "Tesla-T4-SHARED"}}})
        await books.uses("vision", **{A100: "1", T4: "1"})


async def test_the_hours_of_another_model_are_spent_besides_those_of_the_declared(books: Books) -> None:
    async with books.controller(KNOBS):
        await books.group("vision", hours="100", **{f"cash/{A100}": "100", f"cash/{T4}": "100"})
        await books.create(node("n1", **{PRODUCT: "Tesla-T4"}))
        await books.pod("train-0", await books.create(job("train")), nodeName="n1", since=3600)
        await books.uses("vision", hours="1", **{f"cash/{A100}": "1", f"cash/{T4}": "1"})


async def test_claims_that_outgrew_their_template_are_charged(books: Books) -> None:
    """The template was replaced by a smaller one while a pod with its earlier claim runs."""
    async with books.controller(KNOBS):
        await books.group("vision", gpu="8")
        await books.create(device_class("gpu"))
        await books.create(claim_template("devices", 1))
        made = await books.create(job("train", gpu=0) | {"spec": _claiming()})
        await books.uses("vision", gpu="1")
        pod = await books.pod("train-0", made, gpu=0, **ENTRY)
        await claims(books, "train-0-g", 4, **of_pod(pod))
        await allocate(books, "train-0-g", "a", "b", "c", "d")
        found = await books.uses("vision", gpu="4")
        assert "more devices than its templates" in str(found.status.conditions)


async def test_a_workload_whose_template_is_gone_is_charged_what_its_pods_have(books: Books) -> None:
    """Deleting the objects that show usage of six cards does not free them."""
    async with books.controller(KNOBS):
        await books.group("vision", gpu="8", cpu="8")
        await books.create(device_class("gpu"))
        template = await books.create(claim_template("devices", 2))
        made = await books.create(job("train", gpu=0) | {"spec": _claiming()})
        pod = await books.pod("train-0", made, gpu=0, **ENTRY)
        await claims(books, "train-0-g", 2, **of_pod(pod))
        await allocate(books, "train-0-g", "a", "b")
        await books.uses("vision", gpu="2")
        await books.remove(template)
        found = await books.until("vision", lambda g: "Uncountable" in {c.type for c in g.status.conditions})
        assert found.status.used == {**(found.status.used or {}), "requests.nvidia.com/gpu": "2", "limits.cpu": "1"}
        assert "ModelMismatch" not in {c.type for c in found.status.conditions}


def _claiming() -> Object:
    pod = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}], **ENTRY}}
    return {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": pod}}}


async def test_a_devices_slice_tells_its_model(books: Books) -> None:
    async with books.controller(KNOBS):
        await books.group("vision", gpu="8", **{A100: "8", T4: "8"})
        await books.create(device_class("gpu"))
        await books.create(claim_template("devices", 1))
        await books.create(slice_of("n1", 1, a="NVIDIA-A100"))
        await books.create(slice_of("n1", 2, a="Tesla T4"))
        made = await books.create(job("train", gpu=0) | {"spec": _claiming()})
        pod = await books.pod("train-0", made, gpu=0, **ENTRY)
        await claims(books, "train-0-g", 1, **of_pod(pod))
        await books.uses("vision", gpu="1", **{A100: "1", T4: "0"})
        await allocate(books, "train-0-g", "a")
        await books.uses("vision", gpu="1", **{A100: "1", T4: "1"})


async def test_a_pod_that_is_resized_in_place_spends_what_it_may_hold_from_then_on(books: Books) -> None:
    """A pod is counted at the larger of what it asks for and what it has. An infeasible resize does not count."""
    async with books.controller():
        await books.group("vision", **{"cash/limits.cpu": "100"})
        await books.pod("train-0", await books.create(job("train", gpu=0)), gpu=0)

        async def resized(asks: str, has: str, *conditions: Object) -> None:
            given = {key: {"cpu": asks} for key in ("limits", "requests")}
            told = {"name": "c", "resources": {key: {"cpu": has} for key in given}, "allocatedResources": {"cpu": has}}
            stored = await books.client.get(PODS, "train-0", "default")
            kept = [c for c in stored["status"]["conditions"] if c["type"] == "PodScheduled"]
            status = {"containerStatuses": [told], "conditions": [*kept, *conditions]}
            await books.client.patch(PODS, "train-0", {"status": status}, namespace="default", subresource="status")
            change = {"spec": {"containers": [{"name": "c", "resources": given}]}}
            where = {"namespace": "default", "subresource": "resize"}
            await books.client.patch(PODS, "train-0", change, content_type=STRATEGIC, **where)

        infeasible = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
        for change, cpu, spent in (
            (("1", "1"), "1", "1"),
            (("3", "1"), "3", "4"),
            (("1", "3"), "3", "7"),
            (("1", "1"), "1", "8"),
            (("9", "1", infeasible), "1", "9"),
        ):
            await resized(*change)
            line = f" limits.cpu={cpu} : "
            await books.until_record("vision", lambda page, line=line: any(line in r for r in page.status.running))
            books.box.clock.advance(3600)
            await books.uses("vision", **{"cash/limits.cpu": spent})


# Card-hours of claims.


async def test_a_claim_is_charged_from_its_allocation_to_its_deallocation(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        await books.create(device_class("gpu"))
        await books.create(claim_template("devices", 2))
        made = await books.create(job("train", gpu=0) | {"spec": _claiming()})
        pod = await books.pod("train-0", made, gpu=0, since=7200, **ENTRY)
        await claims(books, "train-0-g", 2, **of_pod(pod))
        await books.uses("vision", hours="0")
        await allocate(books, "train-0-g", "a", "b", ago=3600)
        await books.uses("vision", hours="2")
        books.box.clock.advance(1800)
        await books.uses("vision", hours="3")
        await books.remove(pod)
        await free(books, "train-0-g")
        books.box.clock.advance(36_000)
        await books.holds_still("vision", lambda g: g.status.used["cash/requests.nvidia.com/gpu"] == "3", 2)


async def test_a_claim_that_was_freed_between_two_looks_is_charged(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(device_class("gpu"))
        await books.create(claim_template("devices", 2))
        made = await books.create(job("train", gpu=0) | {"spec": _claiming()})
        pod = await books.pod("train-0", made, gpu=0, since=7200, **ENTRY)
        made = await claims(books, "train-0-g", 2, **of_pod(pod))
        await allocate(books, "train-0-g", "a", "b", ago=1800)
        await books.remove(made)
        await books.uses("vision", hours="1")


SHARED: Any = {"resourceClaims": [{"name": "g", "resourceClaimName": "shared"}]}


async def test_a_shared_claim_is_charged_once_for_as_long_as_anybody_has_it(books: Books) -> None:
    """Two pods use the claim one after the other, and for a while together."""
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(device_class("gpu"))
        await claims(books, "shared", 2)
        made = await books.create(job("train", gpu=0))
        first = await books.pod("train-0", made, gpu=0, **SHARED)
        await allocate(books, "shared", "a", "b", reservedFor=[_user(first)])
        books.box.clock.advance(1200)
        second = await books.pod("train-1", made, gpu=0, **SHARED)
        await allocate(books, "shared", "a", "b", ago=1200, reservedFor=[_user(first), _user(second)])
        books.box.clock.advance(1200)
        await books.remove(first)
        books.box.clock.advance(1200)
        await books.uses("vision", hours="2")
        await free(books, "shared")
        await books.remove(second)
        books.box.clock.advance(3600)
        await books.holds_still("vision", lambda g: g.status.used["cash/requests.nvidia.com/gpu"] == "2", 2)


async def test_a_claim_that_two_groups_share_spends_the_hours_of_one_at_a_time(books: Books) -> None:
    """Both were admitted at one moment. Of the groups whose pods have the claim, that of the oldest workload pays."""
    async with books.controller():
        for group in ("nlp", "vision"):
            await books.group(group, hours="100", gpu="9")
        await books.create(device_class("gpu"))
        await claims(books, "shared", 2)
        first = await books.create(_sharing("z", "vision"))
        books.box.clock.advance(60)
        second = await books.create(_sharing("a", "nlp"))
        pods = {w["metadata"]["name"]: await books.pod(w["metadata"]["name"] + "-0", w, gpu=0, **SHARED)
                for w in (first, second)}  # fmt: skip
        for hour, (users, payer, spent) in enumerate((("a", "nlp", "2"), ("az", "vision", "2"), ("a", "nlp", "4"))):
            reserved = [_user(pods[name]) for name in users]
            await allocate(books, "shared", "a", "b", ago=3600 * hour, reservedFor=reserved)
            await books.until_record(payer, lambda page: bool(_of_claims(page)))
            other = "vision" if payer == "nlp" else "nlp"
            await books.until_record(other, lambda page: not _of_claims(page))
            books.box.clock.advance(3600)
            await books.uses(payer, hours=spent)
        await books.uses("vision", hours="2", gpu="2")


def _sharing(name: str, group: str) -> Object:
    made = tfjob(name, group, 1, gpu=0)
    made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"] |= SHARED
    return made


def _user(pod: Object) -> Object:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


async def test_a_claim_that_is_allocated_anew_is_charged_anew(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(device_class("gpu"))
        await claims(books, "shared")
        made = await books.create(job("train", gpu=0))
        pod = await books.pod("train-0", made, gpu=0, **SHARED)
        for spent in ("1", "2"):
            await allocate(books, "shared", "a", reservedFor=[_user(pod)])
            books.box.clock.advance(3600)
            await books.uses("vision", hours=spent)
            await free(books, "shared")
            books.box.clock.advance(3600)
        await books.holds_still("vision", lambda g: g.status.used["cash/requests.nvidia.com/gpu"] == "2", 2)


async def test_an_allocation_that_nobody_timed_is_charged_from_when_it_was_seen_across_restarts(books: Books) -> None:
    await _unheld(books)
    async with books.controller():
        await books.uses("vision", hours="1")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="2")


async def _unheld(books: Books) -> None:
    """A claim without an allocation time was first seen an hour ago by a former controller."""
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(device_class("gpu"))
        await claims(books, "shared")
        pod = await books.pod("train-0", await books.create(job("train", gpu=0)), gpu=0, **SHARED)
        await allocate(books, "shared", "a", told=False, reservedFor=[_user(pod)])
        await books.uses("vision", hours="0")
        await books.until_record("vision", lambda page: bool(_of_claims(page)) and page.status.count > 1)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="1")


async def test_what_serves_a_classic_request_costs_no_hours_of_its_own(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(device_class("gpu"))
        pod = await books.pod("train-0", await books.create(job("train")), since=3600)
        of = of_pod(pod)
        of["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
        await claims(books, "train-0-x", 1, **of)
        await allocate(books, "train-0-x", "a", ago=3600)
        await books.uses("vision", hours="1")
        # Some milliseconds pass too, and published amounts are rounded up.
        spent = ("1", "1001m")
        await books.holds_still("vision", lambda g: g.status.used["cash/requests.nvidia.com/gpu"] in spent, 2)
