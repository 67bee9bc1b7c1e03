"""How verbs reach a cluster, by kubectl's flags, and what they say when they do not."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

T = TypeVar("T")


def _as_kubectl(*names: str) -> Any:
    """A flag that help leaves out, as that of kubectl's verbs leaves out what all of them take."""
    return typer.Option(*names, hidden=True)


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Which cluster, as whom: kubectl's flags of these names, which every verb takes that asks one."""

    kubeconfig: Annotated[Path | None, typer.Option(help="By default $KUBECONFIG, else ~/.kube/config.")] = None
    context: Annotated[str | None, typer.Option(help="The kubeconfig's context, by default its current one.")] = None
    cluster: Annotated[str | None, _as_kubectl("--cluster")] = None
    user: Annotated[str | None, _as_kubectl("--user")] = None
    server: Annotated[str | None, _as_kubectl("--server", "-s")] = None
    token: Annotated[str | None, _as_kubectl("--token")] = None
    insecure: Annotated[bool, _as_kubectl("--insecure-skip-tls-verify")] = False
    impersonated: Annotated[str | None, _as_kubectl("--as")] = None
    impersonated_groups: Annotated[list[str] | None, _as_kubectl("--as-group")] = None
    request_timeout: Annotated[str, _as_kubectl("--request-timeout")] = "0"


#: What kubectl would use without a flag.
DEFAULT_FLAGS = ClusterFlags()


@functools.cache
def _flags() -> dict[str, Any]:
    return get_type_hints(ClusterFlags, include_extras=True)


def on_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, which is given a `where`, as one that takes the flags of ClusterFlags.

    One that knows no namespace takes kubectl's flag for it all the same: groups stand in none.
    """
    hints, told = get_type_hints(verb, include_extras=True), _flags()
    own = [p.replace(annotation=hints[n]) for n, p in inspect.signature(verb).parameters.items() if n != "where"]
    flags = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=told[each.name])
        for each in fields(ClusterFlags)
    ]
    ignored = "" if "namespace" in hints else "namespace"
    if ignored:
        kind = Annotated[str | None, _as_kubectl("--namespace", "-n")]
        flags.append(inspect.Parameter(ignored, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        given.pop(ignored, None)
        where = ClusterFlags(**{each.name: given.pop(each.name) for each in fields(ClusterFlags)})
        verb(**given, where=where)

    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *flags]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] typer asks for it
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def client_for(where: ClusterFlags) -> KubeClient:
    """A client for what the flags say, or for what kubectl would use; raises Failure."""
    from bizrq.kube.client import KubeClient
    from bizrq.kube.config import ConfigError, Overrides, default_kubeconfig, from_environment, from_kubeconfig

    try:
        overrides = Overrides(
            cluster=where.cluster,
            user=where.user,
            server=where.server,
            token=where.token,
            insecure=where.insecure,
            impersonated=where.impersonated,
            groups=tuple(where.impersonated_groups or ()),
        )
        named = where.kubeconfig or os.environ.get("KUBECONFIG")
        if named or where.context or where.cluster or where.user:
            endpoint = from_kubeconfig(named or default_kubeconfig(), where.context, overrides)
        else:
            endpoint = from_environment(overrides)
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    return KubeClient(endpoint, timeout=_seconds(where.request_timeout))


def _seconds(text: str) -> float | None:
    """None for kubectl's 0, which is no bound of its own; raises Failure."""
    if text == "0":
        return None
    from controller.main import seconds

    try:
        return float(text) if text.isdecimal() else seconds(text)
    except typer.BadParameter as error:
        raise Failure(f"--request-timeout: {error.message}", EXIT_BAD_INPUT) from None


def run_on(client: KubeClient, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Run `work` against the cluster; raises Failure for one that is unreachable, refuses, or knows no groups."""
    import asyncio
    import logging

    from bizrq.api.group import GroupUnreadable
    from bizrq.kube.client import ApiError, ConfigError, NotFound, Unreachable

    # A library's own words would stand beside ours; the processes have a log.
    logging.getLogger().addHandler(logging.NullHandler())

    async def main() -> T:
        async with client:
            return await work(client)

    try:
        return asyncio.run(main())
    except NotFound:
        raise Failure(
            f"bizrq is not installed in the cluster {client.server}: bizrq install, or bizrq up --kubeconfig F",
            EXIT_CLUSTER,
        ) from None
    except (ConfigError, GroupUnreadable) as error:
        # A ConfigError may come as late as here: the first request needs the credentials.
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), EXIT_CLUSTER) from None


async def whoami(client: KubeClient) -> str:
    """The name by which the API server knows whoever runs this; raises ApiError, Unreachable."""
    from bizrq.kube.client import Resource

    reviews = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
    review = await client.create(reviews, {"apiVersion": reviews.api_version, "kind": reviews.kind, "metadata": {}})
    return review["status"]["userInfo"]["username"]
