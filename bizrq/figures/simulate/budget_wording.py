"""The wording of a group's budget, as `bizrq explain GROUP` prints it: its users, and who could raise it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bizrq.api.enforcement import CONDITION
from bizrq.figures.groups.relatives import Relatives, relatives
from bizrq.figures.groups.view import plain_amounts, plain_conditions
from bizrq.units import base

if TYPE_CHECKING:
    from bizrq.figures.groups.view import GroupView, ResourceView, TreeView
    from bizrq.figures.simulate.charged import ChargedWorkloads

#: The most workloads, children or siblings that a line names.
_NAMED = 3
#: The conditions that are usually True; the others say that something is wrong.
_USUAL = ("Ready", CONDITION)
#: The usage in percent from which the groups are named that could raise the ceiling.
_SCARCE = 90


def of_group(tree: TreeView, name: str, found: ChargedWorkloads) -> list[str]:
    """Return lines for each resource of a group, the scarcest first: who uses it, and who could raise it."""
    view = tree.groups[name]
    conditions = [c for c in view.group.status.conditions if (c.type in _USUAL) != (c.status == "True")]
    lines = [f"{c.type} {c.status}: {c.message}" for c in conditions]
    if not view.group.status.conditions:
        lines.append("The controller has not counted it yet, so workloads must wait.")
    for figures in sorted(view.resources, key=lambda f: -(f.percent or 0)):
        lines += _of_resource(tree, view, figures, found)
    if not view.resources:
        lines.append("It has no ceilings, so every workload is admitted.")
    return lines


def group_as_json(tree: TreeView, name: str, found: ChargedWorkloads) -> dict[str, Any]:
    """Return what `bizrq explain GROUP -o json` prints; docs/cli.md has its schema."""
    view = tree.groups[name]
    return {
        "name": name,
        "path": [*tree.ancestry(name), name],
        "conditions": plain_conditions(view),
        "resources": {
            f.resource: {
                **plain_amounts(f),
                "reason": _code(f),
                "workloads": [
                    {"kind": w.kind, "namespace": w.namespace, "name": w.name, **base.plain(f.resource, cost)}
                    for w in found.workloads
                    for cost in [w.cost.get(f.resource, 0)]
                    if cost
                ],
                "children": {
                    child: plain_amounts(g)
                    for child in view.children
                    for g in tree.groups[child].resources
                    if g.resource == f.resource
                },
            }
            for f in view.resources
        },
    }


def _code(f: ResourceView) -> str:
    """Return a stable code of the state of a resource."""
    if f.left is None:
        return "NotCounted"
    if f.left < 0:
        return "OverQuota"
    if f.left == 0:
        return "NothingLeft" if f.hard else "NoneAllowed"
    return "Left"


def _of_resource(tree: TreeView, view: GroupView, f: ResourceView, found: ChargedWorkloads) -> list[str]:
    if f.taken is None or f.left is None or f.percent is None:
        return [f"{f.resource}: {f.text(f.hard)}, not counted yet"]
    if f.left < 0:
        state = f"over by {f.text(-f.left)}: nothing is stopped, growth is refused"
    elif f.left == 0 and f.hard == 0:
        state = "none may be used"
    else:
        state = f"{f.text(f.left)} left" if f.left else "nothing left"
    lines = [f"{f.resource}: {f.text(f.taken)} of {f.text(f.hard)} taken, {state}"]
    if f.self_used:
        mine = found.by_cost(f.resource)
        named = ", ".join(f"{w.kind} {w.namespace}/{w.name} {w.text(f.resource)}" for w in mine[:_NAMED])
        more = f" and {len(mine) - _NAMED} more" if len(mine) > _NAMED else ""
        if found.missing:
            more += f"{' and ' if named else ''}some that you may not read"
        lines.append(f"  {f.text(f.self_used)} by its own workloads{f': {named}{more}' if named or more else ''}")
    if f.granted:
        lines.append(f"  {f.text(f.granted)} granted to its children{_children(tree, view, f.resource)}")
    if f.reserved:
        lines.append(f"  {f.text(f.reserved)} reserved for changes in progress")
    if f.liens:
        lines.append(f"  {f.text(f.liens)} that its workloads may still cost until they end (safe mode)")
    if f.ahead:
        lines.append(f"  {f.text(f.ahead)} of what is left is held ahead by webhook processes, until it is needed")
    if f.percent >= _SCARCE and view.parent:
        lines += _who_could_raise(tree, view, f)
    return lines


def _children(tree: TreeView, view: GroupView, resource: str) -> str:
    """Name the children that hold most of a resource, with what they have left of it."""
    held = {name: f for name in view.children for f in tree.groups[name].resources if f.resource == resource and f.hard}
    largest = sorted(held.items(), key=lambda pair: (-pair[1].hard, pair[0]))[:_NAMED]
    names = ", ".join(
        f"{name} {f.text(f.hard)}" + (f" ({f.text(max(0, f.left))} of it left)" if f.left is not None else "")
        for name, f in largest
    )
    more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
    return f": {names}{more}" if names else ""


def _who_could_raise(tree: TreeView, view: GroupView, f: ResourceView) -> list[str]:
    near = relatives(tree, view, f.resource)
    if not near.is_parent_read:
        return [f"  what its parent {near.parent} has left is unknown: you may not read it; ask who manages it"]
    parent = near.of_parent
    if parent is None:
        return [f"  its parent {near.parent} does not limit it: {_to_raise(view, near)}"]
    if parent.left is not None and parent.left > 0:
        return [f"  its parent {near.parent} has {parent.text(parent.left)} left: {_to_raise(view, near)}"]
    if near.siblings is None:
        return [f"  its parent {near.parent} has nothing left; its siblings are unknown: you may not list groups"]
    names = ", ".join(f"{name} {g.text(g.left)}" for name, g in near.siblings[:_NAMED])
    return [f"  its parent {near.parent} has nothing left; siblings with some left: {names or 'none'}"]


def _to_raise(view: GroupView, near: Relatives) -> str:
    """Say who may raise a group."""
    contact = f" ({near.contact})" if near.contact else ""
    return f"to raise {view.name}, ask who manages {near.parent}{contact}"
