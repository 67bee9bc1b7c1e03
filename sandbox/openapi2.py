"""OpenAPI v2 as kubectl up to 1.28 asks for it before it writes: in protobuf, of which it reads one thing.

It decides that the API server checks fields itself (`fieldValidation` of a PATCH), for every kind that is served, so
that kubectl does not try to. Definitions it has none: OpenAPI v3 has them. Field numbers are those of gnostic's
openapiv2/OpenAPIv2.proto. Pure.
"""

from __future__ import annotations

from sandbox.kinds import Kinds, Resource

#: What is asked for, and what it is called in the answer: an @ is no part of a media type.
ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
MEDIA_TYPE = ASKED.replace("@", ".")


def document(kinds: Kinds) -> bytes:
    info = _field(1, b"bizrq sandbox") + _field(2, b"v1")
    paths = b"".join(_field(2, _path(resource)) for resource in kinds)
    return _field(1, b"2.0") + _field(2, info) + _field(8, paths)


def _path(resource: Resource) -> bytes:
    """A path with a PATCH that says of which kind it is, and that it takes `fieldValidation`."""
    prefix = f"/apis/{resource.group}" if resource.group else "/api"
    path = f"{prefix}/{resource.version}/{resource.plural}/{{name}}"
    of = f"group: {resource.group!r}\nkind: {resource.kind}\nversion: {resource.version}\n"
    query = _field(2, b"query") + _field(4, b"fieldValidation")
    # ParametersItem > Parameter > NonBodyParameter > QueryParameterSubSchema
    parameter = _field(1, _field(2, _field(3, query)))
    extension = _field(1, b"x-kubernetes-group-version-kind") + _field(2, _field(2, of.encode()))
    patch = _field(8, parameter) + _field(13, extension)
    return _field(1, path.encode()) + _field(2, _field(8, patch))


def _field(number: int, content: bytes) -> bytes:
    """A string or a message, with its number and length before it."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
