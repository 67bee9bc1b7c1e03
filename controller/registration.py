"""Keeps the registration of the webhooks as `bizrq.registration` renders it, while this process leads.

This file alone writes it, and decides when. bizrq-certs adds the caBundles, which stay as they are. People may edit or
delete the registration: it is mended a few seconds later, unless bizrq is paused (`bizrq.store.pause`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, Forbidden, Invalid, KubeClient, NotFound, Resource, Unreachable
from bizrq.kube.events import EventRecorder
from bizrq.quota import reservation
from bizrq.settings import Settings
from bizrq.store import pause, processes, registered
from bizrq.store.pause import Pause
from bizrq.store.processes import ProcessInfo
from controller import metrics

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: The field manager of the registration.
MANAGER: Final = "bizrq-controller"
#: The annotation with a digest of what was rendered: another one is of another version or configuration.
RENDERED: Final = "bizrq.quota.biz.group/rendered"
#: The ClusterRole that lets the leader write the registration. When it is deleted, so is the registration.
OWNER: Final = "bizrq-controller"
#: Seconds between two looks, and while something comes soon.
CHECK, SOON = 5.0, 0.5
#: Seconds from one mending to the next at most, twice as many each time; and those after which that is forgotten.
UNDONE, FORGOTTEN = 300.0, 600.0
#: Looks in which bizrq-certs should have written its caBundle.
_PATIENCE: Final = 20

_CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
#: The fields of an entry that are rendered, with what an API server stores where they are not.
_FIELDS: Final[Mapping[str, object]] = {
    **dict.fromkeys(("name", "rules", "admissionReviewVersions", "failurePolicy")),
    **dict.fromkeys(("matchPolicy", "sideEffects", "timeoutSeconds")),
    "namespaceSelector": {},
    "objectSelector": {},
    "matchConditions": [],
}
_REFERENCE: Final = {"apiVersion": REGISTRATIONS.api_version, "kind": REGISTRATIONS.kind, "name": registration.NAME}


class RegistrationKeeper:
    """Compares the stored registration with the rendered one every few seconds, and mends it."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        recorder: EventRecorder,
        *,
        namespace: str,
        webhook_url: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`webhook_url` is where the API server reaches the webhooks; "" is by their Service in `namespace`.

        `clock` returns seconds.
        """
        reached = registration.by_url(webhook_url) if webhook_url else registration.by_service(namespace)
        self._rendered = registration.configuration(settings, reached, namespace=namespace)
        self._digest = registration.digest(settings, namespace)
        self._client = client
        self._recorder = recorder
        self._namespace = namespace
        self._is_service = not webhook_url
        self._clock = clock
        self._watched = processes.Watched(clock)
        self._waits_for = ""
        self._paused: Pause | None = None
        #: What this process has stored or found stored; what differs from it was changed by somebody else.
        self._last: Object | None = None
        #: Times that others have undone it of late, since when not, and from when on it may be mended again.
        self._undone, self._mended_at, self._not_before = 0, float("-inf"), float("-inf")
        #: Looks in a row that found entries without a caBundle.
        self._untrusted = 0

    async def run(self) -> None:
        """Keep the registration until cancelled."""
        try:
            while True:
                try:
                    pause_for = await self.look()
                except (ApiError, Unreachable) as error:
                    metrics.REGISTRATION_WRITES.labels("failed").inc()
                    log.warning("registration not kept, retrying", error=str(error))
                    pause_for = CHECK
                await asyncio.sleep(pause_for)
        finally:
            metrics.PAUSED.set(0)

    async def look(self) -> float:
        """Compare once, and write what differs. Return the seconds until the next look. Raise ApiError, Unreachable."""
        stored = await registered.stored(self._client)
        self._report(await pause.read(self._client, self._namespace), stored)
        if self._paused is not None:
            return CHECK
        running = self._watched.running(await processes.read(self._client, self._namespace))
        wanted = self._wanted(stored, await self._owner(), await self._format(stored, running))
        if stored is not None and same(stored, wanted):
            self._last = wanted
            return self._kept(stored)
        if why := await self._waiting(stored, running):
            if why != self._waits_for:
                log.info("registration not written yet", waits_for=why)
            self._waits_for = why
            await self._narrow(stored, wanted)
            return CHECK
        self._waits_for = ""
        is_undone = self._last is not None and (stored is None or not same(stored, self._last))
        if is_undone and self._clock() < self._not_before:
            return CHECK
        await self._write(stored, wanted)
        self._last = wanted
        if is_undone:
            self._report_undone(stored)
        return SOON

    async def _owner(self) -> Object | None:
        """Return the reference by which the registration goes when bizrq is uninstalled, None without such a role."""
        try:
            role = await self._client.get(_CLUSTER_ROLES, OWNER)
        except NotFound:
            return None
        uid = role["metadata"]["uid"]
        return {"apiVersion": _CLUSTER_ROLES.api_version, "kind": _CLUSTER_ROLES.kind, "name": OWNER, "uid": uid}

    async def _format(self, stored: Object | None, running: Sequence[ProcessInfo]) -> str:
        """Return the format in which reservations may be written: the newest that all running processes read.

        A newer one than the stored registration names also waits until no older pod of webhooks or controller is left:
        it may have no Lease. One that is not read by all is given up at once. bizrq-certs reads none.
        """
        found = reservation.newest_common(each.formats for each in running if each.process != processes.CERTS)
        if stored is None or not self._is_service:
            return found
        before = registration.format_of(stored)
        if reservation.is_newer(found, before) and (await self._rollout(stored) or await self._has_older_controller()):
            return before
        return found

    def _wanted(self, stored: Object | None, owner: Object | None, written: str) -> Object:
        """Return the registration to store. An entry fails open until it has a caBundle, and never again."""
        before = entries(stored or {})
        webhooks = []
        for webhook in self._rendered["webhooks"]:
            old = before.get(webhook["name"])
            is_trusted = old is not None and (_bundle(old) is not None or old.get("failurePolicy") == "Fail")
            webhooks.append(webhook if is_trusted else {**webhook, "failurePolicy": "Ignore"})
        metadata = {**self._rendered["metadata"], "annotations": {RENDERED: self._digest, registration.FORMAT: written}}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        return {**self._rendered, "metadata": metadata, "webhooks": webhooks}

    def _kept(self, stored: Object) -> float:
        """Return the seconds until the next look: few while an entry fails open for want of a caBundle."""
        before = entries(stored)
        is_open = any(before[w["name"]]["failurePolicy"] != w["failurePolicy"] for w in self._rendered["webhooks"])
        self._untrusted = self._untrusted + 1 if is_open else 0
        if self._untrusted == _PATIENCE:
            log.warning("entries of the registration fail open: bizrq-certs has not written their caBundle")
        return SOON if 0 < self._untrusted < _PATIENCE else CHECK

    async def _waiting(self, stored: Object | None, running: Sequence[ProcessInfo]) -> str:
        """Return what has to come before the write, "" for nothing.

        A new registration needs a webhook that serves it. Another version's needs that all webhooks do, and that no pod
        is left of a version without a Lease: an older one may not know a path. What somebody else changed is mended at
        once.
        """
        if stored is not None and not registration.is_ours(stored):
            return f"somebody to delete the {REGISTRATIONS.kind} {registration.NAME}, which is not of bizrq"
        annotations = ((stored or {}).get("metadata") or {}).get("annotations") or {}
        if annotations.get(RENDERED) == self._digest:
            return ""
        webhooks = [each for each in running if each.process == registration.SERVICE]
        others = [each.identity for each in webhooks if each.rules != self._digest]
        if len(webhooks) == len(others):
            return "a webhook of this version and configuration"
        if stored is not None and others:
            return f"the end of webhooks of another version or configuration: {', '.join(sorted(others)[:3])}"
        return await self._rollout(stored) if self._is_service else ""

    async def _narrow(self, stored: Object | None, wanted: Object) -> None:
        """Take out at once what this version does not serve, and give up a newer format than is wanted.

        Its webhooks get ready only then.
        """
        if stored is None or not registration.is_ours(stored):
            return
        names = [webhook["name"] for webhook in registration.unserved(stored, registration.PATHS)]
        before, written = registration.format_of(stored), registration.format_of(wanted)
        is_given_up = reservation.is_newer(before, written)
        if not names and not is_given_up:
            return
        kept = [webhook for webhook in stored["webhooks"] if webhook["name"] not in names]
        operations = [_unchanged(stored), {"op": "add", "path": "/webhooks", "value": kept}]
        if is_given_up:
            annotations = {**(stored["metadata"].get("annotations") or {}), registration.FORMAT: written}
            operations.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
        await self._replace(operations)
        if names:
            log.warning("entries taken out of the registration: this version does not serve them", names=names)
        if is_given_up:
            log.warning("reservations are written in an older format again", format=written, before=before)

    async def _replace(self, operations: list[Object]) -> None:
        """Patch the registration, as of one version of it. Raise ApiError, Unreachable."""
        await self._client.patch(
            REGISTRATIONS, registration.NAME, operations, content_type="application/json-patch+json"
        )

    async def _rollout(self, stored: Object | None) -> str:
        """Return what the Deployment of the webhooks lacks. Without one they are elsewhere, and not at the Service."""
        deployment = await self._deployment(registration.SERVICE)
        if deployment is None:
            return f"the Deployment {registration.SERVICE} in namespace {self._namespace}, or --webhook-url"
        return "" if stored is None or is_rolled_out(deployment) else f"the rollout of {registration.SERVICE}"

    async def _has_older_controller(self) -> bool:
        """Return True while the Deployment of the controllers is not rolled out. Without one they run elsewhere."""
        deployment = await self._deployment(processes.CONTROLLER)
        return deployment is not None and not is_rolled_out(deployment)

    async def _deployment(self, name: str) -> Object | None:
        try:
            return await self._client.get(_DEPLOYMENTS, name, self._namespace)
        except NotFound:
            return None

    async def _write(self, stored: Object | None, wanted: Object) -> None:
        """Store what is wanted. A registration that is gone meanwhile is not created again by an update."""
        uid = {"uid": stored["metadata"]["uid"]} if stored is not None else {}
        applied = {**wanted, "metadata": {**wanted["metadata"], **uid}}
        try:
            answer = await self._client.apply_or_create(REGISTRATIONS, applied, MANAGER, stored=stored)
        except (Invalid, Forbidden):
            if stored is None:
                raise
            # An apply keeps what others have added, which may not go together with ours.
            answer = None
        current = answer or stored
        if current is not None and not same(current, wanted):
            await self._replace(replacing(current, wanted))
        metrics.REGISTRATION_WRITES.labels("done").inc()
        log.info("registration written", entries=len(wanted["webhooks"]))

    def _report_undone(self, stored: Object | None) -> None:
        """Tell that somebody changed the registration, and wait longer each time: they may do it again at once."""
        now = self._clock()
        self._undone = self._undone + 1 if now < self._mended_at + FORGOTTEN else 1
        self._mended_at = now
        self._not_before = now + min(UNDONE, CHECK * 2 ** (self._undone - 1))
        what = "deleted" if stored is None else "changed"
        log.warning(f"somebody had {what} the registration; it is written again", times=self._undone)
        message = f"somebody {what} it, and bizrq wrote it again; bizrq pause keeps it away"
        self._recorder.event(_REFERENCE, "Warning", "RegistrationMended", message)

    def _report(self, now: Pause | None, stored: Object | None) -> None:
        """Report the begin and the end of a pause, by log, event and metric."""
        before, self._paused = self._paused, now
        metrics.PAUSED.set(now is not None)
        if now is not None:
            self._last, self._undone, self._not_before = None, 0, float("-inf")
        if now == before:
            return
        if now is None:
            log.info("resumed")
            self._recorder.event(_REFERENCE, "Normal", "Resumed", "the webhooks are registered again")
            return
        log.warning("paused: the webhooks are not registered", by=now.by, reason=now.reason, since=now.since)
        self._recorder.event(_REFERENCE, "Warning", "Paused", f"{now}; nothing is checked until bizrq resume")
        if stored is not None:
            log.warning("paused, but the registration is there: run bizrq pause again")


def entries(stored: Object) -> dict[str, Object]:
    """Return the entries of a registration by their name."""
    return {webhook["name"]: webhook for webhook in stored.get("webhooks") or ()}


def same(stored: Object, wanted: Object) -> bool:
    """Return whether a stored registration is as wanted, but for caBundles and what others add to its metadata."""
    metadata, asked = stored["metadata"], wanted["metadata"]
    if any(not _has(metadata.get(field) or {}, asked[field]) for field in ("labels", "annotations")):
        return False
    if any(owner not in _owners(metadata) for owner in _owners(asked)):
        return False
    webhooks = stored.get("webhooks") or []
    return len(webhooks) == len(wanted["webhooks"]) and _compared(stored) == _compared(wanted)


def replacing(stored: Object, wanted: Object) -> list[Object]:
    """Return the JSON patch by which this version of a registration becomes as wanted, and keeps its caBundles."""
    before, metadata, asked = entries(stored), stored["metadata"], wanted["metadata"]
    webhooks = []
    for webhook in wanted["webhooks"]:
        bundle = _bundle(before.get(webhook["name"]) or {})
        kept = {"caBundle": bundle} if bundle is not None else {}
        webhooks.append({**webhook, "clientConfig": {**webhook["clientConfig"], **kept}})
    uids = {owner["uid"] for owner in asked.get("ownerReferences") or ()}
    others = [owner for owner in metadata.get("ownerReferences") or () if owner["uid"] not in uids]
    new = {
        "labels": {**(metadata.get("labels") or {}), **asked["labels"]},
        "annotations": {**(metadata.get("annotations") or {}), **asked["annotations"]},
        "ownerReferences": [*others, *(asked.get("ownerReferences") or ())],
    }
    return [
        _unchanged(stored),
        *({"op": "add", "path": f"/metadata/{field}", "value": value} for field, value in new.items()),
        {"op": "add", "path": "/webhooks", "value": webhooks},
    ]


def _unchanged(stored: Object) -> Object:
    """Return the operation of a JSON patch that fails for another version of the object."""
    return {"op": "test", "path": "/metadata/resourceVersion", "value": stored["metadata"]["resourceVersion"]}


def is_rolled_out(deployment: Object) -> bool:
    """Return whether all pods of a Deployment are of its present template, and available."""
    status = deployment.get("status") or {}
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    if (status.get("observedGeneration") or 0) < (deployment["metadata"].get("generation") or 0) or not wanted:
        return False
    counts = [status.get(field) or 0 for field in ("replicas", "updatedReplicas", "availableReplicas")]
    return counts == [wanted] * 3 and not status.get("terminatingReplicas")


def _compared(configuration: Object) -> dict[str, Object]:
    """Return what is rendered of each entry, by its name, with what an API server adds to it."""
    found = {}
    for name, webhook in entries(configuration).items():
        config = webhook.get("clientConfig") or {}
        fields = {field: webhook.get(field) or absent for field, absent in _FIELDS.items()}
        found[name] = {**fields, "url": config.get("url"), "service": config.get("service")}
    return found


def _bundle(webhook: Object) -> str | None:
    return (webhook.get("clientConfig") or {}).get("caBundle") or None


def _owners(metadata: Object) -> Sequence[tuple[str, str]]:
    return [(owner["name"], owner["uid"]) for owner in metadata.get("ownerReferences") or ()]


def _has(stored: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(stored.get(key) == value for key, value in wanted.items())
