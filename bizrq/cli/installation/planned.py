"""What `bizrq install` applies: the flags, and what an update keeps where none is given.

This file alone decides it, and what is said of it. It talks to no cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from bizrq.api.config import ConfigurationError
from bizrq.cli.apply import named
from bizrq.cli.installation.configuration import configuration, requires_use
from bizrq.cli.installation.installed import Installed
from bizrq.cli.installation.requested import Requested, web_plan
from bizrq.cli.installation.stored_flags import (
    NotAsInstalled,
    api_servers_of,
    clients_of,
    flags_of_processes,
    flags_of_web,
    image_of,
    lost,
    of_other_version,
    spelled,
)
from bizrq.cli.manifests_of_bizrq import CLIENT_CA, CONFIG, InstallPlan, install_objects
from bizrq.cli.manifests_of_web import web_objects
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.rbac import WEBHOOKS
from bizrq.settings import Settings, loads
from bizrq.store.processes import WEB

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """What to install: the `objects` in order, then those of the web UI. `changes` says what that keeps and loses."""

    plan: InstallPlan
    objects: list[Object]
    web: list[Object]
    changes: list[str]

    @property
    def all_objects(self) -> list[Object]:
        return [*self.objects, *self.web]


def planned(requested: Requested, installed: Installed) -> Planned:
    """Return what to install here. Raise Failure."""
    if other := installed.elsewhere:
        # They would lose their rights to those of this namespace.
        raise Failure(
            f"bizrq is installed in namespace {other}: add -n {other}, or run bizrq uninstall -n {other} first",
            EXIT_BAD_INPUT,
        )
    text = configuration(requested.config, _installed_configuration(requested.plan.namespace, installed))
    kept, pages = _kept_flags(requested, installed)
    plan = replace(requested.plan, **kept, config=text)
    changes = [*_kept_line(requested, kept, pages), *_image_line(requested, plan, installed)]
    has_web = WEB in installed.deployments if requested.web is None else requested.web
    web = web_plan({**pages, **requested.pages}) if has_web else None
    plan, access = _with_access(plan, requested, installed)
    objects = install_objects(_settings(text, f"the configuration in configmap/{CONFIG}"), plan)
    of_web = web_objects(plan, web) if web is not None else []
    return Planned(plan, objects, of_web, [*changes, *access, *_lost_flags(installed, [*objects, *of_web])])


def advice(plan: InstallPlan, installed: Installed) -> Iterator[str]:
    """Yield what an administrator should know of the rights after an installation."""
    if not requires_use(plan.config):
        yield "rights.use is off: who may create workloads in any namespace may charge every group; docs/rights.md"
    elif installed.is_new:
        yield "nobody may charge a group yet: bizrq allow USER GROUP gives the right; docs/rights.md"
    if installed.is_new:
        yield from open_to_strangers(plan)


def open_to_strangers(plan: InstallPlan) -> Iterator[str]:
    """Yield the warning about an installation that does not bound who may ask the webhooks."""
    if not plan.client_ca and not plan.api_servers:
        yield (
            "everybody who reaches the port of the webhooks can forge a review: pass --client-ca and --client-name, or "
            '--api-server-cidr; docs/operations.md, "Who may ask"'
        )


def removed(objects: Sequence[Object]) -> Iterator[str]:
    """Yield who may reach the webhooks now that an update has removed these objects."""
    for obj in objects:
        if obj["metadata"]["name"] == CLIENT_CA:
            yield "the client CA is removed: the webhooks now answer everybody who reaches their port"
        if obj["kind"] == "NetworkPolicy":
            yield "the NetworkPolicy is removed: every pod can now reach the port of the webhooks"


def _installed_configuration(namespace: str, installed: Installed) -> str | None:
    """Return the installed configuration as text, "" without one, None where nothing is installed. Raise Failure."""
    if installed.is_new:
        return None
    text = ((installed.config or {}).get("data") or {}).get("config.yaml", "")
    try:
        loads(text, f"configmap/{CONFIG} in namespace {namespace}")
    except ConfigurationError as error:
        raise Failure(f"{error}; correct it first", EXIT_BAD_INPUT) from None
    return text


def _settings(text: str, source: str) -> Settings:
    try:
        return loads(text, source)
    except ConfigurationError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def _kept_flags(requested: Requested, installed: Installed) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the installed fields of an InstallPlan and of a WebPlan that no flag gives. Raise Failure."""
    webhooks = installed.deployments.get(WEBHOOKS)
    web = installed.deployments.get(WEB) if requested.web is not False else None
    try:
        kept = flags_of_processes(webhooks, requested.given) if webhooks else {}
        pages = flags_of_web(web, requested.pages) if web else {}
    except NotAsInstalled as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    if webhooks and "api_priority" not in requested.given and not installed.has_priority:
        kept["api_priority"] = False
    return kept, pages


def _kept_line(requested: Requested, kept: Mapping[str, Any], pages: Mapping[str, Any]) -> Iterator[str]:
    """Yield which flags are kept, but for those at the value of a new installation."""
    differing = {field: value for field, value in kept.items() if value != getattr(requested.plan, field)}
    if shown := {**differing, **pages}:
        alone = " --web" if pages and requested.web is None else ""
        yield f"kept:{alone} {spelled(shown)}; a flag that is given wins"


def _image_line(requested: Requested, plan: InstallPlan, installed: Installed) -> Iterator[str]:
    """Yield which image an update without --image brings, where that may surprise."""
    webhooks = installed.deployments.get(WEBHOOKS)
    if webhooks is None or "image" in requested.given:
        return
    before, own = image_of(webhooks), version("bizrq")
    if plan.image != before:
        yield f"the image {before} becomes {plan.image}; --image names another"
    elif of_other_version(plan.image, own):
        yield f"the processes stay those of the image {plan.image}: pass --image with that of version {own}"


def _with_access(plan: InstallPlan, requested: Requested, installed: Installed) -> tuple[InstallPlan, list[str]]:
    """Return the plan with the installed client CA and addresses where no flag is given, and say so. Raise Failure."""
    kept = []
    if not requested.removes_client_ca and not plan.client_ca:
        found = clients_of(installed.deployments.get(WEBHOOKS), installed.client_ca)
        if found is None:
            raise Failure(
                f"the installed webhooks have --client-ca, and what it says cannot be read from configmap/{CLIENT_CA} "
                f"and deployment/{WEBHOOKS}: pass --client-ca and --client-name, or --no-client-ca",
                EXIT_BAD_INPUT,
            )
        plan = replace(plan, client_ca=found[0], client_name=found[1])
        if plan.client_ca:
            kept.append(f"kept: the client CA, and --client-name {plan.client_name!r}; --no-client-ca removes them")
    if not requested.removes_api_servers and not plan.api_servers:
        addresses = api_servers_of(installed.network_policy)
        if addresses is None:
            raise Failure(
                f"networkpolicy/{WEBHOOKS} is not as install made it: pass --api-server-cidr, or --no-api-server-cidr",
                EXIT_BAD_INPUT,
            )
        plan = replace(plan, api_servers=addresses)
        if addresses:
            kept.append(f"kept: --api-server-cidr {', '.join(addresses)}; --no-api-server-cidr removes it")
    return plan, kept


def _lost_flags(installed: Installed, objects: Sequence[Object]) -> Iterator[str]:
    """Yield the flags of the installed processes that somebody else gave them: these Deployments are install's."""
    for obj in objects:
        stored = installed.deployments.get(obj["metadata"]["name"]) if obj["kind"] == "Deployment" else None
        if stored and (flags_lost := lost(stored, obj)):
            yield f"{named(obj)} loses what install has no flag for: {', '.join(flags_lost)}"
