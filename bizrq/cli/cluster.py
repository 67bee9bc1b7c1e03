"""How verbs reach a cluster, and what they say when they do not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bizrq.cli.failure import BAD_INPUT, CLUSTER, Failure

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

T = TypeVar("T")

Kubeconfig = Annotated[Path | None, typer.Option(help="By default $KUBECONFIG, else ~/.kube/config.")]
Context = Annotated[str | None, typer.Option(help="The kubeconfig's context, by default its current one.")]


def client_for(kubeconfig: Path | None, context: str | None) -> KubeClient:
    """A client for an explicit kubeconfig, or for what kubectl would use; raises Failure."""
    from bizrq.kube.client import ConfigError, KubeClient
    from bizrq.kube.config import usual

    try:
        if kubeconfig is None and context is None:
            return KubeClient.from_environment()
        where = kubeconfig or os.environ.get("KUBECONFIG") or usual()
        return KubeClient.from_kubeconfig(where, context)
    except ConfigError as error:
        raise Failure(str(error), BAD_INPUT) from None


def ask(client: KubeClient, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Run `work` against the cluster; raises Failure for one that is unreachable, refuses, or knows no groups."""
    from bizrq.kube.client import ApiError, NotFound, Unreachable

    async def main() -> T:
        async with client:
            return await work(client)

    try:
        return asyncio.run(main())
    except NotFound:
        raise Failure(
            f"bizrq is not installed in the cluster {client.server}: bizrq install, or bizrq up --kubeconfig F", CLUSTER
        ) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), CLUSTER) from None


async def whoami(client: KubeClient) -> str:
    """The name by which the API server knows whoever runs this; raises ApiError, Unreachable."""
    from bizrq.kube.client import Resource

    reviews = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
    review = await client.create(reviews, {"apiVersion": reviews.api_version, "kind": reviews.kind, "metadata": {}})
    return review["status"]["userInfo"]["username"]
