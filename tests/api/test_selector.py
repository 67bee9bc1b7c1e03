"""Which labels a selector matches, its text, and the errors for an invalid one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.api import selector
from bizrq.api.selector import SelectorError
from sandbox.selectors import compile_selector, parse_labels


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("picks", "labels", "answer"),
    [
        (None, {}, True),
        ({}, {}, True),
        ({"matchLabels": None, "matchExpressions": None}, {}, True),
        ({"matchLabels": {"team": "nlp"}}, {"team": "nlp", "other": "x"}, True),
        ({"matchLabels": {"team": "nlp"}}, {"team": "vision"}, False),
        ({"matchLabels": {"team": "nlp"}}, {}, False),
        ({"matchLabels": {"team": ""}}, {}, False),
        ({"matchLabels": {"team": ""}}, {"team": ""}, True),
        ({"matchLabels": {"team": "nlp", "tier": "prod"}}, {"team": "nlp"}, False),
        ({"matchExpressions": [wants("team", "In", "nlp", "ai")]}, {"team": "ai"}, True),
        ({"matchExpressions": [wants("team", "In", "nlp", "ai")]}, {"team": "vision"}, False),
        ({"matchExpressions": [wants("team", "In", "nlp", "")]}, {}, False),
        ({"matchExpressions": [wants("team", "NotIn", "nlp")]}, {"team": "ai"}, True),
        ({"matchExpressions": [wants("team", "NotIn", "nlp")]}, {"team": "nlp"}, False),
        ({"matchExpressions": [wants("team", "NotIn", "nlp")]}, {}, True),
        ({"matchExpressions": [wants("a.com/team", "Exists")]}, {"a.com/team": ""}, True),
        ({"matchExpressions": [wants("a.com/team", "Exists")]}, {"team": "x"}, False),
        ({"matchExpressions": [wants("team", "DoesNotExist")]}, {}, True),
        ({"matchExpressions": [wants("team", "DoesNotExist")]}, {"team": ""}, False),
        ({"matchExpressions": [wants("a", "Exists"), wants("b", "DoesNotExist")]}, {"a": "1", "b": "1"}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [wants("b", "Exists")]}, {"a": "1"}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [wants("b", "Exists")]}, {"a": "1", "b": "2"}, True),
    ],
)  # fmt: skip
def test_a_selector_matches_as_kubernetes_does(picks: Any, labels: dict[str, str], answer: bool) -> None:
    assert selector.matches(picks, labels) is answer


def test_a_selector_is_formatted_as_kubectl_accepts_it() -> None:
    expressions = [
        wants("a", "In", "y", "x"),
        wants("b", "NotIn", "z"),
        wants("c", "Exists"),
        wants("d", "DoesNotExist"),
    ]
    given = {"matchLabels": {"team": "nlp"}, "matchExpressions": expressions}
    assert selector.format_selector(given) == "!d,a in (x,y),b notin (z),c,team=nlp"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "must be a map with matchLabels or matchExpressions"),
        ({"matchLabel": {}}, "matchLabel: no such field: write matchLabels or matchExpressions"),
        ({"matchLabels": []}, "matchLabels: must be a map of labels to values"),
        ({"matchLabels": {"te am": "x"}}, "matchLabels: 'te am' is no label: write NAME or DOMAIN/NAME"),
        ({"matchLabels": {"/team": "x"}}, "matchLabels: '/team' is no label"),
        ({"matchLabels": {"A.com/team": "x"}}, "matchLabels: 'A.com/team' is no label"),
        ({"matchLabels": {"x" * 64: "x"}}, "is no label"),
        ({"matchLabels": {"team": True}}, "matchLabels.team: 'True' is no label value"),
        ({"matchLabels": {"team": "x" * 64}}, "write at most 63 letters, digits"),
        ({"matchLabels": {f"k{n}": "x" for n in range(33)}}, "write at most 32 matchLabels"),
        ({"matchExpressions": {}}, "matchExpressions: must be a list"),
        ({"matchExpressions": ["team"]}, "matchExpressions[0]: must be a map with key and operator"),
        ({"matchExpressions": [{"operator": "Exists"}]}, "matchExpressions[0].key: 'None' is no label"),
        (
            {"matchExpressions": [wants("a", "Exists"), wants("b", "in", "x")]},
            "matchExpressions[1].operator: 'in' is none of In, NotIn, Exists, DoesNotExist",
        ),
        ({"matchExpressions": [wants("a", "In")]}, "matchExpressions[0].values: In needs at least one value"),
        ({"matchExpressions": [wants("a", "NotIn")]}, "NotIn needs at least one value"),
        ({"matchExpressions": [wants("a", "Exists", "x")]}, "Exists takes no values: leave them out"),
        ({"matchExpressions": [wants("a", "In", "-")]}, "matchExpressions[0].values[0]: '-' is no label value"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": "x"}]}, "values: must be a list"),
        ({"matchExpressions": [wants("a", "In", *map(str, range(65)))]}, "values: write at most 64"),
    ],
)
def test_an_invalid_selector_names_its_field_and_matches_nothing(given: Any, words: str) -> None:
    for ask in (selector.validate, selector.format_selector, lambda s: selector.matches(s, {"a": "x"})):
        with pytest.raises(SelectorError) as caught:
            ask(given)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


_KEYS, _VALUES = st.sampled_from(["a", "b", "x.y/c"]), st.sampled_from(["", "1", "2"])
_LABELS = st.dictionaries(_KEYS, _VALUES)
_EXPRESSION = st.one_of(
    st.builds(wants, _KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        lambda key, operator, values: wants(key, operator, *values),
        _KEYS,
        st.sampled_from(["In", "NotIn"]),
        st.lists(_VALUES, min_size=1, max_size=3),
    ),
)


@given(_LABELS, st.lists(_EXPRESSION, max_size=3), _LABELS)
def test_a_selector_matches_what_the_api_servers_parameter_matches(wanted: Any, expressions: Any, labels: Any) -> None:
    """Compare with two other readers: of the selector, and of the text that we make of it."""
    picks = {"matchLabels": wanted, "matchExpressions": expressions}
    for other in (compile_selector(picks), parse_labels(selector.format_selector(picks))):
        assert selector.matches(picks, labels) is (other is None or other(labels))
