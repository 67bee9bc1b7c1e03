"""Call the validating webhooks that a write concerns, and read their answers.

It allows or refuses one attempt to write; a caller that retries a write asks again. Texts and order of checks
follow apiserver's admission/plugin/webhook (generic, predicates, request, validating).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import ssl
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import aiohttp
import orjson

from sandbox import access, cel
from sandbox.kinds import NAMESPACES, WEBHOOKS, Kinds, Resource
from sandbox.selectors import Matcher, compile_selector
from sandbox.status import (
    ApiError,
    FieldError,
    bad_request,
    forbidden,
    internal_error,
    invalid,
    invalid_value,
    not_found,
    required,
    unsupported,
)
from sandbox.storage import Item, Store

Json = dict[str, Any]

_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT", "*")
_MATCH_VARIABLES = ("object", "oldObject", "request", "authorizer", "namespaceObject")
_DEFAULT_TIMEOUT = 10
_LARGEST_ANSWER = 3 * 1024 * 1024


@dataclass(frozen=True)
class User:
    """The user of a request, as a review's userInfo shows it."""

    name: str = "kubernetes-admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")


@dataclass
class Call:
    """One request: its user, its options and the warnings of its answer. `deadline` is in the loop's time."""

    user: User = field(default_factory=User)
    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""
    warnings: list[str] = field(default_factory=list)
    deadline: float | None = None

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True)
class Attributes:
    """One write, as admission sees it. `kind` is (group, version, kind) of the objects, a Scale's for /scale."""

    operation: str
    resource: Resource
    subresource: str
    kind: tuple[str, str, str]
    namespace: str
    name: str
    obj: Json | None
    old: Json | None
    options: Json


@dataclass(frozen=True)
class WebhookRule:
    groups: frozenset[str]
    versions: frozenset[str]
    operations: frozenset[str]
    resources: frozenset[str]
    scope: str

    def matches(self, operation: str, resource: Resource, subresource: str) -> bool:
        if not self.operations & {"*", operation}:
            return False
        if not self.groups & {"*", resource.group} or not self.versions & {"*", resource.version}:
            return False
        if self.scope != "*" and (self.scope == "Namespaced") is not resource.namespaced:
            return False
        plural = resource.plural
        if subresource:
            wanted = {"*/*", f"{plural}/{subresource}", f"{plural}/*", f"*/{subresource}"}
        else:
            wanted = {"*", "*/*", plural}
        return bool(self.resources & wanted)


def match_rules(
    rules: Iterable[WebhookRule], attributes: Attributes, kinds: Kinds, *, equivalent: bool
) -> Resource | None:
    """Return the resource version that a rule matches, the written one first; None where no rule does."""
    resource = attributes.resource
    candidates = [resource]
    if equivalent:
        candidates += [other for other in kinds.versions_of(resource.store) if other.version != resource.version]
    for candidate in candidates:
        for rule in rules:
            if rule.matches(attributes.operation, candidate, attributes.subresource):
                return candidate
    return None


def namespace_matches(matcher: Matcher, attributes: Attributes, store: Store) -> bool:
    if attributes.resource.store == NAMESPACES:
        obj = attributes.obj if attributes.operation in ("CREATE", "UPDATE") else attributes.old
        return matcher(_labels(obj or {}))
    if not attributes.namespace:
        return True
    namespace = store.get(NAMESPACES, "", attributes.namespace)
    if namespace is None:
        raise not_found("", "namespaces", attributes.namespace)
    return matcher(_labels(namespace.obj))


def object_matches(matcher: Matcher, attributes: Attributes) -> bool:
    return any(matcher(_labels(obj)) for obj in (attributes.obj, attributes.old) if obj is not None)


def variables_of(attributes: Attributes, call: Call, store: Store) -> Json:
    """Return the CEL variables of a write."""
    request = _request(attributes, attributes.resource, call, "")
    namespace = store.get(NAMESPACES, "", attributes.namespace) if attributes.namespace else None
    return {
        "object": attributes.obj,
        "oldObject": attributes.old,
        "request": {key: value for key, value in request.items() if key not in ("object", "oldObject")},
        "authorizer": _authorizer(attributes, call, store),
        "namespaceObject": namespace.obj if namespace is not None else None,
    }


def _authorizer(attributes: Attributes, call: Call, store: Store) -> cel.RequestAuthorizer:
    resource = attributes.resource
    written = {
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
        "subresource": attributes.subresource,
        "namespace": attributes.namespace,
        "name": attributes.name,
    }
    subject = {"user": call.user.name, "groups": list(call.user.groups)}
    return cel.RequestAuthorizer(subject, written, lambda spec: access.review(dict(spec), store))


def compile_rules(rules: Iterable[Json]) -> tuple[WebhookRule, ...]:
    return tuple(
        WebhookRule(
            groups=frozenset(rule.get("apiGroups") or ()),
            versions=frozenset(rule.get("apiVersions") or ()),
            operations=frozenset(rule.get("operations") or ()),
            resources=frozenset(rule.get("resources") or ()),
            scope=rule.get("scope", "*"),
        )
        for rule in rules
    )


@dataclass
class _Hook:
    """One webhook of one configuration, compiled. The session keeps its connections alive."""

    name: str
    url: str
    host: str | None
    rules: tuple[WebhookRule, ...]
    equivalent: bool
    namespaces: Matcher | None
    objects: Matcher | None
    conditions: tuple[tuple[str, cel.Program], ...]
    seconds: int
    fail_open: bool
    dry_run_safe: bool
    context: ssl.SSLContext | None
    broken: str = ""
    session: aiohttp.ClientSession | None = None
    calls: set[asyncio.Task[Any]] = field(default_factory=set)

    def connect(self) -> aiohttp.ClientSession:
        if self.session is None:
            connector = aiohttp.TCPConnector(
                ssl=self.context if self.context is not None else True, limit=0, keepalive_timeout=75
            )
            self.session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(), auto_decompress=True
            )
        return self.session


class Webhooks:
    """Call the webhooks that the store configures at the moment of each write."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._compiled: dict[str, tuple[int, list[_Hook]]] = {}
        self._retired: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for _, hooks in self._compiled.values():
            await _close(hooks)
        self._compiled.clear()
        await asyncio.gather(*self._retired)

    async def review(self, call: Call, attributes: Attributes) -> None:
        """Return if every webhook that the write concerns allows it; raise the refusal otherwise."""
        configurations = self._store.items(WEBHOOKS)
        if not configurations and not self._compiled:
            return
        if attributes.resource.store == WEBHOOKS:
            return
        invocations: list[tuple[_Hook, Resource]] = []
        for hook in self._hooks(configurations):
            matched = self._concerns(hook, attributes, call)
            if matched is not None:
                invocations.append((hook, matched))
        if not invocations:
            return
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(hook, matched, attributes, call)) for hook, matched in invocations]
        for task in tasks:
            if (refusal := task.result()) is not None:
                raise refusal

    def _hooks(self, configurations: Iterable[Item]) -> list[_Hook]:
        hooks: list[_Hook] = []
        seen: set[str] = set()
        for item in configurations:
            name = item.obj["metadata"]["name"]
            seen.add(name)
            version, compiled = self._compiled.get(name, (0, []))
            if version != item.version:
                self._retire(compiled)
                compiled = [_compile(webhook) for webhook in item.obj.get("webhooks") or ()]
                self._compiled[name] = (item.version, compiled)
            hooks.extend(compiled)
        for name in self._compiled.keys() - seen:
            self._retire(self._compiled.pop(name)[1])
        return hooks

    def _retire(self, hooks: list[_Hook]) -> None:
        if any(hook.session is not None for hook in hooks):
            task = asyncio.get_running_loop().create_task(_close(hooks))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    def _concerns(self, hook: _Hook, attributes: Attributes, call: Call) -> Resource | None:
        """Return the resource version to call the webhook with, or None if it is not to be called for this write."""
        matched = match_rules(hook.rules, attributes, self._kinds, equivalent=hook.equivalent)
        if matched is None:
            return None
        if hook.namespaces is not None and not namespace_matches(hook.namespaces, attributes, self._store):
            return None
        if hook.objects is not None and not object_matches(hook.objects, attributes):
            return None
        if hook.conditions and not self._conditions_match(hook, attributes, call):
            return None
        return matched

    def _conditions_match(self, hook: _Hook, attributes: Attributes, call: Call) -> bool:
        values = variables_of(attributes, call, self._store)
        problems: list[str] = []
        for _, program in hook.conditions:
            try:
                if not program.true(values):
                    return False
            except cel.CelError as error:
                problems.append(f"expression '{program.text}' resulted in error: {error}")
        if not problems:
            return True
        if hook.fail_open:
            return False
        resource = attributes.resource
        raise forbidden(resource.group, resource.plural, attributes.name, ", ".join(problems))

    async def _ask(self, hook: _Hook, matched: Resource, attributes: Attributes, call: Call) -> ApiError | None:
        """Call the webhook; return its refusal or None."""
        task = asyncio.current_task()
        if task is not None:
            hook.calls.add(task)
            task.add_done_callback(hook.calls.discard)
        if call.dry_run and not hook.dry_run_safe:
            return bad_request(f'admission webhook "{hook.name}" does not support dry run')
        uid = str(uuid.uuid4())
        try:
            answer = await self._post(hook, _review(uid, attributes, matched, call), call)
            response = _verify(uid, answer)
        except _CallFailed as failure:
            if hook.fail_open:
                return None
            return internal_error(f'failed calling webhook "{hook.name}": {failure}')
        for warning in response.get("warnings") or ():
            call.warn(str(warning))
        if response.get("allowed") is True:
            return None
        return _denial(hook.name, response.get("status") or {})

    async def _post(self, hook: _Hook, review: bytes, call: Call) -> Any:
        if hook.broken:
            raise _CallFailed(hook.broken)
        seconds = float(hook.seconds)
        if call.deadline is not None:
            seconds = min(seconds, call.deadline - asyncio.get_running_loop().time())
            if seconds <= 0:
                raise _CallFailed("failed to call webhook: context deadline exceeded")
        url = f"{hook.url}?timeout={max(1, -int(-seconds // 1))}s"
        try:
            async with (
                asyncio.timeout(seconds),
                hook.connect().post(
                    url,
                    data=io.BytesIO(review),
                    headers={
                        "Content-Type": "application/json",
                        "Accept": "application/json, */*",
                        "User-Agent": "kube-apiserver-admission",
                    },
                    server_hostname=hook.host,
                    allow_redirects=False,
                ) as response,
            ):
                body = await response.content.read(_LARGEST_ANSWER + 1)
                while not response.content.at_eof() and len(body) <= _LARGEST_ANSWER:
                    body += await response.content.read(_LARGEST_ANSWER)
                code, text = response.status, response.content_type.startswith("text/")
        except TimeoutError:
            raise _CallFailed(f'failed to call webhook: Post "{url}": context deadline exceeded') from None
        except aiohttp.ServerDisconnectedError:
            raise _CallFailed(f'failed to call webhook: Post "{url}": EOF') from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", str(error.certificate_error))
            raise _CallFailed(
                f'failed to call webhook: Post "{url}": tls: failed to verify certificate: x509: {why}'
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _CallFailed(f'failed to call webhook: Post "{url}": {_network_text(error)}') from None
        if code >= 300:
            said = body.decode("utf-8", "replace").strip() if text else ""
            raise _CallFailed(f"failed to call webhook: {_http_text(code, said)}")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise _CallFailed(f"failed to call webhook: {error}") from None


class _CallFailed(Exception):
    """The webhook gave no valid answer; the failure policy decides what that means."""


def _network_text(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {error.host}: no such host"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"tls: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {error.host}:{error.port}: connect: connection refused"
        return f"dial tcp {error.host}:{error.port}: {error.os_error}"
    return str(error) or type(error).__name__


def _http_text(code: int, body: str) -> str:
    """Return client-go's words for a non-2xx answer (NewGenericServerResponse)."""
    named = {
        400: "the server rejected our request for an unknown reason",
        401: "the server has asked for the client to provide credentials",
        403: body or "forbidden",
        404: "the server could not find the requested resource",
        405: "the server does not allow this method on the requested resource",
        429: "the server has received too many requests and has asked us to try again later",
        503: "the server is currently unable to handle the request",
        504: "the server was unable to return a response in the time allotted, but may still be processing the request",
    }
    if code in named:
        return named[code]
    if code >= 500:
        return f'an error on the server ("{body or "unknown"}") has prevented the request from succeeding'
    return f"the server responded with the status code {code} but did not return more information"


async def _close(hooks: list[_Hook]) -> None:
    """Close the sessions once the calls that are under way have ended."""
    for hook in hooks:
        if hook.calls:
            await asyncio.wait(hook.calls)
        if hook.session is not None:
            await hook.session.close()


def _labels(obj: Json) -> Json:
    return (obj.get("metadata") or {}).get("labels") or {}


def _gvk(kind: tuple[str, str, str]) -> Json:
    return {"group": kind[0], "version": kind[1], "kind": kind[2]}


def _gvr(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def _request(attributes: Attributes, matched: Resource, call: Call, uid: str) -> Json:
    kind = attributes.kind
    if matched is not attributes.resource and kind[:2] == (attributes.resource.group, attributes.resource.version):
        kind = (matched.group, matched.version, matched.kind)
    request: Json = {
        "uid": uid,
        "kind": _gvk(kind),
        "resource": _gvr(matched),
    }
    if attributes.subresource:
        request["subResource"] = attributes.subresource
    request["requestKind"] = _gvk(attributes.kind)
    request["requestResource"] = _gvr(attributes.resource)
    if attributes.subresource:
        request["requestSubResource"] = attributes.subresource
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    request["operation"] = attributes.operation
    request["userInfo"] = {"username": call.user.name, "groups": list(call.user.groups)}
    request["object"] = attributes.obj
    request["oldObject"] = attributes.old
    request["dryRun"] = call.dry_run
    request["options"] = attributes.options
    return request


def _review(uid: str, attributes: Attributes, matched: Resource, call: Call) -> bytes:
    request = _request(attributes, matched, call, uid)
    if matched is not attributes.resource:
        for name in ("object", "oldObject"):
            obj = request[name]
            if obj is not None and obj.get("apiVersion") == attributes.resource.api_version:
                request[name] = {**obj, "apiVersion": matched.api_version}
    return orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})


def _verify(uid: str, answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise _CallFailed("failed to call webhook: the answer is not an AdmissionReview object")
    if answer.get("kind") != "AdmissionReview" or answer.get("apiVersion") != "admission.k8s.io/v1":
        got = f"{answer.get('apiVersion', '')}, Kind={answer.get('kind', '')}"
        raise _CallFailed(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {got}")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise _CallFailed("webhook response was absent")
    if response.get("uid") != uid:
        raise _CallFailed(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    if response.get("patch") or response.get("patchType"):
        raise _CallFailed("validating webhook may not return response.patch")
    return response


def _denial(name: str, status: Json) -> ApiError:
    """Return the review's own status, with the webhook's name in front of its message (webhook/errors: ToStatusErr)."""
    code = max(status.get("code") or 0, 400)
    reason = status.get("reason") or ""
    denied = f'admission webhook "{name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{denied}: {text}" if text else f"{denied} without explanation"
    return ApiError(code, reason, message, status.get("details"))


@lru_cache(maxsize=32)
def _trusting(bundle: str) -> ssl.SSLContext:
    """Return a context that trusts a caBundle; raise ssl.SSLError or ValueError. It is the same in many webhooks."""
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode("ascii"))


def _compile(webhook: Json) -> _Hook:
    config = webhook.get("clientConfig") or {}
    host = None
    if service := config.get("service"):
        host = f"{service['name']}.{service['namespace']}.svc"
        path = "/" + (service.get("path") or "").lstrip("/")
        url = f"https://{host}:{service.get('port', 443)}{path}"
    else:
        url = config.get("url", "")
    context: ssl.SSLContext | None = None
    broken = ""
    if bundle := config.get("caBundle"):
        try:
            context = _trusting(bundle)
        except (ssl.SSLError, ValueError) as error:
            broken = f"unable to load root certificates: {error}"
    return _Hook(
        name=webhook["name"],
        url=url,
        host=host,
        rules=compile_rules(webhook.get("rules") or ()),
        equivalent=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
        namespaces=compile_selector(webhook.get("namespaceSelector")),
        objects=compile_selector(webhook.get("objectSelector")),
        conditions=tuple(
            (condition["name"], cel.compile_expression(condition["expression"], _MATCH_VARIABLES))
            for condition in webhook.get("matchConditions") or ()
        ),
        seconds=webhook.get("timeoutSeconds", _DEFAULT_TIMEOUT),
        fail_open=webhook.get("failurePolicy", "Fail") == "Ignore",
        dry_run_safe=webhook.get("sideEffects") in ("None", "NoneOnDryRun"),
        context=context,
        broken=broken,
    )


def fill_defaults(configuration: Json) -> None:
    """Fill in a configuration's defaults, in place; copy its webhooks first."""
    configuration["webhooks"] = webhooks = [dict(webhook) for webhook in configuration.get("webhooks") or ()]
    for webhook in webhooks:
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})
        webhook.setdefault("timeoutSeconds", _DEFAULT_TIMEOUT)
        webhook["rules"] = [{"scope": "*", **rule} for rule in webhook.get("rules") or ()]
        config = webhook.get("clientConfig")
        if isinstance(config, dict) and isinstance(config.get("service"), dict):
            webhook["clientConfig"] = {**config, "service": {"port": 443, **config["service"]}}


def validate(configuration: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        name = webhook.get("name") or ""
        if name.count(".") < 2:
            errors.append(
                invalid_value(f"{path}.name", name, "should be a domain with at least three segments separated by dots")
            )
        if name in names:
            errors.append(FieldError("FieldValueDuplicate", f"{path}.name", f'Duplicate value: "{name}"'))
        names.add(name)
        if "v1" not in (webhook.get("admissionReviewVersions") or ()):
            errors.append(
                invalid_value(
                    f"{path}.admissionReviewVersions",
                    webhook.get("admissionReviewVersions"),
                    "must include at least one of v1",
                )
            )
        if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            if webhook.get("sideEffects") is None:
                errors.append(required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun"))
            else:
                errors.append(unsupported(f"{path}.sideEffects", webhook["sideEffects"], ("None", "NoneOnDryRun")))
        if webhook.get("failurePolicy") not in ("Fail", "Ignore"):
            errors.append(unsupported(f"{path}.failurePolicy", webhook.get("failurePolicy"), ("Fail", "Ignore")))
        if webhook.get("matchPolicy") not in ("Exact", "Equivalent"):
            errors.append(unsupported(f"{path}.matchPolicy", webhook.get("matchPolicy"), ("Equivalent", "Exact")))
        seconds = webhook.get("timeoutSeconds")
        if not isinstance(seconds, int) or not 1 <= seconds <= 30:
            errors.append(
                invalid_value(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
            )
        errors.extend(_validate_client(webhook.get("clientConfig") or {}, f"{path}.clientConfig"))
        errors.extend(_validate_rules(webhook, path))
    return errors


def _validate_client(config: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        return [required(path, "exactly one of url or service is required")]
    if url is not None and not url.startswith("https://"):
        errors.append(invalid_value(f"{path}.url", url, "'https' is the only allowed URL scheme"))
    if url is not None and ("?" in url or "#" in url):
        errors.append(invalid_value(f"{path}.url", url, "query parameters and fragments are not permitted in the URL"))
    if service is not None:
        errors.extend(required(f"{path}.service.{name}") for name in ("name", "namespace") if not service.get(name))
    if bundle := config.get("caBundle"):
        try:
            base64.b64decode(bundle, validate=True)
        except (binascii.Error, ValueError, TypeError):
            errors.append(invalid_value(f"{path}.caBundle", "…", "illegal base64 data"))
    return errors


def _validate_rules(webhook: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    rules: list[Json] = webhook.get("rules") or []
    for index, rule in enumerate(rules):
        at = f"{path}.rules[{index}]"
        errors.extend(
            required(f"{at}.{name}")
            for name in ("operations", "apiGroups", "apiVersions", "resources")
            if not rule.get(name)
        )
        errors.extend(
            unsupported(f"{at}.operations", operation, _OPERATIONS)
            for operation in rule.get("operations") or ()
            if operation not in _OPERATIONS
        )
        if rule.get("scope") not in ("Cluster", "Namespaced", "*"):
            errors.append(unsupported(f"{at}.scope", rule.get("scope"), ("*", "Cluster", "Namespaced")))
    for selector in ("namespaceSelector", "objectSelector"):
        try:
            compile_selector(webhook.get(selector))
        except ApiError as error:
            errors.append(invalid_value(f"{path}.{selector}", webhook.get(selector), error.message))
    conditions: list[Json] = webhook.get("matchConditions") or []
    if len(conditions) > 64:
        errors.append(
            FieldError("FieldValueTooMany", f"{path}.matchConditions",
                       f"Too many: {len(conditions)}: must have at most 64 items")
        )  # fmt: skip
    for index, condition in enumerate(conditions):
        at = f"{path}.matchConditions[{index}].expression"
        try:
            cel.compile_expression(condition.get("expression", ""), _MATCH_VARIABLES)
        except cel.CelError as error:
            errors.append(invalid_value(at, condition.get("expression", ""), f"compilation failed: {error}"))
    return errors


def reject_if_invalid(configuration: Json, errors: Callable[[Json], list[FieldError]] = validate) -> None:
    if found := errors(configuration):
        raise invalid(WEBHOOKS[0], "ValidatingWebhookConfiguration", configuration["metadata"].get("name", ""), found)
