"""Carry out the verbs (create, get, list, update, patch, delete, bind, scale) on the store, under admission.

It decides the order of steps (defaults, pruning, validation, admission, optimistic write, retry after a conflict)
as apiserver's registry does. It does not know HTTP, and controllers of the sandbox use it as clients would.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from sandbox import admission, builtins, cel, crds, lifecycle, patch, policies, scale, schema
from sandbox.admission import Attributes, Call, User, Webhooks
from sandbox.clock import Clock, rfc3339
from sandbox.kinds import BINDINGS, CRDS, NAMESPACES, PODS, POLICIES, WEBHOOKS, Kinds, Resource
from sandbox.policies import Policies
from sandbox.selectors import parse_fields, parse_labels
from sandbox.status import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    invalid,
    invalid_value,
    method_not_allowed,
    no_such_path,
    not_found,
    not_implemented,
    timeout,
    version_too_large,
)
from sandbox.storage import Compacted, Event, Exists, Item, Kind, Moved, Store

Json = dict[str, Any]

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM = User("system:apiserver", ("system:masters", "system:authenticated"))


_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)


@dataclass(frozen=True)
class Listing:
    """One page of a list, at one revision."""

    items: list[Item]
    version: int
    token: str = ""
    remaining: int | None = None


@dataclass(frozen=True)
class Selection:
    """The objects that a list or watch selects."""

    resource: Resource
    namespace: str | None
    labels: str = ""
    fields: str = ""

    def matcher(self) -> Callable[[Json], bool] | None:
        by_label = parse_labels(self.labels)
        custom = self.resource.custom
        selectable = custom.selectable if custom is not None else frozenset[str]()
        by_field = parse_fields(self.resource.store, self.fields, selectable)
        if by_label is None:
            return by_field

        def matches(obj: Json) -> bool:
            return by_label(obj["metadata"].get("labels") or {}) and (by_field is None or by_field(obj))

        return matches


class Api:
    """The API server's behaviour, without HTTP."""

    def __init__(self, clock: Clock, history: int = 20_000) -> None:
        self.clock = clock
        self.store = Store(history)
        self.kinds = Kinds()
        self.policies = Policies(self.store, self.kinds)
        self.webhooks = Webhooks(self.store, self.kinds)
        self._cleanups: dict[str, asyncio.Task[None]] = {}
        self.store.listeners.append(self._crd_changed)

    async def start(self) -> None:
        namespaces = self.kinds.get("", "v1", "namespaces")
        if namespaces is None:
            raise RuntimeError("no namespaces kind")
        for name in _NAMESPACES:
            await self.create(
                Call(SYSTEM),
                namespaces,
                "",
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            )

    async def close(self) -> None:
        tasks = list(self._cleanups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.webhooks.close()

    async def _admit(self, call: Call, attributes: Attributes) -> None:
        """Return if all policies and webhooks allow the write; raise the refusal otherwise."""
        self.policies.review(call, attributes)
        await self.webhooks.review(call, attributes)

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Item:
        item = self.store.get(resource.store, namespace, name)
        if item is None:
            raise not_found(resource.group, resource.plural, name)
        return item

    def find(self, selection: Selection, *, limit: int = 0, token: str = "", version: str = "") -> Listing:
        """Return one page. 410 if the token's revision left the history, 504 for a future revision."""
        kind, matches = selection.resource.store, selection.matcher()
        start: tuple[str, str] | None = None
        revision = self.store.revision
        if token:
            revision, start = _decode_token(token)
        elif version:
            self.check_reached(_version(version))
        if revision >= self.store.revision and start is None:
            items = self.store.items(kind, selection.namespace)
        else:
            try:
                pairs = self.store.at(kind, revision)
            except Compacted:
                raise expired(_EXPIRED) from None
            items = [
                item for key, item in pairs if (start is None or key > start) and selection.namespace in (None, key[0])
            ]
        if matches is not None:
            items = [item for item in items if matches(item.obj)]
        if not limit or len(items) <= limit:
            return Listing(items, revision)
        page = items[:limit]
        meta = page[-1].obj["metadata"]
        token = _encode_token(revision, (meta.get("namespace", ""), meta["name"]))
        remaining = len(items) - limit if matches is None else None
        return Listing(page, revision, token, remaining)

    def check_reached(self, version: int) -> None:
        if version > self.store.revision:
            raise version_too_large(version, self.store.revision)

    # Creating

    async def create(
        self, call: Call, resource: Resource, namespace: str, body: Json, options: Json | None = None
    ) -> Item:
        if "create" not in resource.verbs:
            raise method_not_allowed()
        lifecycle.check_identity(resource, body, namespace, None)
        self._check_namespace(resource, namespace, body["metadata"])
        body = lifecycle.to_storage(resource, body)
        generate = not body["metadata"].get("name") and body["metadata"].get("generateName")
        for attempt in range(8):
            name = body["metadata"].get("name") or ""
            if generate:
                name = str(generate)[:_LONGEST_BASE] + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
            obj = self._new_object(call, resource, namespace, copy.copy(body), name)
            await self._admit(
                call,
                Attributes(
                    operation="CREATE",
                    resource=resource,
                    subresource="",
                    kind=(resource.group, resource.version, resource.kind),
                    namespace=namespace,
                    name=name,
                    obj=lifecycle.from_storage(resource, obj),
                    old=None,
                    options=_options("CreateOptions", call, options),
                ),
            )
            if call.dry_run:
                if self.store.get(resource.store, namespace, name) is not None:
                    raise already_exists(resource.group, resource.plural, name)
                return Item(obj, 0)
            self._check_namespace(resource, namespace, obj["metadata"])
            try:
                return self.store.insert(resource.store, (namespace, name), obj)
            except Exists:
                if not generate or attempt == 7:
                    raise already_exists(resource.group, resource.plural, name) from None
        raise AssertionError

    def _check_namespace(self, resource: Resource, namespace: str, meta: Json) -> None:
        """Refuse a missing namespace with 404, a terminating one with 403 (admission: NamespaceLifecycle)."""
        if not resource.namespaced:
            return
        item = self.store.get(NAMESPACES, "", namespace)
        if item is None:
            raise not_found("", "namespaces", namespace)
        if "deletionTimestamp" in item.obj["metadata"]:
            raise forbidden(
                resource.group,
                resource.plural,
                meta.get("name") or meta.get("generateName") or "",
                f"unable to create new content in namespace {namespace} because it is being terminated",
                [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    def _new_object(self, call: Call, resource: Resource, namespace: str, body: Json, name: str) -> Json:
        builtins.check_types(resource, body)
        self._shape(call, resource, body)
        obj = lifecycle.created(resource, body, namespace, str(uuid.uuid4()), self.clock.stamp(), name)
        builtins.fill_defaults(resource, obj)
        match resource.store:
            case ("", "pods"):
                obj["status"] = builtins.pod_status(obj)
            case ("batch", "jobs"):
                builtins.job_selector(obj)
        self._complete(resource, obj)
        self._validate(resource, obj, None)
        return obj

    def _shape(self, call: Call, resource: Resource, body: Json) -> None:
        """Prune and default a custom resource, in place; warn of pruned fields or refuse them by fieldValidation."""
        if resource.custom is None:
            return
        removed = schema.prune(resource.custom.schema, body)
        if removed and call.field_validation == "Strict":
            names = ", ".join(f'unknown field "{path}"' for path in sorted(removed))
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {names}"
            )
        if call.field_validation != "Ignore":
            for path in sorted(removed):
                call.warn(f'unknown field "{path}"')
        schema.fill_defaults(resource.custom.schema, body)

    def _complete(self, resource: Resource, obj: Json) -> None:
        """Fill in the defaults of definitions and webhook configurations, and a definition's status."""
        if resource.store == CRDS:
            crds.fill_defaults(obj)
            _, errors = crds.resources(obj)
            if errors:
                raise invalid(resource.group, resource.kind, obj["metadata"].get("name", ""), errors)
            obj["status"] = crds.status(obj, self.clock.stamp())
        elif resource.store == WEBHOOKS:
            admission.fill_defaults(obj)
            admission.reject_if_invalid(obj)
        elif resource.store == POLICIES:
            policies.fill_defaults(obj)
            policies.reject_if_invalid(obj)
        elif resource.store == BINDINGS:
            policies.reject_if_binding_is_invalid(obj)

    def _validate(self, resource: Resource, obj: Json, old: Json | None) -> None:
        errors = builtins.validate_metadata(resource, obj)
        if resource.custom is not None:
            before = None if old is None else lifecycle.from_storage(resource, old)
            errors += schema.validate(resource.custom.schema, lifecycle.from_storage(resource, obj), before)
        else:
            try:
                errors += builtins.validate(resource, obj, old)
            except (AttributeError, TypeError) as error:
                # A field has another type than the kind gives it: the real server fails to decode it.
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error}'
                ) from None
        if errors:
            raise invalid(resource.group, resource.kind, obj["metadata"].get("name") or "", errors)

    # Updating

    async def replace(
        self,
        call: Call,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json,
        subresource: str = "",
        options: Json | None = None,
    ) -> Item:
        """Replace an object (PUT)."""
        if subresource == "scale":
            return await self._update(
                call, resource, namespace, name, "scale", lambda old: scale.applied(resource, old, body), options
            )
        lifecycle.check_identity(resource, body, namespace, name)
        return await self._update(call, resource, namespace, name, subresource, lambda old: dict(body), options)

    async def patch(
        self,
        call: Call,
        resource: Resource,
        namespace: str,
        name: str,
        patch_type: str,
        change: Any,
        subresource: str = "",
        options: Json | None = None,
    ) -> Item:
        """Patch an object. Without a resourceVersion, apply the patch to the stored object again after a conflict."""

        def patched(old: Json) -> Json:
            if subresource == "scale":
                return scale.applied(resource, old, patch.apply(patch_type, scale.of(resource, old), change))
            new = patch.apply(patch_type, old, change)
            if resource.custom is not None:  # pruning and defaulting change it in place
                new = copy.deepcopy(new)
            lifecycle.check_identity(resource, new, namespace, name)
            uid = new["metadata"].get("uid")
            if uid and uid != old["metadata"]["uid"]:
                error = invalid_value("metadata.uid", uid, "field is immutable")
                raise invalid(resource.group, resource.kind, name, [error])
            return new

        return await self._update(call, resource, namespace, name, subresource, patched, options)

    async def _update(
        self,
        call: Call,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        change: Callable[[Json], Json],
        options: Json | None,
    ) -> Item:
        """Read, change, validate, admit and write; repeat all of it after a conflict (GuaranteedUpdate)."""
        while True:
            _check_deadline(call)
            item = self.get(resource, namespace, name)
            obj = self._changed(call, resource, item.obj, subresource, change)
            await self._admit(call, self._update_attributes(call, resource, subresource, item.obj, obj, options))
            if obj == item.obj and cel.equal(obj, item.obj):
                if self.store.get(resource.store, namespace, name) is item:
                    return item
                continue
            if call.dry_run:
                return Item(obj, item.version)
            try:
                if _gone(obj):
                    self.store.remove(resource.store, (namespace, name), item.version)
                    return Item(obj, item.version)
                return self.store.replace(resource.store, (namespace, name), obj, item.version)
            except Moved:
                continue

    def _changed(
        self, call: Call, resource: Resource, old: Json, subresource: str, change: Callable[[Json], Json]
    ) -> Json:
        new = lifecycle.to_storage(resource, change(lifecycle.from_storage(resource, old)))
        if new is old:
            return old
        if subresource != "status":
            builtins.check_types(resource, new)
        self._shape(call, resource, new)
        if subresource == "resize":
            new = lifecycle.resized(resource, new, old)
        obj = lifecycle.updated(resource, new, old, subresource if subresource != "scale" else "")
        if subresource not in ("status", "finalize"):
            builtins.fill_defaults(resource, obj)
            self._complete(resource, obj)
        if subresource != "status":
            lifecycle.count_generation(resource, obj, old)
        # Fields that a resize may change, an update may not.
        self._validate(resource, obj, obj if subresource == "resize" else old)
        return obj

    def _update_attributes(
        self, call: Call, resource: Resource, subresource: str, old: Json, new: Json, options: Json | None
    ) -> Attributes:
        kind = (resource.group, resource.version, resource.kind)
        if subresource == "scale":
            kind, old, new = scale.KIND, scale.of(resource, old), scale.of(resource, new)
        else:
            old, new = lifecycle.from_storage(resource, old), lifecycle.from_storage(resource, new)
        return Attributes(
            operation="UPDATE",
            resource=resource,
            subresource=subresource,
            kind=kind,
            namespace=new["metadata"].get("namespace", ""),
            name=new["metadata"]["name"],
            obj=new,
            old=old,
            options=_options("UpdateOptions", call, options),
        )

    async def bind(self, call: Call, namespace: str, name: str, body: Json) -> None:
        """Bind a pod to a node (POST pods/NAME/binding), with PodScheduled at the present time."""
        target = (body.get("target") or {}).get("name")
        if not target:
            raise bad_request("target.name is required")
        if (body.get("metadata") or {}).get("name") != name:
            raise bad_request("name in URL does not match name in Binding object")
        pods = self.resource("", "pods")
        meta = {"name": name, "namespace": namespace, **(body.get("metadata") or {})}
        while True:
            item = self.get(pods, namespace, name)
            wanted = (body.get("metadata") or {}).get("uid")
            if wanted and wanted != item.obj["metadata"]["uid"]:
                raise conflict("", "pods/binding", name, f"Precondition failed: UID in precondition: {wanted}, "
                               f"UID in object meta: {item.obj['metadata']['uid']}")  # fmt: skip
            if "deletionTimestamp" in item.obj["metadata"]:
                raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
            if node := (item.obj.get("spec") or {}).get("nodeName"):
                raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{node}"')
            await self._admit(
                call,
                Attributes(
                    "CREATE", pods, "binding", ("", "v1", "Binding"), namespace, name,
                    {"kind": "Binding", "apiVersion": "v1", **body, "metadata": meta}, None,
                    _options("CreateOptions", call, None),
                ),
            )  # fmt: skip
            if call.dry_run:
                return
            status = dict(item.obj.get("status") or {})
            others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
            status["conditions"] = [
                *others,
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": self.clock.stamp(),
                },
            ]
            obj = {**item.obj, "spec": {**item.obj["spec"], "nodeName": target}, "status": status}
            try:
                self.store.replace(PODS, (namespace, name), obj, item.version)
            except Moved:
                continue
            return

    async def evict(self, call: Call, namespace: str, name: str, body: Json) -> None:
        """Evict a pod (POST pods/NAME/eviction): admitted as an eviction, deleted as a delete. No budget forbids it."""
        pods = self.resource("", "pods")
        options = body.get("deleteOptions") or {}
        item = self.get(pods, namespace, name)
        await self.webhooks.review(
            call,
            Attributes(
                "CREATE", pods, "eviction", ("policy", "v1", "Eviction"), namespace, name,
                {"kind": "Eviction", "apiVersion": "policy/v1", **body}, None, _options("CreateOptions", call, None),
            ),
        )  # fmt: skip
        if not call.dry_run and self.store.get(PODS, namespace, name) is item:
            self._delete_unadmitted(pods, item, options)
        elif not call.dry_run:
            raise conflict("", "pods", name)

    # Deleting

    async def delete(
        self,
        call: Call,
        resource: Resource,
        namespace: str,
        name: str,
        options: Json | None = None,
        *,
        of_many: bool = False,
    ) -> tuple[Item, bool]:
        """Delete an object; return it and whether it is gone. Finalizers, or a pod's grace period, hold it.

        The review of one `of_many` has no name, as the request has none.
        """
        options = options or {}
        lifecycle.deletable(resource, name)
        while True:
            _check_deadline(call)
            item = self.get(resource, namespace, name)
            lifecycle.check_preconditions(resource, item.obj, options)
            await self._admit(
                call,
                Attributes(
                    operation="DELETE",
                    resource=resource,
                    subresource="",
                    kind=(resource.group, resource.version, resource.kind),
                    namespace=namespace,
                    name="" if of_many else name,
                    obj=None,
                    old=lifecycle.from_storage(resource, item.obj),
                    options={"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1",
                             **{k: v for k, v in options.items() if k not in ("kind", "apiVersion")}},
                ),
            )  # fmt: skip
            if self.store.get(resource.store, namespace, name) is not item:
                continue
            obj, warning = self._marked(resource, item.obj, options)
            if warning:
                call.warn(warning)
            if call.dry_run:
                return item, True
            if obj is None:
                item = self._deleted_at_once(resource, item)
                gone = self.store.remove(resource.store, (namespace, name), item.version)
                if "deletionGracePeriodSeconds" in gone.obj["metadata"]:
                    last = {**gone.obj["metadata"], "deletionGracePeriodSeconds": 0}
                    return Item({**gone.obj, "metadata": last}, gone.version), True
                return gone, True
            if obj == item.obj:
                return item, False
            return self.store.replace(resource.store, (namespace, name), obj, item.version), False

    def _deleted_at_once(self, resource: Resource, item: Item) -> Item:
        """Write the deletionTimestamp of a pod that goes without grace, before its deletion."""
        meta = item.obj["metadata"]
        if resource.store != PODS or meta.get("deletionGracePeriodSeconds") == 0:
            return item
        marked = {**meta, "deletionTimestamp": self.clock.stamp(), "deletionGracePeriodSeconds": 0}
        key = meta.get("namespace", ""), meta["name"]
        return self.store.replace(resource.store, key, {**item.obj, "metadata": marked}, item.version)

    def _marked(self, resource: Resource, obj: Json, options: Json) -> tuple[Json | None, str | None]:
        """Return the object with its deletionTimestamp, or None if nothing holds it; and a warning."""
        finalizers, warning = lifecycle.propagation_finalizers(resource, obj, options)
        if resource.store == CRDS and "deletionTimestamp" not in obj["metadata"]:
            finalizers = [*finalizers, crds.CLEANUP]
        grace = lifecycle.grace_seconds(resource, obj, options)
        namespace = resource.store == NAMESPACES
        held = finalizers or (namespace and (obj.get("spec") or {}).get("finalizers"))
        if not held and not grace:
            return None, warning
        meta = dict(obj["metadata"])
        already = meta.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in meta or (already is not None and grace < already):
            if "deletionTimestamp" not in meta and "generation" in meta:
                meta["generation"] += 1
            meta["deletionTimestamp"] = rfc3339(self.clock.now() + timedelta(seconds=grace))
            if not namespace:
                meta["deletionGracePeriodSeconds"] = grace
        meta.pop("finalizers", None)
        if finalizers:
            meta["finalizers"] = finalizers
        marked = {**obj, "metadata": meta}
        if namespace:
            marked["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        return marked, warning

    async def delete_collection(self, call: Call, selection: Selection, options: Json | None = None) -> Listing:
        listing = self.find(selection)
        for item in listing.items:
            meta = item.obj["metadata"]
            try:
                await self.delete(
                    call, selection.resource, meta.get("namespace", ""), meta["name"], options, of_many=True
                )
            except ApiError as error:
                if error.code != 404:
                    raise
        return listing

    # Definitions

    def resource(self, group: str, plural: str) -> Resource:
        """Return a kind that is served; raises ApiError 404 for any other."""
        resource = self.kinds.find(group, plural)
        if resource is None:
            raise no_such_path()
        return resource

    def _crd_changed(self, kind: Kind, event: Event) -> None:
        """Serve the kinds of a stored definition; clean up after one that is being deleted."""
        if kind != CRDS:
            return
        name, crd = event.key[1], event.item.obj
        if event.type == "DELETED":
            for resource in self.kinds.withdraw(name):
                self.store.wake(resource.store)
            return
        served, errors = crds.resources(crd)
        if not errors:
            self.kinds.serve(name, served)
        if "deletionTimestamp" in crd["metadata"] and name not in self._cleanups:
            task = asyncio.get_running_loop().create_task(self._clean_up(name, served))
            self._cleanups[name] = task
            task.add_done_callback(lambda _: self._cleanups.pop(name, None))

    async def _clean_up(self, name: str, served: list[Resource]) -> None:
        """Delete a definition's objects, wait for their finalizers, then remove the definition's own finalizer."""
        crd_resource = self.resource(*CRDS)
        for resource in served[:1]:
            changed = self.store.watch(resource.store)
            try:
                while items := self.store.items(resource.store):
                    changed.clear()
                    for item in items:
                        self._delete_unadmitted(resource, item)
                    if self.store.items(resource.store):
                        await changed.wait()
            finally:
                self.store.unwatch(resource.store, changed)

        def released(old: Json) -> Json:
            left = [f for f in old["metadata"].get("finalizers") or () if f != crds.CLEANUP]
            return {**old, "metadata": {**old["metadata"], "finalizers": left}}

        await self._update(Call(SYSTEM), crd_resource, "", name, "", released, None)

    def _delete_unadmitted(self, resource: Resource, item: Item, options: Json | None = None) -> None:
        meta = item.obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        obj, _ = self._marked(resource, item.obj, options or {})
        if obj is None:
            self.store.remove(resource.store, key, item.version)
        elif obj != item.obj:
            self.store.replace(resource.store, key, obj, item.version)


def _gone(obj: Json) -> bool:
    """Return whether the object is being deleted and nothing holds it."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if obj.get("kind") == "Namespace" and obj.get("apiVersion") == "v1":
        return not (obj.get("spec") or {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _check_deadline(call: Call) -> None:
    if call.deadline is not None and asyncio.get_running_loop().time() >= call.deadline:
        raise timeout("request did not complete within requested timeout - context deadline exceeded")


def _options(kind: str, call: Call, more: Json | None) -> Json:
    options: Json = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if call.dry_run:
        options["dryRun"] = ["All"]
    if call.field_manager:
        options["fieldManager"] = call.field_manager
    if call.field_validation:
        options["fieldValidation"] = call.field_validation
    return {**options, **(more or {})}


def _version(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
            "invalid syntax"
        )
    return int(text)


def _encode_token(revision: int, key: tuple[str, str]) -> str:
    body = orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": list(key)})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _decode_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        body = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(body["rv"]), (str(body["start"][0]), str(body["start"][1]))
    except (binascii.Error, orjson.JSONDecodeError, KeyError, TypeError, IndexError, ValueError):
        raise bad_request("invalid continue token: continue key is not valid: not a token of this server") from None


def unknown_subresource(resource: Resource, name: str) -> ApiError:
    return not_implemented(f"{resource.plural}/{name}")
