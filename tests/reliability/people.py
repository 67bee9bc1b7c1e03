"""Ordinary service accounts, as which the experiments send their load on a real cluster.

An administrator's requests would show too little: API priority, the checks of rights and our policies pass over
`system:masters`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bizrq.api import group as wire
from bizrq.kube import config
from bizrq.kube.client import ApiError, KubeClient, Resource
from tests.support.accounts import store, token_of
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, NAMESPACES, Object, bound

#: The namespace of the accounts, and how many there are: the API server queues the requests of each by themselves.
PEOPLE, ACCOUNTS = "people", 10
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
#: Those of people who run workloads and manage groups.
RULES = [
    {
        "apiGroups": groups,
        "resources": resources,
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
    }
    for groups, resources in (
        (["apps"], ["deployments", "deployments/scale"]),
        ([""], ["pods"]),
        ([wire.API_GROUP], [wire.PLURAL]),
    )
]


class Patient(KubeClient):
    """A client that waits until an API server has given up by itself, which it does after 34 s."""

    async def request(self, method: str, path: str, *, timeout: float | None = None, **how: Any) -> bytes:
        return await super().request(method, path, timeout=timeout or 60.0, **how)


class People(Patient):
    """Each request comes from the next of these accounts."""

    def __init__(self, endpoint: config.Endpoint, tokens: Sequence[str]) -> None:
        super().__init__(endpoint)
        self.tokens = tokens
        self._people = [Patient(config.Overrides(token=token).apply(endpoint)) for token in tokens]
        self._turn = itertools.cycle(self._people)

    async def request(self, method: str, path: str, *, timeout: float | None = None, **how: Any) -> bytes:
        return await next(self._turn).request(method, path, timeout=timeout, **how)

    async def close(self) -> None:
        for person in self._people:
            await person.close()
        await super().close()


@contextlib.asynccontextmanager
async def people_on(cluster: Cluster, admin: KubeClient) -> AsyncIterator[KubeClient]:
    """A client of people with rights of their own; on the sandbox, which has one user here, the administrator's."""
    if not cluster.is_real:
        yield admin
        return
    names = [f"person-{number}" for number in range(ACCOUNTS)]
    await store(admin, [_object(NAMESPACES, PEOPLE)])
    await store(admin, (_object(SERVICE_ACCOUNTS, name, namespace=PEOPLE) for name in names))
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": PEOPLE}}
    await store(admin, [{**role, "rules": RULES}, bound(PEOPLE, f"system:serviceaccounts:{PEOPLE}", "Group")])
    tokens = [await token_of(admin, name, PEOPLE) for name in names]
    async with People(config.from_kubeconfig(cluster.kubeconfig), tokens) as people:

        async def may() -> bool:
            with contextlib.suppress(ApiError):
                await people.list(DEPLOYMENTS, "default", limit=1)
                return True
            return False

        await eventually(may, 60, "people have their rights")
        yield people


def _object(resource: Resource, name: str, **metadata: str) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **metadata}}
