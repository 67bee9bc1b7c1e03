"""Reviews of corrections: who makes one, of which group, and of what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, bound, cluster_role, correction, group
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message, serving

GPU = "requests.nvidia.com/gpu"


@pytest.fixture
async def asking(through: KubeClient) -> AsyncIterator[Hooks]:
    """Webhooks that ask who may grant."""
    async with serving(through, rights={"grant": True}) as hooks:
        yield hooks


async def nlp(api: Api) -> None:
    await api.group("corp", hours="1k")
    await api.group("nlp", "corp", **{"hours": "100", "cash/requests.nvidia.com/gpu.A100": "50", "cpu": "4"})


async def test_a_user_with_the_right_may_correct_the_hours_that_the_group_meters(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await nlp(api)
    assert (await hooks.create(correction("c", "nlp", {GPU: "-12.5", f"{GPU}.A100": "-12.5"})))["allowed"]
    assert (await hooks.create(correction("c", "nlp", {GPU: "1k"})))["allowed"]
    assert proxy.sent("PUT") == 0


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"by": "bob"}, 422, "correction c: spec.by: is 'bob', but alice asks"),
    ({"reason": " "}, 422, "correction c: spec.reason: say why"),
    ({"hours": {}}, 422, "correction c: spec.hours: names no hours"),
    ({"hours": {GPU: "0"}}, 422, f"correction c: spec.hours: {GPU}: is 0"),
    ({"hours": {GPU: "x"}}, 422, f"correction c: spec.hours: {GPU}: "),
    ({"hours": {f"{GPU}x": "1"}}, 422, f"unknown resource name: did you mean cash/{GPU}?"),
    ({"hours": {"cpu": "1", "requests.cpu": "1"}}, 422, "is also given as requests.cpu"),
    (
        {"hours": {"limits.cpu": "1"}},
        422,
        f"spec.hours: quota nlp has no hours of limits.cpu: it has {GPU}, {GPU}.A100",
    ),
    ({"hours": {f"{GPU}.A100": "1"}}, 422, f"spec.hours: {GPU}.A100 is part of {GPU}: give that, too"),
    ({"group": "nobody"}, 403, "quota nobody does not exist: correct spec.group"),
]


@pytest.mark.parametrize(("spec", "code", "words"), REFUSED, ids=[str(row[0]) for row in REFUSED])
async def test_a_correction_that_is_none_is_refused_in_words(
    api: Api, hooks: Hooks, spec: dict[str, Any], code: int, words: str
) -> None:
    await nlp(api)
    asked = changed(correction("c", "nlp", {GPU: "1"}), lambda o: o["spec"].update(spec))
    response = await hooks.create(asked)
    assert words in message(response)
    assert response["status"]["code"] == code


async def test_a_group_that_goes_is_corrected_no_more(api: Api, hooks: Hooks) -> None:
    await api.client.create(
        GROUPS, changed(group("nlp", hours="1"), lambda o: o["metadata"].update(finalizers=["quota.biz.group/x"]))
    )
    await api.client.delete(GROUPS, "nlp")
    assert "quota nlp is being deleted" in message(await hooks.create(correction("c", "nlp", {GPU: "1"})))


async def test_who_hands_out_hours_has_to_have_grant_above_the_group(api: Api, asking: Hooks) -> None:
    await nlp(api)
    asked = correction("c", "nlp", {GPU: "-1"})
    assert message(await asking.create(asked)).startswith(
        "alice may not correct group nlp: it needs the verb grant on bizgroupresourcequotas.quota.biz.group corp or on"
    )
    await api.client.create(CLUSTER_ROLES, cluster_role("grants", "grant", names=["corp"]))
    await api.client.create(CLUSTER_ROLE_BINDINGS, bound("grants", "alice", "User"))
    assert (await asking.create(asked))["allowed"]
