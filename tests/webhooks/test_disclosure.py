"""Who sees a group's figures: people who may read or use it. Others read the reason, and whom to ask."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from bizrq.kube.client import Resource, Unreachable
from bizrq.quota.verdict import Denied, Figures, Reason
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.support.cluster import eventually
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    OF_KIND,
    ROLLOUTS,
    Object,
    bound,
    cluster_role,
    deployment,
    group,
    pod_template,
    referring,
    template,
)
from tests.support.proxy import Proxy
from tests.webhooks.conftest import READING, Api, Hooks, changed, message, stored
from tests.webhooks.handlers.test_autoscalers import autoscaler
from webhooks import disclosure
from webhooks.charging.deadline import Deadline
from webhooks.disclosure import Disclosure
from webhooks.handlers.answer import Answer

#: Figures of the group `theirs` that stand in no request: what is used, the ceiling, what is left and what would fit.
USED, CEILING, LEFT = 7907, 7919, 12
SECRETS = re.compile(r"7907|7919|\b12\b|elsewhere|used: |limited: |left: |fits: ")
ASK = "what is left is shown to people who may read or use quota theirs: ask who manages theirs"

ANN: Object = {"username": "ann", "groups": ["ml", "system:authenticated"]}
ADMIN: Object = {"username": "root", "groups": ["system:masters"]}

Way = Callable[[Hooks, Object], Awaitable[Object]]


@pytest.fixture
async def theirs(api: Api, box: Sandbox) -> Api:
    """A group with workloads of others in it, one of which is ending; nobody may read it by default."""
    await api.client.delete(CLUSTER_ROLE_BINDINGS, READING["metadata"]["name"])
    await api.group("theirs", cpu=CEILING, used={"cpu": USED})
    ending = "deployments.apps/elsewhere/secret limits.cpu=7907 pods=3 until=2026-11-21T10:05:30Z"
    await api.client.patch(GROUPS, "theirs", {"status": {"ending": [ending]}}, subresource="status")
    await api.client.create(DEPLOYMENTS, deployment("grows", "theirs", 1))
    shape = await api.client.create(OF_KIND["PodTemplate"], pod_template("shape"))
    await api.client.create(ROLLOUTS, referring("rolls", "theirs", shape, 1))
    return api


async def given(api: Api, verb: str, *names: str, subject: str = "ann", kind: str = "User") -> None:
    role = f"{subject}-{verb}-{'-'.join(names) or 'all'}"
    await api.client.create(CLUSTER_ROLES, cluster_role(role, verb, names=list(names) or None))
    await api.client.create(CLUSTER_ROLE_BINDINGS, bound(role, subject, kind))


# The ways by which somebody is told of a group's figures; each asks for thirteen cores where twelve are left.


async def a_create(hooks: Hooks, user: Object) -> Object:
    return await hooks.create(deployment("web", "theirs", 13), user=user)


async def a_dry_run(hooks: Hooks, user: Object) -> Object:
    return await hooks.create(deployment("web", "theirs", 13), user=user, dry_run=True)


async def a_growth(hooks: Hooks, user: Object) -> Object:
    old = stored(deployment("grows", "theirs", 1))
    return await hooks.update(old, changed(old, lambda o: o["spec"].update(replicas=14)), user=user)


async def a_move(hooks: Hooks, user: Object) -> Object:
    old = stored(deployment("free", None, 13))
    return await hooks.update(old, deployment("free", "theirs", 13) | {"metadata": _labelled(old)}, user=user)


async def a_scale(hooks: Hooks, user: Object) -> Object:
    metadata = {"name": "grows", "namespace": "default"}
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 14}}
    old = changed(scale, lambda o: o["spec"].update(replicas=1))
    how: Any = {"sub_resource": "scale", "resource": DEPLOYMENTS, "user": user}
    return await hooks.review("scale", "UPDATE", scale, old, **how)


async def a_reference(hooks: Hooks, user: Object) -> Object:
    old = stored(pod_template("shape"))
    larger = changed(old, lambda o: o.update(template=template("14")))
    return await hooks.review("references", "UPDATE", larger, old, user=user)


async def a_child_group(hooks: Hooks, user: Object) -> Object:
    return await hooks.create(group("child", "theirs", cpu=13), user=user)


def _labelled(old: Object) -> Object:
    return {**old["metadata"], **deployment("free", "theirs")["metadata"]}


WAYS: tuple[Way, ...] = (a_create, a_dry_run, a_growth, a_move, a_scale, a_reference, a_child_group)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_refusal_has_figures_for_those_who_may_read_or_use_the_group_alone(
    theirs: Api, hooks: Hooks, way: Way
) -> None:
    """A dry run with the label of another group used to tell its figures to anybody."""
    refused = await way(hooks, ANN)
    assert (refused["status"]["code"], refused["status"]["reason"]) == (403, "Forbidden")
    assert not SECRETS.search(str(refused["status"])), refused
    assert message(refused).startswith("exceeded quota: theirs, requested: limits.cpu=13; "), refused
    assert ASK in message(refused)
    told = message(await way(hooks, ADMIN))
    assert f"used: limits.cpu={USED}, limited: limits.cpu={CEILING}; left: limits.cpu={LEFT}" in told
    assert "secret" in told
    assert ASK not in told
    # Both say which workload the write of another object is charged for.
    assert ("charged for Rollout default/rolls" in told) is ("charged for Rollout default/rolls" in message(refused))


@pytest.mark.parametrize(
    ("case", "verb", "names", "kind", "shown"),
    [
        ("may read it", "get", ["theirs"], "User", True),
        ("may use it", "use", ["theirs"], "User", True),
        ("may read all", "get", [], "User", True),
        ("may do everything", "*", ["theirs"], "User", True),
        ("a group of hers may read it", "get", ["theirs"], "Group", True),
        ("may read another", "get", ["ours"], "User", False),
        ("may only list", "list", [], "User", False),
        ("may only change it", "update", ["theirs"], "User", False),
        ("may only grant it", "grant", ["theirs"], "User", False),
    ],
)
async def test_reading_or_using_the_group_is_what_counts(
    theirs: Api, hooks: Hooks, case: str, verb: str, names: list[str], kind: str, shown: bool
) -> None:
    await given(theirs, verb, *names, subject="ml" if kind == "Group" else "ann", kind=kind)
    told = message(await a_dry_run(hooks, ANN))
    assert bool(SECRETS.search(told)) is shown, (case, told)


async def test_a_user_without_a_name_sees_no_figures(theirs: Api, hooks: Hooks) -> None:
    await given(theirs, "get", subject="")
    assert not SECRETS.search(message(await a_dry_run(hooks, {"username": ""})))


async def test_a_warning_has_figures_for_the_same_people_alone(theirs: Api, hooks: Hooks) -> None:
    scaler = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")

    async def warned(user: Object) -> list[str]:
        asked = autoscaler(200, name="grows")
        return (await hooks.review("autoscalers", "CREATE", asked, resource=scaler, user=user))["warnings"]

    assert await warned(ANN) == ["maxReplicas 200 of Deployment default/grows does not fit quota theirs now"]
    assert await warned(ADMIN) == [
        "maxReplicas 200 of Deployment default/grows does not fit quota theirs: 13 would fit now"
    ]

    old = await theirs.client.get(GROUPS, "theirs")
    lower = changed(old, lambda o: o["spec"].update(hard={"limits.cpu": "5"}))
    said = (await hooks.update(old, lower, user=ANN, dry_run=True))["warnings"]
    assert said == ["group theirs is over its quota now; nothing that runs is stopped, growth is refused"]
    [told] = (await hooks.update(old, lower, user=ADMIN, dry_run=True))["warnings"]
    assert "limits.cpu 5 (used 7907)" in told


async def test_a_group_that_cannot_be_read_is_quoted_to_the_same_people_alone(theirs: Api, hooks: Hooks) -> None:
    entry = "v1 deployments.apps/elsewhere/secret uid=1 rv=nonsense limits.cpu=7907"
    await theirs.client.patch(GROUPS, "theirs", {"status": {"reservations": [entry]}}, subresource="status")
    assert message(await a_dry_run(hooks, ANN)) == "quota theirs cannot be read: ask who manages theirs"
    assert "elsewhere" in message(await a_dry_run(hooks, ADMIN))
    await theirs.client.patch(
        GROUPS,
        "theirs",
        {"status": {"reservations": [], "payersProblem": "line 3: elsewhere/secret"}},
        subresource="status",
    )
    told = message(await a_dry_run(hooks, ANN))
    assert told.endswith("so nothing may grow: ask who manages theirs")
    assert "elsewhere" in message(await a_dry_run(hooks, ADMIN))


async def test_a_group_of_a_deletion_of_all_is_named_by_its_object(theirs: Api, hooks: Hooks) -> None:
    """The review of such a deletion has no name: what is told, and whose rights are asked for, is the group's."""
    old = await theirs.client.get(GROUPS, "theirs")
    old["status"]["reservations"] = ["v1 deployments.apps/elsewhere/secret rv=nonsense limits.cpu=7907"]
    told = message(await hooks.delete(old, user=ANN, name=""))
    assert told == "group theirs or one of its children cannot be read: ask who manages it"
    assert "elsewhere" in message(await hooks.delete(old, user=ADMIN, name=""))


async def test_a_child_that_cannot_be_read_is_not_quoted_to_readers_of_its_parent(theirs: Api, hooks: Hooks) -> None:
    await theirs.group("child", "theirs", cpu=5)
    entry = "v1 deployments.apps/elsewhere/secret uid=1 rv=nonsense limits.cpu=7907"
    await theirs.client.patch(GROUPS, "child", {"status": {"reservations": [entry]}}, subresource="status")
    await given(theirs, "get", "theirs")
    old = await theirs.client.get(GROUPS, "theirs")
    new = changed(old, lambda o: o["spec"]["hard"].update({"limits.memory": "1Gi"}))

    async def told() -> bool:
        answer = await hooks.update(old, new, user=ANN, dry_run=True)
        return not answer["allowed"] and message(answer) == "child child cannot be read: ask who manages it"

    await eventually(told, what="the webhook knows of the child")


async def test_what_is_admitted_asks_nothing(theirs: Api, hooks: Hooks, proxy: Proxy) -> None:
    assert (await hooks.create(deployment("web", "theirs", 1), user=ANN))["allowed"]
    assert proxy.sent("POST") == 0


async def test_refusals_of_one_user_share_a_review(theirs: Api, hooks: Hooks, proxy: Proxy) -> None:
    await given(theirs, "get", "theirs")
    told = await asyncio.gather(*(a_dry_run(hooks, ANN) for _ in range(30)))
    assert all(SECRETS.search(message(each)) for each in told)
    assert proxy.sent("POST", "/subjectaccessreviews") == 1


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_figures_are_left_out_where_rights_cannot_be_checked(
    theirs: Api, hooks: Hooks, proxy: Proxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal itself stands: 403, the same reason. The next one asks again."""
    monkeypatch.setattr(disclosure, "WAIT", 1.0)
    await given(theirs, "get", "theirs")

    async def faulty(line: str) -> web.Response | None:
        if not line.endswith("/subjectaccessreviews"):
            return None
        if fault == "hangs":
            await asyncio.sleep(5)
        return web.Response(status=500, text="no")

    proxy.before.append(faulty)
    clock = asyncio.get_running_loop().time
    began = clock()
    refused = await a_dry_run(hooks, ANN)
    assert refused["status"]["code"] == 403
    assert not SECRETS.search(message(refused))
    assert clock() - began < 3
    proxy.before.remove(faulty)

    async def told() -> bool:
        return bool(SECRETS.search(message(await a_dry_run(hooks, ANN))))

    while not await told():
        assert clock() - began < 20
        await asyncio.sleep(0.5)


# The cache, without a network.


class Reviewer:
    """Answers each review as `rights` says, and counts."""

    def __init__(self) -> None:
        self.rights: set[tuple[str, str, str]] = set()
        self.asked: list[tuple[str, str, str]] = []
        self.fails = False
        self.waits: asyncio.Event | None = None

    async def may(self, user: Any, verb: str, group: str, timeout: float) -> bool:
        self.asked.append((user.username, verb, group))
        if self.waits is not None:
            await self.waits.wait()
        if self.fails:
            raise Unreachable("no", sent=False)
        return (user.username, verb, group) in self.rights


class Shown:
    """A disclosure with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reviewer = Reviewer()
        self.disclosure = Disclosure(self.reviewer, lambda: self.now, ["system:serviceaccount:argo:*"])

    async def aclose(self) -> None:
        await self.disclosure.close()

    async def sees(self, user: str, group: str, *groups: str) -> bool:
        from bizrq.api.review import UserInfo

        denied = Denied(Reason.EXCEEDED, "figures", figures=Figures(group, "none"))
        request: Any = type("R", (), {"user_info": UserInfo(user, groups=list(groups))})
        found = await self.disclosure.shown(request, Answer(denied), Deadline(self.now + 10, lambda: self.now))
        assert isinstance(found.verdict, Denied)
        return found.verdict.message == "figures"


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    async with aclosing(Shown()) as found:
        yield found


async def test_a_review_holds_for_ten_seconds(shown: Shown) -> None:
    shown.reviewer.rights.add(("ann", "use", "nlp"))
    assert await shown.sees("ann", "nlp")
    assert shown.reviewer.asked == [("ann", "get", "nlp"), ("ann", "use", "nlp")]
    shown.reviewer.rights.clear()
    shown.now += disclosure.HOLDS - 0.1
    assert await shown.sees("ann", "nlp")
    shown.now += 0.2
    assert not await shown.sees("ann", "nlp")


async def test_reviews_of_other_users_and_groups_are_others(shown: Shown) -> None:
    shown.reviewer.rights.add(("ann", "get", "nlp"))
    assert await shown.sees("ann", "nlp")
    assert not await shown.sees("bob", "nlp")
    assert not await shown.sees("ann", "cv")
    before = len(shown.reviewer.asked)
    await shown.sees("ann", "nlp", "another group")
    assert len(shown.reviewer.asked) == before + 1


@pytest.mark.parametrize(
    ("user", "sees"),
    [
        ("system:kube-controller-manager", False),
        ("system:serviceaccount:kube-system:replicaset-controller", False),
        ("system:serviceaccount:argo:rollouts", False),
        ("system:serviceaccount:team:robot", True),
    ],
)
async def test_controllers_are_shown_nothing_whatever_they_may_read(shown: Shown, user: str, sees: bool) -> None:
    """What they are told stands in events of the namespace and in conditions of what they work for."""
    shown.reviewer.rights.add((user, "get", "nlp"))
    assert await shown.sees(user, "nlp", "system:masters") is sees
    assert bool(shown.reviewer.asked) is sees


async def test_a_review_that_failed_is_made_again(shown: Shown) -> None:
    shown.reviewer.rights.add(("ann", "get", "nlp"))
    shown.reviewer.fails = True
    assert not await shown.sees("ann", "nlp")
    shown.reviewer.fails = False
    assert await shown.sees("ann", "nlp")


async def test_memory_and_reviews_under_way_are_bounded(shown: Shown) -> None:
    for number in range(disclosure.MOST_KNOWN + 50):
        await shown.sees(f"user-{number}", "nlp")
    assert len(shown.disclosure._asked) == disclosure.MOST_KNOWN  # pyright: ignore[reportPrivateUsage]
    shown.reviewer.asked.clear()
    shown.reviewer.waits = asyncio.Event()
    users = [f"other-{number}" for number in range(disclosure.MOST_UNDER_WAY + 20)]
    waiting = [asyncio.create_task(shown.sees(user, "nlp")) for user in users]
    await asyncio.gather(*waiting)
    assert len(shown.reviewer.asked) == disclosure.MOST_UNDER_WAY
    assert not any(task.result() for task in waiting)
