"""AdmissionReview v1 on the wire.

This file alone decides what is read from a review and how an answer is spelled. It decides nothing about quota.

The texts of an answer go to terminals, and have names and values from the review. So each is one printable line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from bizrq.quota.verdict import Denied
from bizrq.units.text import is_segment, one_line

#: A request body may have this many bytes: of one object as large as etcd takes by default, 1.5 MiB, in which a review
#: has six bytes for each character like "<", and each short field has its name.
MAX_BODY = 13 * 1024 * 1024


class MalformedReview(ValueError):
    """A body that is no AdmissionReview; `uid` is "" where not even that could be read."""

    def __init__(self, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.uid = uid


#: A DNS subdomain has 253 characters at most, and no part of a type has more. Messages repeat them.
_Part = Annotated[str, msgspec.Meta(max_length=253)]


class GroupVersionKind(msgspec.Struct):
    group: _Part = ""
    version: _Part = ""
    kind: _Part = ""


class GroupVersionResource(msgspec.Struct):
    group: _Part = ""
    version: _Part = ""
    resource: _Part = ""


class UserInfo(msgspec.Struct):
    """The user of a request (authentication/v1 UserInfo)."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class Request(msgspec.Struct, rename="camel"):
    """One admission request; `object`, `old_object` and `options` as parsed JSON, None where there is none."""

    uid: str
    operation: str
    kind: GroupVersionKind
    resource: GroupVersionResource
    name: str = ""
    namespace: str = ""
    sub_resource: str = ""
    user_info: UserInfo | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = None
    options: dict[str, Any] | None = None

    @property
    def is_by_person(self) -> bool:
        """True for people, and for the service accounts of the namespace that they write to, which are theirs."""
        user = self.user_info or UserInfo()
        is_theirs = f"system:serviceaccounts:{self.namespace}" in (user.groups or ())
        return is_theirs or not user.username.startswith("system:")


class _Review(msgspec.Struct):
    request: Request


class _Uid(msgspec.Struct):
    uid: str = ""


class _UidReview(msgspec.Struct):
    request: _Uid = msgspec.field(default_factory=_Uid)


_decoder = msgspec.json.Decoder(_Review)
_uid_decoder = msgspec.json.Decoder(_UidReview)
_encoder = msgspec.json.Encoder()
#: Text that is no UTF-8 is found only where a string is made of it, and comes as an error of its own.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_HEAD = re.compile(rb'\s*\{[^{}]*"request"\s*:\s*\{\s*"uid"\s*:\s*"([-0-9A-Za-z]{1,64})"')
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


def decode(body: bytes) -> Request:
    """Return the request of a review; raises MalformedReview."""
    try:
        request = _decoder.decode(body)
    except _UNREADABLE as error:
        raise MalformedReview(f"not an AdmissionReview: {_line(error)}", _uid(body)) from None
    found = request.request
    if not found.uid:
        raise MalformedReview("not an AdmissionReview: request.uid is empty")
    if found.operation not in _OPERATIONS:
        raise MalformedReview(
            f"request.operation {found.operation[:80]!r} is none of {', '.join(sorted(_OPERATIONS))}", found.uid
        )
    for field, name in (("name", found.name), ("namespace", found.namespace)):
        if not is_segment(name):
            raise MalformedReview(f"request.{field} {name[:80]!r} is no name of an object", found.uid)
    return found


def uid_of(head: bytes) -> str:
    """Return the uid of a review of which only the beginning is known, "" where that does not have it.

    An API server writes it first in the request.
    """
    match = _HEAD.match(head)
    return match[1].decode() if match else ""


def _uid(body: bytes) -> str:
    try:
        return _uid_decoder.decode(body).request.uid
    except _UNREADABLE:
        return ""


def _line(error: Exception) -> str:
    return one_line(str(error))[:200]


def allowed(uid: str, warnings: Sequence[str] = (), annotations: Mapping[str, str] | None = None) -> bytes:
    """Return the permission. `annotations` are for the API server's audit log, by key."""
    response: dict[str, Any] = {"uid": uid, "allowed": True, **_audited(annotations)}
    if warnings:
        response["warnings"] = list(map(one_line, warnings))
    return _answer(response)


def denied(uid: str, verdict: Denied, annotations: Mapping[str, str] | None = None) -> bytes:
    """Return the refusal, with a code and a reason like the API server's own errors.

    `annotations` are for the API server's audit log, by key.
    """
    details: dict[str, Any] = {
        "causes": [
            {"reason": str(verdict.reason), "message": name, "field": name}
            for name in (one_line(violation.resource) for violation in verdict.violations)
        ]
    }
    message = one_line(verdict.message)
    status: dict[str, Any] = {"code": verdict.code, "message": message, "reason": _REASONS[verdict.code]}
    if verdict.code == 429:
        details["retryAfterSeconds"] = 1
    if details.get("causes") or "retryAfterSeconds" in details:
        status["details"] = {key: value for key, value in details.items() if value}
    return _answer({"uid": uid, "allowed": False, "status": status, **_audited(annotations)})


def malformed(uid: str, message: str) -> bytes:
    status = {"code": 400, "message": one_line(message), "reason": "BadRequest"}
    return _answer({"uid": uid, "allowed": False, "status": status})


def failed(uid: str, message: str) -> bytes:
    return _answer(
        {"uid": uid, "allowed": False, "status": {"code": 500, "message": one_line(message), "reason": "InternalError"}}
    )


def _audited(annotations: Mapping[str, str] | None) -> dict[str, Any]:
    return {"auditAnnotations": dict(annotations)} if annotations else {}


#: metav1.StatusReason by code (apimachinery `meta/v1/types.go`).
_REASONS = {403: "Forbidden", 409: "AlreadyExists", 422: "Invalid", 429: "TooManyRequests"}


def _answer(response: dict[str, Any]) -> bytes:
    return _encoder.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
