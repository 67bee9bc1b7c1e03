"""Connect verbs to a cluster by kubectl's flags, and report why a connection fails."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, failed
from bizrq.figures.errors import NoAnswer

if TYPE_CHECKING:
    from bizrq.cli.output.waits import Wait
    from bizrq.kube.client import KubeClient

T = TypeVar("T")

#: A verb may list every charged kind at once. More connections would cost more, for their handshakes, than they save.
_CONNECTIONS = 4
#: Seconds after which a person is told that the API server has not answered yet.
_SLOW = 3.0


def _as_kubectl(*names: str) -> Any:
    """Declare a flag that --help does not list, as kubectl does for its global flags."""
    return typer.Option(*names, hidden=True)


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Select the cluster and the user, by kubectl's flags of the same names."""

    kubeconfig: Annotated[
        Path | None, typer.Option(help="Path of the kubeconfig; by default $KUBECONFIG or ~/.kube/config.")
    ] = None
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig; by default the current one.")] = None
    cluster: Annotated[str | None, _as_kubectl("--cluster")] = None
    user: Annotated[str | None, _as_kubectl("--user")] = None
    server: Annotated[str | None, _as_kubectl("--server", "-s")] = None
    token: Annotated[str | None, _as_kubectl("--token")] = None
    insecure: Annotated[bool, _as_kubectl("--insecure-skip-tls-verify")] = False
    impersonated: Annotated[str | None, _as_kubectl("--as")] = None
    impersonated_groups: Annotated[list[str] | None, _as_kubectl("--as-group")] = None
    request_timeout: Annotated[str, _as_kubectl("--request-timeout")] = "0"


#: The flags that are not called as their fields are.
_WORDS = {"impersonated": "--as", "impersonated_groups": "--as-group"}
#: The cluster and user that kubectl uses without a flag.
DEFAULT_FLAGS = ClusterFlags()


@functools.cache
def _flags() -> dict[str, Any]:
    return get_type_hints(ClusterFlags, include_extras=True)


def on_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Turn the parameter `where` of a verb into the flags of ClusterFlags.

    A verb without a namespace accepts `-n` and ignores it, as kubectl does for kinds without a namespace.
    """
    hints, types = get_type_hints(verb, include_extras=True), _flags()
    own = [p.replace(annotation=hints[n]) for n, p in inspect.signature(verb).parameters.items() if n != "where"]
    flags = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name])
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


def _hidden(word: str) -> Any:
    return Annotated[list[str] | None, _as_kubectl(word)]


def without_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Refuse kubectl's flags of a cluster or user with what to do: the verb asks no API server."""
    known = inspect.signature(verb).parameters
    hints = get_type_hints(verb, include_extras=True)
    own = [p.replace(annotation=hints[n], kind=inspect.Parameter.KEYWORD_ONLY) for n, p in known.items()]
    words = {each.name: _WORDS.get(each.name, f"--{each.name.replace('_', '-')}") for each in fields(ClusterFlags)}
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_hidden(word))
        for name, word in words.items()
        if name != "insecure"
    ]

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        if asked := [words[each.name] for each in flags if given.pop(each.name)]:
            raise Failure(
                f"{asked[0]}: {verb.__name__} asks no cluster, so it depends on nobody's rights: leave the flag out, "
                f"or run bizrq fit -f FILE {asked[0]} …",
                EXIT_BAD_INPUT,
            )
        verb(**given)

    called.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined] typer asks for it
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *flags)}
    return called


def client_for(where: ClusterFlags, *, watches: int = 0) -> KubeClient:
    """Return a client for the flags, or for the cluster that kubectl would use. Raise Failure.

    It has connections for so many `watches` at once.
    """
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
    return KubeClient(endpoint, timeout=_seconds(where.request_timeout), connections=max(_CONNECTIONS, watches + 1))


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration, None for kubectl's 0, which means no timeout. Raise Failure."""
    if text == "0":
        return None
    from controller.main import seconds

    try:
        return float(text) if text.isdecimal() else seconds(text, "--request-timeout")
    except typer.BadParameter as error:
        raise Failure(f"--request-timeout: {error.message}", EXIT_BAD_INPUT) from None


class _FirstAnswer:
    """Ends the wait for the API server, as an Observer of the client."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    def answered(self, method: str, status: int | None) -> None:
        if status is not None:
            self._wait.end()

    def ended(self, method: str, seconds: float) -> None:
        self._wait.end()


def run_on(client: KubeClient, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Run `work` against the cluster. Raise Failure if the cluster is unreachable, refuses, or has no CRD of groups."""
    import asyncio
    import logging

    from bizrq.api.group import GroupUnreadable
    from bizrq.cli.output.waits import Wait, said
    from bizrq.kube.client import ApiError, ConfigError, Invalid, NotFound, Unreachable

    # Keep log lines of libraries off the terminal.
    logging.getLogger().addHandler(logging.NullHandler())

    async def main() -> T:
        wait = Wait(f"for an answer of {client.server}", client.timeout, quiet=_SLOW)
        client.observer = _FirstAnswer(wait)
        async with client, said(wait):
            return await work(client)

    try:
        return asyncio.run(main())
    except NoAnswer as error:
        raise failed(error) from None
    except NotFound:
        raise Failure(
            f"bizrq is not installed in the cluster {client.server}; run bizrq install, or bizrq up --kubeconfig F",
            EXIT_CLUSTER,
        ) from None
    except (ConfigError, GroupUnreadable) as error:
        # A ConfigError may come as late as here: the first request needs the credentials.
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except Invalid as error:
        raise Failure(error.message, EXIT_BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), EXIT_CLUSTER) from None
