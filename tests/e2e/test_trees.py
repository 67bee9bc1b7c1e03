"""Trees as people apply them: from one file in any order, and what is said where the order cannot work."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import urlencode

import pytest

from bizrq.kube.client import ApiError, KubeClient
from bizrq.store.groups import GROUPS
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.oracle import Recorder, settled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("station")]


async def test_a_tree_in_any_order_is_there_after_a_few_applies_and_children_first_answers_clearly(
    client: KubeClient, unique: str
) -> None:
    """kubectl goes on with the next document after a refusal; the same file again brings the rest."""
    root, left, right = f"{unique}-corp", f"{unique}-ai", f"{unique}-db"
    tree = [
        group(root, cpu="100"),
        group(left, root, cpu="60"),
        group(right, root, cpu="40"),
        group(f"{unique}-nlp", left, cpu="30"),
        group(f"{unique}-cv", left, cpu="30"),
    ]
    random.Random(unique).shuffle(tree)
    tree.sort(key=lambda obj: obj["spec"].get("parentBizGroup", "") == "")
    said: list[str] = []
    async with Recorder(client, [unique]) as recorder:
        for _ in range(3):
            there = {obj["metadata"]["name"] for obj in (await client.list(GROUPS))[0]}
            for obj in tree:
                if obj["metadata"]["name"] in there:
                    continue
                try:
                    await client.create(GROUPS, obj)
                except ApiError as error:
                    said.append(error.message)
        found = await settled(client, [obj["metadata"]["name"] for obj in tree])
        assert await recorder.laws() >= 10
    assert found[root].status.used == {"limits.cpu": "100"}
    assert said
    assert all("does not exist: create the parent first" in text for text in said), said


async def test_a_tree_from_one_file_parents_first_needs_one_apply(client: KubeClient, unique: str) -> None:
    """Each create waits inside its deadline for its parent's first count."""
    names = [f"{unique}-{depth}" for depth in range(8)]
    for above, name in zip(["", *names], names, strict=False):
        await client.create(GROUPS, group(name, above, cpu="10"))
    await client.create(DEPLOYMENTS, deployment(unique, names[-1], 10))
    await settled(client, names)


async def test_children_created_at_once_share_what_the_parent_has(client: KubeClient, unique: str) -> None:
    await client.create(GROUPS, group(unique, cpu="10"))
    await settled(client, [unique])
    async with Recorder(client, [unique]) as recorder:
        children = [group(f"{unique}-{n}", unique, cpu="3") for n in range(10)]
        answers = await asyncio.gather(*(client.create(GROUPS, c) for c in children), return_exceptions=True)
        refused = [str(answer) for answer in answers if isinstance(answer, ApiError)]
        assert len(refused) == 7, answers
        assert all(f"exceeded quota: {unique}, requested: limits.cpu=3" in text for text in refused)
        [found] = (await settled(client, [unique])).values()
        assert found.status.used == {"limits.cpu": "9"}
        await recorder.laws()


async def test_groups_are_deleted_all_at_once_unless_one_is_in_use(client: KubeClient, unique: str) -> None:
    """The API server deletes them one by one, in the order of their names, up to the first that is refused."""
    free, root, child = f"{unique}-a", f"{unique}-b", f"{unique}-c"
    for name, parent in ((free, ""), (root, ""), (child, root)):
        await client.create(
            GROUPS, {**group(name, parent, cpu="1"), "metadata": {"name": name, "labels": {"of": unique}}}
        )
        await settled(client, [name])

    async def delete_all() -> str:
        selector = urlencode({"labelSelector": f"of={unique}"})
        try:
            await client.request("DELETE", f"{GROUPS.path()}?{selector}", body=b"{}")
        except ApiError as error:
            return error.message
        return ""

    assert f"group {root} has children: {child}; delete them first" in await delete_all()
    left = [each["metadata"]["name"] for each in (await client.list(GROUPS, label_selector=f"of={unique}"))[0]]
    assert left == [root, child]
    await client.patch(GROUPS, root, {"metadata": {"labels": {"of": None}}})
    assert await delete_all() == ""
    assert not (await client.list(GROUPS, label_selector=f"of={unique}"))[0]
