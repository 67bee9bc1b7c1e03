"""The rows of a tree of groups."""

from __future__ import annotations

import pytest

from bizrq.api.group import from_dict
from bizrq.builtin import builtin_catalog
from bizrq.figures.groups.view import TreeView, tree_view
from tests.support.objects import group


def view(*pairs: tuple[str, str]) -> TreeView:
    return tree_view([from_dict(group(name, parent)) for name, parent in pairs], builtin_catalog())


def test_groups_whose_parents_form_a_cycle_are_shown():
    tree = view(("corp", ""), ("a", "c"), ("b", "c"), ("c", "b"), ("d", "d"))
    assert [row.lead + row.view.name for row in tree.in_order()] == ["b", "└─ c", "   └─ a", "corp", "d"]


@pytest.mark.parametrize(("top", "shown"), [("b", ["b", "└─ c", "   └─ a"]), ("c", ["c", "├─ a", "└─ b"])])
def test_a_group_of_a_cycle_is_shown_with_the_others_below_it(top: str, shown: list[str]):
    tree = view(("corp", ""), ("a", "c"), ("b", "c"), ("c", "b"))
    assert [row.lead + row.view.name for row in tree.in_order(top)] == shown
