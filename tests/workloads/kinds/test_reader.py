"""Declarations of kinds, and their registry."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from bizrq.builtin import builtin_registry
from bizrq.workloads.kinds.declaration import DeclarationError
from bizrq.workloads.kinds.reader import read_adapters
from bizrq.workloads.special import CODES
from bizrq.workloads.validation import Malformed
from tests.support.workload_language import costs, count, template, workload

#: An in-house kind, as a configuration adds it.
WIDGET = yaml.safe_load("""
match: {group: example.com, kind: Widget, resource: widgets, versions: [v1]}
roles: [{name: main, count: [{path: spec.size, default: 1}], template: [spec.pod]}]
scale: spec.size
""")


def test_a_kind_of_ones_own_takes_three_lines():
    registry = builtin_registry().extended([WIDGET])
    adapter = registry.by_resource("example.com", "widgets")
    assert adapter is not None
    assert registry.is_charged(adapter)
    assert adapter in registry.charged
    assert adapter.scale == ("spec", "size")
    obj = workload("example.com/v1", "Widget", {"size": 3, "pod": template("cpu=1")})
    demand = count(obj, registry=registry)
    assert costs(demand, "cpu=3 pods=3")
    assert demand.resources["count/widgets.example.com"]


def test_a_template_may_be_a_bare_pod_spec():
    entry = copy.deepcopy(WIDGET)
    entry["roles"][0]["podSpec"] = True
    obj = workload("example.com/v1", "Widget", {"pod": template("cpu=1")["spec"]})
    assert costs(count(obj, registry=builtin_registry().extended([entry])), "cpu=1 pods=1")


def test_all_entries_of_the_given_form_are_read():
    """The reader accepts the keys of the first published form, so configurations written for it keep working."""
    text = """
    - match: {group: x.com, kind: A, resource: as, versions: [v1, v2]}
      root: spec.inner
      roles:
        - name: head
          when: spec.head
          count: [{const: 1}]
          template: [spec.head.template, spec.template]
          inject:
            - {when: {path: spec.auto, equals: true}, as: container, from: spec.autoResources, default: {}}
        - forEach: spec.groups
          skipWhen: {path: "@.off", equals: true}
          count:
            - {path: "@.n", default: 0, clampMin: {path: "@.min", default: 0}, clampMax: {path: "@.max"}}
            - {path: "@.hosts", default: 1, atLeast: 1}
          template: ["@.template"]
      zeroWhen: [{path: spec.suspend, equals: true}]
      finishedWhen: {conditions: {path: status.conditions, types: [Done]}, phase: {path: status.phase, values: [Done]}}
      elasticMax: spec.max
      creates: [/Pod, batch/Job]
      pods: {selector: "x={name}", ownerChain: [A], via: B}
    """
    registry = builtin_registry().extended(yaml.safe_load(text))
    spec: dict[str, Any] = {
        "head": {"template": template("cpu=1")},
        "auto": True,
        "autoResources": {"requests": {"cpu": "2"}},
        "groups": [
            {"n": 5, "max": 3, "hosts": 2, "template": template("cpu=1")},
            {"n": 5, "off": True, "template": template("cpu=1")},
        ],
    }
    obj = workload("x.com/v2", "A", {"inner": spec})
    assert costs(count(obj, registry=registry), "cpu=9 pods=7")
    obj["spec"]["inner"]["suspend"] = True
    assert costs(count(obj, registry=registry), "")
    assert count({**obj, "status": {"phase": "Done"}}, registry=registry).resources == {}


def test_roles_of_one_name_stay_two_roles():
    entry = copy.deepcopy(WIDGET)
    entry["roles"] = [{"forEach": "spec.sets", "count": [{"const": 1}], "template": ["@.template"]}]
    sets = [{"name": "a", "template": template("cpu=1")}, {"name": "a", "template": template("cpu=2")}]
    demand = count(workload("example.com/v1", "Widget", {"sets": sets}), registry=builtin_registry().extended([entry]))
    assert len({role.name for role in demand.roles}) == 2
    assert costs(demand, "cpu=3 pods=2")


def test_a_known_kind_is_replaced_only_on_purpose():
    entry = copy.deepcopy(WIDGET)
    entry["match"] = {"group": "apps", "kind": "Deployment", "resource": "deployments", "versions": ["v1"]}
    with pytest.raises(DeclarationError, match=r"adapters\[0\]: deployments\.apps is known already"):
        builtin_registry().extended([entry])
    registry = builtin_registry().extended([{**entry, "override": True}])
    obj = workload("apps/v1", "Deployment", {"size": 2, "pod": template("cpu=1")})
    assert costs(count(obj, registry=registry), "cpu=2 pods=2")
    assert len(registry.adapters) == len(builtin_registry().adapters)


def changed(path: str, value: Any) -> dict:
    """Return the widget with another value at a path: `roles.0.count`."""
    entry = copy.deepcopy(WIDGET)
    place: Any = entry
    *above, last = path.split(".")
    for key in above:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return entry


SLIPS = [
    ("a list is wanted", "x", "adapters: must be a list, not 'x'"),
    ("a map is wanted", ["x"], "adapters[0]: must be a map with match"),
    ("a bad key", [changed("zerowhen", [])], "adapters[0]: 'zerowhen' is not a known key, the nearest is zeroWhen"),
    ("a key that is like none", [changed("kind", "X")], "adapters[0]: 'kind' is not a known key, there are: match, "),
    ("a bad key in a role", [changed("roles.0.replicas", 1)], "adapters[0].roles[0]: 'replicas' is not a known key"),
    ("no versions", [changed("match.versions", [])], "adapters[0].match.versions: name at least one version"),
    ("no kind", [changed("match.kind", "")], "adapters[0].match.kind: must be a string"),
    ("no roles", [changed("roles", [])], "adapters[0]: name at least one role"),
    ("no template", [changed("roles.0.template", [])], "adapters[0].roles[0].template: name at least one place"),
    ("no count", [changed("roles.0.count", [])], "adapters[0].roles[0].count: name at least one factor"),
    ("a count that may be absent", [changed("roles.0.count", [{"path": "spec.n"}])], "needs a default"),
    ("a count of all that may be absent", [changed("roles.0.count", [{"minOf": [{"path": "spec.n"}]}])], "a default"),
    ("a count of nothing", [changed("roles.0.count", [{}])], "count[0]: needs path, const or minOf"),
    ("a count below nothing", [changed("roles.0.count", [{"const": -1}])], "must be a whole number from 0"),
    ("a place of dots", [changed("scale", "spec..size")], "adapters[0].scale: 'spec..size' is not a path"),
    ("a flag of text", [changed("zeroWhen", [{"path": "spec.x", "equals": None}])], "equals: must be true, false"),
    ("an end of nothing", [changed("finishedWhen", {})], "adapters[0].finishedWhen: needs conditions or phase"),
    ("a child without group", [changed("creates", ["Pod"])], "creates[0]: 'Pod' must be group/Kind"),
    ("code that nobody wrote", [changed("code", "magic")], "adapters[0].code: must be one of"),
    ("the same kind twice", [WIDGET, WIDGET], "adapters: widgets.example.com is declared twice"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "words"), [row[1:] for row in SLIPS], ids=[row[0] for row in SLIPS])
def test_a_declaration_is_refused_for(entries, words):
    with pytest.raises(DeclarationError) as caught:
        read_adapters(entries, "adapters", CODES)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_known_kinds_can_be_charged():
    with pytest.raises(DeclarationError, match=r"'deployment\.apps' is not a known kind, did you mean deployments\."):
        builtin_registry().with_charged(["deployment.apps"])


def test_a_version_of_other_paths_is_refused():
    with pytest.raises(Malformed, match=r"'example\.com/v2' is not supported for Widget: use v1"):
        count(workload("example.com/v2", "Widget", {}), registry=builtin_registry().extended([WIDGET]))


def test_every_declared_kind_has_a_name_of_its_own():
    resources = [adapter.resource for adapter in builtin_registry().adapters]
    assert len(resources) == len(set(resources))
