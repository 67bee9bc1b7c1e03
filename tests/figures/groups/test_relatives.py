"""Which relatives of a group have something left, and what is said where they may not be read."""

from __future__ import annotations

from bizrq.api.group import from_dict
from bizrq.builtin import builtin_catalog
from bizrq.figures.groups.relatives import relatives
from bizrq.figures.groups.view import TreeView, tree_view
from bizrq.units import quantity
from tests.support.objects import group, named

CPU = "limits.cpu"


def tree(*names: str, is_complete: bool = True) -> TreeView:
    """Return corp > ai > nlp vision ocr, limited to `names`: corp has 40 left, nlp 0, vision 12, ocr 20."""
    used = {"corp": "60", "ai": "60", "nlp": "10", "vision": "8", "ocr": "0"}
    made = {
        "corp": group("corp", cpu="100"),
        "ai": group("ai", "corp", cpu="60"),
        "nlp": group("nlp", "ai", cpu="10"),
        "vision": group("vision", "ai", cpu="20"),
        "ocr": group("ocr", "ai", cpu="20"),
        "free": group("free", "ai", gpu="1"),
    }
    for name, amount in used.items():
        made[name]["status"] = {"used": named({"cpu": amount})}
    chosen = [from_dict(made[name]) for name in names or made]
    return tree_view(chosen, builtin_catalog(), is_complete=is_complete)


def test_siblings_with_some_left_come_the_most_first() -> None:
    found = tree()
    near = relatives(found, found.groups["nlp"], CPU)
    assert near.of_parent is not None
    assert (near.parent, near.of_parent.left) == ("ai", 0)
    assert near.siblings is not None
    assert [(name, quantity.text(CPU, figures.left or 0)) for name, figures in near.siblings] == [
        ("ocr", "20"),
        ("vision", "12"),
    ]


def test_a_parent_that_may_not_be_read_is_unknown_and_so_are_its_children() -> None:
    found = tree("nlp", is_complete=False)
    near = relatives(found, found.groups["nlp"], CPU)
    assert (near.parent, near.is_parent_read, near.of_parent, near.siblings) == ("ai", False, None, None)


def test_siblings_are_unknown_to_who_may_not_list_groups() -> None:
    found = tree("corp", "ai", "nlp", "vision", is_complete=False)
    near = relatives(found, found.groups["nlp"], CPU)
    assert near.is_parent_read
    assert near.siblings is None


def test_a_root_has_no_relatives_and_a_parent_may_have_no_ceiling() -> None:
    found = tree()
    root = relatives(found, found.groups["corp"], CPU)
    assert (root.parent, root.of_parent, root.siblings) == ("", None, ())
    free = relatives(found, found.groups["free"], "requests.nvidia.com/gpu")
    assert (free.parent, free.is_parent_read, free.of_parent, free.siblings) == ("ai", True, None, [])
