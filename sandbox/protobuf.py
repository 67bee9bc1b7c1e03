"""Decode the bodies that kubectl sends as protobuf: `kubectl create namespace`, `auth can-i` and a few others.

It knows the messages below, and of those only these fields. Any other field that is set is refused by name, never
dropped. Answers are always JSON. Field numbers are those of k8s.io/api's generated.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sandbox.clock import rfc3339
from sandbox.status import ApiError

Json = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# "number name type"; `type?` is a pointer in Go and so keeps its zero, `[type]` a list, `{type}` a map of it.
_TABLE = {
    "ObjectMeta": "1 name string, 2 generateName string, 3 namespace string, 4 selfLink string, 5 uid string, "
    "6 resourceVersion string, 7 generation int, 8 creationTimestamp Time, 9 deletionTimestamp Time, "
    "10 deletionGracePeriodSeconds int?, 11 labels {string}, 12 annotations {string}, "
    "14 finalizers [string]",
    "LabelSelector": "1 matchLabels {string}, 2 matchExpressions [LabelSelectorRequirement]",
    "LabelSelectorRequirement": "1 key string, 2 operator string, 3 values [string]",
    "Namespace": "1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status NamespaceStatus",
    "NamespaceSpec": "1 finalizers [string]",
    "NamespaceStatus": "1 phase string",
    "ConfigMap": "1 metadata ObjectMeta, 2 data {string}",
    "Deployment": "1 metadata ObjectMeta, 2 spec DeploymentSpec, 3 status Empty",
    "DeploymentSpec": "1 replicas int?, 2 selector LabelSelector, 3 template PodTemplateSpec, "
    "4 strategy DeploymentStrategy, 5 minReadySeconds int, 6 revisionHistoryLimit int?, 7 paused bool, "
    "9 progressDeadlineSeconds int?",
    "DeploymentStrategy": "1 type string, 2 rollingUpdate RollingUpdateDeployment",
    "RollingUpdateDeployment": "1 maxUnavailable IntOrString, 2 maxSurge IntOrString",
    "PodTemplateSpec": "1 metadata ObjectMeta, 2 spec PodSpec",
    "PodSpec": "2 containers [Container], 3 restartPolicy string, 4 terminationGracePeriodSeconds int?, "
    "5 activeDeadlineSeconds int?, 6 dnsPolicy string, 7 nodeSelector {string}, 8 serviceAccountName string, "
    "9 serviceAccount string, 10 nodeName string, 11 hostNetwork bool, 12 hostPID bool, 13 hostIPC bool, "
    "16 hostname string, 17 subdomain string, 19 schedulerName string, 20 initContainers [Container], "
    "24 priorityClassName string, 29 runtimeClassName string, 30 enableServiceLinks bool?, "
    "32 overhead {Quantity}",
    "Container": "1 name string, 2 image string, 3 command [string], 4 args [string], 5 workingDir string, "
    "6 ports [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements, 13 terminationMessagePath string, "
    "14 imagePullPolicy string, 16 stdin bool, 17 stdinOnce bool, 18 tty bool, 20 terminationMessagePolicy string",
    "ContainerPort": "1 name string, 2 hostPort int, 3 containerPort int, 4 protocol string, 5 hostIP string",
    "EnvVar": "1 name string, 2 value string",
    "ResourceRequirements": "1 limits {Quantity}, 2 requests {Quantity}",
    "Job": "1 metadata ObjectMeta, 2 spec JobSpec, 3 status Empty",
    "JobSpec": "1 parallelism int?, 2 completions int?, 3 activeDeadlineSeconds int?, 4 selector LabelSelector, "
    "5 manualSelector bool?, 6 template PodTemplateSpec, 7 backoffLimit int?, 8 ttlSecondsAfterFinished int?, "
    "9 completionMode string, 10 suspend bool?",
    "CronJob": "1 metadata ObjectMeta, 2 spec CronJobSpec, 3 status Empty",
    "CronJobSpec": "1 schedule string, 2 startingDeadlineSeconds int?, 3 concurrencyPolicy string, 4 suspend bool?, "
    "5 jobTemplate JobTemplateSpec, 6 successfulJobsHistoryLimit int?, 7 failedJobsHistoryLimit int?, "
    "8 timeZone string",
    "JobTemplateSpec": "1 metadata ObjectMeta, 2 spec JobSpec",
    "SelfSubjectAccessReview": "1 metadata ObjectMeta, 2 spec SelfSubjectAccessReviewSpec, 3 status Empty",
    "SelfSubjectAccessReviewSpec": "1 resourceAttributes ResourceAttributes",
    "ResourceAttributes": "1 namespace string, 2 verb string, 3 group string, 4 version string, 5 resource string, "
    "6 subresource string, 7 name string",
}


class _Field(NamedTuple):
    name: str
    type: str
    shape: str  # "" one, "[" a list, "{" a map
    pointer: bool


def _fields(text: str) -> dict[int, _Field]:
    fields: dict[int, _Field] = {}
    for entry in text.split(", "):
        number, name, kind = entry.split(" ")
        shape = kind[0] if kind[0] in "[{" else ""
        fields[int(number)] = _Field(name, kind.strip("[]{}?"), shape, kind.endswith("?"))
    return fields


_MESSAGES = {name: _fields(text) for name, text in _TABLE.items()}


def decode(content: bytes) -> Json:
    """Return the object in a body of Kubernetes' protobuf envelope; 415 for an unknown message."""
    if not content.startswith(_MAGIC):
        raise _unknown("a body without Kubernetes' protobuf envelope")
    api_version = kind = ""
    raw = b""
    for number, value in _parse(content[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            for part, text in _parse(value):
                if isinstance(text, bytes):
                    api_version, kind = (text.decode(), kind) if part == 1 else (api_version, text.decode())
        elif number == 2 and isinstance(value, bytes):
            raw = value
    if kind not in _MESSAGES:
        raise _unknown(f"{kind or 'an object without a kind'} as protobuf")
    return {"apiVersion": api_version, "kind": kind, **_message(kind, raw)}


def _unknown(what: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", f"the sandbox does not read {what}; send application/json")


def _parse(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values of one message: varints as int, everything else as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(content) or shift > 63:
                raise _unknown("a broken protobuf message")
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(content):
        tag = varint()
        match tag & 7:
            case 0:
                yield tag >> 3, varint()
            case 2:
                length = varint()
                if at + length > len(content):
                    raise _unknown("a broken protobuf message")
                at += length
                yield tag >> 3, content[at - length : at]
            case _:
                raise _unknown("a fixed-width protobuf field")


def _message(name: str, content: bytes) -> Json:
    result: Json = {}
    for number, value in _parse(content):
        field = _MESSAGES.get(name, {}).get(number)
        if field is None:
            if not value:  # Go writes a field that is no pointer even if it is empty
                continue
            if name == "Empty" or (isinstance(value, bytes) and not any(value_ for _, value_ in _parse_quietly(value))):
                continue
            raise _unknown(f"field {number} of {name} as protobuf")
        if field.shape == "{":
            key, item = _entry(field.type, value)
            result.setdefault(field.name, {})[key] = item
        elif field.shape == "[":
            result.setdefault(field.name, []).append(_value(field.type, value))
        else:
            item = _value(field.type, value)
            if item is not None and (item or field.pointer or field.type in _MESSAGES or field.type == "IntOrString"):
                result[field.name] = item
    return result


def _parse_quietly(content: bytes) -> list[tuple[int, int | bytes]]:
    try:
        return list(_parse(content))
    except ApiError:
        return [(0, content)]


def _entry(kind: str, value: int | bytes) -> tuple[str, Any]:
    key, item = "", _value(kind, b"")
    for number, part in _parse(value if isinstance(value, bytes) else b""):
        if number == 1 and isinstance(part, bytes):
            key = part.decode()
        elif number == 2:
            item = _value(kind, part)
    return key, item


def _value(kind: str, value: int | bytes) -> Any:
    if isinstance(value, int):
        if kind == "bool":
            return bool(value)
        return value - 2**64 if value >= 2**63 else value
    match kind:
        case "string":
            return value.decode()
        case "Time":
            seconds = next((part for number, part in _parse(value) if number == 1), None)
            return None if not isinstance(seconds, int) else rfc3339(datetime.fromtimestamp(seconds, UTC))
        case "Quantity":
            text = next((part for number, part in _parse(value) if number == 1), b"0")
            return text.decode() if isinstance(text, bytes) else "0"
        case "IntOrString":
            parts = dict(_parse(value))
            text = parts.get(3, b"")
            return text.decode() if parts.get(1) == 1 and isinstance(text, bytes) else parts.get(2, 0)
        case _:
            return _message(kind, value)
