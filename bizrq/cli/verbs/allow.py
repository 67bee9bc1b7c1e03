"""bizrq allow: let a user, a group of users or the service accounts of a namespace charge or read a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.apply import DryRunOutput, ManifestOutput, apply, named, print_objects, report
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, warn
from bizrq.units.text import printable

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.kube.client import KubeClient


def allow(
    who: Annotated[
        str,
        typer.Argument(
            metavar="WHO",
            help="USER, group:NAME of users, namespace:NAME of service accounts, or serviceaccount:NAMESPACE:NAME.",
        ),
    ],
    group: Annotated[str, typer.Argument(help="Group that may be charged, or read.", autocompletion=group_names)],
    read: Annotated[bool, typer.Option("--read", help="Let them read the group, and not charge it.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the right away again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the objects, and change nothing.")] = False,
    output: DryRunOutput = ManifestOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Let somebody charge a group: create workloads in it, and move them there. With --read, let them read it.

    Applies a ClusterRole with the verb use on this group, and a ClusterRoleBinding. Repeating it changes nothing.
    Counts only where rights.use of the configuration is on, as in a new installation.

    With --read the verbs are get, list and watch: kubectl get bizrq GROUP shows the group and its figures. Groups have
    no namespace, so a RoleBinding gives nobody a right to them.
    """
    from bizrq.cli import grants

    try:
        subject = grants.subject(who)
    except grants.NoSubject as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    if not grants.is_group_name(group):
        raise Failure(f"there is no group {group[:64]!r}: no group can have this name", EXIT_BAD_INPUT)
    if not remove and grants.is_doubtful(who):
        prefix = printable(who.partition(":")[0][:64])
        warn(f"{prefix}: is taken for a part of a user's name; write user:{prefix}:… to say so, or group:, namespace:")
    right = grants.Right.READ if read else grants.Right.USE
    objects = [grants.role(group, right), grants.binding(group, subject, right)]

    async def work(client: KubeClient) -> None:
        if remove:
            command = "bizrq allow --read" if read else "bizrq allow"
            await _remove(client, objects[1], f"{subject.shown}: no binding of {command} for {group}", dry_run)
            return
        found = await _group(client, group)
        if right is grants.Right.READ:
            uid, pages = await _pages(client, found)
            objects[0] = grants.role(group, right, grants.record_pages(group, uid, pages))
        objects[1] = grants.binding(group, subject, right, found.metadata.uid)
        await _check_ours(client, objects)
        await _warn_of_earlier(client, found, objects[1])
        if dry_run:
            print_objects(objects, output)
            return
        for obj in objects:
            await apply(client, obj, grants.ALLOW)

    run_on(client_for(where), work)


async def _group(client: KubeClient, name: str) -> GroupObject:
    """Return the group. Raise UnknownGroup if it does not exist, Forbidden, another ApiError or Unreachable."""
    from bizrq.figures.errors import UnknownGroup
    from bizrq.figures.groups.source import GroupSource, check_known, known_names

    found = await GroupSource(client, is_complete=False).fetch(name)
    if found is None:
        check_known([name], await known_names(client), is_complete=False)
        raise UnknownGroup(name, f"there is no group {name}")
    return found


async def _warn_of_earlier(client: KubeClient, group: GroupObject, binding: dict[str, Any]) -> None:
    """Warn of those who were given a right to an earlier group of this name: RBAC goes by the name."""
    from bizrq.cli.grants import ALLOW, GROUP_LABEL, MANAGED, Right, earlier
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.figures.words import few
    from bizrq.kube.client import Forbidden

    of = f"{MANAGED}={ALLOW},{GROUP_LABEL}={group.name}"
    try:
        stored, _ = await client.list(resource_of(binding), label_selector=of)
    except Forbidden:
        return
    others = [each for each in stored if each["metadata"]["name"] != binding["metadata"]["name"]]
    for right, verb, flag in ((Right.USE, "charge", ""), (Right.READ, "read", "--read ")):
        if words := earlier(others, group.metadata.uid, right):
            warn(
                f"allowed to {verb} an earlier group {group.name}, and so this one: {few(words)}; "
                f"bizrq allow {flag}WHO {group.name} --remove takes the right away"
            )


async def _pages(client: KubeClient, group: GroupObject) -> tuple[str, int]:
    """Return the uid in the names of the pages of a group's record, and how many it has: 1 without a record.

    Raise ApiError, Unreachable or HoursUnreadable.
    """
    from bizrq.api import hours
    from bizrq.kube.client import NotFound
    from bizrq.store.hours import CARD_HOURS

    try:
        record = hours.record_of(await client.get(CARD_HOURS, group.name))
    except NotFound:
        return group.metadata.uid, 1
    return record.spec.uid, record.status.pages


async def _check_ours(client: KubeClient, objects: list[dict[str, Any]]) -> None:
    """Raise Failure where an object of somebody else has the name: it may give other rights."""
    from bizrq.cli.grants import ALLOW, MANAGED, is_ours
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    for obj in objects:
        try:
            stored = await client.get(resource_of(obj), obj["metadata"]["name"])
        except NotFound:
            continue
        if not is_ours(stored):
            raise Failure(
                f"{named(obj)} exists and is not of bizrq allow: delete it, or label it {MANAGED}={ALLOW}", EXIT_CLUSTER
            )


async def _remove(client: KubeClient, binding: dict[str, Any], absent: str, dry_run: bool) -> None:
    """Delete the binding; the role stays, since others may be bound to it. The group may be gone."""
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    await _check_ours(client, [binding])
    resource, name = resource_of(binding), binding["metadata"]["name"]
    try:
        await client.get(resource, name)
        if not dry_run:
            await client.delete(resource, name)
    except NotFound:
        warn(f"{absent}, so there is nothing to remove")
        return
    report(binding, "would be deleted" if dry_run else "deleted")
