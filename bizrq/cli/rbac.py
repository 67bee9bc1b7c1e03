"""The RBAC manifests of the processes, each with its own service account and the fewest rights.

This file alone lists rights (rbac.authorization.k8s.io/v1). The rights to count follow from the registry and from what
counting refers to. It applies nothing: `bizrq install` applies the manifests, and `deploy/rbac.py` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq import metrics_access
from bizrq.api import guards, overlap
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.events import CLUSTER_NAMESPACE
from bizrq.registration import NAME
from bizrq.store import pause
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.overlaps import OVERLAPS
from bizrq.store.payers import PAYERS
from bizrq.store.processes import CERTS, CONTROLLER, WEBHOOKS
from bizrq.store.reference_resolver import CONTEXT, NODES, READ, SLICES, WATCHED
from bizrq.workloads.kinds.registry import Registry
from webhooks.charging.authorization import ROOTS

Rule = dict[str, Any]

COUNTED = "bizrq-counted"
#: The roles of people. Nobody is bound to them.
VIEWER, GROUP_LEAD, FINANCE, ADMIN = "bizrq-viewer", "bizrq-group-lead", "bizrq-finance", "bizrq-admin"
#: The label by which a role is part of Kubernetes' own role `view`, and so of `edit` and `admin`.
_INTO_VIEW = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
METRICS, METRICS_READER = "bizrq-metrics", "bizrq-metrics-reader"
#: The kinds of bizrq, all cluster-scoped.
OURS = (GROUPS, CARD_HOURS, STATEMENTS, CORRECTIONS, PAYERS, OVERLAPS)
#: The kinds of bizrq that have a status.
WITH_STATUS = (GROUPS, CARD_HOURS, CORRECTIONS, PAYERS)


_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class RbacManifest:
    """One object to apply, and the reason for it."""

    document: dict[str, Any]
    why: str = ""


def manifests(registry: Registry, namespace: str) -> list[RbacManifest]:
    """Return the namespace of bizrq, its service accounts and their roles, in the order to apply them."""
    return [
        RbacManifest({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        *(_account(name, namespace) for name in (WEBHOOKS, CONTROLLER, CERTS)),
        *_cluster_roles(registry),
        *_roles_of_people(),
        RbacManifest(_binding(COUNTED, namespace, WEBHOOKS, CONTROLLER)),
        RbacManifest(_binding(WEBHOOKS, namespace, WEBHOOKS)),
        RbacManifest(_binding(CONTROLLER, namespace, CONTROLLER)),
        RbacManifest(_binding(CERTS, namespace, CERTS)),
        RbacManifest(_binding(METRICS, namespace, WEBHOOKS, CONTROLLER, CERTS)),
        *_namespaced_roles(namespace),
    ]


def _account(name: str, namespace: str) -> RbacManifest:
    metadata = {"name": name, "namespace": namespace}
    return RbacManifest({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def _cluster_roles(registry: Registry) -> list[RbacManifest]:
    """Return the roles that hold in the whole cluster."""
    return [
        RbacManifest(
            _role(COUNTED, counting_rules(registry)),
            "Webhooks and controller read groups, remembered payers, the charged kinds, the objects that those refer\n"
            "to, and nodes for DaemonSets. They write only the status of groups: reservations and counts.",
        ),
        _role_of_webhooks(),
        _role_of_controller(),
        _role_of_certs(),
        *_roles_of_metrics(),
        _role_of_restore(),
    ]


def _role_of_webhooks() -> RbacManifest:
    rules = [
        rule("", ["namespaces"], "get"),
        rule("apps", ["controllerrevisions"], "list"),
        rule("authorization.k8s.io", ["subjectaccessreviews"], "create"),
        rule(GROUPS.group, [f"{GROUPS.plural}/status"], "patch"),
        rule(GROUPS.group, [GROUPS.plural], guards.MAINTAIN),
        rule(REGISTRATIONS.group, [REGISTRATIONS.plural], "get", names=[NAME]),
    ]
    return RbacManifest(
        _role(WEBHOOKS, rules),
        "The webhooks read the namespace of a request before they refuse it, and ask the API server whether a\n"
        "user has a right on a group. A patch of the status holds back reservations while a person edits the group.\n"
        "They list the revisions of a StatefulSet that may become its current one before its status says so. They\n"
        "are not ready while the registration has paths of another version.",
    )


def _role_of_controller() -> RbacManifest:
    rules = [
        rule(GROUPS.group, [GROUPS.plural], "patch"),
        rule(GROUPS.group, [CARD_HOURS.plural], "get", "list", "watch", "create", "delete"),
        rule(GROUPS.group, [f"{CARD_HOURS.plural}/status"], "update"),
        rule(GROUPS.group, [STATEMENTS.plural], "get", "list", "create", "delete"),
        rule(GROUPS.group, [CORRECTIONS.plural], "get", "list", "watch"),
        rule(GROUPS.group, [f"{CORRECTIONS.plural}/status"], "patch"),
        rule(PAYERS.group, [PAYERS.plural], "create", "delete"),
        rule(PAYERS.group, [f"{PAYERS.plural}/status"], "update"),
        rule(SLICES.group, [SLICES.plural], "list", "watch"),
        rule(GROUPS.group, [kind.plural for kind in OURS], guards.MAINTAIN),
        rule(GROUPS.group, [overlap.PLURAL], "create"),
        rule(GROUPS.group, [overlap.PLURAL], "get", "patch", names=[overlap.NAME]),
        rule(REGISTRATIONS.group, [REGISTRATIONS.plural], "create", "get", "patch", "delete", names=[NAME]),
        rule(_RBAC, ["clusterroles"], "get", names=[CONTROLLER]),
    ]
    return RbacManifest(
        _role(CONTROLLER, rules),
        "The controller adds a finalizer to a group with a record of hours, advances the record, creates\n"
        "statements, deletes old ones, and marks corrections as applied. It records who pays for pods, so that what a\n"
        "workload leaves behind stays charged. ResourceSlices show which devices pods got. It lists the workloads\n"
        "whose pods are not replaced for now; no such list can have another name. The policies let whoever may\n"
        "maintain a kind write its status and its records. The leader keeps the registration of the webhooks, with\n"
        "this role as its owner. It may delete it, because some clusters ask that of whoever sets an owner; a policy\n"
        "forbids it.",
    )


def _role_of_certs() -> RbacManifest:
    rules = [
        rule(REGISTRATIONS.group, [REGISTRATIONS.plural], "list", "watch"),
        rule(REGISTRATIONS.group, [REGISTRATIONS.plural], "get", "patch", names=[NAME]),
    ]
    return RbacManifest(_role(CERTS, rules), "bizrq-certs writes the caBundle of our registration.")


def _roles_of_metrics() -> Iterator[RbacManifest]:
    checks = [
        rule("authentication.k8s.io", ["tokenreviews"], "create"),
        rule("authorization.k8s.io", ["subjectaccessreviews"], "create"),
    ]
    yield RbacManifest(
        _role(METRICS, checks), "Each process asks the API server who a scraper is, and whether it may read /metrics."
    )
    yield RbacManifest(
        _role(METRICS_READER, [{"nonResourceURLs": [metrics_access.PATH], "verbs": [metrics_access.VERB]}]),
        "For scrapers: bind it to the account of Prometheus. Nothing here has it.",
    )


def _role_of_restore() -> RbacManifest:
    every = [kind.plural for kind in OURS]
    rules = [
        rule(GROUPS.group, every, "get", "list", "watch", "create", "update", "patch", "delete", guards.MAINTAIN),
        rule(GROUPS.group, [f"{kind.plural}/status" for kind in WITH_STATUS], "get", "update", "patch"),
    ]
    return RbacManifest(
        _role(guards.RESTORE_ROLE, rules),
        "For whoever restores a backup, who may then write what bizrq alone writes. Bound to nobody.",
    )


def _roles_of_people() -> Iterator[RbacManifest]:
    """Yield the roles for people. Only what reads is part of `view`: whoever has that must not change budgets.

    None has `*`: that would be `maintain` as well, which is for what bizrq alone writes.
    """
    reading = rule(GROUPS.group, [kind.plural for kind in OURS], "get", "list", "watch")
    writing = rule(GROUPS.group, [GROUPS.plural], "create", "update", "patch", "delete")
    viewer = _role(VIEWER, [reading])
    viewer["metadata"]["labels"] = _INTO_VIEW
    yield RbacManifest(
        viewer,
        "For people: who reads all groups and their hours. Part of `view`, which gives it where a\n"
        "ClusterRoleBinding binds that: groups have no namespace.",
    )
    yield RbacManifest(
        _role(GROUP_LEAD, [reading, writing]),
        "For people: who manages the groups below their own. RBAC cannot limit that to a subtree: use it with\n"
        "`rights.grant`, and give the verb grant on their group. Without `rights.grant` it changes every group.",
    )
    yield RbacManifest(
        _role(FINANCE, [reading, rule(GROUPS.group, [CORRECTIONS.plural], "create")]),
        "For people: who reads bills and corrects hours.",
    )
    corrections = rule(GROUPS.group, [CORRECTIONS.plural], "create", "delete")
    grant = rule(GROUPS.group, [GROUPS.plural], "grant", names=[ROOTS])
    yield RbacManifest(
        _role(ADMIN, [reading, writing, corrections, grant]),
        "For people: who manages all groups, the roots included. Not what bizrq alone writes.",
    )


def _namespaced_roles(namespace: str) -> Iterator[RbacManifest]:
    """Yield the roles that hold in one namespace, each with its binding."""
    lease = [
        rule("coordination.k8s.io", ["leases"], "create"),
        rule("coordination.k8s.io", ["leases"], "get", "update", names=[CONTROLLER]),
        rule("coordination.k8s.io", ["leases"], "list"),
        rule("", ["configmaps"], "get", names=[pause.NAME]),
    ]
    yield from _local(
        "bizrq-lease",
        namespace,
        lease,
        (CONTROLLER, namespace),
        why="The controller's Lease, the Leases by which it sees which processes run, and the marker of bizrq\n"
        "pause. RBAC cannot restrict a create to a name.",
    )
    own = [rule("coordination.k8s.io", ["leases"], "create", "patch", "delete")]
    yield from _local(
        "bizrq-processes",
        namespace,
        own,
        *((account, namespace) for account in (WEBHOOKS, CONTROLLER, CERTS)),
        why="Each process keeps a Lease that says its version and configuration. A policy limits the names.",
    )
    yield from _local(
        "bizrq-journals",
        namespace,
        [rule("coordination.k8s.io", ["leases"], "get", "update")],
        (WEBHOOKS, namespace),
        why="Each process of the webhooks keeps a journal of what it admits by its allowances.",
    )
    secret = [rule("", ["secrets"], "create"), rule("", ["secrets"], "get", "update", names=[CERTS])]
    yield from _local(
        CERTS, namespace, secret, (CERTS, namespace), why=f"Needed only with `bizrq-certs --secret {CERTS}`."
    )
    yield from _local(
        "bizrq-events",
        CLUSTER_NAMESPACE,
        [rule("", ["events"], "create", "patch")],
        (CONTROLLER, namespace),
        why="Groups are cluster-scoped, so events about them are in the namespace default.",
    )


def counting_rules(registry: Registry) -> list[Rule]:
    """Return the rights to count: watch what is charged or changes a charge, read what else is referred to."""
    followed = dict.fromkeys([(a.group, a.plural) for a in registry.charged] + [(r.group, r.plural) for r in CONTEXT])
    read: dict[str, list[str]] = {}
    for group, plural in [(r.group, r.plural) for r in READ] + [(a.group, a.plural) for a in registry.adapters]:
        if (group, plural) not in followed and plural not in read.setdefault(group, []):
            read[group].append(plural)
    watched: dict[str, list[str]] = {}
    for resource in WATCHED:
        watched.setdefault(resource.group, []).append(resource.plural)
    return [
        rule(GROUPS.group, [GROUPS.plural], "get", "list", "watch"),
        rule(PAYERS.group, [PAYERS.plural], "get", "list", "watch"),
        *(rule(group, [plural], "get", "list", "watch") for group, plural in followed),
        *(rule(group, plurals, "get") for group, plurals in read.items() if plurals),
        rule(NODES.group, [NODES.plural], "get", "list", "watch"),
        *(rule(group, plurals, "list", "watch") for group, plurals in watched.items()),
        rule(GROUPS.group, [f"{GROUPS.plural}/status"], "update"),
    ]


def rule(group: str, resources: Iterable[str], *verbs: str, names: Sequence[str] = ()) -> Rule:
    found: Rule = {"apiGroups": [group], "resources": [*resources]}
    return {**found, **({"resourceNames": [*names]} if names else {}), "verbs": [*verbs]}


def _role(name: str, rules: Sequence[Rule]) -> dict[str, Any]:
    return {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [*rules]}


def _binding(name: str, namespace: str, *accounts: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [_subject(account, namespace) for account in accounts],
    }


def _local(
    name: str, namespace: str, rules: Sequence[Rule], *accounts: tuple[str, str], why: str
) -> tuple[RbacManifest, RbacManifest]:
    """Return a role within a namespace, and its binding to accounts (name, namespace)."""
    metadata = {"name": name, "namespace": namespace}
    return (
        RbacManifest({"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [*rules]}, why),
        RbacManifest(
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
                "subjects": [_subject(*account) for account in accounts],
            }
        ),
    )


def user_of(account: str, namespace: str) -> str:
    """Return the user name of one of the service accounts."""
    return f"system:serviceaccount:{namespace}:{account}"


def _subject(account: str, namespace: str) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "name": account, "namespace": namespace}
