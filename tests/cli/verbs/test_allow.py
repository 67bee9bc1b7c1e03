"""`bizrq allow`: which objects it applies for whom, what the API server then says, and when it applies none."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.api.hours import page_name
from bizrq.cli import grants
from bizrq.kube.client import KubeClient, NotFound
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Object, bound, cluster_role, group

pytestmark = pytest.mark.asyncio(loop_scope="module")

OURS = "app.kubernetes.io/managed-by=bizrq-allow"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(cluster: Cluster, client: KubeClient) -> Bizrq:
    await has_kinds(client, crds.load())
    for name in ("nlp", "cv.team"):
        await client.create(GROUPS, group(name, cpu="10"))
    return Bizrq(cluster.kubeconfig, client)


async def made(client: KubeClient) -> list[str]:
    found = [*(await client.list(CLUSTER_ROLES, label_selector=OURS))[0]]
    found += (await client.list(CLUSTER_ROLE_BINDINGS, label_selector=OURS))[0]
    return sorted(each["metadata"]["name"] for each in found)


async def may_use(client: KubeClient, user: str, name: str, *groups: str) -> bool:
    return await may(client, user, "use", name, *groups)


async def may(client: KubeClient, user: str, verb: str, name: str, *groups: str) -> bool:
    attributes = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "verb": verb, "name": name}
    spec = {"user": user, "groups": list(groups), "resourceAttributes": attributes}
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    return (await client.create(ACCESS_REVIEWS, review))["status"]["allowed"]


#: What is written, who is meant: user, groups, and somebody alike who is not.
PEOPLE = [
    ("ann", "ann", (), ("ann2", ())),
    ("user:group:ml", "group:ml", (), ("x", ("ml",))),
    ("group:ml", "x", ("ml",), ("ml", ())),
    ("oidc:Ann Müller <ann@example.com>", "oidc:Ann Müller <ann@example.com>", (), ("ann@example.com", ())),
    ("group:system:authenticated", "x", ("system:authenticated",), ("x", ("system:unauthenticated",))),
    ("namespace:team-a", "system:serviceaccount:team-a:x", ("system:serviceaccounts:team-a",), ("team-a", ("team-a",))),
    (
        "serviceaccount:team-a:robot",
        "system:serviceaccount:team-a:robot",
        (),
        ("system:serviceaccount:team-b:robot", ()),
    ),
    ("a/b%2e..", "a/b%2e..", (), ("a", ())),
    ("x" * 1024, "x" * 1024, (), ("x" * 1023, ())),
]


@pytest.mark.parametrize(("who", "user", "groups", "other"), PEOPLE, ids=lambda value: str(value)[:30])
async def test_allow_gives_the_right_to_those_who_are_meant_and_remove_takes_it(
    bizrq: Bizrq, who: str, user: str, groups: tuple[str, ...], other: tuple[str, tuple[str, ...]]
) -> None:
    client = bizrq.client
    assert not await may_use(client, user, "nlp", *groups)
    dry = await bizrq("allow", who, "nlp", "--dry-run", "-o", "json")
    warned = "bizrq: oidc: is taken for" if who.startswith("oidc:") else ""
    assert (dry.code, dry.err[: len(warned) or None]) == (0, warned)
    assert not await may_use(client, user, "nlp", *groups)
    result = await bizrq("allow", who, "nlp")
    assert (result.code, result.err) == (0, dry.err), result
    assert result.out.splitlines()[-1].endswith(" created")

    async def given() -> bool:
        return await may_use(client, user, "nlp", *groups)

    await eventually(given, what="the right is given")
    assert not await may_use(client, other[0], "nlp", *other[1])
    assert not await may_use(client, user, "cv.team", *groups)
    again = await bizrq("allow", who, "nlp")
    assert {line.split()[-1] for line in again.out.splitlines()} == {"unchanged"}
    stored = await client.get(CLUSTER_ROLE_BINDINGS, json.loads(dry.out)["items"][1]["metadata"]["name"])
    assert stored["metadata"]["labels"][grants.GROUP_LABEL] == "nlp"

    assert (await bizrq("allow", who, "nlp", "--remove", "--dry-run")).out.strip().endswith("would be deleted")
    assert await may_use(client, user, "nlp", *groups)
    gone = await bizrq("allow", who, "nlp", "--remove")
    assert (gone.code, gone.out.strip().split()[-1]) == (0, "deleted")

    async def taken() -> bool:
        return not await may_use(client, user, "nlp", *groups)

    await eventually(taken, what="the right is taken")
    nothing = await bizrq("allow", who, "nlp", "--remove")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err.strip().endswith("no binding of bizrq allow for nlp, so there is nothing to remove")


@pytest.mark.parametrize(
    ("who", "is_warned"),
    [("grp:team", True), ("oidc:ann", True), ("ns:x", True), ("user:oidc:ann", False), ("system:admin", False)],
)
async def test_a_prefix_that_means_nothing_is_a_warning(bizrq: Bizrq, who: str, *, is_warned: bool) -> None:
    result = await bizrq("allow", who, "nlp", "--dry-run")
    said = f"bizrq: {who.partition(':')[0]}: is taken for a part of a user's name; write user:"
    assert (result.code, result.err.startswith(said), bool(result.err)) == (0, is_warned, is_warned)


async def test_read_lets_somebody_read_one_group_and_not_charge_it(bizrq: Bizrq, cluster: Cluster) -> None:
    """By name, also in a list and a watch. Both rights have objects of their own, and go one by one."""
    client = bizrq.client
    result = await bizrq("allow", "--read", "rea", "nlp")
    assert (result.code, result.err) == (0, ""), result
    assert (await bizrq("allow", "rea", "cv.team")).code == 0

    async def given() -> bool:
        return await may(client, "rea", "get", "nlp") and await may(client, "rea", "use", "cv.team")

    await eventually(given, what="both rights are given")
    for verb in grants.Right.READ.value:
        assert await may(client, "rea", verb, "nlp")
        assert not await may(client, "rea", verb, "cv.team")
        assert not await may(client, "rea", verb, "")
    for verb in ("use", "grant", "update", "patch", "delete", "maintain"):
        assert not await may(client, "rea", verb, "nlp")
    role, binding = yaml.safe_load_all((await bizrq("allow", "--read", "rea", "nlp", "--dry-run")).out)
    assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
    assert role["rules"][0]["resourceNames"] == ["nlp"]
    uid = (await client.get(GROUPS, "nlp"))["metadata"]["uid"]
    pages = ["nlp", *(page_name("nlp", uid, number) for number in range(1, 16))]
    hours = {"resources": ["bizgroupcardhours"], "resourceNames": pages, "verbs": ["get"]}
    assert role["rules"][1:] == [{"apiGroups": ["quota.biz.group"], **hours}]
    assert grants.record_pages("nlp", uid, 20) == [page_name("nlp", uid, number) for number in range(1, 40)]
    [using, _] = yaml.safe_load_all((await bizrq("allow", "rea", "nlp", "--dry-run")).out)
    assert len(using["rules"]) == 1

    nothing = await bizrq("allow", "rea", "nlp", "--remove")
    assert nothing.err.endswith("no binding of bizrq allow for nlp, so there is nothing to remove\n")
    assert await may(client, "rea", "get", "nlp")
    assert (await bizrq("allow", "--read", "rea", "nlp", "--remove")).code == 0

    async def taken() -> bool:
        return not await may(client, "rea", "get", "nlp")

    await eventually(taken, what="the right to read is taken")
    assert await may(client, "rea", "use", "cv.team")
    again = await bizrq("allow", "--read", "rea", "nlp", "--remove")
    assert again.err.endswith("no binding of bizrq allow --read for nlp, so there is nothing to remove\n")
    assert (await bizrq("allow", "rea", "cv.team", "--remove")).code == 0
    # Another test has a role of this name.
    await client.delete(CLUSTER_ROLES, grants.role_name("cv.team"))


async def test_the_names_of_two_are_never_one(bizrq: Bizrq) -> None:
    """A binding is called by a hash of whom it is for, so that no name of a user can be that of another's binding."""
    words = [
        "ann",
        "Ann",
        "ann ",
        "group:ann",
        "namespace:ann",
        "user:namespace:ann",
        "a-n-n",
        "ann\N{COMBINING TILDE}",
    ]
    subjects = [grants.subject(word) for word in words]
    names = {
        grants.binding_name(name, who, right)
        for who in subjects
        for name in ("nlp", "cv.team", "nlp-ann")
        for right in grants.Right
    }
    assert len(names) == 6 * len(words)
    assert all(len(name) <= 63 + 28 and name.isascii() and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("who", "of", "said"),
    [
        ("ann", "nlpp", "there is no group nlpp; "),
        ("ann", "nlp/status", "there is no group 'nlp/status': no group can have this name"),
        ("ann", "*", "there is no group '*': no group can have this name"),
        ("ann", "..", "no group can have this name"),
        ("ann", "n" * 64, "no group can have this name"),
        ("", "nlp", "names nobody: write ann, group:ml, namespace:team-a or serviceaccount:team-a:robot"),
        ("group:", "nlp", "names nobody"),
        ("   ", "nlp", "names nobody"),
        ("\x1b[31mann", "nlp", "is no name of a user: it has control characters, or is too long"),
        ("ann\nroot", "nlp", "is no name of a user"),
        ("ann\u202eroot", "nlp", "is no name of a user"),
        ("x" * 1025, "nlp", "is no name of a user"),
        ("namespace:Team A", "nlp", "'namespace:Team A' is not namespace:NAME"),
        ("namespace:a:b", "nlp", "is not namespace:NAME"),
        ("serviceaccount:robot", "nlp", "is not serviceaccount:NAMESPACE:NAME"),
        ("serviceaccount:a:b:c", "nlp", "is not serviceaccount:NAMESPACE:NAME"),
        ("serviceaccount::robot", "nlp", "is not serviceaccount:NAMESPACE:NAME"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
async def test_a_bad_call_is_one_line_and_applies_nothing(
    bizrq: Bizrq, who: str, of: str, said: str, more: tuple[str, ...]
) -> None:
    before = await made(bizrq.client)
    result = await bizrq("allow", who, of, *more)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert said in result.err
    assert "\x1b" not in result.err
    assert await made(bizrq.client) == before


async def test_roles_of_others_are_left_alone(bizrq: Bizrq) -> None:
    """Somebody else's role of this name may give more than the right to charge."""
    client = bizrq.client
    await client.create(CLUSTER_ROLES, cluster_role("bizrq-use-cv.team", "*"))
    for more in ((), ("--dry-run",)):
        result = await bizrq("allow", "ann", "cv.team", *more)
        assert (result.code, result.out) == (3, "")
        assert result.err == (
            "bizrq: clusterrole.rbac.authorization.k8s.io/bizrq-use-cv.team exists and is not of bizrq allow: delete "
            "it, or label it app.kubernetes.io/managed-by=bizrq-allow\n"
        )
    await client.delete(CLUSTER_ROLES, "bizrq-use-cv.team")
    theirs = bound("cluster-admin", "ann")
    theirs["metadata"]["name"] = grants.binding_name("cv.team", grants.subject("ann"))
    await client.create(CLUSTER_ROLE_BINDINGS, theirs)
    for more in ((), ("--remove",)):
        result = await bizrq("allow", "ann", "cv.team", *more)
        assert (result.code, result.out) == (3, "")
    await client.delete(CLUSTER_ROLE_BINDINGS, theirs["metadata"]["name"])


async def test_the_right_of_a_group_that_is_gone_can_be_removed(bizrq: Bizrq) -> None:
    await bizrq.client.create(GROUPS, group("gone", cpu="1"))
    assert (await bizrq("allow", "ann", "gone")).code == 0
    await bizrq.client.delete(GROUPS, "gone")
    assert (await bizrq("allow", "ann", "gone")).code == 2
    removed = await bizrq("allow", "ann", "gone", "--remove")
    assert (removed.code, removed.out.strip().split()[-1]) == (0, "deleted")


async def test_who_was_allowed_an_earlier_group_of_the_name_is_named(bizrq: Bizrq) -> None:
    """A group made anew is another one, and RBAC knows its name alone."""
    client = bizrq.client
    await client.create(GROUPS, group("anew", cpu="1"))
    for words in ("ann", "group:ml", "--read rea"):
        assert (await bizrq("allow", *words.split(), "anew")).err == ""
    assert (await bizrq("allow", "group:ml", "anew")).err == "", "they are allowed this group, and no earlier one"
    await client.delete(GROUPS, "anew")
    await client.create(GROUPS, group("anew", cpu="1"))
    charge = "bizrq: allowed to charge an earlier group anew, and so this one: "
    read = (
        "bizrq: allowed to read an earlier group anew, and so this one: user:rea; "
        "bizrq allow --read WHO anew --remove takes the right away\n"
    )
    remedy = "; bizrq allow WHO anew --remove takes the right away\n"
    dry = await bizrq("allow", "ben", "anew", "--dry-run")
    assert (dry.code, dry.err) == (0, f"{charge}group:ml, user:ann{remedy}{read}")
    # Who is allowed again is allowed this group.
    assert (await bizrq("allow", "ann", "anew")).err == f"{charge}group:ml{remedy}{read}"
    for words in ("group:ml", "--read user:rea"):
        assert (await bizrq("allow", *words.split(), "anew", "--remove")).code == 0
    assert (await bizrq("allow", "ben", "anew")).err == ""
    for who in ("ann", "ben"):
        assert (await bizrq("allow", who, "anew", "--remove")).code == 0


async def test_a_dry_run_prints_what_would_be_applied(bizrq: Bizrq) -> None:
    text = (await bizrq("allow", "group:ml", "nlp", "--dry-run")).out
    role, binding = yaml.safe_load_all(text)
    expected: Object = {
        "apiGroups": ["quota.biz.group"],
        "resources": ["bizgroupresourcequotas"],
        "resourceNames": ["nlp"],
        "verbs": ["use"],
    }
    assert role["rules"] == [expected]
    assert binding["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ml"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "bizrq-use-nlp"


async def test_uninstall_with_the_crds_takes_the_rights_along_and_install_leaves_them(bizrq: Bizrq) -> None:
    """A later group of the same name is another."""
    client, here = bizrq.client, ("-n", "bizrq-allowed")
    assert (await bizrq("allow", "ann", "nlp")).code == 0
    named = grants.binding_name("nlp", grants.subject("ann"))
    assert (await bizrq("install", *here, "--no-wait")).code == 0
    assert (await bizrq("uninstall", *here)).code == 0
    assert await client.get(CLUSTER_ROLE_BINDINGS, named)
    assert (await bizrq("uninstall", *here, "--crd", "--yes")).code == 0
    assert await made(client) == []
    with pytest.raises(NotFound):
        await client.get(CLUSTER_ROLES, "bizrq-use-nlp")
    await has_kinds(client, crds.load())
