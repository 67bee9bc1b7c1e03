"""How an API server applies a ValidatingAdmissionPolicy: its params, conditions, messages and actions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bizrq.api import overlap
from bizrq.api.group import API_VERSION
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS
from bizrq.kube.client import ApiError, Invalid, KubeClient, NotFound
from bizrq.store.overlaps import OVERLAPS
from tests.contract.conftest import rule
from tests.support.cluster import eventually, refusal
from tests.support.objects import CONFIG_MAPS, Object

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("groups")]


class Policy:
    """A policy on ConfigMaps with the list of overlaps as its params."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        # Of its own for each test: a policy applies for a moment after it is deleted.
        self.name = f"{namespace}.contract.quota.biz.group"

    async def store(self, spec: Object, binding: Object) -> None:
        """Store the policy and its binding, and wait until they apply."""
        probe = {"expression": "object.metadata.name != 'probe'", "message": f"probe of {self.name}"}
        whole = {
            "paramKind": {"apiVersion": API_VERSION, "kind": overlap.KIND},
            "matchConstraints": {
                "resourceRules": [rule("", "configmaps", "CREATE", "UPDATE")],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            },
            **spec,
            "validations": [*spec["validations"], probe],
        }
        reference = {"name": overlap.NAME, "parameterNotFoundAction": "Allow"}
        bound = {"policyName": self.name, "paramRef": reference, "validationActions": ["Deny"], **binding}
        api = "admissionregistration.k8s.io/v1"
        named = {"metadata": {"name": self.name}}
        await self.client.create(
            POLICIES, {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", **named, "spec": whole}
        )
        await self.client.create(
            POLICY_BINDINGS, {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", **named, "spec": bound}
        )

    async def applies(self) -> None:
        await eventually(self._applies, 90, "the policy applies")

    async def _applies(self) -> bool:
        try:
            await self.client.create(CONFIG_MAPS, config("probe", self.namespace), dry_run=True)
        except ApiError as error:
            return self.name in str(error)
        return False

    async def params(self, **listed: str) -> None:
        """Store the params that list this."""
        await self.client.create(OVERLAPS, overlap.overlap_list(listed))

    async def remove(self) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(OVERLAPS, overlap.NAME)
        for resource in (POLICY_BINDINGS, POLICIES):
            with contextlib.suppress(NotFound):
                await self.client.delete(resource, self.name)


def config(name: str, namespace: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


@pytest_asyncio.fixture(loop_scope="module")
async def policy(client: KubeClient, namespace: str) -> AsyncIterator[Policy]:
    policy = Policy(client, namespace)
    yield policy
    await policy.remove()


REFUSED = {
    "expression": "!(object.metadata.name in params.listed)",
    "messageExpression": "'exceeded quota: ' + params.listed[object.metadata.name]",
    "reason": "Forbidden",
}


async def test_a_write_that_the_params_list_is_refused_with_the_words_of_the_params(
    policy: Policy, client: KubeClient, namespace: str
) -> None:
    await policy.params(listed="nlp")
    await policy.store({"validations": [REFUSED]}, {})
    await policy.applies()
    refused = await refusal(client.create(CONFIG_MAPS, config("listed", namespace)))
    assert refused.status == 403
    assert refused.message == (
        f"configmaps \"listed\" is forbidden: ValidatingAdmissionPolicy '{policy.name}' with binding '{policy.name}' "
        "denied request: exceeded quota: nlp"
    )
    await client.create(CONFIG_MAPS, config("other", namespace))


async def test_a_change_of_the_params_counts_at_once(policy: Policy, client: KubeClient, namespace: str) -> None:
    await policy.params(listed="nlp")
    await policy.store({"validations": [REFUSED]}, {})
    await policy.applies()
    await client.patch(OVERLAPS, overlap.NAME, {"listed": {"listed": None, "later": "cv"}})

    async def later() -> bool:
        try:
            await client.create(CONFIG_MAPS, config("later", namespace), dry_run=True)
        except ApiError as error:
            return "exceeded quota: cv" in str(error)
        return False

    await eventually(later, 30, "the policy sees the new params")
    await client.create(CONFIG_MAPS, config("listed", namespace))


async def test_without_params_a_binding_that_allows_it_refuses_nothing(
    policy: Policy, client: KubeClient, namespace: str
) -> None:
    await policy.params(listed="nlp")
    await policy.store({"validations": [REFUSED]}, {})
    await policy.applies()
    await client.delete(OVERLAPS, overlap.NAME)

    async def allowed() -> bool:
        try:
            await client.create(CONFIG_MAPS, config("listed", namespace), dry_run=True)
        except ApiError:
            return False
        return True

    await eventually(allowed, 30, "the policy sees that the params are gone")


@pytest.mark.parametrize(("fails", "is_allowed"), [("Ignore", True), ("Fail", False)])
async def test_an_expression_that_fails_is_decided_by_the_failure_policy(
    policy: Policy, client: KubeClient, namespace: str, fails: str, is_allowed: bool
) -> None:
    await policy.params(listed="nlp")
    broken = {"expression": "params.listed['absent'] == 'x' || object.metadata.name == 'probe'"}
    await policy.store({"failurePolicy": fails, "validations": [broken]}, {})
    await policy.applies()
    if is_allowed:
        await client.create(CONFIG_MAPS, config("any", namespace))
    else:
        refused = await refusal(client.create(CONFIG_MAPS, config("any", namespace)))
        assert "resulted in error: no such key: absent" in str(refused)


async def test_match_conditions_and_variables_see_the_params(
    policy: Policy, client: KubeClient, namespace: str
) -> None:
    await policy.params(listed="nlp")
    spec = {
        "matchConditions": [
            {"name": "listed", "expression": "object.metadata.name in params.listed || object.metadata.name == 'probe'"}
        ],
        "variables": [{"name": "group", "expression": "params.listed[object.metadata.name]"}],
        "validations": [
            {
                "expression": "object.metadata.name == 'probe'",
                "messageExpression": "'of ' + variables.group",
            }
        ],
    }
    await policy.store(spec, {})
    await policy.applies()
    refused = await refusal(client.create(CONFIG_MAPS, config("listed", namespace)))
    assert refused.status == 422
    assert "denied request: of nlp" in str(refused)
    await client.create(CONFIG_MAPS, config("other", namespace))


async def test_a_policy_that_cannot_be_compiled_is_refused(policy: Policy) -> None:
    with pytest.raises(Invalid, match=r"spec\.validations\[0\]\.expression"):
        await policy.store({"validations": [{"expression": "nobody == 1"}]}, {})
