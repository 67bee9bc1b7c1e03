"""Word refusals as the API server does: code, reason, message and details of a v1 Status.

The texts and codes follow apimachinery's pkg/api/errors and pkg/util/validation/field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """A refusal; `body` is the Status object."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        seconds = self.details.get("retryAfterSeconds") if isinstance(self.details, dict) else None
        return {"Retry-After": str(seconds)} if seconds else {}

    @property
    def body(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


@dataclass(frozen=True)
class FieldError:
    """One error of one field; `cause` is Kubernetes' name of its kind."""

    cause: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def _value(value: object) -> str:
    """Return the value as Go prints it in a field error: strings quoted, objects as JSON."""
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def invalid_value(field: str, value: object, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_value(value)}: {detail}")


def type_invalid(field: str, value: object, detail: str) -> FieldError:
    return FieldError("FieldValueTypeInvalid", field, f"Invalid value: {_value(value)}: {detail}")


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, "Required value" + (f": {detail}" if detail else ""))


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def unsupported(field: str, value: object, allowed: Sequence[object]) -> FieldError:
    names = ", ".join(_value(item) for item in allowed)
    return FieldError("FieldValueNotSupported", field, f"Unsupported value: {_value(value)}: supported values: {names}")


def duplicate(field: str, value: object) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {_value(value)}")


def too_long(field: str, most: int) -> FieldError:
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {most} bytes")


def too_many(field: str, count: int, most: int) -> FieldError:
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {most} items")


def _qualified(group: str, name: str) -> str:
    return f"{name}.{group}" if group else name


def _details(group: str, kind: str, name: str = "") -> Json:
    details: Json = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def not_found(group: str, plural: str, name: str) -> ApiError:
    text = f'{_qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", text, _details(group, plural, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    text = f'{_qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> ApiError:
    text = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str, causes: list[Json] | None = None) -> ApiError:
    named = f'{_qualified(group, plural)} "{name}"' if name else _qualified(group, plural)
    details = _details(group, plural, name)
    if causes:
        details["causes"] = causes
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}", details)


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """Return 422 with every error as a cause; the message has equal texts once, as Go's error aggregates."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(group, kind, name)
    details["causes"] = [{"reason": error.cause, "message": error.text, "field": error.field} for error in errors]
    return ApiError(422, "Invalid", f'{_qualified(group, kind)} "{name}" is invalid: {joined}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def internal_error(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def timeout(message: str, retry_after: int = 0) -> ApiError:
    details: Json = {"retryAfterSeconds": retry_after} if retry_after else {}
    return ApiError(504, "Timeout", f"Timeout: {message}", details)


def version_too_large(wanted: int, current: int) -> ApiError:
    error = timeout(f"Too large resource version: {wanted}, current: {current}", 1)
    error.details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return error


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


#: The media types of server-side apply.
_APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "NotImplemented", f"the sandbox does not have {what}", {})


def unsupported_media_type(sent: str, accepted: Sequence[str]) -> ApiError:
    why = "the body of the request was in an unknown format"
    if sent in _APPLY:
        why = "the sandbox does not have server-side apply"
    return ApiError(415, "UnsupportedMediaType", f"{why} - accepted media types include: {', '.join(accepted)}")


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    return ApiError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def too_large(message: str) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: {message}")
