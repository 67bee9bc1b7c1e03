"""The leader's registration: written when webhooks answer, mended when somebody changes it, absent during a pause.

On the sandbox and on a real API server, there as the controller's account, with its rights and policies alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq import registration
from bizrq.api import guards
from bizrq.cli import rbac
from bizrq.cli.manifests_of_bizrq import policy_objects, resource_of
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.kube.events import EventRecorder
from bizrq.kube.lease import LEASES
from bizrq.quota import reservation
from bizrq.settings import load, settings
from bizrq.store import pause, processes
from bizrq.store.processes import ProcessInfo
from controller import registration as keeping
from controller.registration import CHECK, FORGOTTEN, SOON, UNDONE, RegistrationKeeper, entries
from tests.cli.conftest import Bizrq
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import CLUSTER_ROLES, DEPLOYMENTS, NAMESPACES, Object

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = "bizrq-keeping"
SETTINGS = load(None)
BUNDLE = "Y2E="
RENDERED = registration.configuration(SETTINGS, registration.by_service(HERE), namespace=HERE)
RULES = registration.digest(SETTINGS, HERE)
CLOSED = {webhook["name"]: webhook["failurePolicy"] for webhook in RENDERED["webhooks"]}


@dataclass
class Recorded(EventRecorder):
    """The reasons of what would be events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event(self, obj_ref: Any, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.reasons.append(reason)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def leader(cluster: Cluster, client: KubeClient) -> AsyncIterator[Leader]:
    """A client of the controller's account, once its rights and the policies on it count."""
    await has_kinds(client, crds.load())
    objects = [*(each.document for each in rbac.manifests(SETTINGS.registry, HERE)), *policy_objects(HERE, SETTINGS)]
    async with contextlib.AsyncExitStack() as stack:
        for obj in objects:
            resource, metadata = resource_of(obj), obj["metadata"]
            if resource is not NAMESPACES:
                await _remove(client, obj)
                stack.push_async_callback(_remove, client, obj)
            with contextlib.suppress(AlreadyExists):
                await client.create(resource, obj)
            assert metadata["name"]
        groups = ("system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{HERE}")
        who = Overrides(impersonated=rbac.user_of(rbac.CONTROLLER, HERE), groups=groups)
        found = await stack.enter_async_context(Leader(from_kubeconfig(cluster.kubeconfig, None, who)))

        async def counts() -> bool:
            foreign = {**RENDERED, "webhooks": []}
            foreign["metadata"] = {"name": registration.NAME, "labels": {}}
            try:
                await found.apply(REGISTRATIONS, foreign, "probe")
            except ApiError as error:
                return f"ValidatingAdmissionPolicy '{guards.LEADER}'" in error.message or error.status == 415
            await client.delete(REGISTRATIONS, registration.NAME)
            return False

        await eventually(counts, 60, "rights and policies count")
        found.roll_out()
        await serve(client)
        yield found


async def _remove(client: KubeClient, obj: Object) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


@pytest_asyncio.fixture(loop_scope="module")
async def keeper(client: KubeClient, leader: Leader) -> AsyncIterator[RegistrationKeeper]:
    """A keeper beside a webhook that serves; nothing is registered yet."""
    leader.roll_out()
    await serve(client)
    leader.roll_out()
    await _gone(client)
    yield keeper_of(leader)
    await pause.end(client, HERE)
    await _gone(client)


def keeper_of(client: KubeClient, recorder: Recorded | None = None, **more: Any) -> RegistrationKeeper:
    return RegistrationKeeper(client, SETTINGS, recorder or Recorded(), namespace=HERE, **more)


async def _gone(client: KubeClient) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(REGISTRATIONS, registration.NAME)


class Leader(KubeClient):
    """A client that sees our Deployments as a test says: here no pod ever becomes available."""

    webhooks: Object | None
    #: None runs them elsewhere.
    controllers: Object | None = None

    def roll_out(self, *, available: int = 1, updated: int = 1) -> None:
        self.webhooks = _rolled_out(available, updated)

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> Object:
        found = await super().get(resource, name, namespace, timeout=timeout) if resource != DEPLOYMENTS else None
        if resource == DEPLOYMENTS:
            assert namespace == HERE
            found = {registration.SERVICE: self.webhooks, processes.CONTROLLER: self.controllers}[name]
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found


def _rolled_out(available: int = 1, updated: int = 1) -> Object:
    status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": updated, "availableReplicas": available}
    return {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status}


async def serve(
    client: KubeClient,
    *,
    name: str = "bizrq-webhooks-1",
    rules: str = RULES,
    process: str = registration.SERVICE,
    formats: tuple[str, ...] = ("v1",),
) -> None:
    """Renew the Lease of a process, a webhook that serves these rules."""
    info = ProcessInfo(process, f"{name}_1_x", "0", formats, rules=rules)
    lease = processes.lease_of(info, HERE, "4711")
    assert lease["metadata"]["name"] == name
    del lease["metadata"]["ownerReferences"]
    lease["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    try:
        await client.create(LEASES, lease)
    except AlreadyExists:
        await client.patch(LEASES, name, {"metadata": lease["metadata"], "spec": lease["spec"]}, namespace=HERE)


async def end(client: KubeClient, name: str = "bizrq-webhooks-1") -> None:
    with contextlib.suppress(NotFound):
        await client.delete(LEASES, name, HERE)


async def stored(client: KubeClient) -> Object | None:
    try:
        return await client.get(REGISTRATIONS, registration.NAME)
    except NotFound:
        return None


async def there(client: KubeClient) -> Object:
    found = await stored(client)
    assert found is not None
    return found


async def trust(client: KubeClient) -> None:
    """Write the caBundle, as bizrq-certs does."""
    found = await there(client)
    operations = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": BUNDLE}
        for index, _ in enumerate(found["webhooks"])
    ]
    await client.patch(REGISTRATIONS, registration.NAME, operations, content_type="application/json-patch+json")


async def kept(client: KubeClient, keeper: RegistrationKeeper) -> Object:
    """Bring the registration to where it stays, and return it."""
    await keeper.look()
    await trust(client)
    await keeper.look()
    assert await keeper.look() == CHECK
    return await there(client)


def policies_of(found: Object) -> dict[str, str]:
    return {name: webhook["failurePolicy"] for name, webhook in entries(found).items()}


def bundles_of(found: Object) -> set[str | None]:
    return {webhook["clientConfig"].get("caBundle") for webhook in found["webhooks"]}


async def test_a_new_registration_fails_open_until_it_has_a_ca_bundle(
    client: KubeClient, keeper: RegistrationKeeper
) -> None:
    assert await keeper.look() == SOON
    first = await there(client)
    assert set(policies_of(first).values()) == {"Ignore"}
    assert policies_of(first).keys() == CLOSED.keys()
    assert await keeper.look() == SOON, "certs is about to write it"
    await trust(client)
    await keeper.look()
    assert await keeper.look() == CHECK
    closed = await there(client)
    assert policies_of(closed) == CLOSED
    assert bundles_of(closed) == {BUNDLE}
    [owner] = closed["metadata"]["ownerReferences"]
    role = await client.get(CLUSTER_ROLES, "bizrq-controller")
    assert (owner["kind"], owner["uid"]) == ("ClusterRole", role["metadata"]["uid"])


async def test_what_is_as_it_should_be_is_not_written(client: KubeClient, keeper: RegistrationKeeper) -> None:
    version = (await kept(client, keeper))["metadata"]["resourceVersion"]
    await keeper.look()
    assert (await there(client))["metadata"]["resourceVersion"] == version


async def test_without_a_webhook_that_serves_it_nothing_is_registered(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    await end(client)
    assert await keeper.look() == CHECK
    await serve(client, rules="another")
    assert await keeper.look() == CHECK
    assert await stored(client) is None
    await serve(client, name="bizrq-webhooks-2")
    leader.webhooks = None
    assert await keeper.look() == CHECK
    assert await stored(client) is None, "they run elsewhere, and --webhook-url does not say where"
    leader.roll_out(available=0)
    await keeper.look()
    assert await stored(client), "one is enough, as nothing is registered that the other does not know"
    leader.roll_out()
    await end(client, "bizrq-webhooks-2")


async def test_a_lease_that_nobody_renews_is_of_no_webhook(client: KubeClient, leader: Leader) -> None:
    await _gone(client)
    await serve(client, rules="another")
    now = 1_000.0
    keeper = keeper_of(leader, clock=lambda: now)
    await keeper.look()
    now += processes.DURATION
    await serve(client)
    await keeper.look()
    assert await stored(client), "renewed, as what is awaited"
    await trust(client)
    other = RegistrationKeeper(
        leader, settings({"exemptNamespaces": ["monitoring"]}), Recorded(), namespace=HERE, clock=lambda: now
    )
    mine = registration.digest(settings({"exemptNamespaces": ["monitoring"]}), HERE)
    await serve(client, name="bizrq-webhooks-2", rules=mine)
    before = await there(client)
    await other.look()
    assert await there(client) == before, "one of the webhooks does not serve it yet"
    now += processes.DURATION
    await serve(client, name="bizrq-webhooks-2", rules=mine)
    await other.look()
    assert "monitoring" in str((await there(client))["webhooks"])
    await end(client, "bizrq-webhooks-2")
    await _gone(client)


Change = Callable[[Object], object]

CHANGES: dict[str, Change] = {
    "an entry fails open": lambda found: found["webhooks"][0].update(failurePolicy="Ignore"),
    "an entry is gone": lambda found: found["webhooks"].pop(0),
    "an entry is added": lambda found: found["webhooks"].append(
        {**found["webhooks"][0], "name": "another.example.com", "failurePolicy": "Ignore"}
    ),
    "a selector is added": lambda found: found["webhooks"][0].update(objectSelector={"matchLabels": {"a": "b"}}),
    "a condition is added": lambda found: (
        found["webhooks"][0].setdefault("matchConditions", []).append({"name": "never", "expression": "false"})
    ),
    "its digest is another": lambda found: found["metadata"].update(
        annotations={**found["metadata"]["annotations"], "bizrq.quota.biz.group/rendered": "x"}
    ),
    "its reviews go elsewhere": lambda found: found["webhooks"][0]["clientConfig"]["service"].update(name="other"),
    "its reviews go to an address": lambda found: found["webhooks"][0].update(
        clientConfig={"url": "https://127.0.0.1:1/", "caBundle": BUNDLE}
    ),
    "its owner is gone": lambda found: found["metadata"].pop("ownerReferences"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_somebody_changes_is_mended(client: KubeClient, leader: Leader, change: Change) -> None:
    leader.roll_out()
    await _gone(client)
    recorder = Recorded()
    keeper = keeper_of(leader, recorder)
    before = await kept(client, keeper)
    changed = await there(client)
    change(changed)
    await client.replace(REGISTRATIONS, changed)
    await keeper.look()
    assert recorder.reasons == ["RegistrationMended"]
    # An entry that was gone has no caBundle until bizrq-certs writes it.
    await trust(client)
    await keeper.look()
    assert await keeper.look() == CHECK
    after = await there(client)
    assert {name: _rendered(each) for name, each in entries(after).items()} == {
        name: _rendered(each) for name, each in entries(before).items()
    }
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    await _gone(client)


def _rendered(webhook: Object) -> Object:
    """Return the entry without what is empty."""
    return {key: value for key, value in webhook.items() if value not in ({}, [])}


async def test_a_deleted_registration_comes_back(client: KubeClient, leader: Leader) -> None:
    leader.roll_out()
    await _gone(client)
    recorder = Recorded()
    keeper = keeper_of(leader, recorder)
    await kept(client, keeper)
    await _gone(client)
    await keeper.look()
    assert policies_of(await there(client)).keys() == CLOSED.keys()
    assert recorder.reasons == ["RegistrationMended"]
    await trust(client)
    await keeper.look()
    assert policies_of(await there(client)) == CLOSED
    assert recorder.reasons == ["RegistrationMended"], "to fail closed again is no new finding"
    await _gone(client)


async def test_two_writers_that_undo_each_other_write_ever_more_slowly(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    del keeper
    now = 1_000.0
    keeper = keeper_of(leader, clock=lambda: now)
    await kept(client, keeper)

    async def until_mended() -> float:
        """Return after how many seconds of the clock a change is mended."""
        nonlocal now
        began = now
        opened = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
        await client.patch(REGISTRATIONS, registration.NAME, opened, content_type="application/json-patch+json")
        while await keeper.look() != SOON:
            now += CHECK
        return now - began

    waits = [await until_mended() for _ in range(9)]
    assert waits == [0, *(CHECK * 2**times for times in range(6)), UNDONE, UNDONE]
    now += FORGOTTEN
    assert await until_mended() == 0
    assert await until_mended() == CHECK, "it was forgotten how often"


async def test_a_pause_keeps_the_registration_away_and_its_end_brings_it_back(
    client: KubeClient, leader: Leader
) -> None:
    leader.roll_out()
    await _gone(client)
    recorder = Recorded()
    keeper = keeper_of(leader, recorder)
    await kept(client, keeper)
    begun = await pause.begin(client, HERE, "etcd is slow", "ann")
    assert (begun.reason, begun.by) == ("etcd is slow", "ann")
    assert await pause.begin(client, HERE, "another", "bob") == begun, "the first reason stays"
    await _gone(client)
    for _ in range(3):
        assert await keeper.look() == CHECK
        assert await stored(client) is None
    assert recorder.reasons == ["Paused"]
    assert await pause.end(client, HERE)
    assert not await pause.end(client, HERE)
    await keeper.look()
    assert await stored(client)
    assert recorder.reasons == ["Paused", "Resumed"]
    await _gone(client)


class _Overtaken(Leader):
    """A client after whose read of the marker somebody else pauses bizrq."""

    async def get(self, *arguments: Any, **more: Any) -> Object:
        try:
            return await super().get(*arguments, **more)
        finally:
            if arguments[1] == pause.NAME and not self.was_overtaken:
                self.was_overtaken = True
                await pause.begin(self.other, HERE, "now", "")
                await self.other.delete(REGISTRATIONS, registration.NAME)

    was_overtaken = False
    other: KubeClient


async def test_a_pause_between_reading_and_writing_is_not_undone(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    """The registration that was read is gone, and an update does not create it again."""
    await kept(client, keeper)
    await client.patch(REGISTRATIONS, registration.NAME, {"metadata": {"annotations": None}})
    async with _Overtaken(leader.endpoint) as overtaken:
        overtaken.other = client
        overtaken.roll_out()
        late = keeper_of(overtaken)
        with pytest.raises(ApiError):
            await late.look()
        assert await stored(client) is None
        await late.look()
        assert await stored(client) is None


async def test_one_that_an_install_applied_is_taken_over_without_a_moment_of_absence(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper, cluster: Cluster
) -> None:
    """Its entries that this version does not have go, once no pod of the older version is left."""
    old = {**RENDERED["webhooks"][0], "name": f"old.{crds.load()[0]['spec']['group']}"}
    labels = {**registration.LABELS, "app.kubernetes.io/managed-by": "bizrq-install"}
    applied = {
        **RENDERED,
        "metadata": {"name": registration.NAME, "labels": labels},
        "webhooks": [old, *RENDERED["webhooks"][1:]],
    }
    if cluster.is_real:
        await client.apply(REGISTRATIONS, applied, "bizrq-install")
    else:
        await client.create(REGISTRATIONS, applied)
    await trust(client)
    before = await there(client)
    await serve(client, name="bizrq-webhooks-2", rules="another")
    assert await keeper.look() == CHECK
    await end(client, "bizrq-webhooks-2")
    leader.webhooks = None
    assert await keeper.look() == CHECK, "it may be reached at an address, which the Service is not"
    leader.roll_out(updated=0)
    assert await keeper.look() == CHECK, "a version without Leases may be left"
    assert await there(client) == before
    leader.roll_out()
    await keeper.look()
    after = await there(client)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert policies_of(after) == {**CLOSED, RENDERED["webhooks"][0]["name"]: "Ignore"}, "a new one has no caBundle"
    await trust(client)
    await keeper.look()
    taken = await there(client)
    assert policies_of(taken) == CLOSED
    assert taken["metadata"]["ownerReferences"]


async def test_a_registration_of_that_name_that_is_not_ours_stays(
    client: KubeClient, keeper: RegistrationKeeper
) -> None:
    foreign = {**RENDERED, "metadata": {"name": registration.NAME}, "webhooks": []}
    before = await client.create(REGISTRATIONS, foreign)
    assert await keeper.look() == CHECK
    assert await there(client) == before


async def test_webhooks_at_an_address_need_no_deployment_and_a_policy_that_names_it(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper, cluster: Cluster
) -> None:
    del keeper
    by_url = keeper_of(leader, webhook_url="https://127.0.0.1:1")
    if cluster.is_real:
        with pytest.raises(ApiError, match="for bizrq's own webhooks"):
            await by_url.look()
    async with KubeClient(client.endpoint) as admin:
        await keeper_of(admin, webhook_url="https://127.0.0.1:1").look()
    found = await there(client)
    assert found["webhooks"][0]["clientConfig"]["url"].startswith("https://127.0.0.1:1/validate/")


async def test_another_configuration_is_registered_by_a_leader_that_has_it(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    await kept(client, keeper)
    narrower = settings({"exemptNamespaces": ["monitoring"]})
    other = RegistrationKeeper(leader, narrower, Recorded(), namespace=HERE)
    await serve(client, rules=registration.digest(narrower, HERE))
    await other.look()
    assert "monitoring" in str((await there(client))["webhooks"])


async def test_what_only_another_version_serves_is_taken_out_at_once(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    """This leader comes after a later version: webhooks of that one still run, and those of this one come."""
    newer = {**RENDERED["webhooks"][1], "name": "newer.quota.biz.group", "timeoutSeconds": 5}
    newer["clientConfig"] = registration.by_service(HERE)("/validate/newer")
    of_newer = {**RENDERED, "webhooks": [newer, *({**w, "timeoutSeconds": 7} for w in RENDERED["webhooks"])]}
    of_newer["metadata"] = {**RENDERED["metadata"], "annotations": {keeping.RENDERED: "newer"}}
    await client.create(REGISTRATIONS, of_newer)
    await trust(client)
    await serve(client, rules="newer")
    assert await keeper.look() == CHECK
    narrowed = await there(client)
    assert policies_of(narrowed) == CLOSED, "nothing else is taken out, and nothing fails open"
    assert {w["timeoutSeconds"] for w in narrowed["webhooks"]} == {7}, "the rest waits for the webhooks"
    assert bundles_of(narrowed) == {BUNDLE}
    version = narrowed["metadata"]["resourceVersion"]
    assert await keeper.look() == CHECK
    assert (await there(client))["metadata"]["resourceVersion"] == version
    await serve(client)
    await keeper.look()
    assert 7 not in {w["timeoutSeconds"] for w in (await there(client))["webhooks"]}


BOTH = ("v1", "v2")


@pytest_asyncio.fixture(loop_scope="module")
async def newer(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper, monkeypatch: pytest.MonkeyPatch
) -> RegistrationKeeper:
    """A keeper of a version with a newer format, beside a webhook and a controller of that version."""
    del keeper
    monkeypatch.setattr(reservation, "FORMATS", BOTH)
    await serve(client, formats=BOTH)
    await serve(client, name="bizrq-controller-1", process="bizrq-controller", formats=BOTH)
    return keeper_of(leader)


async def format_stored(client: KubeClient) -> str:
    return registration.format_of(await there(client))


@pytest.mark.parametrize("process", ["bizrq-webhooks", "bizrq-controller", "bizrq-web", "bizrq-up"])
async def test_a_newer_format_is_written_while_all_processes_read_it(
    client: KubeClient, newer: RegistrationKeeper, process: str
) -> None:
    older = f"{process}-2"
    await serve(client, name=older, process=process)
    await kept(client, newer)
    assert await format_stored(client) == "v1"
    await end(client, older)
    await newer.look()
    assert await format_stored(client) == "v2"
    await serve(client, name=older, process=process)
    await newer.look()
    assert await format_stored(client) == "v1", "given up at once"
    await end(client, older)
    await end(client, "bizrq-controller-1")


async def test_a_newer_format_waits_for_the_rollout_and_not_for_certs(
    client: KubeClient, leader: Leader, newer: RegistrationKeeper
) -> None:
    """An older pod may have no Lease; bizrq-certs reads no reservations."""
    await serve(client, name="bizrq-certs-1", process="bizrq-certs")
    older = f"{registration.SERVICE}-2"
    await serve(client, name=older)
    await kept(client, newer)
    await end(client, older)
    leader.roll_out(updated=0)
    await newer.look()
    assert await format_stored(client) == "v1"
    leader.roll_out()
    await newer.look()
    assert await format_stored(client) == "v2"
    await end(client, "bizrq-certs-1")
    await end(client, "bizrq-controller-1")


async def test_a_newer_format_waits_for_the_rollout_of_the_controllers(
    client: KubeClient, leader: Leader, newer: RegistrationKeeper
) -> None:
    """One of a version without a Lease may come to lead, and counts what it cannot read."""
    older = f"{registration.SERVICE}-2"
    await serve(client, name=older)
    await kept(client, newer)
    await end(client, older)
    leader.controllers = _rolled_out(updated=0)
    await newer.look()
    assert await format_stored(client) == "v1"
    leader.controllers = _rolled_out()
    await newer.look()
    assert await format_stored(client) == "v2"
    leader.controllers = None
    await end(client, "bizrq-controller-1")


async def test_an_older_leader_gives_a_newer_format_up_at_once(
    client: KubeClient, leader: Leader, newer: RegistrationKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while webhooks of the later version still run, and the rest of the registration waits for their end."""
    await kept(client, newer)
    assert await format_stored(client) == "v2"
    before = await there(client)
    monkeypatch.setattr(reservation, "FORMATS", ("v1",))
    await serve(client, rules="newer", formats=BOTH)
    await client.patch(REGISTRATIONS, registration.NAME, {"metadata": {"annotations": {keeping.RENDERED: "newer"}}})
    older = keeper_of(leader)
    assert await older.look() == CHECK
    after = await there(client)
    assert registration.format_of(after) == "v1"
    assert after["webhooks"] == before["webhooks"]
    await older.look()
    assert (await there(client))["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    await end(client, "bizrq-controller-1")


@pytest.mark.parametrize(
    ("what", "path", "value", "may"),
    [
        ("it decides what is reviewed", "/webhooks/0/failurePolicy", "Ignore", True),
        ("an entry of bizrq", "/webhooks/-", {**RENDERED["webhooks"][0], "name": "new.quota.biz.group"}, True),
        ("an entry of others", "/webhooks/-", {**RENDERED["webhooks"][0], "name": "new.example.com"}, False),
        ("another CA", "/webhooks/0/clientConfig/caBundle", "Yg==", False),
        ("another Service", "/webhooks/0/clientConfig/service/name", "other", False),
        ("another namespace", "/webhooks/0/clientConfig/service/namespace", "default", False),
        ("an address", "/webhooks/0/clientConfig", {"url": "https://127.0.0.1:1/"}, False),
        ("no label", "/metadata/labels", {}, False),
        ("a finalizer", "/metadata/finalizers", ["example.com/kept"], False),
        (
            "an owner that people make",
            "/metadata/ownerReferences",
            [{"apiVersion": "v1", "kind": "Namespace", "name": HERE, "uid": "1"}],
            False,
        ),
    ],
)
async def test_the_account_of_the_leader_is_kept_to_our_registration_and_our_webhooks(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper, what: str, path: str, value: object, may: bool
) -> None:
    await kept(client, keeper)
    patch = [{"op": "add", "path": path, "value": value}]

    async def refusal() -> str:
        try:
            await leader.patch(
                REGISTRATIONS, registration.NAME, patch, content_type="application/json-patch+json", dry_run=True
            )
        except ApiError as error:
            return error.message
        return ""

    assert (f"ValidatingAdmissionPolicy '{guards.LEADER}'" in await refusal()) is not may, (what, await refusal())


async def test_the_account_of_the_leader_deletes_no_registration(
    client: KubeClient, leader: Leader, keeper: RegistrationKeeper
) -> None:
    """It has the right, which some clusters ask of whoever sets an owner."""
    await kept(client, keeper)
    with pytest.raises(ApiError, match=f"ValidatingAdmissionPolicy '{guards.LEADER}'"):
        await leader.delete(REGISTRATIONS, registration.NAME)


async def test_the_registration_goes_with_the_role_of_the_controller(
    client: KubeClient, keeper: RegistrationKeeper
) -> None:
    """So it does not stay behind where another tool than bizrq removes the manifests."""
    await kept(client, keeper)
    role = await client.get(CLUSTER_ROLES, rbac.CONTROLLER)
    await client.delete(CLUSTER_ROLES, rbac.CONTROLLER)

    async def is_gone() -> bool:
        return await stored(client) is None

    await eventually(is_gone, 90, "the registration is collected")
    del role["metadata"]["resourceVersion"], role["metadata"]["uid"]
    await client.create(CLUSTER_ROLES, role)


@pytest.mark.parametrize(
    ("account", "name", "may"),
    [
        (rbac.WEBHOOKS, "bizrq-webhooks-a", True),
        (rbac.WEBHOOKS, "bizrq-controller", False),
        (rbac.WEBHOOKS, "bizrq-controller-a", False),
        (rbac.WEBHOOKS, "another", False),
        (rbac.CERTS, "bizrq-certs-a", True),
        (rbac.CERTS, "bizrq-webhooks-a", False),
        (rbac.CONTROLLER, "bizrq-controller-a", True),
        (rbac.CONTROLLER, "bizrq-webhooks-a", False),
    ],
)
async def test_each_account_is_kept_to_leases_of_its_own_name(
    cluster: Cluster, client: KubeClient, leader: Leader, account: str, name: str, may: bool
) -> None:
    """By creation, change and deletion."""
    del leader
    groups = ("system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{HERE}")
    who = Overrides(impersonated=rbac.user_of(account, HERE), groups=groups)
    metadata = {"name": name, "namespace": HERE}
    lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": {}}
    async with KubeClient(from_kubeconfig(cluster.kubeconfig, None, who)) as theirs:
        writes = (
            lambda: theirs.create(LEASES, lease),
            lambda: theirs.patch(LEASES, name, {"metadata": {"labels": {"a": "b"}}}, namespace=HERE),
            lambda: theirs.delete(LEASES, name, HERE),
        )
        for write in writes:
            if may:
                await write()
                continue
            with pytest.raises(ApiError, match=f"ValidatingAdmissionPolicy '{guards.LEASES}'"):
                await write()
            with contextlib.suppress(AlreadyExists):
                await client.create(LEASES, lease)
    await end(client, name)


async def test_uninstall_is_not_undone_by_a_leader_that_still_runs(
    cluster: Cluster, client: KubeClient, keeper: RegistrationKeeper
) -> None:
    """Last: it takes the rights of the leader away."""
    await kept(client, keeper)
    looks = 0

    async def look() -> None:
        nonlocal looks
        while True:
            with contextlib.suppress(ApiError):
                await keeper.look()
            looks += 1

    task = asyncio.create_task(look())
    gone = await Bizrq(cluster.kubeconfig, client)("uninstall", "-n", HERE)
    until = looks + 3

    async def looked_again() -> bool:
        return looks > until

    await eventually(looked_again, 60, "the leader looks on")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gone.code == 0, gone.err
    assert gone.out.splitlines()[0] == "validatingwebhookconfiguration.admissionregistration.k8s.io/bizrq deleted"
    if cluster.is_real:
        assert await stored(client) is None
    assert await processes.read(client, HERE) == []
