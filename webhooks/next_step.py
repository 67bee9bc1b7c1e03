"""End a refusal for lack of quota with the next step: the command that explains it, and whom to ask.

This file alone decides which refusals end so, and with which command. A refusal of a bad object, or of a change that
only has to be sent again, says itself what to do.
"""

from __future__ import annotations

import re

from bizrq.api import group as wire
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Reason
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.owners import controller_of

#: The refusals of what would be admitted if the group had more left.
LACKING = frozenset({Reason.EXCEEDED, Reason.CASH})
#: People paste the command into a shell, so it has only what every API server takes as a name.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def with_next_step(request: Request, denied: Denied, group: str, contact: str, registry: Registry) -> Denied:
    """Return a refusal with `; run: COMMAND` and `; ask: CONTACT` where they help.

    `denied` is what the user is told: where it has no figures, the user may not see the group, and no command for it
    would help. `group` is the one that lacks quota, `contact` one line, or "" for none.
    """
    if denied.reason not in LACKING:
        return denied
    command = _of_workload(request, denied, registry)
    if command is None and denied.figures is not None and _NAME.fullmatch(group):
        command = group
    clauses = [f"run: kubectl bizrq explain {command}"] if command else []
    if contact:
        clauses.append(f"ask: {contact}")
    for clause in clauses:
        denied = denied.followed_by(clause)
    return denied


def _of_workload(request: Request, denied: Denied, registry: Registry) -> str | None:
    """Return what `explain` takes for the workload that lacks quota; None where it is not the one of the request."""
    if request.kind.kind == wire.KIND or denied.on_behalf_of or not _NAME.fullmatch(request.namespace):
        return None
    adapter = registry.by_resource(request.resource.group, request.resource.resource)
    name: object = request.name
    if adapter is None:
        return None
    if request.operation == "CREATE":
        owner = controller_of((request.object or {}).get("metadata"))
        if owner is None:
            # It is not stored, so that only its file can be explained.
            return f"-f FILE -n {request.namespace}"
        above, _ = group_and_version(owner.get("apiVersion"))
        adapter, name = registry.by_kind(above, str(owner.get("kind"))), owner.get("name")
    if adapter is None or not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    return f"{registry.word_for(adapter)}/{name} -n {request.namespace}"
