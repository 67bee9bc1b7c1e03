"""The API priority of bizrq: how many requests of its own accounts an API server serves beside those of others.

This file alone decides that (Kubernetes flowcontrol/v1). It makes no requests itself.

An API server holds the seat of a request while our webhooks decide on it, and they decide by requests of their own. If
both need seats of one priority level, the first take them all and wait for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Object = dict[str, Any]

_API: Final = "flowcontrol.apiserver.k8s.io/v1"
LEVEL: Final = "bizrq"
LEASE: Final = "bizrq-lease"
KINDS: Final = ("PriorityLevelConfiguration", "FlowSchema")
#: Of 265 with those of Kubernetes: 45 of the 600 seats that an API server has by default.
SHARES: Final = 20
#: After the schemas of Kubernetes for probes and its leader elections, before those for service accounts (900 and up).
PRECEDENCE: Final = 300


def objects(namespace: str, accounts: Sequence[str], leader: str) -> list[Object]:
    """Return the priority level, and a schema for each of these service accounts.

    Renewals of the Lease by the account `leader` have one of their own: its other requests do not delay them.
    """
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"], "namespaces": [namespace]}
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"], "clusterScope": True}
    paths = {"nonResourceURLs": ["*"], "verbs": ["*"]}
    return [
        _level(),
        _schema(LEASE, PRECEDENCE - 1, _account(leader, namespace), resourceRules=[leases]),
        *(
            _schema(each, PRECEDENCE, _account(each, namespace), resourceRules=[everything], nonResourceRules=[paths])
            for each in accounts
        ),
    ]


def _level() -> Object:
    """Return the level: no other may borrow its seats, and it borrows from others what they do not need.

    What finds no seat waits in a queue. A schema is one flow: the queues of two schemas are all but never the same.
    """
    queues = {"queues": 64, "handSize": 6, "queueLengthLimit": 50}
    limited = {
        "nominalConcurrencyShares": SHARES,
        "lendablePercent": 0,
        "limitResponse": {"type": "Queue", "queuing": queues},
    }
    return {
        "apiVersion": _API,
        "kind": KINDS[0],
        "metadata": {"name": LEVEL},
        "spec": {"type": "Limited", "limited": limited},
    }


def _schema(name: str, precedence: int, subject: Object, **rules: list[Object]) -> Object:
    return {
        "apiVersion": _API,
        "kind": KINDS[1],
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": LEVEL},
            "matchingPrecedence": precedence,
            "rules": [{"subjects": [subject], **rules}],
        },
    }


def _account(name: str, namespace: str) -> Object:
    return {"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": namespace}}
