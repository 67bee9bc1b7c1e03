"""Build the ValidatingAdmissionPolicy on labels that look like ours and are not.

A mistyped label key reaches no webhook, because webhooks select by the right one. The API server checks the keys by
itself. It looks only at objects that nobody controls, and only where their labels change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bizrq.api import policies
from bizrq.settings import Settings
from bizrq.workloads.kinds.declaration import RoleDeclaration
from bizrq.workloads.labels import KNOWN, LABEL, PREFIX

Object = dict[str, Any]

#: The name of the policy and of its binding.
NAME: Final = "bizrq-labels"
#: Templates of kinds that no declaration describes: the Job of a CronJob, and its pods.
_TEMPLATES: Final = (("spec", "jobTemplate"), ("spec", "jobTemplate", "spec", "template"))
_IS_UNKNOWN: Final = f"k.startsWith('{PREFIX}') && !(k in {list(KNOWN)!r})"
_NOT_CONTROLLED: Final = "!object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))"
_CHANGED: Final = (
    "request.operation == 'CREATE' || object.metadata.?labels != oldObject.metadata.?labels || "
    "object.?spec != oldObject.?spec"
)


def objects(settings: Settings, namespace: str) -> list[Object]:
    """Return the policy and its binding; nothing where the configuration ignores such labels.

    `namespace` is where bizrq itself runs.
    """
    if settings.unknown_labels == "ignore":
        return []
    registry = settings.around(namespace).registry
    rules = [
        policies.rule("", ["namespaces"], "CREATE", "UPDATE", versions=["v1"]),
        *(policies.rule(a.group, [a.plural], "CREATE", "UPDATE", versions=a.versions) for a in registry.charged),
    ]
    roles = [role for adapter in registry.charged for role in (*adapter.roles, *adapter.child_roles)]
    old = "(request.operation == 'CREATE' ? dyn({}) : dyn(oldObject))"
    variables = {
        "now": _maps("dyn(object)", roles),
        "before": _maps(old, roles),
        "added": f"variables.now.map(m, m.filter(k, {_IS_UNKNOWN} && !variables.before.exists(b, k in b)))"
        ".filter(keys, keys.size() > 0)",
    }
    known = ", ".join(KNOWN)
    others = ", ".join(key for key in KNOWN if key != LABEL)
    rejected = {
        "expression": "variables.added.size() == 0",
        "message": f"bizrq reads no such label, so it has no effect; it reads {known}",
        "messageExpression": "'bizrq reads no label ' + string(variables.added[0][0]) + "
        "', so it has no effect; did you mean ' + (string(variables.added[0][0]).contains('/') ? "
        f"'one of {others}?' : '{LABEL}?')",
        "reason": "Invalid",
    }
    policy = policies.policy(
        NAME,
        rules,
        [rejected],
        conditions={"not-controlled": _NOT_CONTROLLED, "changed": _CHANGED},
        variables=variables,
        namespaces=registry.scope.expressions(),
        fails_open=True,
    )
    return [policy, policies.binding(NAME, action="Deny" if settings.unknown_labels == "deny" else "Warn")]


def _maps(owner: str, roles: Iterable[RoleDeclaration]) -> str:
    """Return the CEL expression for the list of the labels of an object and of its pod templates."""
    templates = {path.keys for role in roles for path in role.template if not path.of_element and path.keys}
    places = [(), *sorted({*templates, *_TEMPLATES})]
    fixed = ", ".join(_labels(owner, keys) for keys in places)
    found = [f"[{fixed}]"]
    # The roles of a kind, as a list or as a map: those with templates at the same place are read by one expression.
    lists: dict[tuple[tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for role in roles:
        for path in role.template:
            if role.for_each is not None and path.of_element:
                *above, last = role.for_each.keys
                lists.setdefault((tuple(above), path.keys), set()).add(last)
    for (above, keys), names in sorted(lists.items()):
        values = f"{sorted(names)!r}.map(s, {_at(owner, above)}[?s].orValue(dyn([])))"
        # A kind has at most one of the names.
        elements = f"{values}.filter(v, v.size() > 0).map(v, dyn(type(v) == list ? v : dyn(v.map(n, v[n]))))"
        found.append(f"{elements}.map(l, l.map(e, {_labels('e', keys)}))")
    first, *others = found
    return first + "".join(f" + ({each} + [[]])[0]" for each in others)


def _labels(owner: str, keys: Iterable[str]) -> str:
    return f"{_at(owner, (*keys, 'metadata', 'labels'))}.orValue(dyn({{}}))"


def _at(owner: str, keys: Iterable[str]) -> str:
    return "".join([owner, *(f".?{key}" for key in keys)])
