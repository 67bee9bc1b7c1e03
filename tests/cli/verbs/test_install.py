"""`bizrq install` and `uninstall` on the sandbox, and on a real API server, which decodes strictly."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
import yaml
from typer.testing import CliRunner

import crds
from bizrq import registration
from bizrq.api import overlap, priority
from bizrq.api.group import FINALIZER
from bizrq.cli import manifests_of_bizrq, rbac
from bizrq.cli.installation import records
from bizrq.cli.installation.configuration import configuration, requires_use
from bizrq.cli.installation.stored_flags import api_servers_of, clients_of
from bizrq.cli.manifests_of_bizrq import CONFIG_DIGEST, INSTALL, MANAGED, InstallPlan, resource_of
from bizrq.cli.manifests_of_web import WebPlan, web_objects
from bizrq.cli.verbs.install import install
from bizrq.flags import LogFormat, LogLevel
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient, NotFound
from bizrq.listener import ANSWERING
from bizrq.process import METRICS_BOUNDS, SCRAPED
from bizrq.settings import load, loads
from bizrq.store import pause
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from bizrq.units.quantity import NANO
from certs.pki import make_ca
from controller.overlap import OVERLAPS
from tests.cli.conftest import Bizrq
from tests.docs.test_docs import PROCESSES, options, page
from tests.reliability.table import ALONE
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.gate import as_maker, pod_of, rejection
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    bound,
    cluster_role,
    group,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = "bizrq-installed"
SETTINGS = load(None)
#: The configuration of a new installation, and one that states the right itself.
REQUIRED = configuration(None, None)
KEPT_CLIENTS = "bizrq: kept: the client CA, and --client-name 'api'; --no-client-ca removes them"
KEPT_ADDRESSES = "bizrq: kept: --api-server-cidr 10.1.0.0/24, fd00::/64; --no-api-server-cidr removes it"
NOBODY = "nobody may charge a group yet: bizrq allow USER GROUP gives the right; docs/rights.md"
STRANGERS = (
    "everybody who reaches the port of the webhooks can forge a review: pass --client-ca and --client-name, or "
    '--api-server-cidr; docs/operations.md, "Who may ask"'
)
FIRST = f"bizrq: {NOBODY}\nbizrq: {STRANGERS}\n"
STATED = "suspended: zero\nrights: {use: true}\n"
#: Kinds of which each installation has objects of its own.
PLACED = ("Namespace", "ServiceAccount", "Deployment", "Service")
POLICY_KINDS = ("validatingadmissionpolicybinding", "validatingadmissionpolicy")


CLIENT_CA = make_ca(datetime.now(UTC)).certificate_pem.decode()


def planned(config: str = "", namespace: str = HERE, **more: Any) -> list[Object]:
    return manifests_of_bizrq.install_objects(SETTINGS, InstallPlan(namespace, "bizrq:1", 2, config, **more))


@pytest.fixture
def installed(cluster: Cluster, client: KubeClient) -> Bizrq:
    """Run commands on this cluster."""
    return Bizrq(cluster.kubeconfig, client)


async def installed_config(client: KubeClient) -> str:
    found = await client.get(CONFIG_MAPS, manifests_of_bizrq.CONFIG, HERE)
    return found["data"]["config.yaml"]


async def registered(client: KubeClient) -> Object | None:
    try:
        return await client.get(REGISTRATIONS, registration.NAME)
    except NotFound:
        return None


async def there(client: KubeClient, obj: Object) -> Object | None:
    try:
        return await client.get(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))
    except NotFound:
        return None


async def test_install_twice_makes_everything_once_and_uninstall_takes_it_away(
    installed: Bizrq, client: KubeClient, cluster: Cluster, tmp_path: Path
) -> None:
    """Groups and CRDs stay. A second install keeps the configuration, and what the controller has registered."""
    config = tmp_path / "config.yaml"
    config.write_text(STATED)
    flags = ("-n", HERE, "--no-wait", "--image", "bizrq:1", "--config", config)
    result = await installed("install", *flags)
    assert (result.code, result.err) == (0, FIRST)
    assert await registered(client) is None, "that is the leader's"
    for obj in planned(STATED):
        assert await there(client, obj), obj
    kinds = [line.split("/")[0].split(".")[0] for line in result.out.splitlines()]
    assert kinds[:5] == ["prioritylevelconfiguration", *["flowschema"] * 4]
    definitions = kinds.count("customresourcedefinition")
    assert set(kinds[5 : 5 + definitions]) == {"customresourcedefinition"}
    assert kinds.index(POLICY_KINDS[0]) > kinds.index(POLICY_KINDS[1])
    # As an install of an earlier version applied it.
    labels = {**registration.LABELS, "app.kubernetes.io/managed-by": "bizrq-install"}
    made = registration.configuration(SETTINGS, registration.by_service(HERE), namespace=HERE)
    before = await client.create(REGISTRATIONS, {**made, "metadata": {"name": registration.NAME, "labels": labels}})

    again = await installed("install", *flags)
    assert again.code == 0, again.err
    assert {line.split()[-1] for line in again.out.splitlines()} == {"unchanged"}
    assert await registered(client) == before, "the leader takes it over"

    more = await installed("install", *flags, "--replicas", "3")
    changed = [line for line in more.out.splitlines() if not line.endswith("unchanged")]
    assert changed == [f"deployment.apps/bizrq-{name} configured" for name in ("controller", "webhooks")]

    kept = await installed("install", *flags[:-2])
    assert (kept.code, kept.err) == (0, "bizrq: kept: --replicas=3; a flag that is given wins\n")
    assert {line.split()[-1] for line in kept.out.splitlines()} == {"unchanged"}
    fewer = await installed("install", *flags, "--replicas", "2")
    assert (fewer.code, fewer.err) == (0, "")
    [config_map] = [obj for obj in planned(STATED) if obj["kind"] == "ConfigMap"]
    assert await installed_config(client) == STATED

    config.write_text("")
    assert (await installed("install", *flags)).code == 0
    assert await installed_config(client) == REQUIRED, "what a file does not state of rights.use stays"
    controller = await client.get(DEPLOYMENTS, "bizrq-controller", HERE)
    assert "--config" in controller["spec"]["template"]["spec"]["containers"][0]["command"]

    # Another version's: install's own, and what its controller stored. And somebody else's.
    stray = {**config_map, "metadata": {**config_map["metadata"], "name": "old"}}
    await client.create(CONFIG_MAPS, stray)
    role = cluster_role("bizrq-old", "get")
    role["metadata"]["labels"] = stray["metadata"]["labels"]
    await client.create(CLUSTER_ROLES, role)
    former = {**stray, "metadata": {"name": overlap.NAME, "namespace": HERE}}
    await client.create(CONFIG_MAPS, former)
    theirs = {**stray, "metadata": {"name": "theirs", "namespace": HERE}}
    await client.create(CONFIG_MAPS, theirs)
    pruned = await installed("install", *flags[:-2])
    assert [line for line in pruned.out.splitlines() if line.endswith("deleted")] == [
        "configmap/old deleted",
        "clusterrole.rbac.authorization.k8s.io/bizrq-old deleted",
        "configmap/bizrq-overlap deleted",
    ]
    assert await there(client, theirs)
    await client.create(CONFIG_MAPS, stray)
    await client.create(CONFIG_MAPS, former)
    listed = overlap.overlap_list({"uid": "exceeded quota: nlp"})
    await client.create(OVERLAPS, listed)

    config.write_text("rights: {use: false}\n")
    opened = await installed("install", *flags)
    assert opened.err.startswith("bizrq: rights.use is off: who may create workloads in any namespace may charge every")
    config.write_text("")
    less = await installed("install", *flags)
    assert less.code == 0, less.err
    controller = await client.get(DEPLOYMENTS, "bizrq-controller", HERE)
    template = controller["spec"]["template"]
    assert "--config" not in template["spec"]["containers"][0]["command"]
    # What a merge, the sandbox's way, cannot take back.
    assert ("annotations" in template["metadata"]) is not cluster.is_real
    # Nobody mounts the ConfigMap any more, so it is gone.
    assert "configmap/bizrq-config deleted" in less.out.splitlines()
    assert await there(client, config_map) is None

    gone = await installed("uninstall", "-n", HERE)
    assert gone.code == 0
    assert gone.out.splitlines()[0] == "validatingwebhookconfiguration.admissionregistration.k8s.io/bizrq deleted"
    assert "groups and the CRDs are kept" in gone.err
    assert gone.out.splitlines().index("configmap/bizrq-paused deleted") > gone.out.splitlines().index(
        "clusterrole.rbac.authorization.k8s.io/bizrq-controller deleted"
    ), "the marker stays until no leader may register"
    assert await registered(client) is None
    for obj in (stray, former, listed):
        assert await there(client, obj) is None
    for obj in planned(STATED):
        # A namespace goes when whoever cleans it up has done so.
        if obj["kind"] not in ("CustomResourceDefinition", "Namespace"):
            assert await there(client, obj) is None, obj
    assert await client.get(CRDS, "bizgroupresourcequotas.quota.biz.group")
    assert (await installed("uninstall", "-n", HERE)).code == 0


async def test_the_clients_of_the_webhooks_are_installed_and_kept_until_a_flag_removes_them(
    installed: Bizrq, client: KubeClient, tmp_path: Path
) -> None:
    path = tmp_path / "ca.crt"
    path.write_text(CLIENT_CA)
    flags = ("install", "-n", "default", "--no-wait", "--image", "bizrq:1")
    cidrs = ("--api-server-cidr", "10.1.0.0/24", "--api-server-cidr", "FD00::/64", "--api-server-cidr", "10.1.0.0/24")
    result = await installed(*flags, "--client-ca", path, "--client-name", "api", *cidrs)
    assert (result.code, result.err) == (0, f"bizrq: {NOBODY}\n")
    policy = await client.get(resource_of({"kind": "NetworkPolicy"}), "bizrq-webhooks", "default")
    reviews, metrics = policy["spec"]["ingress"]
    assert reviews["from"] == [{"ipBlock": {"cidr": "10.1.0.0/24"}}, {"ipBlock": {"cidr": "fd00::/64"}}]
    assert "from" not in metrics
    assert (await client.get(CONFIG_MAPS, "bizrq-client-ca", "default"))["data"] == {"ca.crt": CLIENT_CA}
    assert "--client-name" in await _command(client)
    command = await _command(client)
    kept = await installed(*flags, "--replicas", "3")
    assert (kept.code, kept.err.splitlines()) == (0, [KEPT_CLIENTS, KEPT_ADDRESSES])
    flags = (*flags, "--replicas", "3")
    changed = [line for line in kept.out.splitlines() if not line.endswith("unchanged")]
    assert changed == [f"deployment.apps/bizrq-{name} configured" for name in ("controller", "webhooks")]
    assert await _command(client) == command
    assert (await client.get(resource_of(policy), "bizrq-webhooks", "default"))["spec"] == policy["spec"]
    path.write_text(make_ca(datetime.now(UTC)).certificate_pem.decode())
    other = await installed(*flags, "--client-ca", path, "--client-name", "other", "--api-server-cidr", "10.2.0.0/24")
    assert (other.code, other.err) == (0, "")
    assert (await client.get(CONFIG_MAPS, "bizrq-client-ca", "default"))["data"] == {"ca.crt": path.read_text()}
    assert _value(await _command(client), "--client-name") == "other"
    without = await installed(*flags, "--no-client-ca", "--no-api-server-cidr")
    assert without.err.splitlines() == [
        "bizrq: the client CA is removed: the webhooks now answer everybody who reaches their port",
        "bizrq: the NetworkPolicy is removed: every pod can now reach the port of the webhooks",
    ]
    with pytest.raises(NotFound):
        await client.get(resource_of({"kind": "NetworkPolicy"}), "bizrq-webhooks", "default")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "bizrq-client-ca", "default")
    assert "--client-name" not in await _command(client)
    assert (await installed("uninstall", "-n", "default")).code == 0


@pytest.mark.parametrize(
    ("kind", "patch", "flags", "said"),
    [
        (
            "ConfigMap",
            None,
            ("--no-client-ca", "--client-ca", "--client-name"),
            "the installed webhooks have --client-ca, and what it says cannot be read from configmap/bizrq-client-ca "
            "and deployment/bizrq-webhooks: pass --client-ca and --client-name, or --no-client-ca",
        ),
        (
            "NetworkPolicy",
            {"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}},
            ("--no-api-server-cidr", "--api-server-cidr"),
            "networkpolicy/bizrq-webhooks is not as install made it: pass --api-server-cidr, or --no-api-server-cidr",
        ),
    ],
)
async def test_what_cannot_be_kept_is_one_line_and_nothing_is_applied(
    installed: Bizrq, client: KubeClient, tmp_path: Path, kind: str, patch: Object | None, flags: Any, said: str
) -> None:
    path = tmp_path / "ca.crt"
    path.write_text(CLIENT_CA)
    given = {"--client-ca": str(path), "--client-name": "api", "--api-server-cidr": "10.1.0.0/24"}
    install = ("install", "-n", "default", "--no-wait", "--image", "bizrq:1")
    whole = [word for pair in given.items() for word in pair]
    assert (await installed(*install, *whole)).code == 0
    name = "bizrq-client-ca" if kind == "ConfigMap" else "bizrq-webhooks"
    if patch is None:
        await client.delete(resource_of({"kind": kind}), name, "default")
    else:
        await client.patch(resource_of({"kind": kind}), name, patch, namespace="default")
    result = await installed(*install)
    assert (result.code, result.out, result.err) == (2, "", f"bizrq: {said}\n")
    removes, *sets = flags
    assert (await installed(*install, *[word for flag in sets for word in (flag, given[flag])])).code == 0
    assert (await installed(*install, removes)).code == 0
    assert (await installed("uninstall", "-n", "default")).code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--no-client-ca", "--client-ca", "x", "--client-name", "api"), "--no-client-ca goes without --client-ca and"),
        (("--no-client-ca", "--client-name", "api"), "--no-client-ca goes without --client-ca and --client-name"),
        (("--no-api-server-cidr", "--api-server-cidr", "10.0.0.0/8"), "--no-api-server-cidr goes without --api-server"),
    ],
)
async def test_what_is_given_and_removed_is_refused(bizrq: Bizrq, flags: tuple[str, ...], said: str) -> None:
    result = await bizrq("install", *flags, "--kubeconfig", "none")
    assert (result.code, result.out) == (2, "")
    [line] = result.err.splitlines()
    assert line.startswith(f"bizrq: {said}")


async def test_what_is_installed_is_read_from_what_install_makes() -> None:
    """Also for names that look like a flag."""
    config_map: Object = {}
    for name in ("api", "--client-ca", "--client-name", "a=b"):
        objects = planned(client_ca=CLIENT_CA, client_name=name, api_servers=("10.0.0.0/24", "fd00::/64"))
        by_key = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
        [deployment, policy] = [by_key[kind, "bizrq-webhooks"] for kind in ("Deployment", "NetworkPolicy")]
        config_map = by_key["ConfigMap", "bizrq-client-ca"]
        assert clients_of(deployment, config_map) == (CLIENT_CA, name)
        assert clients_of(deployment, None) is None
        assert clients_of(None, config_map) is None
        assert api_servers_of(policy) == ("10.0.0.0/24", "fd00::/64")
    [bare] = [o for o in planned() if (o["kind"], o["metadata"]["name"]) == ("Deployment", "bizrq-webhooks")]
    assert clients_of(bare, None) == ("", "")
    assert clients_of(None, None) == ("", "")
    assert api_servers_of(None) == ()
    for spec in (
        {},
        {"ingress": None},
        {"ingress": [{"from": [{"ipBlock": {"cidr": "::/0", "except": ["::1/128"]}}]}]},
    ):
        assert api_servers_of({"spec": spec}) is None


#: By parameter of install: a flag as it may be given, what an update says of it, and the same flag as it wins.
KEPT_FLAGS: dict[str, tuple[list[str], str, list[str]]] = {
    "image": (["--image", f"r.corp/bizrq@sha256:{'0' * 64}"], f"--image=r.corp/bizrq@sha256:{'0' * 64}", ["--image=b"]),
    "replicas": (["--replicas", "3"], "--replicas=3", ["--replicas", "2"]),
    "metrics_anonymous": (["--metrics-anonymous"], "--metrics-anonymous", ["--no-metrics-anonymous"]),
    "allowances": (["--allowances"], "--allowances", ["--no-allowances"]),
    "drain_delay": (["--drain-delay", "0"], "--drain-delay=0", ["--drain-delay", "10"]),
    "log_format": (["--log-format", "json"], "--log-format=json", ["--log-format", "text"]),
    "log_level": (["--log-level", "debug"], "--log-level=debug", ["--log-level", "error"]),
    "api_priority": (["--no-api-priority"], "--no-api-priority", ["--api-priority"]),
    "web": (["--web", "--web-url", "https://q.corp"], "--web --web-url=https://q.corp", ["--no-web"]),
    "web_url": (
        ["--web", "--web-url=https://q.corp/a=b"],
        "--web --web-url=https://q.corp/a=b",
        ["--web", "--web-url=https://r.corp"],
    ),
    "web_tls_secret": (
        ["--web", "--web-url=https://q.corp", "--web-tls-secret=pair"],
        "--web --web-url=https://q.corp --web-tls-secret=pair",
        ["--web", "--web-tls-secret="],
    ),
    "web_oidc_issuer": (
        ["--web", "--web-url=https://q.corp", "--web-oidc-issuer=https://login.corp", "--web-oidc-client-id=--x"],
        "--web --web-url=https://q.corp --web-oidc-issuer=https://login.corp --web-oidc-client-id=--x",
        ["--web", "--web-oidc-issuer=", "--web-oidc-client-id="],
    ),
    "web_oidc_client_id": (
        ["--web", "--web-url=https://q.corp", "--web-oidc-issuer=https://login.corp", "--web-oidc-client-id=a"],
        "--web --web-url=https://q.corp --web-oidc-issuer=https://login.corp --web-oidc-client-id=a",
        ["--web", "--web-oidc-client-id=b"],
    ),
    "web_oidc_secret": (
        [
            *("--web", "--web-url=https://q.corp", "--web-oidc-issuer=https://login.corp", "--web-oidc-client-id=a"),
            "--web-oidc-secret=provider",
        ],
        "--web --web-url=https://q.corp --web-oidc-issuer=https://login.corp --web-oidc-client-id=a "
        "--web-oidc-secret=provider",
        ["--web", "--web-oidc-secret="],
    ),
}
#: Kept too, with tests above; and what is of one call.
KEPT_BY_THEMSELVES = {"config", "client_ca", "client_name", "no_client_ca", "api_server_cidr", "no_api_server_cidr"}
OF_A_CALL = {"namespace", "wait", "timeout", "dry_run", "output", "where"}


async def test_every_process_has_a_limit_of_memory_that_strangers_do_not_reach() -> None:
    """What 2,000 half-sent requests may make of a webhook is measured, and at most a quarter of its limit."""
    web = web_objects(InstallPlan(HERE, "bizrq:1", 2), WebPlan("https://quota.corp"))
    limits = {
        obj["metadata"]["name"]: quantity.parse(container["resources"]["limits"]["memory"]) // NANO
        for obj in [*planned(), *web]
        if obj["kind"] == "Deployment"
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert set(limits) == {"bizrq-webhooks", "bizrq-controller", "bizrq-certs", "bizrq-web"}
    [strangers] = [each for each in ALONE if each.id == "R27"]
    assert strangers.full["mebibytes"] * 2**20 * 4 <= limits["bizrq-webhooks"]
    assert all(limit > METRICS_BOUNDS.bytes * 64 for limit in limits.values())


async def test_every_flag_of_install_is_kept_or_of_one_call() -> None:
    assert {*inspect.signature(install).parameters} == {*KEPT_FLAGS} | KEPT_BY_THEMSELVES | OF_A_CALL


@pytest.mark.parametrize("flag", KEPT_FLAGS)
async def test_an_update_keeps_a_flag_and_says_so_until_it_is_given_again(
    installed: Bizrq, client: KubeClient, flag: str
) -> None:
    given, said, again = KEPT_FLAGS[flag]
    base = ("install", "-n", "default", "--no-wait")
    assert (await installed(*base, *given)).code == 0
    before = await _specs(client)
    update = await installed(*base)
    assert (update.code, update.err) == (0, f"bizrq: kept: {said}; a flag that is given wins\n")
    assert {line.split()[-1] for line in update.out.splitlines()} == {"unchanged"}
    assert await _specs(client) == before
    other = await installed(*base, *again)
    assert other.code == 0, other.err
    assert await _specs(client) != before
    assert (await installed("uninstall", "-n", "default")).code == 0


async def test_all_flags_together_are_kept_and_an_image_of_a_version_gives_way(
    installed: Bizrq, client: KubeClient, tmp_path: Path
) -> None:
    path, config = tmp_path / "ca.crt", tmp_path / "config.yaml"
    path.write_text(CLIENT_CA)
    config.write_text(STATED)
    base = ("install", "-n", "default", "--no-wait")
    once = {"web_url": KEPT_FLAGS["web_url"][0], "web_tls_secret": ["--web-tls-secret=pair"]}
    once |= {name: KEPT_FLAGS[name][0] for name in KEPT_FLAGS if not name.startswith("web")}
    whole = [*once.values(), KEPT_FLAGS["web_oidc_secret"][0][2:], ["--client-ca", str(path), "--client-name", "api"]]
    flags = [word for words in [*whole, ["--api-server-cidr=10.0.0.0/24", "--config", str(config)]] for word in words]
    first = await installed(*base, *flags)
    assert (first.code, first.err) == (0, f"bizrq: {NOBODY}\n")
    before = await _specs(client)
    assert (await installed(*base)).code == 0
    assert await _specs(client) == before
    old = await installed(*base, "--image", "bizrq:0.0.1-rc1")
    assert old.code == 0
    new = await installed(*base)
    default = f"bizrq:{version('bizrq')}"
    assert f"bizrq: the image bizrq:0.0.1-rc1 becomes {default}; --image names another\n" in new.err
    assert "--image=" not in new.err
    stored, _ = await client.list(DEPLOYMENTS, "default")
    assert {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in stored} == {default}
    assert (await installed("uninstall", "-n", "default")).code == 0


async def test_an_image_of_another_repository_stays_and_is_named_if_its_tag_is_another_version(
    installed: Bizrq, client: KubeClient
) -> None:
    base, mine = ("install", "-n", "default", "--no-wait"), version("bizrq")
    older = f"the processes stay those of the image {{}}: pass --image with that of version {mine}"
    for image, said in (
        ("r.corp:5000/bizrq:0.0.1", [older]),
        ("r.corp:5000/bizrq:v0.0.1", [older]),
        (f"r.corp/bizrq:0.0.1@sha256:{'0' * 64}", [older]),
        (f"r.corp:5000/bizrq:v{mine}", []),
        ("r.corp:5000/bizrq", []),
        ("localhost/bizrq:latest", []),
        ("bizrq-of-ours:mine", []),
    ):
        assert (await installed(*base, "--image", image)).code == 0
        before = await _specs(client)
        update = await installed(*base)
        lines = [f"kept: --image={image}; a flag that is given wins", *(line.format(image) for line in said)]
        assert (update.code, update.err.splitlines()) == (0, [f"bizrq: {line}" for line in lines])
        assert await _specs(client) == before, image
    # The repository of the default image: also by a tag of one's own, or by a digest.
    for image in ("bizrq:mine", "bizrq", f"bizrq@sha256:{'0' * 64}"):
        assert (await installed(*base, "--image", image)).code == 0
        update = await installed(*base)
        assert update.err == f"bizrq: the image {image} becomes bizrq:{mine}; --image names another\n"
        assert f"'image': '{image}'" not in str(await _specs(client))
        assert (await installed(*base)).err == ""
    assert (await installed("uninstall", "-n", "default")).code == 0


async def test_a_flag_of_somebody_else_is_not_taken_away_silently(installed: Bizrq, client: KubeClient) -> None:
    base = ("install", "-n", "default", "--no-wait", "--image", "r/bizrq:1", "--drain-delay", "7")
    assert (await installed(*base)).code == 0
    await _edit(client, lambda command: [*command, "--host=::1", "--metrics-port=9099"])
    result = await installed(*base[:-4])
    assert result.err.splitlines() == [
        "bizrq: kept: --image=r/bizrq:1 --drain-delay=7; a flag that is given wins",
        "bizrq: deployment.apps/bizrq-webhooks loses what install has no flag for: --host, --metrics-port",
    ]
    for flag, value in (("--drain-delay", "soon"), ("--log-level", "loud")):
        await _edit(client, lambda command, flag=flag, value=value: _with(command, flag, value))
        refused = await installed(*base[:-4])
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == f"bizrq: deployment/bizrq-webhooks is not as install made it: pass {flag}\n"
        assert (await installed(*base[:-4], flag, {"--drain-delay": "7"}.get(flag, "info"))).code == 0
    await client.patch(DEPLOYMENTS, "bizrq-webhooks", {"spec": {"replicas": 0}}, namespace="default")
    started = await installed(*base)
    assert (started.code, started.err) == (0, "")
    assert (await client.get(DEPLOYMENTS, "bizrq-webhooks", "default"))["spec"]["replicas"] == 2
    assert (await installed("uninstall", "-n", "default")).code == 0


def _with(command: list[str], flag: str, value: str) -> list[str]:
    at = command.index(flag) + 1
    return [*command[:at], value, *command[at + 1 :]]


async def _edit(client: KubeClient, change: Callable[[list[str]], list[str]]) -> None:
    """Change the command of the webhooks in the namespace default as kubectl edit does."""
    stored = await client.get(DEPLOYMENTS, "bizrq-webhooks", "default")
    container = stored["spec"]["template"]["spec"]["containers"][0]
    container["command"] = change(container["command"])
    await client.replace(DEPLOYMENTS, stored)


async def _specs(client: KubeClient) -> dict[str, Any]:
    """What install has stored in the namespace default, and its API priority."""
    found = {}
    for resource in manifests_of_bizrq.PRUNED:
        if resource in manifests_of_bizrq.PRIORITIES or resource.namespaced:
            items, _ = await client.list(
                resource, "default" if resource.namespaced else None, label_selector=f"{MANAGED}={INSTALL}"
            )
            found |= {
                f"{resource.kind}/{o['metadata']['name']}": {
                    key: value for key, value in o.items() if key not in ("metadata", "status")
                }
                for o in items
            }
    return found


async def test_an_install_in_another_namespace_is_refused_and_names_the_first(
    installed: Bizrq, client: KubeClient, unique: str
) -> None:
    """It would give the rights of the processes there to those here."""
    assert (await installed("install", "-n", unique, "--no-wait", "--image", "bizrq:1")).code == 0
    second = await installed("install", "-n", "default", "--no-wait", "--image", "bizrq:1")
    assert (second.code, second.out) == (2, "")
    said = f"bizrq is installed in namespace {unique}: add -n {unique}, or run bizrq uninstall -n {unique} first"
    assert second.err == f"bizrq: {said}\n"
    assert (await installed("uninstall", "-n", unique)).code == 0
    moved = await installed("install", "-n", "default", "--no-wait", "--image", "bizrq:1")
    assert moved.code == 0, moved.err
    assert (await installed("uninstall", "-n", "default")).code == 0


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ((), True),
        (("--replicas", "3"), True),
        (("--client-ca", "ca.crt", "--client-name", "api"), False),
        (("--api-server-cidr", "10.0.0.0/24"), False),
    ],
)
async def test_a_new_installation_that_anybody_may_ask_says_so_but_not_in_its_yaml(
    bizrq: Bizrq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], warned: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.crt").write_text(CLIENT_CA)
    result = await bizrq("install", "--dry-run", *flags)
    assert (result.code, result.err) == (0, f"bizrq: {STRANGERS}\n" if warned else "")
    assert "forge" not in result.out
    assert list(yaml.safe_load_all(result.out))


async def _command(client: KubeClient) -> list[str]:
    """The command of the webhooks in the namespace default."""
    stored = await client.get(DEPLOYMENTS, "bizrq-webhooks", "default")
    return stored["spec"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize(
    ("case", "given", "installed", "use"),
    [
        ("a new installation", None, None, True),
        ("a new one with a configuration", "suspended: zero\n", None, True),
        ("a new one with other rights", "rights: {grant: true}\n", None, True),
        ("a new one that says no", "rights: {use: false}\n", None, False),
        ("a new one that says yes", "rights: {use: true}\n", None, True),
        ("a new one with an empty file", "", None, True),
        ("an update of an open one", None, "", False),
        ("an update of one that is open by its configuration", None, "surge: count\n", False),
        ("an update of one that requires it", None, REQUIRED, True),
        ("an update with another configuration of an open one", "surge: count\n", "", False),
        ("an update with another configuration", "surge: count\n", REQUIRED, True),
        ("an update with an empty file", "", REQUIRED, True),
        ("an update that opens it", "rights: {use: false}\n", REQUIRED, False),
        ("an update that closes it", "rights: {use: true}\n", "", True),
    ],
)
async def test_a_new_installation_requires_the_right_and_an_update_keeps_what_is_configured(
    case: str, given: str | None, installed: str | None, use: bool
) -> None:
    text = configuration(given, installed)
    found = loads(text, case)
    assert found.rights.use is use, (case, text)
    assert requires_use(text) is use
    stated = loads(given if given is not None else installed or "", case)
    assert found.counting == stated.counting
    assert found.rights.grant is stated.rights.grant
    # What states the right, or needs no addition, stays as it is written, with its comments.
    assert configuration(text, installed) == text


async def test_an_older_installation_stays_open_and_says_so(installed: Bizrq, client: KubeClient) -> None:
    """It has Deployments, and no configuration."""
    # A real namespace that was deleted takes no objects for a while.
    there = "bizrq-older"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": there}})
    deployments = [o for o in planned(namespace=there) if o["kind"] == "Deployment"]
    [older] = [o for o in deployments if o["metadata"]["name"] == rbac.WEBHOOKS]
    await client.create(DEPLOYMENTS, older)
    result = await installed("install", "-n", there, "--no-wait", "--image", "bizrq:2")
    assert (result.code, result.err.count("\n")) == (0, 2)
    assert result.err.startswith("bizrq: kept: --no-api-priority; a flag that is given wins\nbizrq: rights.use is off")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, manifests_of_bizrq.CONFIG, there)
    await client.create(CONFIG_MAPS, {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": manifests_of_bizrq.CONFIG, "namespace": there},
        "data": {"config.yaml": "rigths: {}"},
    })  # fmt: skip
    broken = await installed("install", "-n", there, "--no-wait", "--image", "bizrq:2")
    assert (broken.code, broken.out) == (2, "")
    assert broken.err == (
        f"bizrq: configmap/bizrq-config in namespace {there}: rigths: no such key, did you mean rights?; "
        "correct it first\n"
    )
    assert (await installed("uninstall", "-n", there)).code == 0


async def test_the_deletion_of_bills_is_counted_and_has_to_be_confirmed(installed: Bizrq) -> None:
    result = await installed("uninstall", "-n", HERE, "--crd")
    assert (result.code, result.out) == (2, "")
    assert re.search(r"--crd deletes \d+ groups, \d+ records of hours, \d+ bills \(statements\) and \d+ ", result.err)
    assert result.err.endswith("save bills first, then add --yes\n")
    dry = await installed("uninstall", "-n", HERE, "--crd", "--dry-run")
    assert (dry.code, dry.err) == (0, result.err.replace(", then add --yes", ""))
    assert "customresourcedefinition.apiextensions.k8s.io/bizgroupresourcequotas.quota.biz.group\n" in dry.out
    kept = await installed("uninstall", "-n", HERE, "--dry-run")
    assert (kept.code, kept.err) == (0, "")


async def test_what_may_not_be_listed_is_no_zero_among_what_is_deleted() -> None:
    assert records.summed({"group": 3, "bill": 0}) == "3 groups and 0 bills"
    some = records.summed({"group": 3, "bill": None, "correction": None})
    assert some == "3 groups and an unknown number of bills, corrections, which you may not list"
    assert records.summed({"group": None}) == "an unknown number of groups, which you may not list"


@pytest.mark.parametrize("flags", [(), ("--crd", "--yes")], ids=["the CRDs stay", "everything goes"])
async def test_the_policy_works_after_each_install(
    installed: Bizrq, client: KubeClient, cluster: Cluster, unique: str, flags: tuple[str, ...]
) -> None:
    """An API server reads the list of each install, and none after an uninstall."""
    async with as_maker(cluster.kubeconfig) as maker:

        async def rejected(uid: str) -> None:
            async def is_rejected() -> bool:
                return await rejection(maker, pod_of(uid)) == f"exceeded quota: {uid}"

            await eventually(is_rejected, 90, "a pod of a listed workload is rejected")

        for number in range(2):
            # A namespace that is deleted takes a while.
            here = f"{unique}-{number}"
            result = await installed("install", "-n", here, "--no-wait", "--image", "bizrq:1")
            assert result.code == 0, result.err
            first, second = f"{unique}-{number}-a", f"{unique}-{number}-b"
            # As the controller would.
            await client.create(OVERLAPS, overlap.overlap_list({first: f"exceeded quota: {first}"}))
            await rejected(first)
            await client.patch(OVERLAPS, overlap.NAME, {"listed": {first: None, second: f"exceeded quota: {second}"}})
            await rejected(second)
            assert not await rejection(maker, pod_of(first))
            gone = await installed("uninstall", "-n", here, *flags)
            assert gone.code == 0, gone.err

            async def is_allowed(uid: str = second) -> bool:
                return not await rejection(maker, pod_of(uid))

            await eventually(is_allowed, 30, "nothing is rejected any more")


async def test_webhooks_without_pods_are_not_registered(installed: Bizrq, client: KubeClient, cluster: Cluster) -> None:
    """No pod runs on this API server, so registered webhooks would reject everything."""
    if cluster.box is not None:
        pytest.skip("the sandbox has pods run that are none")
    result = await installed("install", "-n", "default", "--timeout", "1")
    assert result.code == 3
    assert "no webhook became ready within 1 s, so none is registered and nothing is refused" in result.err
    with pytest.raises(NotFound):
        await client.get(REGISTRATIONS, "bizrq")
    gone = await installed("uninstall", "-n", "default")
    assert "namespace/default kept: install did not create it" in gone.out
    assert await client.get(NAMESPACES, "default")


async def test_a_changed_configuration_reaches_the_controller_first(
    installed: Bizrq, client: KubeClient, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """No pod runs on this API server, so the rollout of the controller does not end."""
    if cluster.box is not None:
        pytest.skip("the sandbox has pods run that are none")
    flags = ("install", "-n", unique, "--image", "bizrq:1")
    assert (await installed(*flags, "--no-wait")).code == 0
    config = tmp_path / "config.yaml"
    config.write_text("surge: count\n")

    async def digests() -> list[str]:
        names = ("bizrq-controller", "bizrq-webhooks")
        stored = [await client.get(DEPLOYMENTS, name, unique) for name in names]
        return [each["spec"]["template"]["metadata"]["annotations"][CONFIG_DIGEST] for each in stored]

    before = await digests()
    result = await installed(*flags, "--config", str(config), "--timeout", "1")
    assert result.code == 3
    assert "the rollout of bizrq-controller did not end within 1 s, so bizrq-webhooks is as it was before" in result.err
    controller, webhooks = await digests()
    assert (controller != before[0], webhooks) == (True, before[1])
    assert (await installed(*flags, "--config", str(config), "--no-wait")).code == 0
    assert await digests() == [controller, controller]
    assert (await installed("uninstall", "-n", unique)).code == 0


async def test_an_install_waits_for_the_leader_or_says_that_bizrq_is_paused(
    installed: Bizrq, client: KubeClient, cluster: Cluster
) -> None:
    if cluster.is_real:
        pytest.skip("no pod runs on this API server")
    flags = ("install", "-n", "default", "--image", "bizrq:1", "--timeout", "1")
    late = await installed(*flags)
    assert late.code == 3
    assert "the controller has not registered the webhooks within 1 s, so nothing is refused; kubectl -n" in late.err
    await pause.begin(client, "default", "an upgrade", "ann")
    paused = await installed(*flags)
    assert (paused.code, paused.out.count("deleted")) == (0, 0)
    assert " by ann: an upgrade; the webhooks are not registered until bizrq resume" in paused.err
    assert (await installed("uninstall", "-n", "default")).code == 0
    assert await pause.read(client, "default") is None


async def test_api_priority_that_the_cluster_rejects_stops_the_install_before_anything_else(
    installed: Bizrq, client: KubeClient, cluster: Cluster, unique: str
) -> None:
    if not cluster.is_real:
        pytest.skip("the sandbox takes any amount of seats")
    with mock.patch.object(priority, "SHARES", -1):
        result = await installed("install", "-n", unique, "--no-wait", "--image", "bizrq:1")
    assert (result.code, result.out) == (3, "")
    [line] = result.err.splitlines()
    assert line.startswith("bizrq: prioritylevelconfiguration.flowcontrol.apiserver.k8s.io/bizrq is rejected: ")
    assert "spec.limited.nominalConcurrencyShares: Invalid value: -1" in line
    assert "--no-api-priority" in line
    assert not [obj for obj in planned(namespace=unique) if obj["kind"] in PLACED and await there(client, obj)]


async def test_who_may_not_set_api_priority_installs_without_it(
    installed: Bizrq, client: KubeClient, cluster: Cluster, unique: str
) -> None:
    """A cluster may keep it for itself. What an install does not ask for it takes away."""
    if not cluster.is_real:
        pytest.skip("on the sandbox everybody may do everything")
    person = f"{unique}-person"
    used = [*manifests_of_bizrq.PRUNED, NAMESPACES, CRDS, GROUPS]
    groups = {resource.group for resource in used if resource not in manifests_of_bizrq.PRIORITIES}
    everything = {"apiGroups": sorted(groups), "resources": ["*"], "verbs": ["*"]}
    await client.create(CLUSTER_ROLES, {**cluster_role(person, "get"), "rules": [everything]})
    await client.create(CLUSTER_ROLE_BINDINGS, bound(person, person))
    flags = ("-n", unique, "--as", person)
    rejected = await installed("install", *flags, "--no-wait", "--image", "bizrq:1")
    assert (rejected.code, rejected.out, rejected.err.count("\n")) == (3, "", 1)
    assert f'User "{person}" cannot get resource "prioritylevelconfigurations"' in rejected.err
    assert not [obj for obj in planned(namespace=unique) if obj["kind"] in PLACED and await there(client, obj)]

    without = await installed("install", *flags, "--no-wait", "--image", "r/bizrq:1", "--no-api-priority")
    assert without.code == 0, without.err
    assert [line.partition(":")[0] for line in without.err.splitlines()] == ["bizrq"] * 4
    kept = await installed("install", *flags, "--no-wait")
    assert kept.code == 0, kept.err
    assert "kept: --image=r/bizrq:1 --no-api-priority; a flag that is given wins" in kept.err
    assert "flowschemas.flowcontrol.apiserver.k8s.io of an earlier install may be left" in without.err
    assert (await installed("install", "-n", unique, "--no-wait", "--api-priority")).code == 0
    level = next(obj for obj in planned() if obj["kind"] == priority.KINDS[0])
    assert await there(client, level)
    again = await installed("install", "-n", unique, "--no-wait", "--image", "bizrq:1", "--no-api-priority")
    assert sum("flowcontrol" in line and line.endswith(" deleted") for line in again.out.splitlines()) == 5
    assert await there(client, level) is None
    gone = await installed("uninstall", *flags)
    assert gone.code == 0, gone.err
    assert "flowschema.flowcontrol.apiserver.k8s.io/bizrq-certs may be left" in gone.err


async def test_uninstall_with_the_crd_also_deletes_groups_with_finalizers(installed: Bizrq, client: KubeClient) -> None:
    await has_kinds(client, crds.load())
    held = group("held", cpu="1")
    held["metadata"]["finalizers"] = [FINALIZER]
    await client.create(GROUPS, held)
    result = await installed("uninstall", "-n", HERE, "--crd", "--yes")
    assert (result.code, result.err) == (0, "")
    with pytest.raises(NotFound):
        await client.get(CRDS, "bizgroupresourcequotas.quota.biz.group")


async def test_a_dry_run_prints_what_would_be_applied(installed: Bizrq) -> None:
    result = await installed(
        "install", "--dry-run", "-o", "yaml", "-n", HERE, "--image", "bizrq:1", "--kubeconfig", "none"
    )
    assert list(yaml.safe_load_all(result.out)) == planned(REQUIRED)
    listed = json.loads((await installed("install", "--dry-run", "-o", "json", "-n", HERE, "--image", "bizrq:1")).out)
    assert listed["items"] == planned(REQUIRED)
    names = (await installed("uninstall", "--dry-run", "-n", HERE)).out.split()
    assert names[0] == "validatingwebhookconfiguration.admissionregistration.k8s.io/bizrq"
    assert names[-6] == f"namespace/{HERE}"
    assert {name.partition("/")[0] for name in names[-5:]} == {
        f"{kind}.flowcontrol.apiserver.k8s.io" for kind in ("flowschema", "prioritylevelconfiguration")
    }
    assert "secret/bizrq-certs" in names
    assert "configmap/bizrq-paused" in names
    # The policy goes before what it reads, and that after the controller that writes it.
    ours = [f"{kind}.admissionregistration.k8s.io/bizrq-overlap" for kind in POLICY_KINDS]
    ours += ["deployment.apps/bizrq-controller", "bizgroupoverlap.quota.biz.group/bizrq-overlap"]
    assert [name for name in names if name in ours] == ours
    assert not [name for name in names if name.startswith("customresourcedefinition")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replicas", "0"],
        ["--timeout", "x"],
        ["--config", "none.yaml"],
        ["--client-ca", "none.crt"],
        ["--client-ca", "none.crt", "--client-name", "api"],
        ["--client-ca", "none.crt", "--client-name", ""],
        ["--client-name", "api"],
        ["--api-server-cidr", ""],
        ["--drain-delay", "-1"],
        ["--drain-delay", "601"],
        ["--drain-delay", "10s"],
        ["--log-format", "yaml"],
        ["--log-level", "trace"],
    ],
)
async def test_a_bad_call_is_exit_2(installed: Bizrq, arguments: list[str]) -> None:
    result = await installed("install", "--dry-run", *arguments)
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(
    ("ca", "name", "said"),
    [
        (
            "none.crt",
            "api",
            "--client-ca none.crt cannot be read: No such file or directory; name the PEM file of the CA",
        ),
        (".", "api", "--client-ca . cannot be read: Is a directory; name the PEM file of the CA"),
        ("/dev/null", "api", "--client-ca /dev/null holds no PEM certificate; name the CA of the API server's client"),
        ("none.crt", "", "--client-name is empty: pass the common name of the API server's client certificate"),
        ("none.crt", " ", "--client-name is empty: pass the common name of the API server's client certificate"),
        ("none.crt", None, "--client-ca needs --client-name: the common name of the API server's client certificate"),
        (None, "api", "--client-name needs --client-ca: the CA of the API server's client certificate"),
    ],
)
async def test_clients_that_cannot_be_known_are_one_line_and_nothing_is_applied(
    installed: Bizrq, client: KubeClient, ca: str | None, name: str | None, said: str
) -> None:
    flags = ["--client-ca", ca] if ca is not None else []
    flags += ["--client-name", name] if name is not None else []
    result = await installed("install", "--namespace", HERE, "--no-wait", *flags)
    assert (result.code, result.out) == (2, "")
    [line] = result.err.splitlines()
    assert line.startswith(f"bizrq: {said}")
    with pytest.raises(NotFound):
        await client.get(DEPLOYMENTS, rbac.WEBHOOKS, HERE)
    with pytest.raises(NotFound):
        await client.get(REGISTRATIONS, "bizrq")


@pytest.mark.parametrize(
    ("cidr", "said"),
    [
        *(
            (text, "is no CIDR: write an address and a prefix length")
            for text in ("", "10.0.0.1", "api", "10.0.0.0/-1")
        ),
        *((text, "is no CIDR: write") for text in ("10.0.0.0/255.0.0.0", "fe80::%eth0/64", "10.0.0.0/33", "::/129")),
        *(
            (text, "is no CIDR: write")
            for text in ("10.0.0.0/24,10.1.0.0/24", " 10.0.0.0/24", "\u0661/8", "\x1b[31m/8")
        ),
        ("10.1.2.3/24", "has an address inside its network: write 10.1.2.0/24, or 10.1.2.3/32"),
        ("fd00::1/64", "has an address inside its network: write fd00::/64, or fd00::1/128"),
        ("::ffff:10.0.0.0/104", "is IPv4 in the form of IPv6: write 10.0.0.0"),
        ("0.0.0.0/0", "is every address: name those of the API servers, or leave the flag out"),
        ("::/0", "is every address"),
    ],
)
async def test_a_cidr_that_is_none_is_one_line_with_the_remedy(bizrq: Bizrq, cidr: str, said: str) -> None:
    result = await bizrq("install", "--api-server-cidr", cidr, "--kubeconfig", "none")
    assert (result.code, result.out) == (2, "")
    [line] = result.err.splitlines()
    assert line.startswith("bizrq: --api-server-cidr ")
    assert said in line
    assert line.isprintable()


async def test_installed_manifests_are_consistent() -> None:
    """Deployments use existing flags and ServiceAccounts with rights, and the Service selects their pods."""
    config = "suspended: zero\n"
    objects = planned(config, client_ca=CLIENT_CA, client_name="api", api_servers=("10.0.0.1/32",))
    by_kind = {kind: [o for o in objects if o["kind"] == kind] for kind in {o["kind"] for o in objects}}
    accounts = {o["metadata"]["name"] for o in by_kind["ServiceAccount"]}
    [service], [budget] = (by_kind[k] for k in ("Service", "PodDisruptionBudget"))
    assert [o["data"] for o in by_kind["ConfigMap"]] == [{"config.yaml": config}, {"ca.crt": CLIENT_CA}]
    config_maps = {o["metadata"]["name"] for o in by_kind["ConfigMap"]}
    for deployment in by_kind["Deployment"]:
        spec = deployment["spec"]["template"]["spec"]
        [container] = spec["containers"]
        program, *words = container["command"]
        assert {word for word in words if word.startswith("--")} <= options(PROCESSES[program], program)
        assert spec["serviceAccountName"] == program
        assert program in accounts
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
        assert {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v} <= config_maps
    [webhooks] = [d for d in by_kind["Deployment"] if d["metadata"]["name"] == rbac.WEBHOOKS]
    labels = webhooks["spec"]["template"]["metadata"]["labels"]
    [serving] = webhooks["spec"]["template"]["spec"]["containers"]
    assert serving["securityContext"]["readOnlyRootFilesystem"]
    assert "/tmp" in {m["mountPath"] for m in serving["volumeMounts"]}, "a key is loaded from a private folder there"
    assert service["spec"]["selector"] == labels == budget["spec"]["selector"]["matchLabels"]
    assert webhooks["spec"]["replicas"] == 2
    ports = {p["name"]: p["containerPort"] for p in webhooks["spec"]["template"]["spec"]["containers"][0]["ports"]}
    [port] = service["spec"]["ports"]
    [policy] = by_kind["NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} == set(ports.values())
    for webhook in registration.configuration(SETTINGS, registration.by_service(HERE), namespace=HERE)["webhooks"]:
        called = webhook["clientConfig"]["service"]
        assert (called["name"], called["namespace"]) == (service["metadata"]["name"], HERE)
        assert called["port"] == port["port"] == ports[port["targetPort"]]


async def test_pods_have_time_to_drain_and_to_answer_what_is_under_way() -> None:
    """Those of install and the container of compose; what the others do at their end is short."""
    compose = yaml.safe_load(page("docker-compose.yml"))["services"]["webhooks"]
    graces = {
        o["metadata"]["name"]: o["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for o in [*planned(), *web_objects(InstallPlan(HERE, "bizrq:1", 2), WebPlan("https://quota.corp"))]
        if o["kind"] == "Deployment"
    }
    assert int(compose["stop_grace_period"].removesuffix("s")) == graces[rbac.WEBHOOKS]
    assert f"`bizrq install` sets {graces[rbac.WEBHOOKS]}" in page("docs/operations.md")
    for name, process in PROCESSES.items():
        delay = inspect.signature(process).parameters.get("drain_delay")
        needed = SCRAPED + (delay.default + ANSWERING if delay else 0)
        assert needed + 5 <= graces[name], name
    assert "drain_delay" in inspect.signature(PROCESSES[rbac.WEBHOOKS]).parameters


@pytest.mark.parametrize("delay", [0, 10, 45, 600])
async def test_a_longer_drain_gets_a_longer_grace_period(bizrq: Bizrq, delay: int) -> None:
    """What the others need does not depend on it."""
    result = await bizrq("install", "--dry-run", "--drain-delay", delay)
    for name, (command, grace) in processes(list(yaml.safe_load_all(result.out))).items():
        if name == rbac.WEBHOOKS:
            assert _value(command, "--drain-delay") == str(delay)
            assert grace >= delay + ANSWERING + SCRAPED + 5
        else:
            assert "--drain-delay" not in command
            assert grace == processes(planned())[name][1]


@pytest.mark.parametrize(("form", "level"), [("text", "info"), ("json", "debug"), ("json", "error")])
async def test_every_process_logs_as_install_is_told(bizrq: Bizrq, form: str, level: str) -> None:
    result = await bizrq("install", "--dry-run", "--log-format", form, "--log-level", level)
    commands = [command for command, _ in processes(list(yaml.safe_load_all(result.out))).values()]
    assert [_value(command, "--log-format") for command in commands] == [form] * 3
    assert [_value(command, "--log-level") for command in commands] == [level] * 3


async def test_installed_commands_are_ones_that_the_processes_take() -> None:
    """Each process parses its own command: an unknown flag or value would end it at once."""
    for name, (command, _) in processes(planned(drain_delay=600, log_level=LogLevel.WARNING)).items():
        said = parsed(PROCESSES[name], command[1:])
        assert said["log_level"] is LogLevel.WARNING
        assert said["log_format"] is LogFormat.TEXT
        assert said.get("drain_delay") == (600 if name == rbac.WEBHOOKS else None)


def parsed(process: Callable[..., None], words: list[str]) -> dict[str, Any]:
    """What a process is called with, with these words on its command line."""
    found: dict[str, Any] = {}

    @functools.wraps(process)
    def noted(**values: Any) -> None:
        found.update(values)

    program = typer.Typer()
    program.command()(noted)
    result = CliRunner().invoke(program, words)
    assert result.exit_code == 0, result.output
    return found


def processes(objects: list[Object]) -> dict[str, tuple[list[str], int]]:
    """By name of the Deployment: its command and its grace period in seconds."""
    found = {}
    for obj in objects:
        if obj["kind"] == "Deployment":
            spec = obj["spec"]["template"]["spec"]
            command = spec["containers"][0]["command"]
            found[obj["metadata"]["name"]] = command, spec["terminationGracePeriodSeconds"]
    return found


def _value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


async def test_metrics_are_open_to_all_only_where_that_is_asked_for() -> None:
    for flags, wanted in (({}, False), ({"metrics_anonymous": True}, True)):
        commands = [
            o["spec"]["template"]["spec"]["containers"][0]["command"]
            for o in planned(**flags)
            if o["kind"] == "Deployment"
        ]
        assert ["--metrics-anonymous" in command for command in commands] == [wanted] * 3


async def test_a_changed_configuration_restarts_the_pods() -> None:
    """Processes read it only when they start."""

    def template(config: str) -> Object:
        found = {(o["kind"], o["metadata"]["name"]): o for o in planned(config)}
        return found["Deployment", "bizrq-controller"]["spec"]["template"]

    assert template("suspended: zero") != template("suspended: full")
    assert "--config" not in template("")["spec"]["containers"][0]["command"]
