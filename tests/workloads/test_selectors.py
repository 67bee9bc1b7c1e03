"""Label selectors: small ones are asked rule by rule, large ones are sorted first."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.workloads import selectors
from bizrq.workloads.selectors import selects

keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["x", "y", "z"])
rule = st.fixed_dictionaries(
    {"key": keys | st.none(), "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt"])},
    optional={"values": st.lists(values, max_size=3) | st.none() | st.just("x") | st.just([1])},
)
expressions = st.lists(rule | st.just("no rule"), max_size=5)
labels = st.dictionaries(keys, values | st.just(["x"]), max_size=3)


@given(expressions, labels)
def test_a_large_selector_matches_what_a_small_one_does(rules: list[Any], given_labels: dict[str, Any]) -> None:
    plain = selects({"matchExpressions": rules}, given_labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selectors, "_FEW", -1)
        assert selects({"matchExpressions": rules}, given_labels) is plain


@pytest.mark.parametrize(
    ("rules", "matches"),
    [
        ([{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(20_000)], True),
        ([{"key": "app", "operator": "NotIn", "values": [f"v{n}"]} for n in range(20_000)], True),
        ([{"key": "app", "operator": "In", "values": [*(f"v{n}" for n in range(60_000)), "x"]}], True),
        ([{"key": f"k{n}", "operator": "Exists"} for n in range(20_000)], False),
    ],
    ids=[
        "keys that may not exist",
        "values that it may not have",
        "values that it may have",
        "keys that have to exist",
    ],
)
def test_a_selector_of_a_megabyte_is_sorted_once(rules: list[Any], matches: bool) -> None:
    """Each change of a pod asks for it some fifteen times."""
    selector = {"matchLabels": {"app": "x"}, "matchExpressions": rules}
    assert selects(selector, {"app": "x"}) is matches
    began = time.process_time()
    assert all(selects(selector, {"app": "x"}) is matches for _ in range(100))
    assert time.process_time() - began < 0.1
