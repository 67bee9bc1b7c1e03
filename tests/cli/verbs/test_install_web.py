"""`bizrq install --web` on the sandbox, and on a real API server, which decodes strictly."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from bizrq.cli.manifests_of_bizrq import WEB_KEYS, InstallPlan, resource_of
from bizrq.cli.manifests_of_web import WebPlan, keys, web_objects
from bizrq.kube.client import KubeClient, NotFound
from bizrq.listener import ANSWERING
from tests.cli.conftest import Bizrq
from tests.cli.verbs.test_install import parsed, processes, there
from tests.support.cluster import Cluster
from tests.support.objects import Object
from web.credentials.keys import FILES
from web.main import serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = "bizrq-with-pages"
URL = ("--web", "--web-url", "https://quota.corp")
EVERYTHING = WebPlan("https://quota.corp", "quota-tls", "https://login.corp/realm", "bizrq", "provider")


def planned(web: WebPlan = EVERYTHING, namespace: str = HERE) -> list[Object]:
    return web_objects(InstallPlan(namespace, "bizrq:1", 2), web)


@pytest.fixture
def installed(cluster: Cluster, client: KubeClient) -> Bizrq:
    """Run commands on this cluster."""
    return Bizrq(cluster.kubeconfig, client)


async def sealing(client: KubeClient) -> dict[str, str]:
    """The keys of the web UI that are stored."""
    return (await client.get(resource_of({"kind": "Secret"}), WEB_KEYS, HERE))["data"]


async def test_the_web_ui_is_installed_its_keys_stay_and_it_goes(installed: Bizrq, client: KubeClient) -> None:
    flags = ("install", "-n", HERE, "--no-wait", "--image", "bizrq:1")
    first = await installed(*flags, *URL)
    assert first.code == 0, first.err
    assert f"secret/{WEB_KEYS} created" in first.out
    stored = await sealing(client)
    assert set(stored) == set(FILES)
    assert {len(base64.urlsafe_b64decode(base64.b64decode(key))) for key in stored.values()} == {32}
    for obj in planned():
        assert await there(client, obj), obj
    again = await installed(*flags, *URL)
    assert (again.code, WEB_KEYS in again.out) == (0, False)
    assert await sealing(client) == stored
    kept = await installed(*flags)
    assert (kept.code, kept.err) == (0, "bizrq: kept: --web --web-url=https://quota.corp; a flag that is given wins\n")
    without = await installed(*flags, "--no-web")
    assert "deployment.apps/bizrq-web deleted" in without.out
    assert await sealing(client) == stored, "a later install with --web signs nobody out"
    assert (await installed("uninstall", "-n", HERE)).code == 0
    with pytest.raises(NotFound):
        await sealing(client)


async def test_uninstall_takes_the_web_ui_away(installed: Bizrq, client: KubeClient) -> None:
    assert (await installed("install", "-n", "default", "--no-wait", "--image", "bizrq:1", *URL)).code == 0
    assert [await there(client, obj) is None for obj in planned(namespace="default")] == [False] * 4
    assert (await installed("uninstall", "-n", "default")).code == 0
    assert [await there(client, obj) is None for obj in planned(namespace="default")] == [True] * 4


async def test_its_pods_have_no_token_and_its_account_has_no_rights(installed: Bizrq) -> None:
    objects = list(yaml.safe_load_all((await installed("install", "--dry-run", "-n", HERE, *URL)).out))
    ours = [obj for obj in objects if obj["metadata"]["name"] == "bizrq-web"]
    account, deployment = ([obj for obj in ours if obj["kind"] == kind] for kind in ("ServiceAccount", "Deployment"))
    assert account[0]["automountServiceAccountToken"] is False
    assert deployment[0]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    bound = [each for obj in objects for each in obj.get("subjects") or () if each["name"] == "bizrq-web"]
    assert bound == []
    assert WEB_KEYS not in {obj["metadata"]["name"] for obj in objects}, "what is printed has no random keys"


async def test_it_is_consistent() -> None:
    """The process takes its flags, the Service selects its pods, and each volume has a source."""
    objects = {obj["kind"]: obj for obj in planned()}
    template = objects["Deployment"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    labels = template["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"] for port in objects["Service"]["spec"]["ports"]} < set(ports)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in template["spec"]["volumes"]}
    said = parsed(serve, container["command"][1:])
    assert str(said["keys"]) == mounts["keys"]
    assert str(said["cert_dir"]) == mounts["certificate"]
    assert said["oidc_client_secret"].parent.as_posix() == mounts["provider"]
    assert said["api_ca"].parent.as_posix() == mounts["api-server"]
    assert said["metrics_port"] == ports["metrics"]
    assert template["spec"]["terminationGracePeriodSeconds"] >= said["drain_delay"] + ANSWERING + 5
    assert "priorityClassName" not in template["spec"]


async def test_the_least_is_a_public_address() -> None:
    [(command, _)] = processes(planned(WebPlan("https://quota.corp"))).values()
    said: dict[str, Any] = parsed(serve, command[1:])
    assert (said["public_url"], said["cert_dir"], said["oidc_issuer"]) == ("https://quota.corp", None, "")


async def test_every_new_pair_of_keys_is_another() -> None:
    assert keys(HERE)["data"] != keys(HERE)["data"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--web"], "--web needs --web-url, an address like https://quota.corp"),
        (["--web", "--web-url", "http://quota.corp"], "--web needs --web-url, an address like https://quota.corp"),
        (["--web-url", "https://quota.corp"], "--web-url needs --web"),
        (["--web-oidc-issuer", "https://login.corp"], "--web-oidc-issuer needs --web"),
        (["--no-web", "--web-url", "https://quota.corp"], "--no-web goes without --web-url"),
        ([*URL, "--web-oidc-issuer", "https://login.corp"], "need each other"),
        ([*URL, "--web-oidc-secret", "provider"], "--web-oidc-secret needs --web-oidc-issuer"),
        (
            [*URL, "--web-oidc-issuer", "http://login.corp", "--web-oidc-client-id", "x"],
            "--web-oidc-issuer: 'http://login.corp': secrets and tokens need https: write https://HOST/PATH",
        ),
        (
            [*URL, "--web-oidc-issuer", "login.corp", "--web-oidc-client-id", "x"],
            "--web-oidc-issuer: 'login.corp' is no address of a provider",
        ),
    ],
)
async def test_a_bad_call_says_what_is_missing(installed: Bizrq, flags: list[str], said: str) -> None:
    result = await installed("install", "--dry-run", *flags)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
