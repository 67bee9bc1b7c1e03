"""Decide writes by the stored ValidatingAdmissionPolicies and their bindings, before any webhook is asked.

Texts and order of checks follow apiserver's admission/plugin/policy/validating (dispatcher, validator). Left out:
audit annotations, type checking, the rights on params that the creator of a policy or binding needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sandbox import cel
from sandbox.admission import (
    Attributes,
    Call,
    WebhookRule,
    compile_rules,
    match_rules,
    namespace_matches,
    object_matches,
    variables_of,
)
from sandbox.kinds import BINDINGS, POLICIES, Kinds
from sandbox.selectors import Matcher, compile_selector
from sandbox.status import ApiError, FieldError, forbidden, invalid, invalid_value, required, unsupported
from sandbox.storage import Item, Store

Json = dict[str, Any]

_VARIABLES = ("object", "oldObject", "request", "authorizer", "namespaceObject", "params", "variables")
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


@dataclass(frozen=True)
class _Match:
    """The part of the writes that a policy or a binding is for."""

    rules: tuple[WebhookRule, ...]
    excluded: tuple[WebhookRule, ...]
    equivalent: bool
    namespaces: Matcher | None
    objects: Matcher | None

    def concerns(self, attributes: Attributes, store: Store, kinds: Kinds) -> bool:
        if self.rules and match_rules(self.rules, attributes, kinds, equivalent=self.equivalent) is None:
            return False
        if match_rules(self.excluded, attributes, kinds, equivalent=self.equivalent) is not None:
            return False
        if self.namespaces is not None and not namespace_matches(self.namespaces, attributes, store):
            return False
        return self.objects is None or object_matches(self.objects, attributes)


@dataclass(frozen=True)
class _Validation:
    expression: cel.Program
    message: str
    words: cel.Program | None
    reason: str


@dataclass(frozen=True)
class _Policy:
    name: str
    match: _Match
    fail_open: bool
    param_kind: Json | None
    variables: tuple[tuple[str, cel.Program], ...]
    conditions: tuple[cel.Program, ...]
    validations: tuple[_Validation, ...]


class Policies:
    """Apply the policies that the store has at the moment of each write."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._compiled: dict[str, tuple[int, _Policy]] = {}

    def review(self, call: Call, attributes: Attributes) -> None:
        """Return if every policy allows the write; raise the first refusal otherwise."""
        bindings = self._store.items(BINDINGS)
        if not bindings or attributes.resource.store in (POLICIES, BINDINGS):
            return
        stored = {item.obj["metadata"]["name"]: item for item in self._store.items(POLICIES)}
        for item in bindings:
            binding = item.obj
            found = stored.get(binding["spec"].get("policyName"))
            if found is None:
                continue
            policy = self._policy(found)
            applies = _match(binding["spec"].get("matchResources") or {}).concerns(attributes, self._store, self._kinds)
            if applies and policy.match.concerns(attributes, self._store, self._kinds):
                self._apply(policy, binding, call, attributes)

    def _policy(self, item: Item) -> _Policy:
        name = item.obj["metadata"]["name"]
        version, compiled = self._compiled.get(name, (0, None))
        if compiled is None or version != item.version:
            compiled = _compile(item.obj)
            self._compiled[name] = item.version, compiled
        return compiled

    def _apply(self, policy: _Policy, binding: Json, call: Call, attributes: Attributes) -> None:
        for message, reason in self._violations(policy, binding, call, attributes):
            named = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding['metadata']['name']}'"
            actions = binding["spec"].get("validationActions") or ()
            if "Warn" in actions:
                call.warn(f"Validation failed for {named}: {message}")
            if "Deny" in actions:
                resource = attributes.resource
                denied = forbidden(
                    resource.group, resource.plural, attributes.name, f"{named} denied request: {message}"
                )
                raise ApiError(_CODES[reason], reason, denied.message, denied.details)

    def _violations(
        self, policy: _Policy, binding: Json, call: Call, attributes: Attributes
    ) -> Iterator[tuple[str, str]]:
        """Yield the message and the reason of each validation that fails, for each param object."""
        for params in self._params(policy, binding, attributes):
            if isinstance(params, str):
                if not policy.fail_open:
                    yield f"failed to configure binding: {params}", "Invalid"
                continue
            values: Json = {**variables_of(attributes, call, self._store), "params": params, "variables": {}}
            try:
                if not all(condition.true(values) for condition in policy.conditions):
                    continue
            except cel.CelError as error:
                if not policy.fail_open:
                    yield str(error), "Invalid"
                continue
            for name, program in policy.variables:
                try:
                    values["variables"][name] = program.evaluate(values)
                except cel.CelError:
                    # Only an expression that uses the variable fails.
                    continue
            for validation in policy.validations:
                try:
                    if validation.expression.true(values):
                        continue
                except cel.CelError as error:
                    if not policy.fail_open:
                        text = validation.expression.text
                        yield f"expression '{text}' resulted in error: {error}", "Invalid"
                    continue
                yield _message(validation, values), validation.reason

    def _params(self, policy: _Policy, binding: Json, attributes: Attributes) -> Iterator[Json | str | None]:
        """Yield the objects to apply the policy with, one None where it takes none, or text of what is missing."""
        reference = binding["spec"].get("paramRef")
        if policy.param_kind is None or reference is None:
            yield None
            return
        resource = self._kinds.by_kind(policy.param_kind["apiVersion"], policy.param_kind["kind"])
        if resource is None:
            yield f"failed to find resource referenced by paramKind: '{policy.param_kind['kind']}'"
            return
        if reference.get("namespace") and not resource.namespaced:
            yield "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
            return
        namespace = (reference.get("namespace") or attributes.namespace) if resource.namespaced else ""
        if name := reference.get("name"):
            item = self._store.get(resource.store, namespace, name)
            found = [item] if item is not None else []
        else:
            matcher = compile_selector(reference.get("selector"))
            found = [
                item
                for item in self._store.items(resource.store)
                if item.obj["metadata"].get("namespace", "") == namespace
                and (matcher is None or matcher(item.obj["metadata"].get("labels") or {}))
            ]
        if not found and reference.get("parameterNotFoundAction") == "Deny":
            yield "no params found for policy binding with `Deny` parameterNotFoundAction"
        for item in found:
            yield item.obj


def _message(validation: _Validation, values: Json) -> str:
    if validation.words is not None:
        try:
            words = validation.words.evaluate(values)
        except cel.CelError:
            words = ""
        if isinstance(words, str) and words.strip() and "\n" not in words:
            return words.strip()
    return validation.message or f"failed expression: {validation.expression.text}"


def _match(spec: Json) -> _Match:
    return _Match(
        compile_rules(spec.get("resourceRules") or ()),
        compile_rules(spec.get("excludeResourceRules") or ()),
        spec.get("matchPolicy", "Equivalent") == "Equivalent",
        compile_selector(spec.get("namespaceSelector")),
        compile_selector(spec.get("objectSelector")),
    )


def _compile(policy: Json) -> _Policy:
    spec = policy["spec"]
    return _Policy(
        policy["metadata"]["name"],
        _match(spec.get("matchConstraints") or {}),
        spec.get("failurePolicy", "Fail") == "Ignore",
        spec.get("paramKind"),
        tuple((each["name"], _program(each["expression"])) for each in spec.get("variables") or ()),
        tuple(_program(each["expression"]) for each in spec.get("matchConditions") or ()),
        tuple(
            _Validation(
                _program(each["expression"]),
                each.get("message", ""),
                _program(each["messageExpression"]) if each.get("messageExpression") else None,
                each.get("reason") or "Invalid",
            )
            for each in spec.get("validations") or ()
        ),
    )


def _program(text: str) -> cel.Program:
    return cel.compile_expression(text, _VARIABLES)


def fill_defaults(policy: Json) -> None:
    """Fill in the defaults of a policy, in place; copy what changes first."""
    spec = policy["spec"] = dict(policy.get("spec") or {})
    spec.setdefault("failurePolicy", "Fail")
    match = spec["matchConstraints"] = dict(spec.get("matchConstraints") or {})
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    match["resourceRules"] = [{"scope": "*", **rule} for rule in match.get("resourceRules") or ()]


def reject_if_invalid(policy: Json) -> None:
    """Raise 422 for a policy that cannot be applied."""
    errors = list(_errors(policy["spec"]))
    if errors:
        raise invalid(POLICIES[0], "ValidatingAdmissionPolicy", policy["metadata"].get("name", ""), errors)


def reject_if_binding_is_invalid(binding: Json) -> None:
    """Raise 422 for a binding that cannot be applied."""
    spec = binding.get("spec") or {}
    errors = [required(f"spec.{name}") for name in ("policyName", "validationActions") if not spec.get(name)]
    errors += [
        unsupported("spec.validationActions", action, ("Audit", "Deny", "Warn"))
        for action in spec.get("validationActions") or ()
        if action not in ("Audit", "Deny", "Warn")
    ]
    reference = spec.get("paramRef")
    if reference is not None and reference.get("parameterNotFoundAction") not in ("Allow", "Deny"):
        errors.append(required("spec.paramRef.parameterNotFoundAction"))
    if errors:
        name = binding["metadata"].get("name", "")
        raise invalid(BINDINGS[0], "ValidatingAdmissionPolicyBinding", name, errors)


def _errors(spec: Json) -> Iterator[FieldError]:
    if not spec["matchConstraints"]["resourceRules"]:
        yield required("spec.matchConstraints.resourceRules")
    if not spec.get("validations"):
        yield required("spec.validations")
    if spec["failurePolicy"] not in ("Fail", "Ignore"):
        yield unsupported("spec.failurePolicy", spec["failurePolicy"], ("Fail", "Ignore"))
    for part, key in (
        ("variables", "expression"),
        ("matchConditions", "expression"),
        ("validations", "expression"),
        ("validations", "messageExpression"),
    ):
        for index, each in enumerate(spec.get(part) or ()):
            path, text = f"spec.{part}[{index}].{key}", each.get(key)
            if text is None and key == "expression":
                yield required(path)
            elif text is not None:
                try:
                    _program(text)
                except cel.CelError as error:
                    yield invalid_value(path, text, f"compilation failed: {error}")
            reason = each.get("reason")
            if part == "validations" and key == "expression" and reason is not None and reason not in _CODES:
                yield unsupported(f"spec.{part}[{index}].reason", reason, tuple(_CODES))
