"""docs/operations.md, "Webhook entries": the tables against the registration, and against an API server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient
from bizrq.settings import settings
from bizrq.workloads.labels import LABEL, REQUIRED
from bizrq.workloads.scope import NAME_LABEL
from tests.docs.test_docs import page
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, NAMESPACES, REPLICASETS, Object, deployment, namespace

TEXT = page("docs/operations.md").partition("## Webhook entries\n")[2].partition("\n## ")[0]
SETTINGS = settings({})
#: An expression of a selector, in the words of the page.
OF_NAMESPACES = {
    (NAME_LABEL, "NotIn"): "managed",
    (LABEL, "Exists"): "with a default group",
    (LABEL, "DoesNotExist"): "without a default group",
    (REQUIRED, "In"): "that require a group",
    (REQUIRED, "NotIn"): "that require none",
}
OF_OBJECTS = {(LABEL, "Exists"): "with the label", (LABEL, "DoesNotExist"): "without the label"}


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first heading this is, each a list of cells."""
    [found] = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def entries() -> dict[str, Object]:
    made = registration.configuration(SETTINGS, lambda path: {"url": path}, namespace="bizrq-system")
    return {each["name"].removesuffix(".quota.biz.group"): each for each in made["webhooks"]}


def words(entry: Object, selector: str, known: dict[tuple[str, str], str]) -> str:
    """What a selector of an entry says, in the order of `known`."""
    expressions = entry.get(selector, {}).get("matchExpressions", [])
    said = {(each["key"], each["operator"]) for each in expressions}
    assert said <= known.keys()
    return ", ".join(text for key, text in known.items() if key in said) or "all"


def requests(entry: Object) -> str:
    """What the rules of an entry say."""
    charged = {adapter.plural for adapter in SETTINGS.registry.charged}
    scaled = {f"{adapter.plural}/scale" for adapter in SETTINGS.registry.charged if adapter.scale is not None}
    pods = {"pods", "replicasets"}
    unfiltered = "charged kinds but `pods`, `replicasets`"
    found: dict[tuple[str, ...], set[str]] = {}
    for rule in entry["rules"]:
        found.setdefault(tuple(rule["operations"]), set()).update(rule["resources"])
    said: list[str] = []
    for operations, resources in found.items():
        named = ", ".join(f"`{name}`" for name in sorted(resources))
        named = {frozenset(charged - pods): unfiltered, frozenset(scaled): "`/scale` of charged kinds"}.get(
            frozenset(resources), "these" if resources == pods and unfiltered in "".join(said) else named
        )
        said.append(f"{', '.join(operations)} of {named}")
    return "; ".join(said)


def test_the_page_has_each_entry_as_it_is_registered() -> None:
    rows = {row[0].strip("`"): row for row in table("entry")}
    assert list(rows) == list(entries())
    for name, entry in entries().items():
        _, policy, namespaces, objects, sent, conditions, stops = rows[name]
        assert policy == entry["failurePolicy"], name
        assert namespaces == words(entry, "namespaceSelector", OF_NAMESPACES), name
        assert objects == words(entry, "objectSelector", OF_OBJECTS), name
        assert sent == requests(entry), name
        assert re.findall(r"`([\w-]+)`", conditions) == [each["name"] for each in entry.get("matchConditions", [])], (
            name
        )
        assert stops.startswith("nothing: ") is (policy == "Ignore"), name
        assert (entry["timeoutSeconds"], entry["matchPolicy"]) == (10, "Equivalent"), name


def test_the_page_explains_each_match_condition() -> None:
    explained = [row[0].strip("`") for row in table("match condition")]
    assert len(explained) == len(set(explained))
    assert set(explained) == {each["name"] for entry in entries().values() for each in entry.get("matchConditions", [])}


# The second table, with nothing listening where the webhooks are registered.

CONTAINER: Object = {"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}
SPACES = ("unmanaged", "exempt", "own", "managed", "managed, with a default group")
#: The labels of a namespace of each kind, under the selector `quota: on`.
LABELS: dict[str, dict[str, str]] = {
    "exempt": {"quota": "on"},
    "own": {"quota": "on"},
    "managed": {"quota": "on"},
    "managed, with a default group": {"quota": "on", LABEL: "nlp"},
}
Act = Callable[[KubeClient, str, str], Awaitable[object]]


def _templated(**container: Any) -> Act:
    spec = {"containers": [{**CONTAINER, **container}]}
    return _patched({"spec": {"template": {"spec": spec}}})


def _patched(body: Object, subresource: str = "") -> Act:
    async def act(client: KubeClient, space: str, name: str) -> object:
        return await client.patch(DEPLOYMENTS, name, body, namespace=space, subresource=subresource)

    return act


async def _create(client: KubeClient, space: str, name: str) -> object:
    label = "nlp" if name.endswith("-yes") else None
    return await client.create(DEPLOYMENTS, deployment(f"{name}-new", label, 1, namespace=space))


async def _delete(client: KubeClient, space: str, name: str) -> object:
    return await client.delete(DEPLOYMENTS, name, space)


_RESTARTED = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
ACTS: dict[str, Act] = {
    "create": _create,
    "set image": _templated(image="y"),
    "rollout restart": _patched({"spec": {"template": {"metadata": {"annotations": _RESTARTED}}}}),
    "set resources": _templated(resources={"limits": {"cpu": "2"}}),
    "scale up": _patched({"spec": {"replicas": 3}}, "scale"),
    "scale down": _patched({"spec": {"replicas": 1}}, "scale"),
    "annotate": _patched({"metadata": {"annotations": {"a": "b"}}}),
    "delete": _delete,
}


def name_of(request: str, label: str) -> str:
    return f"{request.replace(' ', '-')}-{label}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spaces(client: KubeClient) -> AsyncIterator[dict[str, str]]:
    """A namespace of each kind with its Deployments of two replicas; then a registration that nobody answers."""
    names = {space: f"blast-{number}" for number, space in enumerate(SPACES)}
    for space, name in names.items():
        await client.create(NAMESPACES, namespace(name, **LABELS.get(space, {})))
        for request in ACTS:
            for label in ("no", "yes"):
                made = deployment(name_of(request, label), "nlp" if label == "yes" else None, 2, namespace=name)
                await client.create(DEPLOYMENTS, made)
    async with unanswered(client, names):
        yield names
    for name in names.values():
        await client.delete(NAMESPACES, name)


@asynccontextmanager
async def unanswered(client: KubeClient, names: dict[str, str]) -> AsyncIterator[None]:
    """A registration that nobody answers, in force within the block. `names` are the namespaces of each kind."""
    given = {"managedNamespaces": {"matchLabels": {"quota": "on"}}, "exemptNamespaces": [names["exempt"]]}
    made = registration.configuration(
        settings(given), lambda path: {"url": f"https://127.0.0.1:1{path}"}, namespace=names["own"]
    )
    await client.create(REGISTRATIONS, made)

    async def is_refused() -> bool:
        probe = deployment("probe", "nlp", 1, namespace=names["managed"])
        try:
            await client.create(DEPLOYMENTS, probe, dry_run=True)
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    async def is_forgotten() -> bool:
        return not await is_refused()

    await eventually(is_refused, 60, "the registration is in force")
    try:
        yield
    finally:
        await client.delete(REGISTRATIONS, registration.NAME)
        await eventually(is_forgotten, 60, "the registration is forgotten")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("row", table("request"), ids=lambda row: f"{row[0]}, label: {row[1]}")
async def test_each_request_does_what_the_page_says_while_no_webhook_answers(
    client: KubeClient, spaces: dict[str, str], row: list[str]
) -> None:
    request, label, *cells = row
    found: list[str] = []
    for name in spaces.values():
        try:
            await ACTS[request](client, name, name_of(request, label))
        except ApiError as error:
            found.append("refused" if "failed calling webhook" in error.message else error.message)
        else:
            found.append("passes")
    assert dict(zip(SPACES, found, strict=True)) == dict(zip(SPACES, cells, strict=True))


@pytest.mark.asyncio(loop_scope="module")
async def test_an_unlabelled_rollout_goes_on_while_no_webhook_answers(
    client: KubeClient, spaces: dict[str, str]
) -> None:
    """The Deployment's controller makes the ReplicaSet of the new image, and scales it."""
    name = spaces["managed"]
    await client.create(DEPLOYMENTS, deployment("goes-on", None, 2, namespace=name))
    await _templated(image="new")(client, name, "goes-on")

    async def is_made() -> bool:
        sets, _ = await client.list(REPLICASETS, name)
        images = [
            each["spec"]["template"]["spec"]["containers"][0]["image"] for each in sets if each["spec"]["replicas"]
        ]
        return "new" in images

    await eventually(is_made, 60, "the ReplicaSet of the new image")


def test_the_page_has_a_row_for_each_request() -> None:
    rows = table("request")
    assert [(row[0], row[1]) for row in rows] == [(request, label) for request in ACTS for label in ("no", "yes")]
    [head] = [line for line in TEXT.splitlines() if line.startswith("| request |")]
    assert tuple(cell.strip() for cell in head.strip("|").split("|"))[2:] == SPACES
