"""`bizrq doctor`: it says nothing of a healthy installation, and of each thing that is broken what it is."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bizrq import registration
from bizrq.cli import manifests_of_bizrq as made
from bizrq.cli.doctor import bundle, checks
from bizrq.cli.doctor.checks import Grade
from bizrq.cli.doctor.state import Renewal, State, installed
from bizrq.cli.installation.configuration import configuration
from bizrq.cli.manifests_of_bizrq import InstallPlan, resource_of
from bizrq.cli.output import waits
from bizrq.cli.standalone import Standalone, TargetCluster
from bizrq.figures.state.reader import MissingRight, Unknown
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import AlreadyExists, KubeClient, NotFound
from bizrq.kube.lease import LEASES
from bizrq.settings import loads
from bizrq.store import pause, processes
from bizrq.store.groups import GROUPS
from bizrq.store.processes import ProcessInfo
from certs.pki import make_ca
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.support.cluster import Real, eventually
from tests.support.objects import DEPLOYMENTS, Object, group

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = "bizrq-system"
HEALTHY = "no problems found\n"
REQUIRED = configuration(None, None)
CLIENT_CA = make_ca(datetime.now(UTC)).certificate_pem.decode()


@asynccontextmanager
async def installation(path: Path, box: Sandbox | None = None) -> AsyncIterator[Bizrq]:
    """All objects of an installation, and in place of the pods one process that does their work.

    `path` is the kubeconfig of a real cluster, or a file to write that of the sandbox to.
    """
    settings = loads(REQUIRED, "test")
    where = TargetCluster(None if box else path, None, path)
    async with Standalone(settings, where, namespace=HERE, sandbox=box), KubeClient.from_kubeconfig(path) as client:
        plan = InstallPlan(HERE, "bizrq:1", 2, REQUIRED, client_ca=CLIENT_CA, client_name="api")
        for obj in made.install_objects(settings, plan):
            await stored(client, obj)
        yield Bizrq(path, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def healthy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """An installation on the sandbox."""
    path = tmp_path_factory.mktemp("doctor") / "kubeconfig"
    async with Sandbox() as box, installation(path, box) as bizrq:
        await bizrq.client.create(GROUPS, group("nlp", cpu="10"))

        async def is_well() -> bool:
            result = await bizrq("doctor")
            return (result.code, result.out, result.err) == (0, HEALTHY, "")

        await eventually(is_well, 60, "a healthy installation")
        yield bizrq


async def stored(client: KubeClient, obj: Object) -> None:
    """Create what the process has not made itself."""
    try:
        await client.create(resource_of(obj), obj)
    except AlreadyExists:
        return


@asynccontextmanager
async def changed(client: KubeClient, kind: str, name: str, patch: Object | None) -> AsyncIterator[None]:
    """Patch an object, or delete it where `patch` is None, and put it back as it was."""
    resource = LEASES if kind == "Lease" else resource_of({"kind": kind})
    namespace = HERE if resource.namespaced else None
    before = await client.get(resource, name, namespace)
    if patch is None:
        await client.delete(resource, name, namespace)
    else:
        await client.patch(resource, name, patch, namespace=namespace)
    try:
        yield
    finally:
        for server_side in ("resourceVersion", "uid", "creationTimestamp", "generation"):
            before["metadata"].pop(server_side, None)
        try:
            now = await client.get(resource, name, namespace)
        except NotFound:
            await client.create(resource, before)
        else:
            before["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
            await client.replace(resource, before)


def _webhooks(**config: Any) -> Callable[[Object], Object]:
    def patch(stored: Object) -> Object:
        webhooks = [{**w, "clientConfig": {**w["clientConfig"], **config}} for w in stored["webhooks"]]
        return {"webhooks": webhooks}

    return patch


def pem(*, days: float) -> str:
    """A caBundle of a CA that expires in so many days."""
    ca = make_ca(datetime.now(UTC) - timedelta(days=365 - days))
    return base64.b64encode(ca.certificate_pem).decode()


#: What is broken: kind, name, patch (None deletes), and what doctor says of it.
BROKEN: dict[str, tuple[str, str, Any, tuple[str, ...]]] = {
    "a role is gone": ("ClusterRole", "bizrq-counted", None, ("rights: bizrq-", "missing: ClusterRole bizrq-counted")),
    "a role lost a right": (
        "ClusterRole",
        "bizrq-controller",
        {"rules": []},
        ("rights: bizrq-controller may not", "differ from what this version of bizrq installs: ClusterRole"),
    ),
    "a binding is gone": (
        "ClusterRoleBinding",
        "bizrq-webhooks",
        None,
        ("rights: bizrq-webhooks may not", "missing: ClusterRoleBinding bizrq-webhooks"),
    ),
    "the policy is off": (
        "ValidatingAdmissionPolicyBinding",
        "bizrq-status",
        None,
        ("missing: ValidatingAdmissionPolicyBinding bizrq-status",),
    ),
    "the Service is gone": ("Service", "bizrq-webhooks", None, ("missing: Service bizrq-webhooks",)),
    "the registration is gone": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        None,
        ("missing: ValidatingWebhookConfiguration bizrq",),
    ),
    "a webhook is missing": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        lambda stored: {"webhooks": stored["webhooks"][1:]},
        ("differ from what this version of bizrq installs: ValidatingWebhookConfiguration bizrq",),
    ),
    "a webhook ignores failures": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        lambda stored: {"webhooks": [{**w, "failurePolicy": "Ignore"} for w in stored["webhooks"]]},
        ("differ from what this version of bizrq installs: ValidatingWebhookConfiguration bizrq",),
    ),
    "webhooks cannot be reached": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(url="https://127.0.0.1:1/validate/groups"),
        ("reachability: the API server does not get an answer of the webhooks: ",),
    ),
    "no caBundle": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(caBundle=None),
        ("certificates: no caBundle: ", "and 25 more"),
    ),
    "another CA": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(caBundle=pem(days=300)),
        ("reachability: the API server does not get an answer of the webhooks: ",),
    ),
    "a CA that expires": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(caBundle=pem(days=5)),
        ("certificates: the CA of the webhooks expires at ",),
    ),
    "a CA that has expired": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(caBundle=pem(days=-1)),
        ("certificates: the CA of the webhooks has expired",),
    ),
    "a CA that is none": (
        "ValidatingWebhookConfiguration",
        "bizrq",
        _webhooks(caBundle=base64.b64encode(b"x").decode()),
        ("certificates: the caBundle is no certificate: ",),
    ),
    "another image": (
        "Deployment",
        "bizrq-controller",
        {"spec": {"template": {"spec": {"containers": [{"name": "controller", "image": "bizrq:0"}]}}}},
        ("versions: the processes have different images: bizrq-webhooks bizrq:1, bizrq-controller bizrq:0",),
    ),
    "another configuration": (
        "ConfigMap",
        "bizrq-config",
        {"data": {"config.yaml": "rights: {use: true}\nsurge: count\n"}},
        (
            "configuration: bizrq-webhooks runs with another one than configmap/bizrq-config has",
            "configuration: bizrq-controller runs with another one than configmap/bizrq-config has",
        ),
    ),
    "a configuration that cannot be read": (
        "ConfigMap",
        "bizrq-config",
        {"data": {"config.yaml": "rigths: {}"}},
        ("configuration: configmap/bizrq-config in namespace bizrq-system: rigths: no such key, did you mean rights?",),
    ),
    "nobody there": (
        "Deployment",
        "bizrq-webhooks",
        {"spec": {"replicas": 0}},
        ("replicas: bizrq-webhooks is scaled to 0",),
    ),
}


@pytest.mark.parametrize(("kind", "name", "patch", "said"), BROKEN.values(), ids=BROKEN)
async def test_each_thing_that_is_broken_is_named_with_what_to_do(
    healthy: Bizrq, kind: str, name: str, patch: Any, said: tuple[str, ...]
) -> None:
    resource = resource_of({"kind": kind})
    if callable(patch):
        patch = patch(await healthy.client.get(resource, name, HERE if resource.namespaced else None))
    async with changed(healthy.client, kind, name, patch):
        result = await healthy("doctor")
    assert (result.code, result.err) == (1, ""), result.out
    for words in said:
        assert words in result.out, result.out
    lines = result.out.splitlines()
    assert all(fix.startswith("    ") and fix.strip() for fix in lines[1::2]), "each finding has its remedy"
    assert not any(line.startswith(" ") for line in lines[::2])


async def test_a_pause_is_named_with_its_reason_and_not_as_a_missing_registration(healthy: Bizrq) -> None:
    await pause.begin(healthy.client, HERE, "etcd is slow", "ann")
    try:
        both = await healthy("doctor")
        async with changed(healthy.client, "ValidatingWebhookConfiguration", "bizrq", None):
            result = await healthy("doctor")
    finally:
        await pause.end(healthy.client, HERE)
    assert result.code == 1
    first, remedy = result.out.splitlines()
    assert first.startswith("paused: paused since 2")
    assert first.endswith(" by ann: etcd is slow; nothing is checked")
    assert remedy.strip() == "run bizrq resume when the reason is gone"
    assert "bizrq is paused, and the webhooks are registered all the same" in both.out


async def test_a_choice_that_may_be_meant_is_a_notice_and_no_problem(healthy: Bizrq) -> None:
    async with changed(healthy.client, "FlowSchema", "bizrq-lease", None):
        result = await healthy("doctor")
    assert result.code == 0
    assert result.out.startswith("notice: API priority: missing: bizrq-lease; ")
    assert result.out.endswith(HEALTHY)


async def test_webhooks_that_answer_everybody_are_a_notice_unless_a_network_policy_keeps_others_away(
    healthy: Bizrq,
) -> None:
    plan = InstallPlan(HERE, "bizrq:1", 2, REQUIRED, api_servers=("10.0.0.1/32",))
    objects = {
        (obj["kind"], obj["metadata"]["name"]): obj for obj in made.install_objects(loads(REQUIRED, "test"), plan)
    }
    deployment, policy = (objects[kind, "bizrq-webhooks"] for kind in ("Deployment", "NetworkPolicy"))
    async with changed(healthy.client, "Deployment", "bizrq-webhooks", {"spec": deployment["spec"]}):
        said = await healthy("doctor")
        await healthy.client.create(resource_of(policy), policy)
        try:
            behind = await healthy("doctor")
        finally:
            await healthy.client.delete(resource_of(policy), "bizrq-webhooks", HERE)
    notices = [line for line in said.out.splitlines() if line.startswith("notice: who may ask: ")]
    what = "the webhooks ask for no client certificate, so whoever reaches their port can forge reviews"
    assert notices == [f"notice: who may ask: {what}"]
    assert "--client-ca" in said.out
    assert "who may ask" not in behind.out


@pytest.mark.parametrize("command", [["--client-ca", "/x", "--client-name", "api"], ["--client-ca=/x"]])
async def test_webhooks_with_a_client_ca_are_no_finding(command: list[str]) -> None:
    def seen(words: list[str], **more: Any) -> State:
        container = {"name": "webhooks", "command": ["bizrq-webhooks", *words]}
        deployment = {"spec": {"template": {"spec": {"containers": [container]}}}}
        return state(stored={("Deployment", HERE, "bizrq-webhooks"): deployment}, **more)

    assert checks.findings(seen(command), (checks.who_may_ask,)) == []
    [finding] = checks.findings(seen([]), (checks.who_may_ask,))
    assert finding.grade is Grade.NOTICE
    unread = frozenset({("NetworkPolicy", HERE, "bizrq-webhooks")})
    assert checks.findings(seen([], unread=unread), (checks.who_may_ask,)) == []
    assert checks.findings(state(stored=REGISTERED), (checks.who_may_ask,)) == [], "that runs elsewhere"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def really_installed(real_cluster: Real) -> AsyncIterator[Bizrq]:
    """An installation on a real API server: nothing is wrong but that no node runs its pods."""
    async with installation(real_cluster.kubeconfig) as bizrq:
        try:
            await eventually(lambda: only_lacks_nodes(bizrq), 90, "a healthy installation")
            yield bizrq
        finally:
            gone = await bizrq("uninstall", "-n", HERE)
            assert gone.code == 0, gone.err


async def only_lacks_nodes(bizrq: Bizrq) -> bool:
    result = await bizrq("doctor")
    found = [line for line in result.out.splitlines() if not line.startswith(" ")]
    return result.code == 1 and len(found) == 3 and all(line.startswith("replicas: 0 of ") for line in found)


@pytest.mark.real
async def test_on_a_real_api_server_nothing_is_wrong_but_the_pods_that_no_node_runs(really_installed: Bizrq) -> None:
    """It adds defaults to what is stored, which are no differences, and checks rights as RBAC has them."""
    bizrq = really_installed
    assert await only_lacks_nodes(bizrq)
    before = await bizrq("doctor", "--pre")
    assert (before.code, before.out) == (0, "ready to install\n")
    person = await bizrq("doctor", "--pre", "--as", "nobody-in-particular")
    assert person.code == 1
    assert "rights: you may not " in person.out
    # What a person may not read is neither missing nor broken.
    person = await bizrq("doctor", "--as", "nobody-in-particular")
    assert person.code == 4
    heads = [line for line in person.out.splitlines() if not line.startswith(" ")]
    assert all(line.startswith("not checked: ") for line in heads), person.out
    verbs = [re.search("you may not ([a-z]+) ", line) for line in heads]
    assert sorted(found[1] for found in verbs if found) == ["create", "get", "list"], person.out


@pytest.mark.real
@pytest.mark.parametrize(("kind", "name", "patch", "said"), BROKEN.values(), ids=BROKEN)
async def test_on_a_real_api_server_each_thing_that_is_broken_is_named_too(
    really_installed: Bizrq, kind: str, name: str, patch: Any, said: tuple[str, ...]
) -> None:
    """Its API servers learn of some of it a moment later. When it is mended, it is named no more."""
    resource = resource_of({"kind": kind})
    if callable(patch):
        patch = patch(await really_installed.client.get(resource, name, HERE if resource.namespaced else None))
    out = ""

    async def is_named() -> bool:
        nonlocal out
        out = (await really_installed("doctor")).out
        return all(words in out for words in said)

    async with changed(really_installed.client, kind, name, patch):
        await eventually(is_named, 30, lambda: f"{said} in {out}")
    await eventually(lambda: only_lacks_nodes(really_installed), 60, "nothing else is wrong again")


async def test_at_least_fifteen_faults_are_made() -> None:
    assert len(BROKEN) >= 15


async def test_doctor_changes_nothing(healthy: Bizrq) -> None:
    """Nothing of what it looks at has a new version, and no object is new."""

    async def versions() -> list[tuple[str, str, str]]:
        found = []
        for resource in made.PRUNED:
            for item in (await healthy.client.list(resource))[0]:
                metadata = item["metadata"]
                found.append((resource.key, metadata["name"], metadata["resourceVersion"]))
        return sorted(found)

    before = await versions()
    assert (await healthy("doctor")).code == 0
    assert (await healthy("doctor", "--pre")).code == 0
    assert await versions() == before


async def test_a_bundle_has_the_state_and_no_secrets(healthy: Bizrq, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    env = [{"name": "PROXY", "value": "http://ann:hunter2@proxy"}, {"name": "POD", "valueFrom": {"fieldRef": {}}}]
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "certs", "image": "bizrq:1", "env": env}]}}}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bizrq-certs", "namespace": HERE}}
    secrets = resource_of(secret)
    await healthy.client.create(secrets, {**secret, "data": {"ca.key": base64.b64encode(b"hunter2").decode()}})
    async with changed(healthy.client, "Deployment", "bizrq-certs", patch):
        result = await healthy("doctor", "--bundle", path)
    await healthy.client.delete(secrets, "bizrq-certs", HERE)
    text = path.read_text("utf-8")
    found = json.loads(text)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text
    kinds = {each["kind"] for each in found["objects"]}
    assert {"Deployment", "ClusterRole", "ValidatingWebhookConfiguration", "ConfigMap"} <= kinds
    assert "Secret" not in kinds
    assert [each["metadata"]["name"] for each in found["groups"]] == ["nlp"]
    assert found["configuration"] == REQUIRED
    assert len(found["findings"]) == result.out.count("\n    ")
    again = await healthy("doctor", "--bundle", path)
    assert (again.code, again.out) == (2, "")
    assert again.err == f"bizrq: {path} exists: name a new file\n"
    nowhere = await healthy("doctor", "--bundle", tmp_path / "none" / "file")
    assert (nowhere.code, nowhere.err) == (2, f"bizrq: {tmp_path / 'none' / 'file'}: No such file or directory\n")


async def test_what_looks_like_a_secret_is_hidden() -> None:
    key = "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----"
    dirty = {
        "metadata": {"managedFields": [1], "annotations": {bundle._LAST_APPLIED: "x", "a": key}},
        "password": "hunter2",
        "db-password": "hunter2",
        "api_key": "hunter2",
        "args": ["--token=hunter2", "--port=1", f"x {key}"],
        "secretName": "bizrq-certs",
        "env": [{"name": "A", "value": "hunter2"}],
        "clientConfig": {"caBundle": "Y2E=", "url": "https://ann:hunter2@host/x"},
    }
    cleaned = bundle.clean(dirty)
    assert "hunter2" not in json.dumps(cleaned)
    assert "abc" not in json.dumps(cleaned)
    assert cleaned["secretName"] == "bizrq-certs"
    assert cleaned["args"][1] == "--port=1"
    assert cleaned["clientConfig"]["caBundle"].startswith("sha256:")
    assert "managedFields" not in cleaned["metadata"]


async def test_a_cluster_without_bizrq_can_take_it_and_doctor_says_that_it_is_not_there(tmp_path: Path) -> None:
    async with Sandbox() as box:
        path = box.write_kubeconfig(tmp_path / "bare")
        async with KubeClient.from_kubeconfig(path) as client:
            bare = Bizrq(path, client)
            before = await bare("doctor", "--pre")
            assert (before.code, before.out) == (0, "ready to install\n")
            result = await bare("doctor")
            assert result.code == 1
            assert result.out == (
                "installation: bizrq is not installed\n    run bizrq doctor --pre, then bizrq install\n"
            )


async def test_bizrq_up_is_no_installation_with_everything_missing(tmp_path: Path) -> None:
    """It is named; what it makes itself is looked at, also after a pause."""
    path = tmp_path / "kubeconfig"
    async with (
        Sandbox() as box,
        Standalone(loads("", "test"), TargetCluster(None, None, path), namespace=HERE, sandbox=box),
        KubeClient.from_kubeconfig(path) as client,
    ):
        up = Bizrq(path, client)

        async def is_well() -> bool:
            result = await up("doctor")
            said.append(result.out)
            return result.code == 0

        said: list[str] = []
        await eventually(is_well, 60, lambda: said[-1:])
        notice, fix, well = said[-1].splitlines()
        assert notice.startswith("notice: installation: bizrq up runs here: ")
        assert (fix[:4], well) == ("    ", HEALTHY.strip())
        glance = (await up("status")).plain.splitlines()[1]
        assert re.fullmatch(r"versions  bizrq [^,]+, Kubernetes [^,]+, bizrq up [^,]+", glance)
        assert json.loads((await up("status", "-o", "json")).out)["versions"]["up"]
        assert (await up("pause", "--yes")).code == 0
        paused = await up("doctor")
        assert paused.code == 1
        assert [line.split(":")[0] for line in paused.out.splitlines()[::2]] == ["paused", "notice"]
        resumed = await up("resume")
        assert (resumed.code, resumed.out, resumed.err) == (0, "resumed\nthe webhooks are registered\n", "")
        await eventually(is_well, 60, lambda: said[-1:])
        for _ in range(3):
            # At once, before anybody can have looked.
            assert (await up("pause", "--yes")).code == 0
            assert (await up("resume")).code == 0
        await client.delete(resource_of({"kind": "ValidatingAdmissionPolicy"}), "bizrq-labels")
        gone = await up("doctor")
        assert gone.code == 1
        assert "installation: missing: ValidatingAdmissionPolicy bizrq-labels\n    start bizrq up again\n" in gone.out
        assert (await up("uninstall", "-n", HERE)).code == 0
        later = await up("resume", "--timeout", "1")
        assert (later.code, later.out) == (3, "bizrq was not paused\n"), "an uninstall is not undone"


async def test_processes_outside_the_cluster_are_compared_with_what_the_docs_apply(tmp_path: Path) -> None:
    """A policy names the address of their webhooks, which no flag of install gives."""
    url, settings, path = "https://10.0.0.1:8443", loads("", "test"), tmp_path / "kubeconfig"
    async with Sandbox(controllers=False) as box, KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client:
        applied = made.install_objects(settings, InstallPlan(HERE, "", 1, webhook_url=url))
        registered = registration.configuration(settings, registration.by_url(f"{url}/"), namespace=HERE)
        leases = [processes.lease_of(_running(each, "node", config=""), HERE) for each in ("webhooks", "controller")]
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for lease in leases:
            lease["spec"]["renewTime"] = renewed
        kept = [obj for obj in applied if obj["kind"] not in ("Deployment", "Service", "PodDisruptionBudget")]
        for obj in (*kept, registered):
            await stored(client, obj)
        for lease in leases:
            await client.create(LEASES, lease)
        seen = await installed(client, HERE)
        assert seen.runs_outside
        assert checks.findings(seen, (checks.objects,)) == []
        await client.delete(resource_of({"kind": "ValidatingAdmissionPolicy"}), "bizrq-leader")
        [finding] = checks.findings(await installed(client, HERE), (checks.objects,))
    assert finding.what == "missing: ValidatingAdmissionPolicy bizrq-leader"
    assert finding.fix == 'apply the objects of this version again: docs/operations.md, "Outside the cluster"'


async def test_a_configuration_of_bizrq_up_is_not_known_to_doctor() -> None:
    settings = loads("", "test")
    wanted = tuple(made.install_objects(settings, InstallPlan(HERE, "", 1)))
    there: dict[Any, Object] = {("ValidatingWebhookConfiguration", "", "bizrq"): {"webhooks": []}}
    for up, said in ((_running("up", "a", config=""), True), (_running("up", "a"), False)):
        seen = state(wanted=wanted, stored=there, running=(up,))
        [finding] = checks.findings(seen, (checks.objects,))
        assert finding.what.startswith("missing: CustomResourceDefinition ")
        names = {obj["metadata"]["name"] for obj in checks._expected(seen)}
        assert ("bizrq-labels" in names) is said
        assert "bizrq-overlap" in names
        assert not names & {"bizrq-controller", "bizrq-status"}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def state(**more: Any) -> State:
    return State(HERE, (1, 36), "v1.36.2", NOW, **more)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (State(HERE, (1, 29), "v1.29.0", NOW), "version: Kubernetes is v1.29.0"),
        (state(unserved=("admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy",)), "version: not served: "),
        (state(lacking=("you may not create secrets",)), "rights: you may not create secrets"),
        (state(ahead=7.2), "clocks: the clock of this machine is 7 s ahead of the API server's"),
        (state(ahead=-60.0), "clocks: the clock of this machine is 60 s behind the API server's"),
        (state(lacking=tuple(f"you may not {n}" for n in range(9))), "you may not 4 and 4 more"),
    ],
)
async def test_what_stands_in_the_way_of_an_install(seen: State, said: str) -> None:
    [finding] = checks.findings(seen, checks.BEFORE)
    assert said in f"{finding.check}: {finding.what}"
    assert finding.fix
    assert finding.grade is Grade.PROBLEM


def lacking(what: str, verb: str, resource: str, namespace: str = "") -> Unknown:
    return Unknown(what, "forbidden", MissingRight(verb, resource, namespace))


async def test_what_could_not_be_looked_at_is_one_finding_for_each_verb_and_each_other_reason() -> None:
    roles = [lacking(f"ClusterRole {n}", "get", "clusterroles.rbac.authorization.k8s.io") for n in range(60)]
    other = [
        lacking("Lease x", "get", "leases.coordination.k8s.io", HERE),
        lacking("all groups", "list", "bizgroupresourcequotas.quota.biz.group"),
        *(Unknown(f"Service {n}", "etcd is slow (500 x)") for n in "ab"),
    ]
    found = checks.findings(state(unknown=(*roles, *other)), (checks.unknown,))
    assert [each.what for each in found] == [
        "61 things, such as ClusterRole 0: you may not get clusterroles.rbac.authorization.k8s.io; "
        f"leases.coordination.k8s.io in namespace {HERE}",
        "all groups: you may not list bizgroupresourcequotas.quota.biz.group",
        "Service a, Service b: etcd is slow (500 x)",
    ]
    assert {each.grade for each in found} == {Grade.UNKNOWN}
    many = tuple(Unknown("x", f"reason {n}") for n in range(9))
    assert checks.findings(state(unknown=many), (checks.unknown,))[-1].what == "more, for 4 other reasons"


async def test_nothing_is_compared_with_a_configuration_that_may_not_be_read() -> None:
    template = {"metadata": {"annotations": {made.CONFIG_DIGEST: "x"}}}
    deployment = {"spec": {"replicas": 2, "template": template}, "status": {"readyReplicas": 2, "updatedReplicas": 2}}
    wanted = {"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [{"verbs": ["get"]}]}
    there: dict[Any, Object] = {("Deployment", HERE, "bizrq-webhooks"): deployment, ("ClusterRole", "", "r"): {}}
    looked = (checks.objects, checks.processes, checks.open_to_all)
    said = {each.check for each in checks.findings(state(wanted=(wanted,), stored=there), looked)}
    assert said == {"installation", "configuration", "rights"}
    unread = frozenset({("ConfigMap", HERE, "bizrq-config")})
    assert checks.findings(state(wanted=(wanted,), stored=there, unread=unread), looked) == []


REGISTERED = {("ValidatingWebhookConfiguration", "", "bizrq"): {"webhooks": []}}


def _running(process: str, host: str, **more: str) -> ProcessInfo:
    told = {"version": "0.1.0", "config": "c1", **more}
    return ProcessInfo(f"bizrq-{process}", f"{host}_1_x", told["version"], ("v1",), told["config"])


@pytest.mark.parametrize(
    ("running", "said"),
    [
        ((_running("webhooks", "a"), _running("controller", "b"), _running("certs", "c", config="")), ""),
        (
            (_running("webhooks", "a"), _running("webhooks", "b", version="0.0.9"), _running("certs", "c")),
            "versions: processes of different versions run: 0.0.9: bizrq-webhooks b; "
            "0.1.0: bizrq-webhooks a, bizrq-certs c",
        ),
        (
            (_running("webhooks", "a"), _running("controller", "b", config="")),
            "configuration: processes run with different configurations: "
            "none: bizrq-controller b; c1: bizrq-webhooks a",
        ),
    ],
)
async def test_processes_that_differ_are_named_by_their_leases(running: tuple[ProcessInfo, ...], said: str) -> None:
    found = [f"{each.check}: {each.what}" for each in checks.findings(state(running=running), (checks.skew,))]
    assert found == ([said] if said else [])


async def test_only_leases_that_are_renewed_count(healthy: Bizrq) -> None:
    """What is left of a process that was killed is no finding."""
    for host, version, ago in (("a", "0.1.0", 0), ("b", "0.0.9", 300)):
        # That of the process which stands for the others.
        config = processes.digest(REQUIRED)
        lease = processes.lease_of(_running("webhooks", host, version=version, config=config), HERE)
        renewed = datetime.now(UTC) - timedelta(seconds=ago)
        lease["spec"]["renewTime"] = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        await healthy.client.create(LEASES, lease)
    assert (await healthy("doctor")).out == HEALTHY
    for each in await processes.read(healthy.client, HERE):
        await healthy.client.delete(LEASES, each.name, HERE)


@pytest.mark.parametrize(
    ("lease", "said"),
    [
        (Renewal(), "leader: no controller leads"),
        (Renewal("controller-1"), "leader: the controller controller-1 does not renew its Lease"),
        (Renewal("controller-1", True, 11.0), "clocks: the clock of controller controller-1 is 11 s ahead of"),
        (Renewal("controller-1", True, -11.0), "clocks: the clock of controller controller-1 is 11 s behind"),
        (Renewal("controller-1", True, 1.0), ""),
        (Renewal("controller-1", True), ""),
    ],
)
async def test_a_leader_renews_its_lease_by_a_clock_that_is_right(lease: Renewal, said: str) -> None:
    found = checks.findings(state(stored=REGISTERED, lease=lease), (checks.lease, checks.clocks))
    assert [said in f"{each.check}: {each.what}" for each in found] == ([True] if said else [])


async def test_the_wait_for_a_leader_says_for_what_and_how_long(
    healthy: Bizrq, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(waits, "progress", told.append)
    for _ in range(5):
        assert (await healthy("doctor")).out == HEALTHY
        if told:
            break
        # On a busy machine the Lease may be renewed while it is read.
    [line] = told
    assert re.fullmatch(r"waiting up to [3-6] s for the controller's leader to renew its Lease", line)


async def test_groups_that_are_not_counted_are_named() -> None:
    def named(name: str, *conditions: Object) -> Object:
        return {"metadata": {"name": name}, "status": {"conditions": [*conditions]}}

    groups = (
        named("well", {"type": "Ready", "status": "True"}, {"type": "OverQuota", "status": "False"}),
        named("broken", {"type": "Ready", "status": "False"}),
        named("new", {"type": "OverQuota", "status": "False"}),
        {"metadata": {"name": "bare"}},
    )
    assert [each.what for each in checks.findings(state(groups=groups), (checks.groups,))] == [
        "cannot be counted, so nothing in them may grow: broken",
        "are not counted yet: new, bare",
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"readyReplicas": 2, "updatedReplicas": 2}, ""),
        ({"readyReplicas": 1, "updatedReplicas": 2}, "1 of 2 pods of bizrq-webhooks is ready"),
        ({}, "0 of 2 pods of bizrq-webhooks are ready"),
        ({"readyReplicas": 2, "updatedReplicas": 1}, "1 of 2 pods of bizrq-webhooks is of an older version"),
    ],
)
async def test_pods_that_are_not_ready_or_old_are_counted(status: Object, said: str) -> None:
    deployment = {"kind": DEPLOYMENTS.kind, "spec": {"replicas": 2}, "status": status}
    seen = state(stored={("Deployment", HERE, "bizrq-webhooks"): deployment})
    found = [each.what for each in checks.findings(seen, (checks.processes,))]
    assert found == ([said] if said else [])


async def test_a_registration_without_deployments_is_of_processes_elsewhere(healthy: Bizrq) -> None:
    """Then nobody misses the Deployments, the Service and the accounts."""
    settings = loads("", "test")
    wanted = tuple(made.install_objects(settings, InstallPlan(HERE, "", 1)))
    there: dict[Any, Object] = {
        (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o
        for o in wanted
        if o["kind"] not in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount")
    }
    registered = ("ValidatingWebhookConfiguration", "", "bizrq")
    there[registered] = {"webhooks": []}
    assert checks.findings(state(wanted=wanted, stored=there), (checks.objects, checks.processes)) == []
    registration = await healthy.client.get(REGISTRATIONS, "bizrq")
    assert checks.findings(state(stored={registered: registration}), ()) == []
