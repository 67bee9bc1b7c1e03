"""The examples of docs/rights.md give what the page says they give, on the API servers that there are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from tests.docs.test_docs import blocks, page
from tests.support.cluster import eventually, has_kinds
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from webhooks.charging.authorization import ROOTS

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESOURCES = {resource.kind: resource for resource in (GROUPS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)}
CI = "system:serviceaccount:nlp-ci:deployer"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def applied(client: KubeClient) -> AsyncIterator[KubeClient]:
    """A cluster with everything that the page shows."""
    await has_kinds(client, crds.load())
    documents = [obj for block in blocks(page("docs/rights.md"), "yaml") for obj in yaml.safe_load_all(block)]
    for obj in documents:
        await client.create(RESOURCES[obj["kind"]], obj)
    yield client
    for obj in documents:
        await client.delete(RESOURCES[obj["kind"]], obj["metadata"]["name"])


@pytest.mark.parametrize(
    ("user", "of", "verb", "name", "yes"),
    [
        ("ann", "nlp-engineers", "use", "nlp", True),
        ("ann", "nlp-engineers", "use", "speech", True),
        ("ann", "nlp-engineers", "use", "vision", False),
        ("ann", "nlp-engineers", "grant", "nlp", False),
        (CI, "system:serviceaccounts", "use", "nlp", True),
        ("system:serviceaccount:other:deployer", "system:serviceaccounts", "use", "nlp", False),
        ("lea", "ai-leads", "grant", "ai", True),
        ("lea", "ai-leads", "create", "", True),
        ("lea", "ai-leads", "grant", "corp", False),
        ("lea", "ai-leads", "grant", ROOTS, False),
        ("lea", "ai-leads", "use", "nlp", False),
        ("pat", "staff", "grant", ROOTS, True),
        ("pat", "staff", "grant", "", False),
    ],
)
async def test_the_examples_give_what_they_say(
    applied: KubeClient, user: str, of: str, verb: str, name: str, yes: bool
) -> None:
    attributes = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "verb": verb, "name": name}
    spec = {"user": user, "groups": [of], "resourceAttributes": attributes}
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}

    async def answered() -> bool:
        return (await applied.create(ACCESS_REVIEWS, review))["status"]["allowed"] is yes

    # The API server reads roles by a watch of its own.
    await eventually(answered)
