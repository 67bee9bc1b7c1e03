"""The Common Expression Language, as far as CRD rules and match conditions use it.

cel-python gives the grammar and so decides what parses; this file decides what an expression means over plain JSON
values. Unknown names are refused when an expression is compiled, never guessed. It does no I/O and keeps nothing but
what it compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cmp_to_key, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import celpy
import lark
import re2

from bizrq.units import quantity as quantities

Env = Mapping[str, Any]
Code = Callable[[Env], Any]

_INT_LOW, _INT_HIGH = -(2**63), 2**63 - 1


class CelError(Exception):
    """A syntax error, an unknown name, or an evaluation that has no result."""


class Quantity:
    """A Kubernetes quantity inside an expression; nano-units."""

    __slots__ = ("nano",)

    def __init__(self, nano: int) -> None:
        self.nano = nano

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and other.nano == self.nano

    def __hash__(self) -> int:
        return hash(self.nano)


class Optional:
    """optional.of(x), or optional.none() where `present` is false."""

    __slots__ = ("present", "value")

    def __init__(self, present: bool, value: Any = None) -> None:
        self.present = present
        self.value = value


NONE = Optional(False)


class _Type:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Type) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


_TYPES = {
    name: _Type(name) for name in ("bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint")
}


@cache
def _parser() -> lark.Lark:
    """The library's grammar, with optional selection (`a.?b`, `a[?b]`) added and `x-1` read as a subtraction."""
    grammar = (Path(cast(str, celpy.__file__)).parent / "cel.lark").read_text()
    grammar = grammar.replace("/-?/ ", "")
    grammar = grammar.replace(
        "member         : member_dot |", "member         : member_optdot | member_optindex | member_dot |"
    ).replace(
        'member_dot     : member "." IDENT\n',
        'member_dot     : member "." IDENT\nmember_optdot  : member ".?" IDENT\n'
        'member_optindex : member "[" "?" expr "]"\n',
    )
    return lark.Lark(
        grammar,
        parser="lalr",
        start="expr",
        g_regex_flags=re.M,
        lexer_callbacks={"IDENT": _literal_names},
        maybe_placeholders=False,
        priority="invert",
    )


def _literal_names(token: lark.Token) -> lark.Token:
    kinds = {"true": "BOOL_LIT", "false": "BOOL_LIT", "null": "NULL_LIT"}
    return lark.Token(kinds.get(token.value, token.type), token.value)


class Program:
    """A compiled expression: `evaluate({"self": …})` gives its value or raises CelError."""

    __slots__ = ("_code", "names", "text")

    def __init__(self, text: str, code: Code, names: frozenset[str]) -> None:
        self.text = text
        self._code = code
        self.names = names

    def evaluate(self, values: Env) -> Any:
        try:
            return self._code(values)
        except RecursionError:
            raise CelError("expression is nested too deeply") from None

    def true(self, values: Env) -> bool:
        """The value, which must be a bool."""
        value = self.evaluate(values)
        if not isinstance(value, bool):
            raise CelError("must evaluate to bool")
        return value


@lru_cache(maxsize=512)
def compile_expression(text: str, variables: tuple[str, ...]) -> Program:
    """Compile an expression over these variables. `names` of the result are those that it uses."""
    try:
        tree = _parser().parse(text)
    except lark.exceptions.LarkError as error:
        raise CelError(f"Syntax error: {str(error).splitlines()[0]}") from error
    compiler = _Compiler(frozenset(variables))
    code = compiler.expr(cast(lark.Tree, tree), frozenset())
    return Program(text, code, frozenset(compiler.used))


def _constant(value: Any) -> Code:
    return lambda env: value


_ESCAPES = {"__dot__": ".", "__dash__": "-", "__slash__": "/", "__underscores__": "__"}
_RESERVED = re.compile(
    r"__(true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|"
    r"var|void|while)__"
)


def _unescape(name: str) -> str:
    """A field's name from the spelling that CEL needs for it (apiserver/schema/cel/model: Unescape)."""
    if found := _RESERVED.fullmatch(name):
        return found[1]
    return re.sub("|".join(_ESCAPES), lambda found: _ESCAPES[found[0]], name)


class _Compiler:
    """Turns a parse tree into closures over an environment of names."""

    def __init__(self, variables: frozenset[str]) -> None:
        self._variables = variables
        self.used: set[str] = set()

    def expr(self, tree: lark.Tree | lark.Token, bound: frozenset[str]) -> Code:
        if isinstance(tree, lark.Token):
            raise CelError(f"unexpected {tree}")
        return getattr(self, "_" + tree.data)(tree.children, bound)

    def _expr(self, parts: list[Any], bound: frozenset[str]) -> Code:
        if len(parts) == 1:
            return self.expr(parts[0], bound)
        test, then, other = (self.expr(part, bound) for part in parts)

        def choose(env: Env) -> Any:
            return then(env) if _bool(test(env)) else other(env)

        return choose

    def _conditionalor(self, parts: list[Any], bound: frozenset[str]) -> Code:
        return self._logical(parts, bound, decides=True)

    def _conditionaland(self, parts: list[Any], bound: frozenset[str]) -> Code:
        return self._logical(parts, bound, decides=False)

    def _logical(self, parts: list[Any], bound: frozenset[str], *, decides: bool) -> Code:
        """|| and &&: an operand that decides the result makes an error of the other one not matter."""
        if len(parts) == 1:
            return self.expr(parts[0], bound)
        left, right = (self.expr(part, bound) for part in parts)

        def evaluate(env: Env) -> bool:
            try:
                if _bool(left(env)) is decides:
                    return decides
            except CelError:
                if _bool(right(env)) is decides:
                    return decides
                raise
            return _bool(right(env))

        return evaluate

    def _binary(self, parts: list[Any], bound: frozenset[str]) -> Code:
        if len(parts) == 1:
            return self.expr(parts[0], bound)
        operator = _OPERATORS[parts[0].data]
        left, right = self.expr(parts[0].children[0], bound), self.expr(parts[1], bound)
        return lambda env: operator(left(env), right(env))

    _relation = _addition = _multiplication = _binary

    def _unary(self, parts: list[Any], bound: frozenset[str]) -> Code:
        if len(parts) == 1:
            return self.expr(parts[0], bound)
        operand = self.expr(parts[1], bound)
        if parts[0].data == "unary_not":
            return lambda env: not _bool(operand(env))
        return lambda env: _int_range(-_number(operand(env)))

    def _member(self, parts: list[Any], bound: frozenset[str]) -> Code:
        return self.expr(parts[0], bound)

    _primary = _member
    _paren_expr = _member

    def _member_dot(self, parts: list[Any], bound: frozenset[str]) -> Code:
        target, name = self.expr(parts[0], bound), _unescape(str(parts[1]))
        return lambda env: _select(target(env), name)

    def _member_optdot(self, parts: list[Any], bound: frozenset[str]) -> Code:
        target, name = self.expr(parts[0], bound), _unescape(str(parts[1]))
        return lambda env: _optional_select(target(env), name)

    def _member_optindex(self, parts: list[Any], bound: frozenset[str]) -> Code:
        target, index = self.expr(parts[0], bound), self.expr(parts[1], bound)
        return lambda env: _optional_select(target(env), index(env))

    def _member_index(self, parts: list[Any], bound: frozenset[str]) -> Code:
        target, index = self.expr(parts[0], bound), self.expr(parts[1], bound)
        return lambda env: _index(target(env), index(env))

    def _member_object(self, parts: list[Any], bound: frozenset[str]) -> Code:
        raise CelError("message literals are not supported")

    def _member_dot_arg(self, parts: list[Any], bound: frozenset[str]) -> Code:
        name = str(parts[1])
        arguments = list(parts[2].children) if len(parts) > 2 else []
        if name in _MACROS and len(arguments) in (2, 3):
            return self._macro(name, self.expr(parts[0], bound), arguments, bound)
        if (namespaced := f"{_bare_name(parts[0])}.{name}") in _FUNCTIONS:
            return self._call(_FUNCTIONS[namespaced], arguments, bound)
        method = _METHODS.get(name)
        if method is None:
            raise CelError(f"undeclared reference to '{name}'")
        target = self.expr(parts[0], bound)
        codes = [self.expr(argument, bound) for argument in arguments]

        def call(env: Env) -> Any:
            return _guard(method, name, target(env), *(code(env) for code in codes))

        return call

    def _macro(self, name: str, target: Code, arguments: list[Any], bound: frozenset[str]) -> Code:
        """`list.all(x, …)` and the like; with two variables (`all(k, v, …)`) over maps' entries or indexes."""
        variables = [_bare_name(argument) for argument in arguments[:-1]]
        two = len(variables) == 2
        if name in ("map", "filter", "exists_one") and two and name != "map":
            raise CelError(f"{name} takes one variable")
        condition: Code | None = None
        if name == "map" and two:  # map(x, condition, value)
            two = False
            condition = self.expr(arguments[1], bound | {variables[0] or ""})
            variables = variables[:1]
        if any(variable is None for variable in variables):
            raise CelError("argument must be a simple name")
        names = cast(list[str], variables)
        body = self.expr(arguments[-1], bound | frozenset(names))

        def scopes(env: Env) -> Iterable[tuple[Any, dict[str, Any]]]:
            collection = target(env)
            if not isinstance(collection, (list, dict)):
                raise CelError("no such overload")
            if two:
                pairs = collection.items() if isinstance(collection, dict) else enumerate(collection)
                return ((key, {**env, names[0]: key, names[1]: value}) for key, value in pairs)
            return ((item, {**env, names[0]: item}) for item in collection)

        def quantify(env: Env) -> bool:
            error: CelError | None = None
            for _, scope in scopes(env):
                try:
                    if _bool(body(scope)) is (name == "exists"):
                        return name == "exists"
                except CelError as problem:
                    error = problem
            if error is not None:
                raise error
            return name != "exists"

        def one(env: Env) -> bool:
            return sum(_bool(body(scope)) for _, scope in scopes(env)) == 1

        def keep(env: Env) -> list[Any]:
            return [item for item, scope in scopes(env) if _bool(body(scope))]

        def convert(env: Env) -> list[Any]:
            return [body(scope) for _, scope in scopes(env) if condition is None or _bool(condition(scope))]

        return {"all": quantify, "exists": quantify, "exists_one": one, "filter": keep, "map": convert}[name]

    def _call(self, function: Callable[..., Any], arguments: list[Any], bound: frozenset[str]) -> Code:
        codes = [self.expr(argument, bound) for argument in arguments]
        return lambda env: _guard(function, "", *(code(env) for code in codes))

    def _ident_arg(self, parts: list[Any], bound: frozenset[str]) -> Code:
        name = str(parts[0])
        arguments = list(parts[1].children) if len(parts) > 1 else []
        if name == "has":
            return self._has(arguments, bound)
        function = _FUNCTIONS.get(name)
        if function is None:
            raise CelError(f"undeclared reference to '{name}'")
        return self._call(function, arguments, bound)

    def _dot_ident_arg(self, parts: list[Any], bound: frozenset[str]) -> Code:
        return self._ident_arg(parts, bound)

    def _has(self, arguments: list[Any], bound: frozenset[str]) -> Code:
        selection = _only(arguments[0]) if len(arguments) == 1 else None
        if selection is None or selection.data not in ("member_dot", "member_optdot"):
            raise CelError("invalid argument to has() macro")
        target, name = self.expr(selection.children[0], bound), _unescape(str(selection.children[1]))

        def has(env: Env) -> bool:
            value = target(env)
            if isinstance(value, Optional):
                value = value.value if value.present else {}
            if not isinstance(value, dict):
                raise CelError("no such overload")
            return name in value

        return has

    def _ident(self, parts: list[Any], bound: frozenset[str]) -> Code:
        name = str(parts[0])
        if name in bound:
            return lambda env: env[name]
        if name in self._variables:
            self.used.add(name)
            return lambda env: env[name]
        if name in _TYPES:
            return _constant(_TYPES[name])
        raise CelError(f"undeclared reference to '{name}'")

    _dot_ident = _ident

    def _list_lit(self, parts: list[Any], bound: frozenset[str]) -> Code:
        codes = [self.expr(item, bound) for item in parts[0].children] if parts else []
        return lambda env: [code(env) for code in codes]

    def _map_lit(self, parts: list[Any], bound: frozenset[str]) -> Code:
        codes = [self.expr(item, bound) for item in parts[0].children] if parts else []
        return lambda env: {key(env): value(env) for key, value in zip(codes[::2], codes[1::2], strict=True)}

    def _literal(self, parts: list[Any], bound: frozenset[str]) -> Code:
        token = parts[0]
        text = str(token)
        match token.type:
            case "BOOL_LIT":
                return _constant(text == "true")
            case "NULL_LIT":
                return _constant(None)
            case "INT_LIT" | "UINT_LIT":
                return _constant(_int_range(int(text.rstrip("uU"), 0 if "x" in text else 10)))
            case "FLOAT_LIT":
                return _constant(float(text))
            case "STRING_LIT" | "MLSTRING_LIT":
                return _constant(_string_literal(text))
            case _:
                raise CelError("bytes literals are not supported")


def _only(tree: Any) -> lark.Tree | None:
    """The tree under a chain of single children, which precedence levels leave behind."""
    while isinstance(tree, lark.Tree) and len(tree.children) == 1 and isinstance(tree.children[0], lark.Tree):
        if tree.data in ("ident", "literal"):
            break
        tree = tree.children[0]
    return tree if isinstance(tree, lark.Tree) else None


def _bare_name(tree: Any) -> str | None:
    found = _only(tree)
    return str(found.children[0]) if found is not None and found.data == "ident" else None


_CHARACTER_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _string_literal(text: str) -> str:
    raw = text[0] in "rR"
    text = text[1:] if raw else text
    quotes = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    text = text[quotes:-quotes]
    if raw:
        return text

    def unescape(found: re.Match[str]) -> str:
        body = found[1]
        if body[0] in "xXuU":
            return chr(int(body[1:], 16))
        if len(body) == 3:
            return chr(int(body, 8))
        return _CHARACTER_ESCAPES.get(body, body)

    return re.sub(r"\\([xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", unescape, text, flags=re.S)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError("no such overload")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CelError("no such overload")
    return value


def _int_range(value: Any) -> Any:
    if isinstance(value, int) and not _INT_LOW <= value <= _INT_HIGH:
        raise CelError("integer overflow")
    return value


def _guard(function: Callable[..., Any], name: str, *values: Any) -> Any:
    try:
        return function(*values)
    except (TypeError, AttributeError, ValueError, IndexError, KeyError, re2.error) as error:
        raise CelError(f"no such overload: {name}" if isinstance(error, TypeError) else str(error)) from error


def _select(target: Any, name: str) -> Any:
    if isinstance(target, Optional):
        return _optional_select(target, name)
    if not isinstance(target, dict):
        raise CelError("no such overload")
    if name not in target:
        raise CelError(f"no such key: {name}")
    return target[name]


def _index(target: Any, index: Any) -> Any:
    if isinstance(target, Optional):
        return _optional_select(target, index)
    if isinstance(target, dict):
        if index not in target:
            raise CelError(f"no such key: {index}")
        return target[index]
    if isinstance(target, list) and isinstance(index, int) and not isinstance(index, bool):
        if not 0 <= index < len(target):
            raise CelError(f"index out of bounds: {index}")
        return target[index]
    raise CelError("no such overload")


def _optional_select(target: Any, index: Any) -> Optional:
    if isinstance(target, Optional):
        if not target.present:
            return NONE
        target = target.value
    if isinstance(target, dict):
        return Optional(True, target[index]) if index in target else NONE
    if isinstance(target, list) and isinstance(index, int):
        return Optional(True, target[index]) if 0 <= index < len(target) else NONE
    raise CelError("no such overload")


def equal(left: Any, right: Any) -> bool:
    """CEL's equality: numbers across types, but a bool is never a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool) and left == right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    return left == right


def _order(left: Any, right: Any) -> int:
    if not (isinstance(left, str) and isinstance(right, str)):
        left, right = _number(left), _number(right)
    return (left > right) - (left < right)


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, (str, list)):
        if type(left) is not type(right):
            raise CelError("no such overload")
        return left + right
    return _int_range(_number(left) + _number(right))


def _divide(left: Any, right: Any) -> Any:
    if isinstance(_number(left), float) or isinstance(_number(right), float):
        return left / right if right else float("nan")
    if right == 0:
        raise CelError("division by zero")
    return _int_range(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))


def _modulus(left: Any, right: Any) -> Any:
    if not isinstance(left, int) or not isinstance(right, int) or right == 0:
        raise CelError("modulus by zero")
    return left - right * _divide(left, right)


def _contains(item: Any, collection: Any) -> bool:
    if isinstance(collection, dict):
        return item in collection
    if isinstance(collection, list):
        return any(equal(item, other) for other in collection)
    raise CelError("no such overload")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "relation_lt": lambda a, b: _order(a, b) < 0,
    "relation_le": lambda a, b: _order(a, b) <= 0,
    "relation_gt": lambda a, b: _order(a, b) > 0,
    "relation_ge": lambda a, b: _order(a, b) >= 0,
    "relation_eq": equal,
    "relation_ne": lambda a, b: not equal(a, b),
    "relation_in": _contains,
    "addition_add": _add,
    "addition_sub": lambda a, b: _int_range(_number(a) - _number(b)),
    "multiplication_mul": lambda a, b: _int_range(_number(a) * _number(b)),
    "multiplication_div": _divide,
    "multiplication_mod": _modulus,
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CelError("no such overload")
    return value


def _size(value: Any) -> int:
    if not isinstance(value, (str, list, dict)):
        raise CelError("no such overload")
    return len(value)


def _type(value: Any) -> _Type:
    if isinstance(value, _Type):
        return _Type("type")
    names = ((bool, "bool"), (int, "int"), (float, "double"), (str, "string"), (list, "list"), (dict, "map"))
    for kind, name in names:
        if isinstance(value, kind):
            return _TYPES[name]
    return _TYPES["null_type"] if value is None else _Type(type(value).__name__.lower())


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, (str, int)):
        return str(value)
    raise CelError("no such overload")


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise CelError("no such overload")
    if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII):
        raise CelError(f"type conversion error from 'string' to 'int': {value}")
    return _int_range(int(value))


def parse_quantity(text: str) -> Quantity:
    try:
        return Quantity(quantities.parse(_text(text)))
    except quantities.QuantityError as error:
        raise CelError(str(error)) from error


def _is_quantity(text: Any) -> bool:
    if not isinstance(text, str):
        raise CelError("no such overload")
    try:
        quantities.parse(text)
    except quantities.QuantityError:
        return False
    return True


def _nano(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (Quantity, int)):
        raise CelError("no such overload")
    return value.nano if isinstance(value, Quantity) else value * quantities.NANO


def _quantity(value: Any) -> Quantity:
    if not isinstance(value, Quantity):
        raise CelError("no such overload")
    return value


@cache
def _pattern(text: str) -> Any:
    try:
        return re2.compile(text)
    except re2.error as error:
        raise CelError(f"error parsing regexp: {error}") from error


def search(pattern: str, text: str) -> Any:
    """RE2 anywhere in the text, as Go's regexp does; a match or None."""
    return _pattern(pattern).search(text)


def _find(text: Any, pattern: Any) -> str:
    found = search(_text(pattern), _text(text))
    return found[0] if found else ""


def _find_all(text: Any, pattern: Any, limit: int = -1) -> list[str]:
    found = [match[0] for match in _pattern(_text(pattern)).finditer(_text(text))]
    return found if limit < 0 else found[:limit]


def _split(text: Any, separator: Any, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if not separator:
        return list(_text(text))
    return _text(text).split(_text(separator), limit - 1 if limit > 0 else -1)


def _replace(text: Any, old: Any, new: Any, limit: int = -1) -> str:
    return _text(text).replace(_text(old), _text(new), limit)


def _substring(text: Any, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(_text(text)):
        raise CelError("index out of range")
    return text[start:end]


def _value(optional: Any) -> Any:
    if not isinstance(optional, Optional) or not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def _optional(value: Any) -> Optional:
    if not isinstance(value, Optional):
        raise CelError("no such overload")
    return value


def _is_sorted(items: Any) -> bool:
    return all(_order(left, right) <= 0 for left, right in pairwise(items))


def _extreme(items: Any, sign: int) -> Any:
    if not items:
        raise CelError("min/max called on empty list")
    return sorted(items, key=cmp_to_key(_order))[0 if sign < 0 else -1]


def _ascii_case(text: Any, *, lower: bool) -> str:
    return "".join((c.lower() if lower else c.upper()) if c.isascii() else c for c in _text(text))


_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "string": _to_string,
    "int": _to_int,
    "uint": _to_int,
    "double": lambda value: float(value),
    "bool": lambda value: value if isinstance(value, bool) else {"true": True, "false": False}[_text(value)],
    "dyn": lambda value: value,
    "type": _type,
    "quantity": parse_quantity,
    "isQuantity": _is_quantity,
    "sign": lambda a: (_quantity(a).nano > 0) - (a.nano < 0),
    "matches": lambda text, pattern: search(_text(pattern), _text(text)) is not None,
    "optional.of": lambda value: Optional(True, value),
    "optional.none": lambda: NONE,
    "optional.ofNonZeroValue": lambda value: Optional(True, value) if value else NONE,
    "math.greatest": lambda *values: _extreme(values[0] if len(values) == 1 else list(values), 1),
    "math.least": lambda *values: _extreme(values[0] if len(values) == 1 else list(values), -1),
}

_METHODS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "matches": lambda text, pattern: search(_text(pattern), _text(text)) is not None,
    "startsWith": lambda text, start: _text(text).startswith(_text(start)),
    "endsWith": lambda text, end: _text(text).endswith(_text(end)),
    "contains": lambda text, part: _text(part) in _text(text),
    "lowerAscii": lambda text: _ascii_case(text, lower=True),
    "upperAscii": lambda text: _ascii_case(text, lower=False),
    "trim": lambda text: _text(text).strip(),
    "split": _split,
    "replace": _replace,
    "substring": _substring,
    "find": _find,
    "findAll": _find_all,
    "indexOf": lambda text, part: text.find(part) if isinstance(text, str) else _list_index(text, part),
    "charAt": lambda text, at: _substring(text, at, min(at + 1, len(text))),
    "join": lambda items, separator="": separator.join(_text(item) for item in items),
    "isSorted": _is_sorted,
    "sum": lambda items: sum(items),
    "min": lambda items: _extreme(items, -1),
    "max": lambda items: _extreme(items, 1),
    "hasValue": lambda optional: _optional(optional).present,
    "value": _value,
    "orValue": lambda optional, other: _optional(optional).value if optional.present else other,
    "or": lambda optional, other: optional if _optional(optional).present else _optional(other),
    "compareTo": lambda a, b: (_quantity(a).nano > _quantity(b).nano) - (a.nano < b.nano),
    "isGreaterThan": lambda a, b: _quantity(a).nano > _quantity(b).nano,
    "isLessThan": lambda a, b: _quantity(a).nano < _quantity(b).nano,
    "add": lambda a, b: Quantity(_quantity(a).nano + _nano(b)),
    "sub": lambda a, b: Quantity(_quantity(a).nano - _nano(b)),
    "isInteger": lambda a: _quantity(a).nano % quantities.NANO == 0,
    "asInteger": lambda a: _whole(_quantity(a)),
    "asApproximateFloat": lambda a: _quantity(a).nano / quantities.NANO,
}


def _whole(value: Quantity) -> int:
    whole, rest = divmod(value.nano, quantities.NANO)
    if rest:
        raise CelError("cannot convert value to integer")
    return _int_range(whole)


def _list_index(items: Any, item: Any) -> int:
    return next((index for index, other in enumerate(items) if equal(item, other)), -1)
