"""The processes apart, each with the rights of deploy/rbac.yaml and no more, as docs/operations.md starts them.

The policies of deploy/policies.yaml apply, so they keep no process from its work.
"""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml
from rich.console import Console

import crds
from bizrq.cli.manifests_of_bizrq import resource_of
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, NotFound
from bizrq.kube.events import EVENTS
from bizrq.store.groups import GROUPS
from examples import story
from tests.docs.test_docs import ROOT, script
from tests.support.accounts import SYSTEM, kubeconfig_of, store, token_of
from tests.support.cluster import Cluster, Real, _free_ports, eventually, has_kinds, sweep
from tests.support.gate import applies
from tests.support.objects import DEPLOYMENTS, Object, bound, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]


def command(name: str, *arguments: object) -> list[str]:
    return [str(Path(sys.executable).parent / name), *map(str, arguments)]


@pytest.fixture(scope="module")
def ports() -> list[int]:
    """The port of the webhooks, and the three of /metrics."""
    return _free_ports(4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(
    real_cluster: Real, ports: list[int], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeClient]:
    """The three processes, running and registered; the client is an administrator's."""
    folder = tmp_path_factory.mktemp("apart")
    port, *metrics = ports
    with ExitStack() as stack:
        async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as client:
            await has_kinds(client, [*crds.load(), *crds.stand_ins()])
            await sweep(client)
            url = f"https://127.0.0.1:{port}"
            policies = list(yaml.safe_load_all(script(ROOT / "deploy/policies.py").document(SYSTEM, url)))
            await store(client, [*yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text("utf-8")), *policies])
            names = [f"bizrq-{process}" for process in ("certs", "webhooks", "controller")]
            cluster = Cluster(real_cluster.version, real_cluster.kubeconfig)
            configs = [await kubeconfig_of(client, cluster, name, folder) for name in names]
            certs = ("--cert-dir", folder / "certificates")
            asking = folder / "config.yaml"
            asking.write_text("rights: {use: true, grant: true}\n")
            own = [
                (*certs, "--names", "127.0.0.1"),
                (*certs, "--port", port, "--host", "127.0.0.1", "--config", asking, "--drain-delay", "0"),
                ("--cash-interval", "1s", "--webhook-url", url),
            ]
            for name, config, flags, metrics_port in zip(names, configs, own, metrics, strict=True):
                log = stack.enter_context((folder / f"{name}.log").open("wb"))
                words = command(name, "--kubeconfig", config, "--metrics-port", metrics_port, *flags)
                process = subprocess.Popen(words, stdout=log, stderr=log)
                stack.callback(process.wait, 20)
                stack.callback(process.terminate)
            await applies(cluster, client)

            async def asked() -> bool:
                try:
                    await client.create(GROUPS, story.group("probe", "", {"gpu": "1"}), dry_run=True)
                except ApiError as error:
                    return "denied the request" in error.message
                return False

            await eventually(asked, 60, lambda: "\n".join(p.read_text("utf-8") for p in folder.glob("*.log")))
            yield client
            await sweep(client)
            for document in reversed(policies):
                with suppress(NotFound):
                    await client.delete(resource_of(document), document["metadata"]["name"])
            logs = {path.name: path.read_text("utf-8") for path in folder.glob("*.log")}
        await asyncio.to_thread(stack.close)
    for name, log in logs.items():
        assert "forbidden" not in log.casefold(), f"{name}: {log}"


async def test_the_story_passes_with_the_rights_of_the_manifest(apart: KubeClient) -> None:
    """Budgets, models, scaling, refusals and card-hours need nothing that deploy/rbac.yaml does not give."""
    console = Console(file=io.StringIO())
    await story.Story(apart, lambda job, length: story.pods_ran(apart, job, length), console).play()


async def test_spent_hours_reach_the_parent_with_these_rights(apart: KubeClient) -> None:
    """A group that spent hours is held by a finalizer until its parent has them, which takes a patch."""
    held = await apart.get(GROUPS, "vision")
    assert held["metadata"]["finalizers"]
    await apart.delete(story.TFJOBS, "train", "default")
    for pod in (await apart.list(story.PODS, "default"))[0]:
        # The garbage collector deletes them too.
        with suppress(NotFound):
            await apart.delete(story.PODS, pod["metadata"]["name"], "default")

    async def deleted() -> bool:
        with suppress(ApiError):
            await apart.delete(GROUPS, "vision")
            return True
        return False

    await eventually(deleted, 60)

    async def inherited() -> bool:
        ai = await apart.get(GROUPS, "ai")
        return float(ai["status"]["selfUsed"]["cash/requests.nvidia.com/gpu"].rstrip("m")) >= 16

    await eventually(inherited, 60)


async def test_events_are_told_with_these_rights(apart: KubeClient) -> None:
    """The controller may tell of a group that ran out of hours."""

    async def told() -> bool:
        return any(event["reason"] == "CashExhausted" for event in (await apart.list(EVENTS, "default"))[0])

    await eventually(told, 60)


async def test_who_may_charge_is_found_out_with_these_rights(apart: KubeClient) -> None:
    """The namespace is read before a refusal; the story above has asked for `use` and `grant`."""
    picky = story.group("picky", "", {"limits.cpu": "1"})
    picky["spec"]["namespaceSelector"] = {"matchLabels": {"team": "nobody"}}
    await apart.create(GROUPS, picky)

    async def refused() -> str:
        try:
            await apart.create(DEPLOYMENTS, deployment("web", "picky"), dry_run=True)
        except ApiError as error:
            return error.message
        return ""

    assert "namespace default may not charge quota picky" in await refused()


async def test_metrics_are_for_who_may_read_them_and_the_processes_can_ask(apart: KubeClient, ports: list[int]) -> None:
    """Without a token 401, without the role 403; the role that the manifest has for scrapers is enough."""
    user = f"system:serviceaccount:{SYSTEM}:prometheus"
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": SYSTEM}}
        for account in ("nobody", "prometheus")
    ]
    await store(apart, [*accounts, bound("bizrq-metrics-reader", user)])
    tokens = {account: await token_of(apart, account) for account in ("nobody", "prometheus")}
    tokens["made up"] = tokens["prometheus"][:-8] + "AAAAAAAA"
    statuses = {"nobody": 403, "prometheus": 200, "made up": 401}

    async def scraped(session: aiohttp.ClientSession, port: int, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
            assert (b"bizrq_connections_cut_total" in await answer.read()) is (answer.status == 200)
            return answer.status

    async with aiohttp.ClientSession() as session:
        for port in ports[1:]:
            assert await scraped(session, port, "") == 401
            for account, status in statuses.items():

                async def answered(port: int = port, account: str = account, status: int = status) -> bool:
                    # Unknown tokens are asked about once a second, and the API server learns of the role.
                    return await scraped(session, port, tokens[account]) == status

                await eventually(answered, 60, f"{account} gets {status} at {port}")

    async def shown() -> list[str]:
        """Return what a process should show and does not."""
        texts = [await _text(port, tokens["prometheus"]) for port in ports[1:]]
        return [line for text, lines in zip(texts, SHOWN, strict=True) for line in lines if line not in text]

    async def all_shown() -> bool:
        return not await shown()

    await eventually(all_shown, 60, "the metrics of each process")


async def test_the_leader_restores_the_registration_with_these_rights(apart: KubeClient) -> None:
    """Whoever deletes it or narrows it, and whoever applies the manifests again."""
    before = await apart.get(REGISTRATIONS, "bizrq")
    await apart.delete(REGISTRATIONS, "bizrq")

    async def closed() -> Object:
        """Return the registration once it is as before: each entry fails closed again by its caBundle."""
        with suppress(NotFound):
            found = await apart.get(REGISTRATIONS, "bizrq")
            if found["webhooks"] == before["webhooks"]:
                return found
        return {}

    restored = await eventually(closed, 60, "the registration is back")
    assert restored["metadata"]["uid"] != before["metadata"]["uid"]
    assert [owner["name"] for owner in restored["metadata"]["ownerReferences"]] == ["bizrq-controller"]
    narrowed = [{**each, "objectSelector": {"matchLabels": {"a": "b"}}} for each in restored["webhooks"]]
    await apart.patch(REGISTRATIONS, "bizrq", {"webhooks": narrowed})
    mended = await eventually(closed, 60, "the registration is mended")
    assert mended["metadata"]["uid"] == restored["metadata"]["uid"]

    for document in yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text("utf-8")):
        await apart.apply(resource_of(document), document, "gitops")
    again = await apart.get(REGISTRATIONS, "bizrq")
    assert again == mended, "no manifest has it"


async def test_what_is_created_during_a_pause_is_counted(apart: KubeClient, real_cluster: Real) -> None:
    """It is over quota and stays; after the pause the group refuses again."""
    name = "paused"
    await apart.create(GROUPS, story.group(name, "", {"limits.cpu": "1"}))
    call = command("bizrq", "pause", "--yes", "--reason", "test", "--kubeconfig", real_cluster.kubeconfig)
    paused = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, check=False)
    assert paused.returncode == 0, paused.stderr

    async def created() -> bool:
        with suppress(ApiError):
            await apart.create(DEPLOYMENTS, deployment("large", name, 4))
            return True
        return False

    await eventually(created, 60, "nobody is asked")

    async def is_over() -> bool:
        status = (await apart.get(GROUPS, name)).get("status") or {}
        over = [each["status"] for each in status.get("conditions") or () if each["type"] == "OverQuota"]
        return over == ["True"] and status["used"]["limits.cpu"] == "4"

    await eventually(is_over, 60, "it is counted")

    async def reasons() -> set[str]:
        return {event["reason"] for event in (await apart.list(EVENTS, "default"))[0]}

    async def told(*wanted: str) -> bool:
        return set(wanted) <= await reasons()

    # A leader looks every five seconds.
    await eventually(lambda: told("Paused", "OverQuota", "Drift"), 60, "the pause is told")
    with pytest.raises(NotFound):
        await apart.get(REGISTRATIONS, "bizrq")
    call = command("bizrq", "resume", "--kubeconfig", real_cluster.kubeconfig)
    resumed = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, check=False)
    assert (resumed.returncode, resumed.stdout) == (0, "resumed\nthe webhooks are registered\n"), resumed.stderr

    async def refused() -> bool:
        try:
            await apart.create(DEPLOYMENTS, deployment("more", name), dry_run=True)
        except ApiError as error:
            return "exceeded quota" in error.message
        return False

    await eventually(refused, 60, "the group refuses again")
    await eventually(lambda: told("RegistrationMended", "Resumed"), 60, "the end of the pause is told")
    await apart.delete(DEPLOYMENTS, "large", "default")


#: What certs, webhooks and controller show once the story was played, by the beginning of a line.
SHOWN = (
    ("\nbizrq_watch_age_seconds{resource=", "\nrest_client_requests_total{code="),
    (
        '\nbizrq_certificate_expiration_timestamp_seconds{certificate="serving"} 1',
        '\nbizrq_watch_age_seconds{resource="bizgroupresourcequotas.quota.biz.group"} ',
        '\nbizrq_status_writes_total{result="done"} ',
        "\nbizrq_admission_wait_duration_seconds_sum ",
    ),
    (
        '\nbizrq_group_hard{group="corp",resource=',
        '\nbizrq_group_used{group="corp",resource=',
        '\nleader_election_master_status{name="bizrq-controller"} 1.0',
        '\nworkqueue_depth{name="groups"} ',
        '\nbizrq_status_writes_total{result="done"} ',
    ),
)


async def _text(port: int, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer,
    ):
        assert answer.status == 200
        return await answer.text()
