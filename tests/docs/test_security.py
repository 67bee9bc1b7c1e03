"""SECURITY.md, held against the rights that the processes get."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.docs.test_docs import page

#: By account, the verbs on each resource.
Rights = dict[str, dict[str, set[str]]]
READ = {"get", "list", "watch"}
BY_ALL = {"tokenreviews", "subjectaccessreviews"}


def granted() -> tuple[Rights, list[dict[str, Any]]]:
    """What deploy/rbac.yaml gives, and its rules."""
    documents = list(yaml.safe_load_all(page("deploy/rbac.yaml")))
    rules = {(d["kind"], d["metadata"]["name"]): d["rules"] for d in documents if d["kind"].endswith("Role")}
    found: Rights = {}
    for binding in documents:
        for subject in binding.get("subjects", ()):
            reference = binding["roleRef"]
            for rule in rules[reference["kind"], reference["name"]]:
                for resource in rule["resources"]:
                    found.setdefault(subject["name"], {}).setdefault(resource, set()).update(rule["verbs"])
    return found, [rule for role in rules.values() for rule in role]


def test_the_page_has_every_right_to_write_of_every_account() -> None:
    found, _ = granted()
    rows = re.findall(r"^\| `(bizrq-\w+)` \| (.*?) \|", page("SECURITY.md"), re.MULTILINE)
    told = {
        account: {resource: set(verbs.split(", ")) for resource, verbs in re.findall(r"`([\w/]+)` \(([^)]*)\)", text)}
        for account, text in rows
    }
    assert told == {
        account: {r: verbs - READ for r, verbs in rights.items() if verbs - READ and r not in BY_ALL}
        for account, rights in found.items()
    }
    assert all({"create"} == rights[resource] for rights in found.values() for resource in BY_ALL)


def test_no_account_may_do_what_the_page_says_that_none_may() -> None:
    """Create workloads, give rights, impersonate, or read a Secret but one."""
    found, rules = granted()
    for rights in found.values():
        for resource, verbs in rights.items():
            assert "*" not in verbs | {resource}
            assert not verbs & {"impersonate", "bind", "escalate", "approve", "sign", "deletecollection"}
            if resource in ("pods", "deployments", "roles", "clusterroles", "rolebindings", "serviceaccounts/token"):
                assert verbs <= READ, resource
    secrets = [rule for rule in rules if "secrets" in rule.get("resources", ())]
    assert [rule.get("resourceNames") for rule in secrets if set(rule["verbs"]) & READ] == [["bizrq-certs"]]
