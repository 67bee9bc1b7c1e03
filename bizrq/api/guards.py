"""The policies that keep people away from what bizrq alone writes, and each of its accounts to its own task.

The API server applies these ValidatingAdmissionPolicies itself, so they hold while the webhooks are down. RBAC cannot
say what they say: it knows neither fields nor who else holds a right (docs/rights.md, "What bizrq alone writes"). Who
has the verb `maintain` on a kind may write its status, and may write and delete its records: the accounts of bizrq, the
role for restoring a backup, and whoever holds all verbs.
"""

from __future__ import annotations

from typing import Final

from bizrq.api import corrections, policies
from bizrq.api.group import API_GROUP, FINALIZER, PLURAL
from bizrq.api.overlap import BUILT_IN
from bizrq.api.policies import Object

#: The verb of the right to write what bizrq alone writes. No Kubernetes verb has the name.
MAINTAIN: Final = "maintain"
#: The role to bind while a backup is restored.
RESTORE_ROLE: Final = "bizrq-restore"
#: The names of the policies, and of their bindings.
STATUS, RECORDS, GROUPS, REGISTRATION = "bizrq-status", "bizrq-records", "bizrq-groups", "bizrq-registration"
LEADER, LEASES = "bizrq-leader", "bizrq-leases"
SPENT: Final = "bizrq-spent-hours"
#: How the names of the journals begin (docs/reservations.md, "Allowances").
JOURNALS: Final = "bizrq-webhooks-journal-"

#: The name and the label of our registration.
_OURS, _LABEL = "bizrq", "app.kubernetes.io/name"
_OF_REGISTRATIONS: Final = policies.rule(
    "admissionregistration.k8s.io", ["validatingwebhookconfigurations"], "CREATE", "UPDATE", "DELETE"
)

#: The CEL expression for a request whose user has the verb on the kind and name that it writes. A request that deletes
#: a whole collection has no name.
MAY_MAINTAIN: Final = (
    f"authorizer.group('{API_GROUP}').resource(request.resource.resource).name(request.?name.orValue(''))"
    f".check('{MAINTAIN}').allowed()"
)
_HOW_TO: Final = f"to restore a backup, bind the ClusterRole {RESTORE_ROLE} to yourself"


def guards(
    controller: str, certs: str, webhooks: str, *, service: tuple[str, str], webhook_url: str = ""
) -> list[Object]:
    """Return the policies, each followed by its binding. The accounts are user names.

    `service` is the name and namespace of the webhooks' Service, `webhook_url` another address where they are.
    """
    found: list[Object] = []
    leader = _leader(controller, service, webhook_url)
    leases = _leases(controller, certs, webhooks)
    for policy in (_status(), _records(), _spent(), _groups(controller), _registration(certs), leader, leases):
        found += [policy, policies.binding(policy["metadata"]["name"])]
    return found


def _status() -> Object:
    return policies.policy(
        STATUS,
        [policies.rule(API_GROUP, ["*/status"], "UPDATE")],
        [_forbidden(MAY_MAINTAIN, f"bizrq alone writes the status of its objects; {_HOW_TO}")],
    )


def _records() -> Object:
    """Guard every kind of ours but the two that people write, such as records of hours, payers and statements.

    Kubernetes' own controllers delete them with the group, and may migrate them to another version.
    """
    people = policies.rule(API_GROUP, [PLURAL, corrections.PLURAL], "*")
    return policies.policy(
        RECORDS,
        [policies.rule(API_GROUP, ["*"], "CREATE", "UPDATE", "DELETE")],
        [_forbidden(MAY_MAINTAIN, f"bizrq alone writes and deletes its records and statements; {_HOW_TO}")],
        excluded=[people],
        conditions={"not-by-kubernetes": f"!{BUILT_IN}"},
    )


def _spent() -> Object:
    """Keep the finalizer: a group that ends without it does not leave to its parent the hours that it has spent."""
    there = f".metadata.?finalizers.orValue([]).exists(f, f == '{FINALIZER}')"
    message = f"bizrq alone removes the finalizer {FINALIZER}, once the parent has the group's hours; {_HOW_TO}"
    return policies.policy(
        SPENT,
        [policies.rule(API_GROUP, [PLURAL], "UPDATE")],
        [_forbidden(f"!oldObject{there} || object{there} || {MAY_MAINTAIN}", message)],
    )


def _groups(controller: str) -> Object:
    """Keep the controller's account to its finalizer: an owner, too, would end a group."""
    others = f".orValue([]).filter(f, f != '{FINALIZER}')"
    same = [
        "object.spec == oldObject.spec",
        *_same_metadata("labels", "annotations", "ownerReferences"),
        f"object.metadata.?finalizers{others} == oldObject.metadata.?finalizers{others}",
    ]
    message = f"bizrq-controller changes nothing of a group but its status and its finalizer {FINALIZER}"
    return policies.policy(
        GROUPS,
        [policies.rule(API_GROUP, [PLURAL], "CREATE", "UPDATE", "DELETE")],
        [_forbidden("request.operation == 'UPDATE' && " + " && ".join(same), message)],
        conditions={"by-the-controller": f"request.userInfo.username == '{controller}'"},
    )


def _registration(certs: str) -> Object:
    """Keep the account of bizrq-certs to the caBundles: it could switch off a webhook, or send its reviews away."""
    fields = (
        *("name", "rules", "failurePolicy", "matchPolicy", "sideEffects", "timeoutSeconds"),
        *("?namespaceSelector", "?objectSelector", "?matchConditions", "admissionReviewVersions"),
        *("clientConfig.?url", "clientConfig.?service"),
    )
    kept = " && ".join(f"n.{field} == o.{field}" for field in fields)
    webhooks, before = "object.?webhooks.orValue([])", "oldObject.?webhooks.orValue([])"
    same = [
        f"{webhooks}.size() == {before}.size()",
        f"{webhooks}.all(n, {before}.exists(o, {kept}))",
        *_same_metadata("labels", "annotations", "ownerReferences", "finalizers"),
    ]
    message = "bizrq-certs changes nothing of a registration but the caBundles of its webhooks"
    return policies.policy(
        REGISTRATION,
        [_OF_REGISTRATIONS],
        [_forbidden("request.operation == 'UPDATE' && " + " && ".join(same), message)],
        conditions={"by-certs": f"request.userInfo.username == '{certs}'"},
    )


def _leader(controller: str, service: tuple[str, str], webhook_url: str) -> Object:
    """Keep the controller's account to our registration, and its reviews to our webhooks.

    It decides which requests are reviewed. It deletes nothing, and trusts no other CA than bizrq-certs has written.
    """
    name, namespace = service
    ours = (
        f"w.clientConfig.?service.?name.orValue('') == {name!r} && "
        f"w.clientConfig.?service.?namespace.orValue('') == {namespace!r}"
    )
    if webhook_url:
        ours = f"({ours}) || w.clientConfig.?url.orValue('').startsWith({webhook_url.rstrip('/') + '/'!r})"
    webhooks = "object.?webhooks.orValue([])"
    before = "(request.operation == 'UPDATE' ? oldObject.?webhooks.orValue([]) : [])"
    bundle = "clientConfig.?caBundle"
    labelled = f"metadata.?labels[?'{_LABEL}'].orValue('') == '{_OURS}'"
    owners = "object.metadata.?ownerReferences.orValue([])"
    asked = [
        "request.operation != 'DELETE'",
        f"object.metadata.name == '{_OURS}' && object.{labelled}",
        f"(request.operation == 'CREATE' || oldObject.{labelled})",
        f"{webhooks}.all(w, w.name.endsWith('.{API_GROUP}') && ({ours}))",
        f"{webhooks}.all(w, {before}.exists(o, o.name == w.name) "
        f"? {before}.exists(o, o.name == w.name && o.{bundle} == w.{bundle}) : !has(w.clientConfig.caBundle))",
        f"{owners}.all(o, o.kind == 'ClusterRole')",
        "object.metadata.?finalizers.orValue([]).size() == 0",
    ]
    message = f"bizrq-controller writes the registration {_OURS} alone, for bizrq's own webhooks, without caBundles"
    return policies.policy(
        LEADER,
        [_OF_REGISTRATIONS],
        [_forbidden(" && ".join(asked), message)],
        conditions={"by-the-controller": f"request.userInfo.username == '{controller}'"},
    )


def _leases(*users: str) -> Object:
    """Keep each account to Leases of its own name: one could stop the controller, or speak for another process."""
    name = "request.?name.orValue('')"
    own = [
        f"(request.userInfo.username == '{user}' && ({name} == '{account}' || {name}.startsWith('{account}-')))"
        for user in users
        for account in [user.rpartition(":")[2]]
    ]
    controller = next(user for user in users if user.endswith(":bizrq-controller"))
    own.append(f"(request.userInfo.username == '{controller}' && {name}.startsWith('{JOURNALS}'))")
    ours = ", ".join(f"'{user}'" for user in users)
    message = (
        "the accounts of bizrq write only Leases with their own name, or with it and a dash before more; "
        "the controller also writes journals of webhooks"
    )
    return policies.policy(
        LEASES,
        [policies.rule("coordination.k8s.io", ["leases"], "CREATE", "UPDATE", "DELETE")],
        [_forbidden(" || ".join(own), message)],
        conditions={"by-bizrq": f"request.userInfo.username in [{ours}]"},
    )


def _same_metadata(*fields: str) -> list[str]:
    return [f"object.metadata.?{field} == oldObject.metadata.?{field}" for field in fields]


def _forbidden(expression: str, message: str) -> Object:
    return {"expression": expression, "message": message, "reason": "Forbidden"}
