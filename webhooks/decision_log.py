"""Say of a decision who asked for what: in the log of a refusal, and in the audit log of the API server.

This file alone decides which words of a review are kept, and how long they may be: anybody may have sent it.
"""

from __future__ import annotations

from typing import Any

from bizrq.api import group as wire
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Verdict
from bizrq.units.text import one_line
from bizrq.workloads.labels import group_of
from bizrq.workloads.validation import Malformed

#: The longest name, and the longest message, that is kept.
NAME, MESSAGE = 253, 1_000


def audited(request: Request, verdict: Verdict) -> dict[str, str]:
    """Return what the API server writes into its audit log: the group, if any, and the reason of a refusal."""
    found = {"group": _group(request, verdict)}
    if isinstance(verdict, Denied):
        found["reason"] = str(verdict.reason)
    return {key: value for key, value in found.items() if value}


def fields(request: Request) -> dict[str, Any]:
    """Return the fields of a log line about a review."""
    kind, user = request.resource, request.user_info
    plural = ".".join(filter(None, (kind.resource, kind.group)))
    return {
        "uid": _kept(request.uid),
        "user": _kept(user.username) if user is not None else "",
        "operation": request.operation,
        "object": "/".join(map(_kept, filter(None, (plural, request.namespace, request.name, request.sub_resource)))),
        **({"dry_run": True} if request.dry_run else {}),
    }


def refusal(request: Request, verdict: Denied) -> dict[str, Any]:
    """Return the fields of the log line about a refusal. Its message has figures that not every user reads."""
    told = {"group": _group(request, verdict), "reason": str(verdict.reason)}
    return {**fields(request), **told, "message": _kept(verdict.message, MESSAGE)}


def _group(request: Request, verdict: Verdict) -> str:
    """Return the group that the refusal is about, else the one that the object is, names or named; "" for none."""
    if isinstance(verdict, Denied) and verdict.figures is not None:
        return _kept(verdict.figures.group)
    if request.kind.kind == wire.KIND:
        return _kept(request.name)
    for obj in (request.object, request.old_object):
        try:
            if obj is not None and (group := group_of(obj)):
                return group
        except Malformed:
            # Its refusal says so.
            continue
    return ""


def _kept(text: str, longest: int = NAME) -> str:
    return one_line(text[:longest])
