"""What is wrong with a cluster, and what to do: pure functions from a `State` to findings.

This file alone decides that. Each check says nothing of what is as it should be.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from bizrq import registration
from bizrq.api import overlap, priority
from bizrq.cli import manifests_of_bizrq as made
from bizrq.cli.doctor.state import Object, State, key_of
from bizrq.cli.installation.configuration import requires_use
from bizrq.cli.installation.stored_flags import asks_for_certificate
from bizrq.cli.rbac import CERTS, CONTROLLER, WEBHOOKS
from bizrq.figures.state.reader import MissingRight, Unknown
from bizrq.figures.words import few
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS, REGISTRATIONS
from bizrq.kube.lease import LEASES
from bizrq.store.processes import ProcessInfo
from bizrq.store.processes import digest as digest_of
from bizrq.units.text import by_number, counted
from webhooks import label_policy

#: The oldest minor version of Kubernetes that bizrq runs on.
OLDEST = (1, 30)
#: Seconds by which clocks may differ. A Lease is renewed every 2 seconds and lasts for 15.
SKEW = 5.0
#: bizrq-certs renews a CA in the last third of its year.
RENEWED = timedelta(days=20)
#: Names that a line lists.
_FEW = 5
_PROCESSES = (WEBHOOKS, CONTROLLER, CERTS)
#: Kinds of what bizrq up makes besides CRDs.
_MADE_BY_UP = (REGISTRATIONS.kind, POLICIES.kind, POLICY_BINDINGS.kind)
_AGAIN = "run bizrq install with the flags of your installation"
_BY_HAND = 'apply the objects of this version again: docs/operations.md, "Outside the cluster"'


class Grade(StrEnum):
    """How bad a finding is. A notice is a choice that may be meant."""

    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong or unknown, and what to do about it."""

    check: str
    what: str
    fix: str
    grade: Grade = Grade.PROBLEM


def findings(state: State, checks: tuple[Callable[[State], Iterator[Finding]], ...]) -> list[Finding]:
    return [finding for check in checks for finding in check(state)]


def version(state: State) -> Iterator[Finding]:
    if state.version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding("version", f"Kubernetes is {state.version_text}", f"upgrade it to {oldest} or newer")


def unknown(state: State) -> Iterator[Finding]:
    """Sum up what could not be looked at: one finding for each verb that is missing, and for each other reason."""
    by_verb: dict[str, list[Unknown]] = {}
    by_reason: dict[str, list[Unknown]] = {}
    for each in state.unknown:
        if each.lacking:
            by_verb.setdefault(each.lacking.verb, []).append(each)
        else:
            by_reason.setdefault(each.why, []).append(each)
    for verb, found in by_verb.items():
        rights = sorted({each.lacking for each in found if each.lacking})
        what = f"{_counted([each.what for each in found])}: you may not {verb} {_resources(rights)}"
        yield Finding("not checked", what, "run the command as an administrator of the cluster", Grade.UNKNOWN)
    fix = "mend what it names, and run the command again"
    for why, found in [*by_reason.items()][:_FEW]:
        yield Finding("not checked", f"{_counted([each.what for each in found])}: {why}", fix, Grade.UNKNOWN)
    if (more := len(by_reason) - _FEW) > 0:
        yield Finding("not checked", f"more, for {more} other reasons", fix, Grade.UNKNOWN)


def _counted(whats: list[str]) -> str:
    return ", ".join(whats) if len(whats) <= _FEW else f"{len(whats)} things, such as {whats[0]}"


def _resources(rights: Iterable[MissingRight]) -> str:
    """Name the resources of rights, those of the cluster first."""
    found: dict[str, list[str]] = {}
    for right in rights:
        found.setdefault(right.namespace, []).append(right.resource)
    return "; ".join(
        ", ".join(names) + (f" in namespace {namespace}" if namespace else "")
        for namespace, names in sorted(found.items())
    )


def served(state: State) -> Iterator[Finding]:
    flow = [each for each in state.unserved if "flowcontrol" in each]
    if flow:
        yield Finding("API priority", f"not served: {', '.join(flow)}", "install with --no-api-priority", Grade.NOTICE)
    if others := [each for each in state.unserved if each not in flow]:
        yield Finding("version", f"not served: {', '.join(others)}", "switch these APIs on in the API server")


def rights(state: State) -> Iterator[Finding]:
    fix = "run bizrq install as cluster-admin" if not state.wanted else f"{_again(state)}: that gives the roles again"
    if state.lacking:
        yield Finding("rights", few(state.lacking), fix)


def objects(state: State) -> Iterator[Finding]:
    """Compare what is stored with what this version installs, field by field that install sets."""
    if not state.is_installed:
        if state.unread:
            return
        yield Finding("installation", "bizrq is not installed", "run bizrq doctor --pre, then bizrq install")
        return
    missing, different, unprioritized = [], [], []
    for wanted in _expected(state):
        kind, namespace, name = key_of(wanted)
        stored = state.get(kind, name, namespace)
        if (kind, namespace, name) in state.unread or (state.pause and kind == REGISTRATIONS.kind):
            continue
        if stored is None:
            optional = kind in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount")
            if kind in priority.KINDS:
                unprioritized.append(name)
            elif state.runs_here or not optional:
                missing.append(f"{kind} {name}")
        elif state.knows_config and not _has(stored, _compared(wanted)):
            different.append(f"{kind} {name}")
    again = _again(state)
    if missing:
        yield Finding("installation", f"missing: {few(missing)}", again)
    if different:
        why = "differ from what this version of bizrq installs"
        yield Finding("installation", f"{why}: {few(different)}", f"{again}, or use the bizrq of that version")
    if unprioritized:
        yield Finding(
            "API priority",
            f"missing: {few(unprioritized)}; a flood of requests can keep bizrq from writing",
            'run bizrq install without --no-api-priority: docs/operations.md, "API priority"',
            Grade.NOTICE,
        )


def _again(state: State) -> str:
    """Return how what is installed comes to be as this version has it."""
    if state.up:
        return "start bizrq up again"
    return _BY_HAND if state.runs_outside else _AGAIN


def _expected(state: State) -> Iterable[Object]:
    """Return what should be there. Of bizrq up, with a configuration that nobody can read here, that is less."""
    if state.up is None:
        return state.wanted
    names = {overlap.NAME}
    if state.up.config == digest_of(state.config or ""):
        names |= {label_policy.NAME, registration.NAME}
    return [
        each
        for each in state.wanted
        if each["kind"] == "CustomResourceDefinition"
        or (each["kind"] in _MADE_BY_UP and each["metadata"]["name"] in names)
    ]


def by_up(state: State) -> Iterator[Finding]:
    if state.up:
        what = "bizrq up runs here: one process, without the roles, guards and API priority of bizrq install"
        yield Finding("installation", what, "run bizrq install where more than a trial depends on it", Grade.NOTICE)


def paused(state: State) -> Iterator[Finding]:
    if state.pause is None:
        return
    yield Finding("paused", f"{state.pause}; nothing is checked", "run bizrq resume when the reason is gone")
    if state.registration is not None:
        what = "bizrq is paused, and the webhooks are registered all the same"
        yield Finding("paused", what, "run bizrq pause again, or bizrq resume")


def flow_schemas(state: State) -> Iterator[Finding]:
    for wanted in state.wanted:
        stored = state.stored.get(key_of(wanted)) if wanted["kind"] in priority.KINDS else None
        for condition in _of(stored or {}, "status").get("conditions") or ():
            if condition.get("type") == "Dangling" and condition.get("status") == "True":
                what = f"{wanted['kind']} {wanted['metadata']['name']} names a level that does not exist"
                yield Finding("API priority", what, _AGAIN)


def processes(state: State) -> Iterator[Finding]:
    """Compare the Deployments with their pods, with each other and with the configuration."""
    if not state.runs_here:
        return
    found = {name: state.get("Deployment", name, state.namespace) for name in _PROCESSES}
    stored = {name: each for name, each in found.items() if each is not None}
    for name, deployment in stored.items():
        yield from _replicas(state.namespace, name, deployment)
    images = {name: _container(deployment).get("image", "") for name, deployment in stored.items()}
    if len(set(images.values())) > 1:
        listed = ", ".join(f"{name} {image}" for name, image in images.items())
        yield Finding("versions", f"the processes have different images: {listed}", _AGAIN)
    digest = digest_of(state.config or "") or None
    for name in (WEBHOOKS, CONTROLLER):
        if state.knows_config and name in stored and _digest(stored[name]) != digest:
            yield Finding("configuration", f"{name} runs with another one than configmap/{made.CONFIG} has", _AGAIN)
    if WEBHOOKS in stored and _of(stored[WEBHOOKS], "spec").get("replicas", 1) < 2:
        fix = "run bizrq install --replicas 2: without a webhook nothing is admitted"
        yield Finding("replicas", f"one replica of {WEBHOOKS}", fix, Grade.NOTICE)


def configuration(state: State) -> Iterator[Finding]:
    if state.config_error:
        fix = "run bizrq install --config FILE with a file that is mended; a process does not start with this one"
        yield Finding("configuration", state.config_error, fix)


def skew(state: State) -> Iterator[Finding]:
    """Compare what the running processes say of themselves, wherever they run."""
    versions = _by(state.running, lambda info: info.version)
    if len(versions) > 1:
        fix = "start them all with one version" if state.runs_outside else _AGAIN
        yield Finding("versions", f"processes of different versions run: {_told(versions)}", fix)
    configs = _by((each for each in state.running if each.process != CERTS), lambda info: info.config)
    if len(configs) > 1:
        fix = "restart them with one configuration: the controller, then the webhooks"
        yield Finding("configuration", f"processes run with different configurations: {_told(configs)}", fix)


def _by(running: Iterable[ProcessInfo], key: Callable[[ProcessInfo], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for info in running:
        found.setdefault(key(info), []).append(f"{info.process} {info.identity.partition('_')[0]}")
    return found


def _told(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{value or 'none'}: {few(names)}" for value, names in sorted(found.items()))


def _replicas(namespace: str, name: str, deployment: Object) -> Iterator[Finding]:
    wanted = _of(deployment, "spec").get("replicas", 1)
    status = _of(deployment, "status")
    ready, updated = status.get("readyReplicas") or 0, status.get("updatedReplicas") or 0
    look = f"kubectl -n {namespace} describe pods, and kubectl -n {namespace} logs deployment/{name}, say why"
    if wanted == 0:
        fix = f"kubectl -n {namespace} scale deployment/{name} --replicas=2"
        yield Finding("replicas", f"{name} is scaled to 0", fix)
    elif ready < wanted:
        yield Finding(
            "replicas", f"{ready} of {counted(wanted, 'pod')} of {name} {by_number(ready, 'is', 'are')} ready", look
        )
    elif updated < wanted:
        older = wanted - updated
        what = f"{older} of {counted(wanted, 'pod')} of {name} {by_number(older, 'is', 'are')} of an older version"
        yield Finding("replicas", what, look)


def reachability(state: State) -> Iterator[Finding]:
    if state.registration is not None and state.not_asked:
        fix = f"kubectl -n {state.namespace} get pods,endpointslices shows whether one is ready; if so, look at "
        fix += "NetworkPolicies and at the way from the API server to pods"
        yield Finding("reachability", f"the API server does not get an answer of the webhooks: {state.not_asked}", fix)


def bundles(state: State) -> Iterator[Finding]:
    """Read the CAs by which the API server trusts the webhooks. The last of several to expire counts."""
    from certs.pki import CertificateError, read_certificates

    webhooks = (state.registration or {}).get("webhooks") or ()
    texts: dict[str, list[str]] = {}
    for webhook in webhooks:
        texts.setdefault(str(_of(webhook, "clientConfig").get("caBundle") or ""), []).append(webhook["name"])
    fix = f"kubectl -n {state.namespace} logs deployment/{CERTS} says why it writes none"
    for text, names in texts.items():
        if not text:
            yield Finding("certificates", f"no caBundle: {few(names)}", fix)
            continue
        try:
            found = read_certificates(base64.b64decode(text, validate=True), "the caBundle")
        except (CertificateError, binascii.Error, ValueError):
            yield Finding("certificates", f"the caBundle is no certificate: {few(names)}", fix)
            continue
        expires = max(each.not_valid_after_utc for each in found)
        if expires < state.now + RENEWED:
            when = "has expired" if expires <= state.now else f"expires at {expires.isoformat()}"
            yield Finding("certificates", f"the CA of the webhooks {when}", fix)
    if len(texts) > 1:
        yield Finding("certificates", f"webhooks have {len(texts)} different caBundles", fix)


def lease(state: State) -> Iterator[Finding]:
    if state.registration is None and not state.runs_here:
        return
    logs = f"kubectl -n {state.namespace} get pods, and logs deployment/{CONTROLLER}, say why"
    if (LEASES.kind, state.namespace, CONTROLLER) in state.unread:
        return
    if not state.lease.holder:
        yield Finding("leader", "no controller leads, so nothing is counted", logs)
    elif not state.lease.is_renewed:
        yield Finding("leader", f"the controller {state.lease.holder} does not renew its Lease", logs)


def clocks(state: State) -> Iterator[Finding]:
    fix = "set it by NTP"
    if state.ahead is not None and abs(state.ahead) > SKEW:
        yield Finding("clocks", f"the clock of this machine is {_off(state.ahead)} the API server's", fix)
    if state.lease.ahead is not None and abs(state.lease.ahead) > SKEW:
        what = f"the clock of controller {state.lease.holder} is {_off(state.lease.ahead)} the API server's"
        yield Finding("clocks", what, f"{fix}: hours are counted by it")


def groups(state: State) -> Iterator[Finding]:
    for status, what in (("False", "cannot be counted, so nothing in them may grow"), (None, "are not counted yet")):
        names = [each["metadata"]["name"] for each in state.groups if _ready(each) == status]
        if names:
            fix = "kubectl get bizrq -o wide, and bizrq describe GROUP, say why"
            yield Finding("groups", f"{what}: {few(names)}", fix)


def open_to_all(state: State) -> Iterator[Finding]:
    if state.runs_here and state.knows_config and not requires_use(state.config or ""):
        what = "rights.use is off: who may create workloads in any namespace may charge every group"
        yield Finding("rights", what, 'state rights.use in --config: docs/rights.md, "New installations"', Grade.NOTICE)


def who_may_ask(state: State) -> Iterator[Finding]:
    deployment, policy = (
        state.get("Deployment", WEBHOOKS, state.namespace),
        ("NetworkPolicy", state.namespace, WEBHOOKS),
    )
    if deployment is None or policy in state.stored or policy in state.unread:
        return
    if not asks_for_certificate(_container(deployment)):
        what = "the webhooks ask for no client certificate, so whoever reaches their port can forge reviews"
        fix = "install with --client-ca and --client-name, or with --api-server-cidr: "
        yield Finding("who may ask", what, f'{fix}docs/operations.md, "Who may ask"', Grade.NOTICE)


BEFORE = (version, served, rights, clocks, unknown)
INSTALLED = (
    version,
    paused,
    by_up,
    objects,
    configuration,
    processes,
    skew,
    rights,
    reachability,
    bundles,
    lease,
    clocks,
    flow_schemas,
    groups,
    open_to_all,
    who_may_ask,
    unknown,
)


def _compared(wanted: Object) -> Object:
    """Return the fields of an object that no flag of install and no other process decides."""
    kind = wanted["kind"]
    if kind in ("Deployment", "ConfigMap", "Namespace"):
        return {}
    if kind == "ValidatingWebhookConfiguration":
        return {"webhooks": [{k: v for k, v in each.items() if k != "clientConfig"} for each in wanted["webhooks"]]}
    if kind.startswith("ValidatingAdmissionPolicy") or kind in priority.KINDS or kind == "CustomResourceDefinition":
        return {"spec": wanted["spec"]}
    return {key: value for key, value in wanted.items() if key != "metadata"}


def _has(stored: object, wanted: object) -> bool:
    """Return whether a stored value has all of a wanted one. An API server adds defaults, and drops empty values."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(
            _has(stored.get(key), value) for key, value in wanted.items() if value not in ({}, [], "", None)
        )
    if isinstance(wanted, list):
        return isinstance(stored, list) and len(stored) == len(wanted) and all(map(_has, stored, wanted))
    return stored == wanted


def _of(obj: Object, field: str) -> dict[str, Any]:
    found = obj.get(field)
    return found if isinstance(found, dict) else {}


def _container(deployment: Object) -> Object:
    containers = _of(_of(_of(deployment, "spec"), "template"), "spec").get("containers") or [{}]
    return containers[0]


def _digest(deployment: Object) -> str | None:
    annotations = _of(_of(_of(_of(deployment, "spec"), "template"), "metadata"), "annotations")
    return annotations.get(made.CONFIG_DIGEST)


def _ready(group: Object) -> str | None:
    conditions = _of(group, "status").get("conditions") or ()
    return next((each.get("status") for each in conditions if each.get("type") == "Ready"), None)


def _off(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"
