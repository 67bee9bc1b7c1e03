"""Laws of the tree of names, in forests and in graphs with cycles."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st

from bizrq.units import hierarchy
from bizrq.units.hierarchy import ChildIndex

NAMES = [f"g{n}" for n in range(8)]

#: The parent of each name. A forest has parents of a smaller number only; any other choice may close a cycle.
FORESTS = st.tuples(*(st.sampled_from(["", *NAMES[:n]]) for n in range(len(NAMES)))).map(
    lambda chosen: dict(zip(NAMES, chosen, strict=True))
)
GRAPHS = st.fixed_dictionaries({name: st.sampled_from(["", *NAMES, "unknown"]) for name in NAMES})


def parent_of(parents: dict[str, str]):
    return lambda name: parents.get(name, "")


def children_of(parents: dict[str, str]):
    below = hierarchy.children(parents.items())
    return lambda name: below.get(name, ())


def test_a_tree_is_walked_up_and_down():
    parents = {"corp": "", "ai": "corp", "nlp": "ai", "vision": "ai", "web": "corp", "other": ""}
    assert hierarchy.ancestry("nlp", parent_of(parents)) == ["ai", "corp"]
    assert hierarchy.root("nlp", parent_of(parents)) == "corp"
    assert hierarchy.root("corp", parent_of(parents)) == "corp"
    assert hierarchy.children(parents.items())["corp"] == ["ai", "web"]
    assert hierarchy.subtree("corp", children_of(parents)) == ["corp", "ai", "nlp", "vision", "web"]
    assert hierarchy.subtree("other", children_of(parents)) == ["other"]


@given(FORESTS, st.sampled_from(NAMES))
def test_the_ancestry_of_a_child_is_its_parent_and_the_ancestry_of_that(parents: dict[str, str], name: str):
    parent, ancestry = parents[name], hierarchy.ancestry(name, parent_of(parents))
    assert ancestry == ([parent, *hierarchy.ancestry(parent, parent_of(parents))] if parent else [])
    assert hierarchy.root(name, parent_of(parents)) == (ancestry[-1] if ancestry else name)


@given(FORESTS, st.sampled_from(NAMES))
def test_a_subtree_holds_the_names_whose_lineage_passes_its_top(parents: dict[str, str], top: str):
    below = hierarchy.subtree(top, children_of(parents))
    assert set(below) == {name for name in NAMES if top in hierarchy.lineage(name, parent_of(parents))}
    assert all(below.index(parents[name]) < below.index(name) for name in below[1:])


@given(FORESTS)
def test_the_subtrees_of_the_roots_hold_each_name_once(parents: dict[str, str]):
    roots = [name for name in NAMES if not parents[name]]
    found = [name for top in roots for name in hierarchy.subtree(top, children_of(parents))]
    assert sorted(found) == NAMES


@given(GRAPHS)
def test_the_subtrees_of_the_tops_hold_each_name_once(parents: dict[str, str]):
    known = {name: parent if parent in NAMES else "" for name, parent in parents.items()}
    tops = hierarchy.tops(known)
    uncut = {name: "" if name in tops else parent for name, parent in known.items()}
    found = [name for top in tops for name in hierarchy.subtree(top, children_of(uncut))]
    assert sorted(found) == NAMES
    for name in NAMES:
        in_cycle = (at for at in NAMES if at in hierarchy.lineage(known[at], parent_of(known)))
        cycle = [at for at in in_cycle if at in hierarchy.lineage(name, parent_of(known))]
        assert (name in tops) == (not known[name] or (name in cycle and name == min(cycle)))


@given(GRAPHS, st.sampled_from(NAMES))
def test_a_cycle_ends_every_walk_at_the_first_name_that_comes_again(parents: dict[str, str], name: str):
    lineage = list(hierarchy.lineage(name, parent_of(parents)))
    assert len(lineage) == len(set(lineage))
    assert all(parents[child] == above for child, above in itertools.pairwise(lineage))
    assert parents.get(lineage[-1], "") in ("", *lineage)
    assert hierarchy.root(name, parent_of(parents)) == lineage[-1]
    below = hierarchy.subtree(name, children_of(parents))
    assert len(below) == len(set(below))
    assert set(below) == {each for each in NAMES if name in hierarchy.lineage(each, parent_of(parents))} | {name}


@given(GRAPHS, st.sampled_from(NAMES))
def test_a_lineage_that_is_read_is_the_one_in_memory(parents: dict[str, str], name: str):
    read: list[str] = []

    async def parent(child: str) -> str:
        read.append(child)
        return parents.get(child, "")

    async def walk() -> list[str]:
        return [each async for each in hierarchy.read_lineage(name, parent)]

    lineage = asyncio.run(walk())
    assert lineage == list(hierarchy.lineage(name, parent_of(parents))) == read


def test_a_parent_is_read_only_when_the_next_name_is_asked_for():
    async def first() -> str:
        async for name in hierarchy.read_lineage("ai", unread):
            return name
        return ""

    async def unread(_: str) -> str:
        raise AssertionError("nothing asked for the parent")

    assert asyncio.run(first()) == "ai"


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["", *NAMES]), st.booleans())))
def test_the_index_says_what_a_scan_of_all_groups_would_say(steps: list[tuple[str, str, bool]]):
    index, parents = ChildIndex(), dict[str, str]()
    for name, parent, goes in steps:
        if goes:
            index.remove(name)
            parents.pop(name, None)
        else:
            index.put(name, parent)
            parents[name] = parent
        for each in ["", *NAMES]:
            assert sorted(index.children(each)) == sorted(n for n, above in parents.items() if above == each)
            assert index.parent(each) == parents.get(each, "")
