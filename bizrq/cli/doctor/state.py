"""What `bizrq doctor` reads: everything once, and plain values only.

This file alone talks to the cluster. `checks` decides what is wrong. It reads no Secret and changes nothing: what it
creates are reviews, and dry runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from bizrq import registration
from bizrq.api.config import ConfigurationError
from bizrq.cli import manifests_of_bizrq as made
from bizrq.cli import rbac
from bizrq.cli.manifests_of_bizrq import InstallPlan, resource_of
from bizrq.cli.output.waits import Wait, said
from bizrq.figures.state import probe
from bizrq.figures.state.reader import Key, Object, Reader, Unknown
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.kube.lease import LEASES
from bizrq.settings import Settings, load, loads
from bizrq.store import pause, processes
from bizrq.store.access import ACCESS_REVIEWS, SELF_REVIEWS
from bizrq.store.groups import GROUPS
from bizrq.store.pause import Pause
from bizrq.store.processes import ProcessInfo

_CONFIG_MAPS = resource_of({"kind": "ConfigMap"})
#: Seconds in which a leader renews its Lease several times.
_RENEWED = 6.0
_LOOK = 0.5
#: Seconds after which a person is told that the webhooks have not answered yet.
_SLOW = 2.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """The Lease of the controllers: whether it was renewed while we looked, and the holder's clock against the
    API server's, in seconds; None where that is not known."""

    holder: str = ""
    is_renewed: bool = False
    ahead: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A cluster at one moment. `wanted` is what this version installs, `stored` what is there of it and of what flags
    of install add: the NetworkPolicy.

    `unknown` is what could not be found out, and `unread` the objects among that. `lacking` are rights that a process
    or a person has not. `ahead` is by how many seconds the clock of this machine is before the API server's.
    """

    namespace: str
    version: tuple[int, int]
    version_text: str
    #: The API server's time, as far as it is known.
    now: datetime
    wanted: tuple[Object, ...] = ()
    stored: Mapping[Key, Object] = field(default_factory=dict)
    config: str | None = None
    #: Why no process can start with it; "" where one can.
    config_error: str = ""
    unknown: tuple[Unknown, ...] = ()
    unread: frozenset[Key] = frozenset()
    lacking: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    not_asked: str = ""
    lease: Renewal = Renewal()
    ahead: float | None = None
    groups: tuple[Object, ...] = ()
    pause: Pause | None = None
    #: The processes that renew their Leases.
    running: tuple[ProcessInfo, ...] = ()

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        return self.stored.get((kind, namespace, name))

    @property
    def registration(self) -> Object | None:
        return self.get("ValidatingWebhookConfiguration", registration.NAME)

    @property
    def knows_config(self) -> bool:
        """Return False where the configuration may not be read: what depends on it cannot be compared."""
        return ("ConfigMap", self.namespace, made.CONFIG) not in self.unread

    @property
    def is_installed(self) -> bool:
        return self.registration is not None or self.runs_here or self.pause is not None

    @property
    def up(self) -> ProcessInfo | None:
        """Return the `bizrq up` that does the work alone, None where there is none."""
        found = (each for each in self.running if each.process == processes.UP)
        return None if self.runs_here else next(found, None)

    @property
    def runs_outside(self) -> bool:
        """Return whether processes run that are no Deployments of this cluster, and no `bizrq up`."""
        return bool(self.running) and not self.runs_here and self.up is None

    @property
    def runs_here(self) -> bool:
        """Return whether any process of bizrq is a Deployment of this cluster."""
        return any(
            self.get("Deployment", name, self.namespace) for name in (rbac.WEBHOOKS, rbac.CONTROLLER, rbac.CERTS)
        )


def key_of(obj: Object) -> Key:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class Examiner(Reader):
    """Reads what only `bizrq doctor` asks for, too."""

    async def pause(self, namespace: str) -> Pause | None:
        """Return the pause, None without one or where it cannot be read. Raise Unreachable."""
        try:
            return await pause.read(self.client, namespace)
        except ApiError as error:
            self.note("whether bizrq is paused", str(error), "get", pause.CONFIG_MAPS, namespace)
            return None

    async def running(self, namespace: str, now: datetime) -> tuple[ProcessInfo, ...]:
        """Return the processes whose Leases are not older than they last, none where they cannot be read."""
        try:
            stored = await processes.read(self.client, namespace)
        except ApiError as error:
            self.note("which processes run", str(error), "list", LEASES, namespace)
            return ()
        oldest = now - timedelta(seconds=processes.DURATION)
        return tuple(each.info for each in stored if each.renewed and datetime.fromisoformat(each.renewed) > oldest)

    async def allowed(self, resource: Resource, spec: Object) -> bool | None:
        """Return the answer to a review, None where it cannot be asked. Raise Unreachable."""
        review = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        try:
            return (await self.client.create(resource, review))["status"].get("allowed") is True
        except ApiError as error:
            whose = "the processes" if resource is ACCESS_REVIEWS else "you"
            self.note(f"what {whose} may do", str(error), "create", resource)
            return None

    async def ahead(self) -> float | None:
        """Return by how many seconds our clock is before the API server's, which dates what it would create."""
        probe_of_time = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "bizrq-doctor", "namespace": "default"},
        }
        began = datetime.now(UTC)
        try:
            created = await self.client.create(_CONFIG_MAPS, probe_of_time, dry_run=True)
            at = datetime.fromisoformat(created["metadata"]["creationTimestamp"])
        except (ApiError, KeyError, ValueError, TypeError) as error:
            self.note("the API server's clock", str(error), "create", _CONFIG_MAPS, "default")
            return None
        middle = began + (datetime.now(UTC) - began) / 2
        # It cuts its time to whole seconds.
        return (middle - at).total_seconds() - 0.5


async def before_install(client: KubeClient, namespace: str) -> State:
    """Return what an install depends on. Raise Unreachable."""
    reader = Examiner(client)
    version, text = await reader.version()
    attributes: dict[str, Object] = {}
    for resource in made.PRUNED:
        for verb in ("get", "list", "create", "patch", "delete"):
            where = namespace if resource.namespaced else ""
            attributes[f"{verb} {resource.key}"] = _attributes(resource.group, resource.plural, verb, where)
    # Whoever gives rights must have them all, or may escalate.
    attributes["escalate clusterroles"] = _attributes("rbac.authorization.k8s.io", "clusterroles", "escalate")
    lacking = await _asked(reader, SELF_REVIEWS, attributes.items())
    unserved = [
        f"{resource.api_version} {resource.kind}"
        for resource in made.PRUNED
        if resource.group and not await _is_served(reader, resource)
    ]
    return State(
        namespace,
        version,
        text,
        datetime.now(UTC),
        lacking=tuple(f"you may not {line}" for line in lacking),
        unserved=tuple(unserved),
        ahead=await reader.ahead(),
        unknown=tuple(reader.unknown),
    )


async def installed(client: KubeClient, namespace: str) -> State:
    """Return the state of an installation. Raise Unreachable."""
    reader = Examiner(client)
    version, text = await reader.version()
    first = await reader.get(LEASES, rbac.CONTROLLER, namespace)
    began = time.monotonic()
    stored_config = await reader.get(_CONFIG_MAPS, made.CONFIG, namespace)
    config = None if stored_config is None else str((stored_config.get("data") or {}).get("config.yaml", ""))
    config_error = ""
    try:
        settings = loads(config or "", f"configmap/{made.CONFIG} in namespace {namespace}")
    except ConfigurationError as error:
        config_error = str(error)
        settings = load(None)
    registered = registration.configuration(settings, registration.by_service(namespace), namespace=namespace)
    plan = InstallPlan(namespace, "", 1, config or "")
    wanted = [*made.install_objects(settings, plan), registered]
    policy = {"kind": "NetworkPolicy", "metadata": {"name": rbac.WEBHOOKS, "namespace": namespace}}
    looked = [*wanted, policy]
    found = await _each(looked, lambda obj: reader.get(resource_of(obj), *_place(obj)))
    stored = {key_of(obj): each for obj, each in zip(looked, found, strict=True) if each is not None}
    ahead = await reader.ahead()
    now = datetime.now(UTC) - timedelta(seconds=ahead or 0.0)
    seen = State(
        namespace,
        version,
        text,
        now,
        wanted=tuple(wanted),
        stored=stored,
        config=config,
        config_error=config_error,
        not_asked=await _not_asked(reader),
        groups=await reader.list(GROUPS),
        pause=await reader.pause(namespace),
        running=await reader.running(namespace, now),
        lease=await _renewal(reader, namespace, first, began, ahead),
        ahead=ahead,
        unread=frozenset(reader.unread),
    )
    if seen.runs_outside and (url := _webhook_url(seen.registration, registered)):
        # A policy says which webhooks the controller may register.
        wanted = [*made.install_objects(settings, replace(plan, webhook_url=url)), registered]
        seen = replace(seen, wanted=tuple(wanted))
    # bizrq up has the rights of whoever started it, and nobody needs any before an install.
    is_asked = seen.up is None and (seen.is_installed or bool(seen.unread))
    lacking = await _lacking(reader, settings, namespace) if is_asked else ()
    return replace(seen, lacking=tuple(lacking), unknown=tuple(reader.unknown))


def _webhook_url(stored: Object | None, registered: Object) -> str:
    """Return the address of webhooks that are registered by one, "" for those behind their Service."""
    paths = {each["name"]: each["clientConfig"]["service"]["path"] for each in registered["webhooks"]}
    for each in (stored or {}).get("webhooks") or ():
        url, path = str((each.get("clientConfig") or {}).get("url") or ""), paths.get(each.get("name"))
        if path and url.endswith(path):
            return url.removesuffix(path)
    return ""


async def _not_asked(reader: Examiner) -> str:
    """Return why no webhook is asked, "" where one is or where that cannot be known."""
    async with said(Wait("for an answer of the webhooks", reader.client.timeout, quiet=_SLOW)):
        probed = await probe.of_groups(reader.client)
    if probed.asked is None:
        reader.note("whether webhooks are asked", probed.said, "create", GROUPS)
        return ""
    return "" if probed.asked else probed.said


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"]["name"], obj["metadata"].get("namespace", "")


async def _each(items: Iterable[Any], read: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Return the results in order; the client bounds how many requests are under way."""
    return list(await asyncio.gather(*(read(item) for item in items)))


async def _asked(reader: Examiner, resource: Resource, attributes: Iterable[tuple[str, Object]]) -> list[str]:
    """Return the lines of the rights that the reviews deny; `attributes` are by line."""
    asked = list(attributes)
    answers = await _each(asked, lambda each: reader.allowed(resource, each[1]))
    return [line for (line, _), answer in zip(asked, answers, strict=True) if answer is False]


async def _lacking(reader: Examiner, settings: Settings, namespace: str) -> list[str]:
    """Return the rights of the processes that their accounts do not have."""
    documents = [manifest.document for manifest in rbac.manifests(settings.registry, namespace)]
    roles = {key_of(each): each["rules"] for each in documents if "rules" in each}
    specs: dict[str, Object] = {}
    for binding in documents:
        if "roleRef" not in binding:
            continue
        where = binding["metadata"].get("namespace", "")
        for subject in binding["subjects"]:
            user = rbac.user_of(subject["name"], subject["namespace"])
            for attributes in _of_rules(roles[binding["roleRef"]["kind"], where, binding["roleRef"]["name"]], where):
                specs[_line(subject["name"], attributes)] = {"user": user, "resourceAttributes": attributes}
    return await _asked(reader, ACCESS_REVIEWS, specs.items())


def _of_rules(rules: Iterable[Object], namespace: str) -> Iterator[Object]:
    for rule in rules:
        for resource in rule["resources"]:
            plural, _, subresource = resource.partition("/")
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", ("",)):
                    spec = _attributes(rule["apiGroups"][0], plural, verb, namespace)["resourceAttributes"]
                    yield {**spec, "subresource": subresource, "name": name}


def _attributes(group: str, plural: str, verb: str, namespace: str = "") -> Object:
    return {"resourceAttributes": {"group": group, "resource": plural, "verb": verb, "namespace": namespace}}


def _line(account: str, attributes: Object) -> str:
    kind = f"{attributes['resource']}.{attributes['group']}" if attributes["group"] else attributes["resource"]
    kind += f"/{attributes['subresource']}" if attributes["subresource"] else ""
    name = f" {attributes['name']}" if attributes["name"] else ""
    where = f" in {attributes['namespace']}" if attributes["namespace"] else ""
    return f"{account} may not {attributes['verb']} {kind}{name}{where}"


async def _is_served(reader: Examiner, resource: Resource) -> bool:
    try:
        body = await reader.client.request("GET", f"/apis/{resource.api_version}")
    except NotFound:
        return False
    except ApiError as error:
        reader.unknown.append(Unknown(f"whether {resource.api_version} is served", str(error)))
        return True
    return any(each.get("name") == resource.plural for each in orjson.loads(body).get("resources") or ())


async def _renewal(
    reader: Examiner, namespace: str, first: Object | None, began: float, ahead: float | None
) -> Renewal:
    """Look at the Lease until it is renewed, and no longer than a leader needs for that."""
    wait = Wait("for the controller's leader to renew its Lease", max(0.0, began + _RENEWED - time.monotonic()))
    while True:
        lease = await reader.get(LEASES, rbac.CONTROLLER, namespace)
        spec = (lease or {}).get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if not holder:
            return Renewal()
        if first is not None and spec.get("renewTime") != (first.get("spec") or {}).get("renewTime"):
            renewed = datetime.fromisoformat(spec["renewTime"])
            clock = None if ahead is None else (renewed - datetime.now(UTC)).total_seconds() + ahead
            return Renewal(holder, True, clock)
        if time.monotonic() - began > _RENEWED:
            return Renewal(holder)
        first = first or lease
        wait.say()
        await asyncio.sleep(_LOOK)
