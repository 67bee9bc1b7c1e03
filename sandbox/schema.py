"""Apply a custom resource's schema: defaults, pruning, validation and CEL rules.

It decides which fields stay, which are filled in, and the errors, in the words of apiextensions-apiserver. It does not
know requests or storage. Values that an update leaves as they were are not validated again (KEP-4008, ratcheting).
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from sandbox import cel
from sandbox.clock import parse_time
from sandbox.status import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    too_many,
    type_invalid,
    unsupported,
)

Json = dict[str, Any]
Errors = list[FieldError]
Check = Callable[[Any, str, Errors], None]  # a value, its field; adds to the errors

_ABSENT: Any = object()
_TYPE_NAMES = {"object", "array", "string", "integer", "number", "boolean"}
_SUPPORTED = frozenset(
    (
        "type", "properties", "additionalProperties", "items", "required", "enum", "pattern", "minLength",
        "maxLength", "minimum", "maximum", "maxItems", "minProperties", "maxProperties", "default",
        "description", "format", "anyOf", "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type", "x-kubernetes-validations",
    )
)  # fmt: skip


class SchemaError(ValueError):
    """The schema itself is malformed; `errors` say where."""

    def __init__(self, errors: Errors) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Rule:
    """One x-kubernetes-validations entry. A `transition` rule names oldSelf and holds only for updates."""

    program: cel.Program
    message: str
    message_expression: cel.Program | None
    field_path: str
    reason: str
    transition: bool
    optional_old: bool


@dataclass(slots=True)
class Node:
    """A schema and those below it."""

    type: str
    properties: dict[str, Node]
    additional: Node | None
    items: Node | None
    required: tuple[str, ...]
    checks: tuple[Check, ...]
    rules: tuple[Rule, ...]
    int_or_string: bool
    preserve: bool
    default: Any
    list_type: str
    map_keys: tuple[str, ...]
    deep_defaults: bool
    deep_rules: bool


def compile_schema(schema: Json, path: str) -> Node:
    """Compile a definition's schema, or return the compiled one; raise SchemaError."""
    return _compiled(orjson.dumps(schema), path)


@lru_cache(maxsize=256)
def _compiled(text: bytes, path: str) -> Node:
    errors: Errors = []
    node = _compile(orjson.loads(text), path, errors)
    if errors:
        raise SchemaError(errors)
    return node


def _compile(schema: Json, path: str, errors: Errors, *, bare: bool = False) -> Node:
    """Compile a schema and those below it. A `bare` one stands inside anyOf: it validates values and shapes nothing."""
    errors.extend(
        forbidden_field(f"{path}.{name}", "not supported by the sandbox") for name in schema if name not in _SUPPORTED
    )
    kind = schema.get("type", "")
    int_or_string = schema.get("x-kubernetes-int-or-string") is True
    preserve = schema.get("x-kubernetes-preserve-unknown-fields") is True
    if kind and kind not in _TYPE_NAMES:
        errors.append(unsupported(f"{path}.type", kind, sorted(_TYPE_NAMES)))
    if not kind and not bare and not int_or_string and not preserve:
        errors.append(required(f"{path}.type", "must not be empty for specified object fields"))
    properties = {
        name: _compile(child, f"{path}.properties[{name}]", errors, bare=bare)
        for name, child in (schema.get("properties") or {}).items()
    }
    extra = schema.get("additionalProperties")
    if extra is not None and properties and not bare:
        errors.append(
            forbidden_field(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    additional = _compile(extra, f"{path}.additionalProperties", errors, bare=bare) if isinstance(extra, dict) else None
    item_schema = schema.get("items")
    if kind == "array" and not isinstance(item_schema, dict) and not bare:
        errors.append(required(f"{path}.items", "must be specified"))
    items = _compile(item_schema, f"{path}.items", errors, bare=bare) if isinstance(item_schema, dict) else None
    rules = tuple(
        rule
        for index, text in enumerate(schema.get("x-kubernetes-validations") or ())
        if (rule := _compile_rule(text, f"{path}.x-kubernetes-validations[{index}]", errors)) is not None
    )
    children = [*properties.values(), *([additional] if additional else []), *([items] if items else [])]
    return Node(
        type=kind,
        properties=properties,
        additional=additional,
        items=items,
        required=tuple(schema.get("required") or ()),
        checks=(
            *_compile_checks(schema, path, errors),
            *(_compile_any_of(schema, path, errors) if schema.get("anyOf") else ()),
        ),
        rules=rules,
        int_or_string=int_or_string,
        preserve=preserve or extra is True,
        default=schema.get("default", _ABSENT),
        list_type=schema.get("x-kubernetes-list-type", "atomic"),
        map_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        deep_defaults="default" in schema or any(child.deep_defaults for child in children),
        deep_rules=bool(rules) or any(child.deep_rules for child in children),
    )


_REASONS = {"FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"}


def _compile_rule(rule: Json, path: str, errors: Errors) -> Rule | None:
    text = rule.get("rule", "")
    optional_old = rule.get("optionalOldSelf") is True
    optional = "oldSelf" if optional_old else ""
    try:
        program = cel.compile_expression(text, ("self", "oldSelf"), optional=optional)
    except cel.CelError as error:
        errors.append(invalid_value(f"{path}.rule", text, f"compilation failed: {error}"))
        return None
    message_expression = None
    if source := rule.get("messageExpression"):
        try:
            message_expression = cel.compile_expression(source, ("self", "oldSelf"), optional=optional)
        except cel.CelError as error:
            errors.append(
                invalid_value(f"{path}.messageExpression", source, f"messageExpression compilation failed: {error}")
            )
    if rule.get("reason") and rule["reason"] not in _REASONS:
        errors.append(unsupported(f"{path}.reason", rule["reason"], sorted(_REASONS)))
    return Rule(
        program=program,
        message=(rule.get("message") or "").strip(),
        message_expression=message_expression,
        field_path=rule.get("fieldPath") or "",
        reason=rule.get("reason") or "FieldValueInvalid",
        transition="oldSelf" in program.names,
        optional_old=optional_old,
    )


def _compile_checks(schema: Json, path: str, errors: Errors) -> list[Check]:
    """Return the value validations of one schema, each a function that adds an error."""
    checks: list[Check] = []
    for name, make in _CHECKS.items():
        if name in schema:
            try:
                checks.append(make(schema[name]))
            except cel.CelError as error:
                errors.append(invalid_value(f"{path}.{name}", schema[name], str(error)))
    if form := _FORMATS.get(schema.get("format", "")):
        checks.append(form)
    return checks


def _number(test: Callable[[Any, Any], bool], words: str) -> Callable[[Any], Check]:
    def make(bound: Any) -> Check:
        def validate(value: Any, field: str, found: Errors) -> None:
            if _is_number(value) and not test(value, bound):
                found.append(invalid_value(field, value, f"{field} in body should be {words} {bound}"))

        return validate

    return make


def _enum(allowed: list[Any]) -> Check:
    def validate(value: Any, field: str, found: Errors) -> None:
        if not any(cel.equal(value, item) for item in allowed):
            found.append(unsupported(field, value, allowed))

    return validate


def _pattern(text: str) -> Check:
    cel.search(text, "")  # raises CelError for a malformed pattern

    def validate(value: Any, field: str, found: Errors) -> None:
        if isinstance(value, str) and not cel.search(text, value):
            found.append(invalid_value(field, value, f"{field} in body should match '{text}'"))

    return validate


def _shortest(least: int) -> Check:
    def validate(value: Any, field: str, found: Errors) -> None:
        if isinstance(value, str) and len(value) < least:
            found.append(invalid_value(field, value, f"{field} in body should be at least {least} chars long"))

    return validate


def _longest(most: int) -> Check:
    def validate(value: Any, field: str, found: Errors) -> None:
        if isinstance(value, str) and len(value) > most:
            found.append(too_long(field, most))

    return validate


def _fewest_properties(least: int) -> Check:
    def validate(value: Any, field: str, found: Errors) -> None:
        if isinstance(value, dict) and len(value) < least:
            text = f"{field} in body should have at least {least} properties"
            found.append(invalid_value(field, len(value), text))

    return validate


def _most(of: type[dict] | type[list]) -> Callable[[Any], Check]:
    def make(bound: int) -> Check:
        def validate(value: Any, field: str, found: Errors) -> None:
            if isinstance(value, of) and len(value) > bound:
                found.append(too_many(field, len(value), bound))

        return validate

    return make


#: The keywords that check a value. Texts are those of go-openapi and kube-openapi.
_CHECKS: dict[str, Callable[[Any], Check]] = {
    "minimum": _number(operator.ge, "greater than or equal to"),
    "maximum": _number(operator.le, "less than or equal to"),
    "enum": _enum,
    "pattern": _pattern,
    "minLength": _shortest,
    "maxLength": _longest,
    "maxItems": _most(list),
    "minProperties": _fewest_properties,
    "maxProperties": _most(dict),
}


def _int_format(bits: int) -> Check:
    def validate(value: Any, field: str, found: Errors) -> None:
        if isinstance(value, int) and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            found.append(invalid_value(field, value, f"{field} in body must be of type int{bits}: {value}"))

    return validate


def _date_time(value: Any, field: str, found: Errors) -> None:
    if not isinstance(value, str):
        return
    try:
        if parse_time(value).tzinfo is None:
            raise ValueError
    except ValueError:
        found.append(type_invalid(field, value, f'{field} in body must be of type date-time: "{value}"'))


_FORMATS: dict[str, Check] = {
    "int32": _int_format(32),
    "int64": _int_format(64),
    "date-time": _date_time,
}


def _compile_any_of(schema: Json, path: str, errors: Errors) -> list[Check]:
    parts = [_compile(part, f"{path}.anyOf[{index}]", errors, bare=True) for index, part in enumerate(schema["anyOf"])]

    def fails(node: Node, value: Any, field: str) -> bool:
        found: Errors = []
        _validate(node, value, _ABSENT, field, found)
        return bool(found)

    def validate(value: Any, field: str, found: Errors) -> None:
        if all(fails(part, value, field) for part in parts):
            text = f"{field} in body must validate at least one schema (anyOf)"
            found.append(invalid_value(field, _shown(value), text))

    return [validate]


def _shown(value: Any) -> Any:
    """Return the type's name, which errors of type and anyOf show in place of the value."""
    return _type_of(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in (
        (dict, "object"),
        (list, "array"),
        (str, "string"),
        (int, "integer"),
        (float, "number"),
    ):
        if isinstance(value, kind):
            return name
    return "null"


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_TYPE_META = frozenset({"apiVersion", "kind", "metadata"})


def prune(node: Node, obj: Json) -> list[str]:
    """Remove, in place, the fields of a whole object that the schema does not have; return their paths."""
    removed: list[str] = []
    _prune(node, obj, "", removed, root=True)
    return removed


def _prune(node: Node, value: Any, path: str, removed: list[str], *, root: bool = False) -> None:
    if isinstance(value, dict):
        kept = _TYPE_META if root else frozenset()
        for name in list(value):
            child = node.properties.get(name, node.additional)
            if name in kept:
                continue
            if child is not None:
                _prune(child, value[name], _at(path, name), removed)
            elif not node.preserve:
                del value[name]
                removed.append(_at(path, name))
    elif isinstance(value, list) and node.items is not None:
        for index, item in enumerate(value):
            _prune(node.items, item, f"{path}[{index}]", removed)


def fill_defaults(node: Node, value: Any) -> None:
    """Drop nulls where they are not allowed, and fill in defaults, in place."""
    if isinstance(value, dict):
        for name in [name for name, item in value.items() if item is None]:
            child = node.properties.get(name, node.additional)
            if child is not None:
                del value[name]
        if node.deep_defaults:
            for name, child in node.properties.items():
                if child.default is not _ABSENT and name not in value:
                    value[name] = copy.deepcopy(child.default)
        for name, item in value.items():
            if isinstance(item, (dict, list)):
                child = node.properties.get(name, node.additional)
                if child is not None:
                    fill_defaults(child, item)
    elif isinstance(value, list) and node.items is not None:
        for item in value:
            if isinstance(item, (dict, list)):
                fill_defaults(node.items, item)


def validate(node: Node, obj: Json, old: Json | None = None) -> Errors:
    """Return the errors of a whole object; with `old`, only those of changed parts."""
    errors: Errors = []
    _validate(node, obj, _ABSENT if old is None else old, "", errors, root=True)
    if node.deep_rules:
        if errors:
            errors.append(
                invalid_value(
                    "<nil>",
                    None,
                    "some validation rules were not checked because the object was invalid; correct the existing "
                    "errors to complete validation",
                )
            )
        else:
            _validate_rules(node, obj, _ABSENT if old is None else old, "", errors)
    return errors


def _same(value: Any, old: Any) -> bool:
    return old is not _ABSENT and (value is old or cel.equal(value, old))


def _validate(node: Node, value: Any, old: Any, path: str, errors: Errors, *, root: bool = False) -> None:
    if _same(value, old):
        return
    if not _type_fits(node, value):
        wanted = "integer,string" if node.int_or_string else node.type
        errors.append(
            type_invalid(path, _shown(value), f'{path} in body must be of type {wanted}: "{_type_of(value)}"')
        )
        return
    for check in node.checks:
        check(value, path, errors)
    if isinstance(value, dict):
        for name, item in value.items():
            if root and name in _TYPE_META and name != "metadata":
                continue
            child = node.properties.get(name, node.additional)
            if child is not None:
                before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                _validate(child, item, before, _at(path, name), errors)
        errors.extend(required(_at(path, name)) for name in node.required if name not in value)
    elif isinstance(value, list):
        _validate_list(node, value, old, path, errors)


def _type_fits(node: Node, value: Any) -> bool:
    if node.int_or_string:
        return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    match node.type:
        case "":
            return True
        case "number":
            return _is_number(value)
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case wanted:
            return _type_of(value) == wanted


def _validate_list(node: Node, value: list[Any], old: Any, path: str, errors: Errors) -> None:
    if node.list_type == "set":
        for index, item in enumerate(value):
            if any(cel.equal(item, other) for other in value[:index]):
                errors.append(duplicate(f"{path}[{index}]", item))
    earlier: dict[tuple[str, ...], Any] = {}
    if node.list_type == "map":
        seen: set[tuple[str, ...]] = set()
        for index, item in enumerate(value):
            key = _map_key(node, item)
            if key in seen:
                errors.append(duplicate(f"{path}[{index}]", {name: item.get(name) for name in node.map_keys}))
            seen.add(key)
        if isinstance(old, list):
            earlier = {_map_key(node, item): item for item in old}
    if node.items is not None:
        for index, item in enumerate(value):
            before = earlier.get(_map_key(node, item), _ABSENT) if earlier else _ABSENT
            _validate(node.items, item, before, f"{path}[{index}]", errors)


def _map_key(node: Node, item: Any) -> tuple[str, ...]:
    if not isinstance(item, dict):
        return (str(item),)
    return tuple(repr(item.get(name)) for name in node.map_keys)


def _validate_rules(node: Node, value: Any, old: Any, path: str, errors: Errors) -> None:
    """Evaluate the CEL rules; skip unchanged parts, except for rules with oldSelf."""
    if not node.deep_rules or value is None:
        return
    same = _same(value, old)
    for rule in node.rules:
        if rule.transition and old is _ABSENT and not rule.optional_old:
            continue
        if same and not rule.transition:
            continue
        _judge(rule, node, value, old, path, errors)
    if isinstance(value, dict):
        for name, item in value.items():
            child = node.properties.get(name, node.additional)
            if child is not None and child.deep_rules:
                before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                _validate_rules(child, item, before, _at(path, name), errors)
    elif isinstance(value, list) and node.items is not None and node.items.deep_rules:
        earlier = {_map_key(node, item): item for item in old} if isinstance(old, list) else {}
        for index, item in enumerate(value):
            before = earlier.get(_map_key(node, item), _ABSENT) if node.list_type == "map" else _ABSENT
            _validate_rules(node.items, item, before, f"{path}[{index}]", errors)


def _judge(rule: Rule, node: Node, value: Any, old: Any, path: str, errors: Errors) -> None:
    names: dict[str, Any] = {"self": value}
    if old is not _ABSENT:
        names["oldSelf"] = old
    shown = node.type or ("object" if isinstance(value, dict) else "string")
    try:
        if rule.program.true(names):
            return
    except cel.CelError as error:
        text = f"rule evaluation error: {error}: evaluating rule: {_rule_name(rule)}"
        errors.append(FieldError("FieldValueInvalid", path or "<nil>", f"Invalid value: {text}"))
        return
    message = _rule_message(rule, names)
    where = (path + rule.field_path if path else rule.field_path.removeprefix(".")) or "<nil>"
    match rule.reason:
        case "FieldValueForbidden":
            errors.append(forbidden_field(where, message))
        case "FieldValueRequired":
            errors.append(required(where, message))
        case "FieldValueDuplicate":
            errors.append(duplicate(where, shown))
        case _:
            errors.append(FieldError("FieldValueInvalid", where, f"Invalid value: {message}"))


def _rule_name(rule: Rule) -> str:
    return rule.message or re.sub(r"\s+", " ", rule.program.text).strip()


def _rule_message(rule: Rule, names: Json) -> str:
    if rule.message_expression is not None:
        try:
            text = rule.message_expression.evaluate(names)
        except cel.CelError:
            text = None
        if isinstance(text, str) and text.strip() and "\n" not in text and len(text) <= 5 * 1024:
            return text.strip()
    return rule.message or f"failed rule: {rule.program.text.strip()}"
