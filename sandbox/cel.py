"""Evaluate CEL: the rules of CRDs and the match conditions of webhooks.

Google's own library (cel-expr-python, docs/decisions/0007) parses, checks and evaluates. This file declares to it what
Kubernetes adds to CEL and gives its errors the words of an API server. It does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from cel_expr_python import cel

from bizrq.units import quantity as quantities

_Type = cel.Type


class CelError(Exception):
    """Report a syntax error, an unknown name, or an evaluation that has no result."""


@dataclass(frozen=True)
class RequestAuthorizer:
    """The value of the variable `authorizer`: `answer` is the status of a review of this spec.

    `subject` is the user and the groups of the request, `resource` the attributes of what it writes.
    """

    subject: Mapping[str, Any]
    resource: Mapping[str, Any]
    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Program:
    """A compiled expression. `names` are those of its variables that it uses."""

    __slots__ = ("_expression", "_optional", "names", "text")

    def __init__(self, text: str, expression: cel.Expression, names: frozenset[str], optional: str) -> None:
        self.text = text
        self.names = names
        self._expression = expression
        self._optional = optional

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value as JSON has it, or raise CelError."""
        given = {name: values[name] for name in self.names if name in values}
        authorizer = given.get("authorizer")
        if isinstance(authorizer, RequestAuthorizer):
            _authorizer.set(authorizer)
            given["authorizer"] = {"requestResource": dict(authorizer.resource)}
        if self._optional in self.names:
            given[self._optional] = [given[self._optional]] if self._optional in given else []
        try:
            found = self._expression.eval(data=given)
            value = found.plain_value()
        except RuntimeError as error:
            raise CelError(_in_kubernetes_words(str(error))) from error
        if found.type() == _Type.ERROR:
            raise CelError(_in_kubernetes_words(str(value)))
        return value

    def true(self, values: Mapping[str, Any]) -> bool:
        """Return the value, which must be a bool."""
        value = self.evaluate(values)
        if not isinstance(value, bool):
            raise CelError("must evaluate to bool")
        return value


@lru_cache(maxsize=512)
def compile_expression(text: str, variables: tuple[str, ...], *, optional: str = "") -> Program:
    """Compile an expression over these variables; raise CelError for a syntax error or an undeclared name.

    In the expression the variable `optional` is optional.of(its value), or optional.none() where it has no value.
    """
    source = _with_plain_names(text)
    if optional:
        wrapped = f"size({optional}) == 0 ? optional.none() : optional.of({optional}[0])"
        source = f"cel.bind({optional}, {wrapped}, {source})"
    declared = frozenset(variables)
    expression = _compile(source, declared)
    names = frozenset(name for name in variables if not _compiles(source, declared - {name}))
    return Program(text, expression, names, optional)


def search(pattern: str, text: str) -> bool:
    """Return whether the text contains a match of the RE2 pattern; raise CelError for a malformed pattern."""
    return compile_expression("text.matches(pattern)", ("text", "pattern")).true({"text": text, "pattern": pattern})


def equal(left: Any, right: Any) -> bool:
    """Compare two JSON values: numbers across types, but a bool is never a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool) and left == right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    return left == right


def _compile(source: str, variables: frozenset[str]) -> cel.Expression:
    try:
        return _environment(variables).compile(source)
    except RuntimeError as error:
        raise CelError(_in_kubernetes_words(str(error))) from error


def _compiles(source: str, variables: frozenset[str]) -> bool:
    try:
        _compile(source, variables)
    except CelError:
        return False
    return True


@cache
def _environment(variables: frozenset[str]) -> cel.Env:
    """Declare the variables, the extensions that Kubernetes loads, and the functions that it adds.

    Two of the extensions are not Kubernetes': `bindings` for `optional` of compile_expression, `regex` for find().
    """
    lines = ["name: sandbox", "variables:"]
    lines += [f"- {{name: {name}, type_name: dyn}}" for name in sorted(variables)]
    lines += ["extensions:"]
    lines += [f"- name: {name}" for name in ("strings", "optional", "two-var-comprehensions", "bindings", "regex")]
    return cel.NewEnv(config=cel.NewEnvConfigFromYaml("\n".join(lines)), functions=_FUNCTIONS)


# Field names, as Kubernetes spells in CEL those that CEL could not read.

_ESCAPES = {"__dot__": ".", "__dash__": "-", "__slash__": "/", "__underscores__": "__"}
_RESERVED = re.compile(
    r"__(true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|"
    r"var|void|while)__"
)
_STRING_OR_FIELD = re.compile(
    r'''[rR]?"""(?s:.*?)"""|[rR]?\'\'\'(?s:.*?)\'\'\'|[rR]"[^"]*"|[rR]'[^']*'|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*\''''
    r"""|(?:(?<=\.)|(?<=\.\?))(?P<field>[A-Za-z_]\w*)"""
)


def _with_plain_names(text: str) -> str:
    """Quote the plain name of each field in Kubernetes' spelling (apiserver/schema/cel/model: Unescape)."""

    def plain(found: re.Match[str]) -> str:
        name = found["field"]
        if name is None or "__" not in name:
            return found[0]
        if reserved := _RESERVED.fullmatch(name):
            return f"`{reserved[1]}`"
        return f"`{re.sub('|'.join(_ESCAPES), lambda escape: _ESCAPES[escape[0]], name)}`"

    return _STRING_OR_FIELD.sub(plain, text)


# What Kubernetes' library adds (apiserver/pkg/cel/library), as far as our rules and tests use it. An opaque type cannot
# be made in Python, so a quantity is a list: [its nano-units in decimal].

_QUANTITY = _Type.List(_Type.STRING)


def _quantity(text: str) -> list[str]:
    return [str(quantities.parse(text))]


def _is_quantity(text: str) -> bool:
    try:
        quantities.parse(text)
    except quantities.QuantityError:
        return False
    return True


def _nano(quantity: list[str]) -> int:
    return int(quantity[0])


def _compare(left: list[str], right: list[str]) -> int:
    return (_nano(left) > _nano(right)) - (_nano(left) < _nano(right))


def _find(text: str, pattern: str) -> str:
    extract = compile_expression("regex.extract(text, '(' + pattern + ')').orValue('')", ("text", "pattern"))
    return extract.evaluate({"text": text, "pattern": pattern})


# A check of a right is a map of the attributes that it asks for, and so is its answer. Who asks is known apart.

_CHECK = _Type.Map(_Type.STRING, _Type.DYN)
_authorizer: ContextVar[RequestAuthorizer] = ContextVar("authorizer")


def _asking(attribute: str) -> Callable[[Mapping[str, Any], str], Mapping[str, Any]]:
    return lambda check, value: {**check, attribute: value}


def _checked(check: Mapping[str, Any], verb: str) -> Mapping[str, Any]:
    asked = _authorizer.get()
    attributes = {key: value for key, value in check.items() if key != "requestResource"}
    return dict(asked.answer({**asked.subject, "resourceAttributes": {**attributes, "verb": verb}}))


def _function(
    name: str, parameters: list[cel.Type], result: cel.Type, impl: Callable[..., Any], *, member: bool = False
) -> cel.FunctionDecl:
    overload = cel.Overload(f"sandbox_{name}", result, parameters, is_member=member, impl=impl)
    return cel.FunctionDecl(name, [overload])


_FUNCTIONS = [
    _function("quantity", [_Type.STRING], _QUANTITY, _quantity),
    _function("isQuantity", [_Type.STRING], _Type.BOOL, _is_quantity),
    _function("sign", [_QUANTITY], _Type.INT, lambda a: (_nano(a) > 0) - (_nano(a) < 0)),
    _function("compareTo", [_QUANTITY, _QUANTITY], _Type.INT, _compare, member=True),
    _function("isGreaterThan", [_QUANTITY, _QUANTITY], _Type.BOOL, lambda a, b: _compare(a, b) > 0, member=True),
    _function("isLessThan", [_QUANTITY, _QUANTITY], _Type.BOOL, lambda a, b: _compare(a, b) < 0, member=True),
    *(
        _function(name, [_CHECK, _Type.STRING], _CHECK, _asking(name), member=True)
        for name in ("group", "resource", "subresource", "namespace", "name")
    ),
    _function("check", [_CHECK, _Type.STRING], _CHECK, _checked, member=True),
    _function("allowed", [_CHECK], _Type.BOOL, lambda decision: decision["allowed"], member=True),
    _function("reason", [_CHECK], _Type.STRING, lambda decision: decision.get("reason", ""), member=True),
    _function("find", [_Type.STRING, _Type.STRING], _Type.STRING, _find, member=True),
]


# The library's errors, in the words of cel-go.

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r'Key not found in map : "(.*)"'), r"no such key: \1"),
    (re.compile(r"Index error: index=(-?\d+) size=\d+"), r"index out of bounds: \1"),
    (re.compile(r"divide by zero"), "division by zero"),
    (re.compile(r"No matching overloads found.*", re.S), "no such overload"),
)


def _in_kubernetes_words(text: str) -> str:
    """Drop the status code around the library's message, and say it as cel-go does."""
    text = re.sub(r"\s*\[[A-Z_]+\]$", "", re.sub(r"^[A-Z_]+: (?!<input>)", "", text), count=1)
    for pattern, words in _WORDS:
        if found := pattern.fullmatch(text):
            return found.expand(words)
    return text
