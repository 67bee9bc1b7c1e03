"""What the processes may do on a cluster, each by its own service account, and no more.

This file alone lists rights (Kubernetes rbac.authorization.k8s.io/v1); those to count follow from the registry
and from what counting refers to. It applies nothing: `deploy/rbac.py` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.kube.events import CLUSTER_NAMESPACE
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.reference_resolver import CONTEXT, NODES, READ, SLICES, WATCHED
from bizrq.workloads.kinds.registry import Registry

Rule = dict[str, Any]

WEBHOOKS, CONTROLLER, CERTS = "bizrq-webhooks", "bizrq-controller", "bizrq-certs"
COUNTED = "bizrq-counted"


_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object to apply, and why it is there."""

    document: dict[str, Any]
    why: str = ""


def manifests(registry: Registry, namespace: str) -> list[Manifest]:
    """The namespace of bizrq, its service accounts, and their roles, in the order to apply them."""
    groups = (GROUPS.plural,)
    registrations = ("validatingwebhookconfigurations",)
    return [
        Manifest({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        *(
            Manifest({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
            for name in (WEBHOOKS, CONTROLLER, CERTS)
        ),
        Manifest(
            _role(COUNTED, counted(registry)),
            "What both webhooks and controller read to count: groups, the charged kinds, and what those refer to;\n"
            "reservations and counts are status, and nobody here writes a spec.",
        ),
        Manifest(
            _role(
                WEBHOOKS,
                [
                    rule("", ["namespaces"], "get"),
                    rule("authorization.k8s.io", ["subjectaccessreviews"], "create"),
                    rule(GROUPS.group, [f"{GROUPS.plural}/status"], "patch"),
                ],
            ),
            "Who may charge a group from where: a refusal is decided on a fresh read, and the API server knows\n"
            "who has which right. A patch of the status lets a person's edit pass.",
        ),
        Manifest(
            _role(
                CONTROLLER,
                [
                    rule(GROUPS.group, groups, "patch"),
                    rule(GROUPS.group, [CARD_HOURS.plural], "get", "list", "watch", "create", "delete"),
                    rule(GROUPS.group, [f"{CARD_HOURS.plural}/status"], "update"),
                    rule(GROUPS.group, [STATEMENTS.plural], "get", "list", "create", "delete"),
                    rule(GROUPS.group, [CORRECTIONS.plural], "get", "list", "watch"),
                    rule(GROUPS.group, [f"{CORRECTIONS.plural}/status"], "patch"),
                    *(rule(resource.group, [resource.plural], "list", "watch") for resource in (NODES, SLICES)),
                ],
            ),
            "A group that spent hours gets a finalizer; its record moves, its statements are written once, and\n"
            "deleted when they are old; what people correct becomes a line of it and is told to be.\n"
            "Nodes and slices tell which devices pods really have.",
        ),
        Manifest(
            _role(
                CERTS,
                [
                    rule("admissionregistration.k8s.io", registrations, "list", "watch"),
                    rule("admissionregistration.k8s.io", registrations, "get", "patch", names=["bizrq"]),
                ],
            ),
            "The caBundle.",
        ),
        Manifest(_binding(COUNTED, namespace, WEBHOOKS, CONTROLLER)),
        Manifest(_binding(WEBHOOKS, namespace, WEBHOOKS)),
        Manifest(_binding(CONTROLLER, namespace, CONTROLLER)),
        Manifest(_binding(CERTS, namespace, CERTS)),
        *_local(
            "bizrq-lease",
            namespace,
            [
                rule("coordination.k8s.io", ["leases"], "create"),
                rule("coordination.k8s.io", ["leases"], "get", "update", names=[CONTROLLER]),
            ],
            (CONTROLLER, namespace),
            "The controller's Lease. A create cannot be bound to a name.",
        ),
        *_local(
            CERTS,
            namespace,
            [rule("", ["secrets"], "create"), rule("", ["secrets"], "get", "update", names=[CERTS])],
            (CERTS, namespace),
            f"Needed only with `bizrq-certs --secret {CERTS}`.",
        ),
        *_local(
            "bizrq-events",
            CLUSTER_NAMESPACE,
            [rule("", ["events"], "create", "patch")],
            (CONTROLLER, namespace),
            "Groups stand in no namespace, so events about them stand in default.",
        ),
    ]


def counted(registry: Registry) -> list[Rule]:
    """The rights to count: what is charged or may change a charge is watched, whatever else is referred to is read."""
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
        *(rule(group, [plural], "get", "list", "watch") for group, plural in followed),
        *(rule(group, plurals, "get") for group, plurals in read.items() if plurals),
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
    name: str, namespace: str, rules: Sequence[Rule], account: tuple[str, str], why: str
) -> tuple[Manifest, Manifest]:
    """A role within a namespace, and the account (name, namespace) that has it."""
    metadata = {"name": name, "namespace": namespace}
    return (
        Manifest({"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [*rules]}, why),
        Manifest(
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
                "subjects": [_subject(*account)],
            }
        ),
    )


def _subject(account: str, namespace: str) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "name": account, "namespace": namespace}
