"""A demo of a tree of groups: the requests that kubectl would send, and the answers of the API server.

`make demo` runs it on a sandbox; `python examples/story.py --kubeconfig F` runs it on a cluster where `bizrq up` runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

import crds
from bizrq.api import group as wire
from bizrq.builtin import builtin_catalog
from bizrq.cli.standalone import CRDS, Standalone, TargetCluster
from bizrq.cli.verbs import tree
from bizrq.figures.groups.view import tree_view
from bizrq.flags import LogLevel
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.process import configure_logging
from bizrq.settings import load
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from sandbox.clock import Clock
from sandbox.server import Sandbox

HERE = Path(__file__).parent
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")
TFJOBS = Resource("kubeflow.org", "v1", "tfjobs", "TFJob")
PODS = Resource("", "v1", "pods", "Pod")
_RESOURCES = {r.kind: r for r in (GROUPS, DEPLOYMENTS, ROLLOUTS, TFJOBS)}
#: Seconds to wait until the controller has counted a write.
_PATIENCE = 20.0

Object = dict[str, Any]
RunFor = Callable[[Object, timedelta], Awaitable[None]]


class StoryError(AssertionError):
    """Raised if the cluster answers otherwise than the demo expects."""


class Story:
    """Run one act after the other; `run_for` makes the pods of a TFJob have run for a while."""

    def __init__(self, client: KubeClient, run_for: RunFor, console: Console) -> None:
        self._client = client
        self._run_for = run_for
        self._console = console

    async def play(self) -> None:
        await self._budgets()
        await self._models()
        await self._the_tree_holds()
        await self._bad_input()
        await self._card_hours()
        await self._other_kinds()

    async def _budgets(self) -> None:
        self._say("A tree of groups, applied from one file in one go: corp > ai > nlp, vision.")
        for group in documents("tree.yaml"):
            await self.allowed(f"kubectl apply -f tree.yaml ({group['metadata']['name']})", self._create(group))
        await self.sees("ai", "used", {"limits.cpu": "30", "requests.nvidia.com/gpu": "16"})

    async def _models(self) -> None:
        self._say("nlp may use 10 cores, at most 4 of model A4. A Deployment of four A4 cores charges both names.")
        chat = example("deployment.yaml")
        await self.allowed("kubectl apply -f deployment.yaml", self._create(chat))
        await self.sees("nlp", "used", {"limits.cpu": "4", "limits.cpu.A4": "4"})
        await self.refused(
            "kubectl scale deployment chat --replicas=5",
            self._scale(DEPLOYMENTS, "chat", 5),
            "exceeded quota: nlp, requested: limits.cpu.A4=1, used: limits.cpu.A4=4, limited: limits.cpu.A4=4; "
            "left: limits.cpu.A4=0; fits: 0 more replicas",
        )
        self._say("Six cores of another model fit; a seventh does not.")
        await self.allowed("kubectl apply -f batch.yaml (6 cores of model M7)", self._create(deployment("batch", 6)))
        await self.sees("nlp", "used", {"limits.cpu": "10", "limits.cpu.A4": "4"})
        await self.refused(
            "kubectl scale deployment batch --replicas=7",
            self._scale(DEPLOYMENTS, "batch", 7),
            "exceeded quota: nlp, requested: limits.cpu=1, used: limits.cpu=10, limited: limits.cpu=10; "
            "left: limits.cpu=0; fits: 0 more replicas",
        )

    async def _the_tree_holds(self) -> None:
        self._say("The tree keeps its own rules.")
        speech = group("speech", "ai", {"limits.cpu": "31", "requests.nvidia.com/gpu": "0", GPU_HOURS: "0"})
        await self.refused(
            "kubectl apply -f speech.yaml (31 cores of ai's 30)",
            self._create(speech),
            "exceeded quota: ai, requested: limits.cpu=31, used: limits.cpu=30, limited: limits.cpu=60; "
            "left: limits.cpu=30",
        )
        await self.refused(
            "kubectl patch bizrq nlp (another parent)",
            self._client.patch(GROUPS, "nlp", {"spec": {"parentBizGroup": "corp"}}),
            "parentBizGroup is immutable",
        )
        await self.refused(
            "kubectl apply -f lacking.yaml (no name for GPUs)",
            self._create(group("lacking", "ai", {"limits.cpu": "1"})),
            "spec.hard must name every resource that its parent ai names; "
            "missing: cash/requests.nvidia.com/gpu, requests.nvidia.com/gpu",
        )
        await self.refused(
            "kubectl delete bizrq ai",
            self._client.delete(GROUPS, "ai"),
            "group ai has children: nlp, vision; delete them first",
        )

    async def _bad_input(self) -> None:
        self._say("A manifest that cannot be counted is refused and charges nothing.")
        lost = deployment("lost", 1)
        lost["metadata"]["labels"]["biz.group.resource.quota"] = "nobody"
        await self.refused("kubectl apply -f lost.yaml", self._create(lost), "quota nobody does not exist")
        cheat = example("tfjob.yaml")
        cheat["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = -5
        await self.refused(
            "kubectl apply -f cheat.yaml (replicas: -5)", self._create(cheat), "replicas: must not be negative"
        )
        silent = deployment("silent", 1)
        del silent["spec"]["template"]["spec"]["containers"][0]["resources"]
        await self.refused(
            "kubectl apply -f silent.yaml (no limits)",
            self._create(silent),
            "failed quota: nlp: must specify limits.cpu for: c",
        )
        typo = group("typo", "", {"limits.cpu": "1", "requests.nvidia.com/gpux": "1"})
        await self.refused("kubectl apply -f typo.yaml", self._create(typo), "did you mean requests.nvidia.com/gpu?")

    async def _card_hours(self) -> None:
        self._say("vision has 16 card-hours. A TFJob of 8 workers, an A100 each, runs for two hours.")
        job = await self.allowed("kubectl apply -f tfjob.yaml", self._create(example("tfjob.yaml")))
        await self.sees(
            "vision", "used", {"limits.cpu": "8", "requests.nvidia.com/gpu": "8", "requests.nvidia.com/gpu.A100": "8"}
        )
        await self._run_for(job, timedelta(hours=2))
        spent = await self.sees("vision", "used", {GPU_HOURS: "16"}, at_least=True)
        self._console.print(f"  two hours later: {GPU_HOURS} used {spent[GPU_HOURS]} of 16", style="dim")
        again = example("tfjob.yaml")
        again["metadata"]["name"] = "again"
        again["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 1
        await self.refused(
            "kubectl apply -f again.yaml (one card)",
            self._create(again),
            f"exceeded quota: vision, requested: {GPU_HOURS}=1",
        )
        running = await self._client.get(TFJOBS, "train", "default")
        if running["metadata"]["uid"] != job["metadata"]["uid"]:
            raise StoryError("the running TFJob was touched")

    async def _other_kinds(self) -> None:
        self._say("Scaling down frees quota, which an Argo Rollout can use.")
        await self.allowed("kubectl scale deployment batch --replicas=4", self._scale(DEPLOYMENTS, "batch", 4))
        await self.sees("nlp", "used", {"limits.cpu": "8"})
        await self.allowed("kubectl apply -f rollout.yaml", self._create(example("rollout.yaml")))
        await self.sees("nlp", "used", {"limits.cpu": "10", "limits.cpu.A4": "4"})
        await self.refused(
            "kubectl scale rollout search --replicas=3",
            self._scale(ROLLOUTS, "search", 3),
            "exceeded quota: nlp, requested: limits.cpu=1",
        )

    # Steps

    async def allowed(self, what: str, request: Awaitable[Object]) -> Object:
        """Send a request that must be allowed, and return its answer. Raise StoryError."""
        try:
            answer = await request
        except ApiError as error:
            raise StoryError(f"{what}: should be allowed, but: {error.message}") from None
        self._console.print(f"  [green]allowed[/] {what}")
        return answer

    async def refused(self, what: str, request: Awaitable[object], words: str) -> None:
        """Send a request that must be refused in these words. Raise StoryError."""
        began = time.monotonic()
        try:
            await request
        except ApiError as error:
            if words not in error.message:
                raise StoryError(f"{what}: should be refused with {words!r}, but: {error.message}") from None
            self._console.print(f"  [red]refused[/] {what} [dim]({1000 * (time.monotonic() - began):.0f} ms)[/]")
            self._console.print(f"          {error.message}", style="dim", soft_wrap=True)
            return
        raise StoryError(f"{what}: should be refused with {words!r}, but was allowed")

    async def sees(self, name: str, field: str, amounts: dict[str, str], *, at_least: bool = False) -> dict[str, str]:
        """Wait until the status of a group has these amounts, and return them. Raise StoryError after a timeout."""
        until = time.monotonic() + _PATIENCE
        while True:
            stored = (await self._client.get(GROUPS, name)).get("status", {}).get(field) or {}
            pairs = [(quantity.parse(stored.get(r, "0")), quantity.parse(text)) for r, text in amounts.items()]
            settled = not (await self._client.get(GROUPS, name))["status"].get("reservations")
            if settled and all(a >= b if at_least else a == b for a, b in pairs):
                return stored
            if time.monotonic() > until:
                raise StoryError(f"{name}: status.{field} should have {amounts}, but has {stored}")
            await asyncio.sleep(0.05)

    def _say(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold", soft_wrap=True)

    async def _create(self, obj: Object) -> Object:
        return await self._client.create(_RESOURCES[obj["kind"]], obj)

    async def _scale(self, resource: Resource, name: str, replicas: int) -> Object:
        patch = {"spec": {"replicas": replicas}}
        return await self._client.patch(resource, name, patch, namespace="default", subresource="scale")


GPU_HOURS = "cash/requests.nvidia.com/gpu"


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((HERE / name).read_text("utf-8")))


def example(name: str) -> Object:
    return copy.deepcopy(documents(name)[0])


def deployment(name: str, replicas: int) -> Object:
    """Return a Deployment of nlp with one core of model M7 for each replica."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"biz.group.resource.quota": "nlp", "biz.group.resource.quota/cpu-type": "M7"},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "batch", "resources": {"limits": {"cpu": "1"}}}]},
            },
        },
    }


def group(name: str, parent: str, hard: dict[str, str]) -> Object:
    spec = {"parentBizGroup": parent, "hard": hard} if parent else {"hard": hard}
    return {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "metadata": {"name": name}, "spec": spec}


async def pods_ran(client: KubeClient, job: Object, length: timedelta) -> None:
    """Create the job's pods as bound this long ago, for clusters without its operator and kubelets."""
    bound = (datetime.now(UTC) - length).strftime("%Y-%m-%dT%H:%M:%SZ")
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    for role, spec in job["spec"]["tfReplicaSpecs"].items():
        for index in range(spec["replicas"]):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{job['metadata']['name']}-{role.lower()}-{index}",
                    "namespace": job["metadata"]["namespace"],
                    "ownerReferences": [owner],
                },
                # Name a scheduler that does not exist: a real one would reset the condition, because there is no node.
                "spec": {**spec["template"]["spec"], "schedulerName": "story"},
            }
            created = await client.create(PODS, pod)
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
            await client.patch(
                PODS,
                created["metadata"]["name"],
                {"status": {"phase": "Running", "conditions": [condition]}},
                namespace=created["metadata"]["namespace"],
                subresource="status",
            )


async def on_sandbox(console: Console) -> None:
    """Run the demo in this process, with a clock that only the demo advances."""
    clock = Clock(now=datetime.now(UTC).replace(microsecond=0), rate=0)
    with tempfile.TemporaryDirectory(prefix="bizrq-demo-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            box = await stack.enter_async_context(Sandbox(tls=True, clock=clock))
            where = TargetCluster(None, None, Path(folder, "kubeconfig"))
            standalone = Standalone(load(None), where, sandbox=box, cash_interval=1.0)
            await stack.enter_async_context(standalone)
            console.print(f"web: {standalone.web}  (until the story ends)", soft_wrap=True, highlight=False)
            client = await stack.enter_async_context(KubeClient.from_kubeconfig(Path(folder, "kubeconfig")))
            await Story(client, by_clock(client, clock), console).play()
            await _end(client, console)


def by_clock(client: KubeClient, clock: Clock) -> RunFor:
    """Return what waits until the eight pods of a TFJob run, and then sets the clock of the sandbox forward."""

    async def run_for(job: Object, length: timedelta) -> None:
        while len(await _bound(client, job)) < 8:  # noqa: ASYNC110 the API server has no event for it here
            await asyncio.sleep(0.05)
        clock.advance(length.total_seconds())

    return run_for


async def _bound(client: KubeClient, job: Object) -> list[Object]:
    pods, _ = await client.list(PODS, "default")
    uid = job["metadata"]["uid"]
    mine = [p for p in pods if any(o["uid"] == uid for o in p["metadata"].get("ownerReferences", ()))]
    return [p for p in mine if any(c["type"] == "PodScheduled" for c in p.get("status", {}).get("conditions", ()))]


async def on_cluster(kubeconfig: Path, context: str | None, console: Console) -> None:
    """Run the demo on a cluster where bizrq runs. Stand-ins for missing CRDs are installed and stay."""
    async with KubeClient.from_kubeconfig(kubeconfig, context) as client:
        for crd in crds.stand_ins():
            try:
                await client.get(CRDS, crd["metadata"]["name"])
            except NotFound:
                await client.create(CRDS, crd)
                await asyncio.sleep(3)
        await Story(client, lambda job, length: pods_ran(client, job, length), console).play()
        await _end(client, console)


async def _end(client: KubeClient, console: Console) -> None:
    console.print("\nThe tree of groups now:", style="bold")
    items, _ = await client.list(GROUPS)
    tree.show(tree_view(map(wire.from_dict, items), builtin_catalog()).in_order())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kubeconfig", type=Path, help="kubeconfig of a cluster where bizrq runs; without it a sandbox is started"
    )
    parser.add_argument("--context")
    arguments = parser.parse_args()
    # What the demo asks for is refused on purpose: the log would say it a second time.
    configure_logging(level=LogLevel.ERROR)
    console = Console(highlight=False)
    began = time.monotonic()
    try:
        if arguments.kubeconfig:
            asyncio.run(on_cluster(arguments.kubeconfig, arguments.context, console))
        else:
            asyncio.run(on_sandbox(console))
    except StoryError as error:
        Console(stderr=True).print(f"\n{error}", style="red", soft_wrap=True, highlight=False)
        return 1
    console.print(f"\nAll answers as expected, in {time.monotonic() - began:.1f} s.", style="bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
