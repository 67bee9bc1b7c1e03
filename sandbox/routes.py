"""Translate HTTP: paths, parameters, media types and bodies into verbs, and results into answers.

It decides the verb of a request and the form of its answer. It refuses what it does not know with 404, 406, 415 or
501, and never guesses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
import yaml
from aiohttp import web

from sandbox import access, discovery, lifecycle, patch, protobuf, scale, tables
from sandbox.access import MASTERS
from sandbox.admission import Call, User
from sandbox.api import Api, Listing, Selection, unknown_subresource
from sandbox.kinds import Resource
from sandbox.status import (
    ApiError,
    bad_request,
    forbidden,
    internal_error,
    method_not_allowed,
    no_such_path,
    not_acceptable,
    not_found,
    not_implemented,
    timeout,
    unsupported_media_type,
)
from sandbox.storage import Item, TooLarge
from sandbox.watch import Watches, rendered

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

#: The user whose token a request has.
USER = web.RequestKey("user", User)

REQUEST_SECONDS = 34  # apiserver's requestTimeoutUpperBound
_RETURNS_OBJECT = frozenset(
    {"pods", "services", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes", "podtemplates",
     "resourcequotas", "nodes"}
)  # fmt: skip
_PATCH_TYPES: tuple[str, ...] = (patch.JSON_PATCH, patch.MERGE_PATCH)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Target:
    """The collection, object or subresource that a path names."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str


@dataclass(frozen=True)
class Form:
    """The form of the answer: plain objects, a Table or metadata only."""

    kind: str = "object"
    include: str = "Metadata"


class Routes:
    """The request handler of one sandbox. Faults see every request first and may answer in its place."""

    def __init__(self, api: Api, watches: Watches, faults: list[Fault], users: Mapping[str, User]) -> None:
        self._api = api
        self._watches = watches
        self._faults = faults
        self._users = users

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = _call(request)
        try:
            for fault in list(self._faults):
                answer = await fault(request)
                if answer is not None:
                    return answer
            if request.query.get("watch") in ("1", "true"):
                return await self._route(request, call)
            async with asyncio.timeout_at(call.deadline):
                response = await self._route(request, call)
        except ApiError as error:
            response = _json(error.body, error.code)
            response.headers.update(error.headers)
        except TooLarge:
            error = ApiError(500, "", "etcdserver: request is too large")
            response = _json(error.body, error.code)
        except TimeoutError:
            error = timeout("request did not complete within requested timeout - context deadline exceeded")
            response = _json(error.body, error.code)
        except (web.HTTPException, ConnectionError, asyncio.CancelledError):
            raise
        except Exception as problem:
            log.exception("a request failed inside the sandbox", method=request.method, path=request.path)
            error = internal_error(f"{type(problem).__name__}: {problem}")
            response = _json(error.body, error.code)
        for text in call.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{" ".join(quoted.split())}"')
        return response

    async def _route(self, request: web.Request, call: Call) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        match parts:
            case ["api", "v1", _, *_]:
                return await self._resource(request, call, self._target("", "v1", parts[2:]))
            case ["apis", group, version, _, *_]:
                if version not in self._api.kinds.groups().get(group, ()):
                    return web.Response(status=404, text="404 page not found\n")
                return await self._resource(request, call, self._target(group, version, parts[3:]))
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if parts and parts[0] in ("healthz", "readyz", "livez"):
            return web.Response(text="ok")
        document = self._document(request, parts)
        if document is None:
            raise no_such_path()
        return _json(document)

    def _document(self, request: web.Request, parts: list[str]) -> Json | None:
        kinds = self._api.kinds
        match parts:
            case []:
                return {
                    "paths": [
                        "/api",
                        "/api/v1",
                        "/apis",
                        "/healthz",
                        "/livez",
                        "/openapi/v2",
                        "/openapi/v3",
                        "/readyz",
                        "/version",
                    ]
                }
            case ["version"]:
                return discovery.VERSION
            case ["api"]:
                return discovery.core_versions(request.host)
            case ["api", "v1"]:
                return discovery.resources(kinds, "", "v1")
            case ["apis"]:
                return discovery.groups(kinds)
            case ["apis", group]:
                return discovery.group(kinds, group)
            case ["apis", group, version]:
                return discovery.resources(kinds, group, version)
            case ["openapi", "v3"]:
                return discovery.openapi_index(kinds)
            case ["openapi", "v3", "api", version]:
                return discovery.openapi(kinds, "", version)
            case ["openapi", "v3", "apis", group, version]:
                return discovery.openapi(kinds, group, version)
        return None

    def _target(self, group: str, version: str, parts: list[str]) -> Target:
        """Parse `namespaces/NS/PLURAL[/NAME[/SUB]]` or `PLURAL[/NAME[/SUB]]`; namespaces are themselves a resource."""
        namespace: str | None = None
        if parts[0] == "watch":
            raise not_implemented("the deprecated /watch/ paths: use ?watch=true")
        inside = len(parts) >= 3 and parts[0] == "namespaces"
        if inside and not (len(parts) == 3 and not group and parts[2] in ("status", "finalize")):
            namespace, parts = parts[1], parts[2:]
        resource = self._api.kinds.get(group, version, parts[0])
        if resource is None or (namespace is not None and not resource.namespaced):
            raise no_such_path()
        name = parts[1] if len(parts) > 1 else ""
        if name and resource.namespaced and namespace is None:
            raise no_such_path()
        if len(parts) > 3:
            raise unknown_subresource(resource, "/".join(parts[2:]))
        return Target(resource, namespace, name, parts[2] if len(parts) > 2 else "")

    def _authorize(self, request: web.Request, target: Target) -> None:
        """Refuse what the stored RBAC does not allow the user of the token."""
        user, resource = request[USER], target.resource
        if "Impersonate-User" in request.headers and MASTERS not in user.groups:
            raise forbidden("", "users", request.headers["Impersonate-User"], f'User "{user.name}" cannot impersonate')
        if resource.group in ("authentication.k8s.io", "authorization.k8s.io") and resource.plural.startswith("self"):
            return  # as system:basic-user allows everybody who is known
        is_watch = request.query.get("watch") in ("1", "true")
        named = target.name or _named(request)
        read = "watch" if is_watch else "get" if target.name else "list"
        removed = "delete" if target.name else "deletecollection"
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": removed}
        asked = {
            "verb": verbs.get(request.method, read),
            "group": resource.group,
            "resource": resource.plural,
            "subresource": target.subresource,
            "name": named,
            "namespace": target.namespace or "",
        }
        if not access.allows(user.name, user.groups, asked, self._api.store):
            whole = "/".join(filter(None, (resource.plural, target.subresource)))
            group, verb, scope = resource.group, asked["verb"], "at the cluster scope"
            if target.namespace:
                scope = f'in the namespace "{target.namespace}"'
            why = f'User "{user.name}" cannot {verb} resource "{whole}" in API group "{group}" {scope}'
            raise forbidden(resource.group, resource.plural, named, why)

    async def _resource(self, request: web.Request, call: Call, target: Target) -> web.StreamResponse:
        self._authorize(request, target)
        if target.subresource:
            return await self._subresource(request, call, target)
        if request.query.get("watch") in ("1", "true") and request.method == "GET":
            form = _form(request)
            return await self._watches.serve(request, _selection(request, target), form.kind, form.include)
        match request.method, bool(target.name):
            case "GET", True:
                return self._shown(request, target.resource, self._api.get(*_key(target)))
            case "GET", False:
                return self._list(request, target)
            case "POST", False:
                return await self._create(request, call, target)
            case "PUT", True:
                return await self._replace(request, call, target)
            case "PATCH", True:
                return await self._patch(request, call, target)
            case "DELETE", True:
                return await self._delete(request, call, target)
            case "DELETE", False:
                return await self._delete_collection(request, call, target)
        raise method_not_allowed()

    async def _subresource(self, request: web.Request, call: Call, target: Target) -> web.StreamResponse:
        resource, name = target.resource, target.subresource
        known = (
            (name == "status" and resource.status)
            or (name == "scale" and resource.scale is not None)
            or name in resource.subresources
        )
        if not known:
            if resource.custom is None:
                raise unknown_subresource(resource, name)
            raise not_found(resource.group, resource.plural, target.name)
        if name == "binding":
            if request.method != "POST":
                raise method_not_allowed()
            await self._api.bind(call, target.namespace or "", target.name, await _body(request))
            return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)
        if name == "eviction":
            if request.method != "POST":
                raise method_not_allowed()
            await self._api.evict(call, target.namespace or "", target.name, await _body(request))
            return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)
        match request.method:
            case "GET":
                return self._shown(request, resource, self._api.get(*_key(target)), name)
            case "PUT":
                return await self._replace(request, call, target)
            case "PATCH" if name != "finalize":
                return await self._patch(request, call, target)
        raise method_not_allowed()

    def _reviewed(self, resource: Resource, body: Json, call: Call) -> Json:
        """Answer a review. One of rights asks the stored RBAC."""
        user = {"username": call.user.name, "groups": list(call.user.groups)}
        match resource.plural:
            case "selfsubjectreviews":
                status: Json = {"userInfo": user}
            case "tokenreviews":
                users = {
                    token: {"username": each.name, "groups": list(each.groups)} for token, each in self._users.items()
                }
                status = access.token_review(body.get("spec"), users)
            case "selfsubjectrulesreviews":
                status = access.rules_review(body.get("spec"), call.user.name, call.user.groups, self._api.store)
            case "subjectaccessreviews":
                status = access.review(body.get("spec"), self._api.store)
            case _:
                about = {**(body.get("spec") or {}), "user": call.user.name, "groups": list(call.user.groups)}
                status = access.review(about, self._api.store)
        return {**body, "metadata": body.get("metadata") or {}, "status": status}

    # Answers

    def _shown(
        self, request: web.Request, resource: Resource, item: Item, subresource: str = "", code: int = 200
    ) -> web.Response:
        if subresource == "scale":
            return _json(scale.of(resource, item.obj), code)
        form = _form(request)
        if form.kind == "object":
            return _raw(rendered(resource, item), code)
        obj = lifecycle.from_storage(resource, item.obj)
        if form.kind == "partial":
            return _json(tables.partial(obj), code)
        row = tables.row(resource, obj, self._api.clock.now(), form.include)
        meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _json(tables.table(resource, [row], meta), code)

    def _list(self, request: web.Request, target: Target) -> web.Response:
        query = request.query
        for name in ("resourceVersionMatch", "sendInitialEvents"):
            if query.get(name):
                raise not_implemented(f"{name} of a list")
        if query.get("continue") and query.get("resourceVersion", "") not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        if "list" not in target.resource.verbs:
            raise method_not_allowed()
        listing = self._api.find(
            _selection(request, target),
            limit=_integer(query.get("limit", "0"), "limit"),
            token=query.get("continue", ""),
            version=query.get("resourceVersion", ""),
        )
        return self._listed(_form(request), target.resource, listing)

    def _listed(self, form: Form, resource: Resource, listing: Listing) -> web.Response:
        meta: Json = {"resourceVersion": str(listing.version)}
        if listing.token or resource.custom is not None:
            meta["continue"] = listing.token
        if listing.remaining is not None:
            meta["remainingItemCount"] = listing.remaining
        if form.kind == "object":
            head = orjson.dumps({"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": meta})
            items = b",".join(_element(resource, item) for item in listing.items)
            return _raw(head[:-1] + b',"items":[' + items + b"]}")
        objects = [lifecycle.from_storage(resource, item.obj) for item in listing.items]
        if form.kind == "partial":
            return _json(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": meta,
                    "items": [tables.partial(obj) for obj in objects],
                }
            )
        now = self._api.clock.now()
        rows = [tables.row(resource, obj, now, form.include) for obj in objects]
        return _json(tables.table(resource, rows, meta))

    # Writes

    async def _create(self, request: web.Request, call: Call, target: Target) -> web.Response:
        resource = target.resource
        if resource.namespaced and target.namespace is None:
            raise method_not_allowed()
        body = await _body(request)
        if resource.verbs == ("create",):
            return _json(self._reviewed(resource, body, call), 201)
        item = await self._api.create(call, resource, target.namespace or "", body)
        return self._shown(request, resource, item, code=201)

    async def _replace(self, request: web.Request, call: Call, target: Target) -> web.Response:
        body = await _body(request)
        item = await self._api.replace(call, *_key(target), body, target.subresource)
        return self._shown(request, target.resource, item, target.subresource)

    async def _patch(self, request: web.Request, call: Call, target: Target) -> web.Response:
        accepted = list(_PATCH_TYPES)
        if target.resource.custom is None or target.subresource == "scale":
            accepted.append(patch.STRATEGIC_PATCH)
        if request.content_type not in accepted:
            raise unsupported_media_type(request.content_type, accepted)
        change = _parsed(await request.read())
        item = await self._api.patch(call, *_key(target), request.content_type, change, target.subresource)
        return self._shown(request, target.resource, item, target.subresource)

    async def _delete(self, request: web.Request, call: Call, target: Target) -> web.Response:
        resource = target.resource
        if "delete" not in resource.verbs:
            raise method_not_allowed()
        options = await _delete_options(request, call)
        item, gone = await self._api.delete(call, *_key(target), options)
        waits = options.get("orphanDependents") is False
        if not gone or (resource.custom is None and resource.plural in _RETURNS_OBJECT):
            return self._shown(request, resource, item, code=202 if waits and not gone else 200)
        details: Json = {"name": target.name}
        if resource.group:
            details["group"] = resource.group
        details |= {"kind": resource.plural, "uid": item.obj["metadata"]["uid"]}
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    async def _delete_collection(self, request: web.Request, call: Call, target: Target) -> web.Response:
        resource = target.resource
        if "deletecollection" not in resource.verbs or (resource.namespaced and target.namespace is None):
            raise method_not_allowed()
        options = await _delete_options(request, call)
        listing = await self._api.delete_collection(call, _selection(request, target), options)
        return self._listed(Form(), resource, listing)


def _element(resource: Resource, item: Item) -> bytes:
    """Return an object as an item of a list, where only custom resources have kind and apiVersion."""
    if resource.custom is not None:
        return rendered(resource, item)
    return item.raw


def _key(target: Target) -> tuple[Resource, str, str]:
    return target.resource, target.namespace or "", target.name


def _named(request: web.Request) -> str:
    """Return the one object that a field selector of a list or watch names, which rights by name are about."""
    found = re.fullmatch(r"metadata\.name=([^,=!]+)", request.query.get("fieldSelector", ""))
    return found[1] if found else ""


def _selection(request: web.Request, target: Target) -> Selection:
    """Read the selectors of a list or watch; a name in the path selects that object."""
    fields = request.query.get("fieldSelector", "")
    if target.name:
        fields = ",".join(filter(None, (fields, f"metadata.name={target.name}")))
    return Selection(
        target.resource,
        target.namespace if target.resource.namespaced else None,
        request.query.get("labelSelector", ""),
        fields,
    )


def _call(request: web.Request) -> Call:
    user = request[USER]
    if name := request.headers.get("Impersonate-User"):
        groups = tuple(request.headers.getall("Impersonate-Group", ()))
        user = User(name, (*groups, *(() if "system:authenticated" in groups else ("system:authenticated",))))
    query = request.query
    manager = query.get("fieldManager", "") or request.headers.get("User-Agent", "").partition("/")[0]
    return Call(
        user=user,
        dry_run="All" in query.getall("dryRun", ()),
        field_manager=manager if request.method in ("POST", "PUT", "PATCH") else "",
        field_validation=query.get("fieldValidation", ""),
        deadline=asyncio.get_running_loop().time() + REQUEST_SECONDS,
    )


async def _body(request: web.Request) -> Json:
    kind = request.content_type
    content = await request.read()
    if kind in ("application/yaml", "application/x-yaml"):
        try:
            body = yaml.safe_load(content)
        except yaml.YAMLError as error:
            raise bad_request(f"error converting YAML to JSON: {error}") from None
    elif kind in ("application/json", "application/octet-stream", "text/plain", "application/x-www-form-urlencoded"):
        body = _parsed(content)
    elif kind == protobuf.MEDIA_TYPE:
        body = protobuf.decode(content)
    else:
        raise unsupported_media_type(kind, ("application/json", "application/yaml"))
    if not isinstance(body, dict):
        raise bad_request("couldn't get version/kind; json parse error: the request body is not an object")
    return body


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


async def _delete_options(request: web.Request, call: Call) -> Json:
    options: Json = {}
    if request.can_read_body:
        content = await request.read()
        if content.strip():
            options = _parsed(content)
            if not isinstance(options, dict):
                raise bad_request("DeleteOptions must be an object")
    query = request.query
    for name in ("propagationPolicy", "gracePeriodSeconds", "orphanDependents"):
        if name in query:
            value: Any = query[name]
            if name == "gracePeriodSeconds":
                value = _integer(value, name)
            elif name == "orphanDependents":
                value = value == "true"
            options[name] = value
    if "All" in (options.get("dryRun") or ()):
        call.dry_run = True
    return options


def _integer(text: str, name: str) -> int:
    try:
        return int(text or "0")
    except ValueError:
        raise bad_request(f'unable to parse {name}: strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _form(request: web.Request) -> Form:
    """Return the first media type of Accept that the sandbox has; 406 if there is none."""
    accept = request.headers.get("Accept", "") or "application/json"
    for option in accept.split(","):
        media, *parameters = (part.strip() for part in option.split(";"))
        values = {name: value for name, _, value in (parameter.partition("=") for parameter in parameters)}
        if media not in ("application/json", "application/*", "*/*"):
            continue
        match values.get("as"):
            case None:
                return Form()
            case "Table" if values.get("v") == "v1":
                return Form("table", request.query.get("includeObject", "Metadata"))
            case "PartialObjectMetadata" | "PartialObjectMetadataList" if values.get("v") == "v1":
                return Form("partial")
    raise not_acceptable(("application/json",))


def _raw(body: bytes, code: int = 200) -> web.Response:
    return web.Response(
        body=body, status=code, content_type="application/json", headers={"Cache-Control": "no-cache, private"}
    )


def _json(body: Any, code: int = 200) -> web.Response:
    return _raw(orjson.dumps(body), code)
