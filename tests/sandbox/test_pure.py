"""The parts without I/O: CEL, patches, selectors, the clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandbox import cel, patch
from sandbox.clock import Clock
from sandbox.selectors import compile_selector, parse_labels
from sandbox.status import ApiError

SELF = {"hard": {"pods": "5", "limits.cpu": 3}, "name": "nlp", "list": [1, 2, 3], "namespace": "x", "null": None}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("self.name == 'nlp' && has(self.hard) && !has(self.nothing)", True),
        ("self.hard.all(k, size(k) < 64)", True),
        ("self.hard.all(k, type(self.hard[k]) == int || self.hard[k].matches('^[0-9]+$'))", True),
        ("self.hard.exists(k, k == 'pods') && 'pods' in self.hard && !('x' in self.list)", True),
        ("self.list.filter(x, x > 1).map(x, x * 2)", [4, 6]),
        ("self.list.exists_one(x, x == 2)", True),
        ("quantity('1500m').isGreaterThan(quantity('1')) && quantity('2').compareTo(quantity('2000m')) == 0", True),
        ("sign(quantity('-1'))", -1),
        ("isQuantity('1Gi') && !isQuantity('abc')", True),
        ("'a,b,c'.split(',').size()", 3),
        ("'Hello'.lowerAscii() + 'x-y'.replace('-', '_')", "hellox_y"),
        ("'abc123'.find('[0-9]+')", "123"),
        ("self.name.startsWith('n') ? 'yes' : 'no'", "yes"),
        ("oldSelf.hasValue()", False),
        ("oldSelf.?name.orValue('none')", "none"),
        ("self.?nothing.?deeper.hasValue()", False),
        ("self[?'name'].orValue('')", "nlp"),
        ("self.list.size()-1", 2),
        ("self.missing == 1 || true", True),
        ("dyn(1) == 1.0 && true != false && dyn(1) != '1'", True),
        ("self.__namespace__", "x"),
        ("self.__null__ == null", True),
        ("-self.list[0] + 7 / 2 - 7 % 4", -1),
        (r"'it\'s' + r'\d' + \"\u0041\"".replace('\\"', '"'), "it's\\dA"),
        ("self.hard.all(k, v, k != '')", True),
    ],
)
def test_an_expression_has_this_value(expression: str, value: Any):
    program = cel.compile_expression(expression, ("self", "oldSelf"), optional="oldSelf")
    assert program.evaluate({"self": SELF}) == value


def test_an_optional_variable_that_is_given_has_its_value():
    program = cel.compile_expression("oldSelf.?name.orValue('none')", ("self", "oldSelf"), optional="oldSelf")
    assert program.evaluate({"oldSelf": SELF}) == "nlp"


@pytest.mark.parametrize(
    ("expression", "names"),
    [("self.a == oldSelf.a", {"self", "oldSelf"}), ("[1].all(oldSelf, oldSelf > 0)", set()), ("'oldSelf'", set())],
)
def test_a_program_knows_the_variables_that_it_uses(expression: str, names: set[str]):
    assert cel.compile_expression(expression, ("self", "oldSelf")).names == names


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("self.missing", "no such key: missing"),
        ("self.list[9]", "index out of bounds"),
        ("1 / 0", "division by zero"),
        ("self.name + 1", "no such overload"),
        ("self.name && true", "no such overload"),
        ("sign(quantity('abc'))", "abc"),
        ("9223372036854775807 + 1", "integer overflow"),
    ],
)
def test_an_expression_without_a_value_is_an_error(expression: str, problem: str):
    program = cel.compile_expression(expression, ("self",))
    with pytest.raises(cel.CelError, match=problem):
        program.evaluate({"self": SELF})


# Kubernetes refuses the last one too: literals of two types have no equality.
@pytest.mark.parametrize(
    "expression", ["other == 1", "self.name.nonsense()", "nonsense(1)", "self.(", "has(self)", "1 == 1.0"]
)
def test_unknown_names_and_syntax_are_refused_when_compiled(expression: str):
    with pytest.raises(cel.CelError):
        cel.compile_expression(expression, ("self",))


def test_merge_patches_remove_with_null():
    assert patch.merge_patch({"a": {"b": 1, "c": 2}}, {"a": {"b": None}, "d": 3}) == {"a": {"c": 2}, "d": 3}


def test_json_patches_test_first():
    operations = [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}]
    assert patch.json_patch({"a": 1}, operations) == {"a": 2}
    with pytest.raises(ApiError) as caught:
        patch.json_patch({"a": 3}, operations)
    assert caught.value.code == 422


CONTAINERS = {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (
            {"containers": [{"name": "a", "image": "2"}]},
            [{"name": "a", "image": "2", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}],
        ),
        ({"containers": [{"name": "a", "$patch": "delete"}]}, [{"name": "b"}]),
        ({"containers": [{"$patch": "replace"}, {"name": "c"}]}, [{"name": "c"}]),
        (
            {
                "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
                "containers": [{"name": "c"}],
            },
            [{"name": "c"}, {"name": "b"}, {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}],
        ),
    ],
)
def test_strategic_patches_merge_lists_by_key(change: dict, result: list):
    assert patch.strategic_merge(CONTAINERS, change) == {"containers": result}


def test_strategic_patches_replace_atomic_lists_and_keep_named_keys():
    old = {"tolerations": [{"key": "a"}], "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}
    change = {"tolerations": [{"key": "b"}], "strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    assert patch.strategic_merge(old, change) == {"tolerations": [{"key": "b"}], "strategy": {"type": "Recreate"}}


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b", "c": "d"}, False),
        ("a in (x, y),!c", {"a": "y"}, True),
        ("a notin (x)", {}, True),
        ("a", {}, False),
        ("biz.group.resource.quota", {"biz.group.resource.quota": "nlp"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool):
    matcher = parse_labels(selector)
    assert matcher is not None
    assert matcher(labels) is matches


def test_malformed_selectors_are_refused():
    for text in ("a b", "=x", "a in (b c)"):
        with pytest.raises(ApiError):
            parse_labels(text)
    with pytest.raises(ApiError):
        compile_selector({"matchExpressions": [{"key": "a", "operator": "Near"}]})


async def test_the_clock_wakes_whoever_waits_for_a_time_that_has_come():
    clock = Clock(now=datetime(2026, 1, 1, tzinfo=UTC), rate=0)
    waiting = asyncio.create_task(clock.until(clock.now() + timedelta(hours=1)))
    await asyncio.sleep(0)
    clock.advance(3599)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    clock.advance(1)
    async with asyncio.timeout(1):
        await waiting
    assert clock.stamp() == "2026-01-01T01:00:00Z"
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


async def test_a_fast_clock_runs_fast():
    clock = Clock(rate=36_000)
    async with asyncio.timeout(2):
        await clock.until(clock.now() + timedelta(hours=1))
