"""The prologue that all handlers share: which reviews are decided, and the refusals of what cannot be read.

Every path fails closed: a review that cannot be decided in time is refused with "try again".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, Unreachable
from bizrq.quota.verdict import Denied, Figures, Granted, Reason, Verdict
from bizrq.registration import ReviewEndpoint
from bizrq.workloads.validation import Malformed, expect_metadata
from webhooks.charging.deadline import Deadline
from webhooks.charging.later_objects import Judged

#: A refusal names this many objects that are in the way.
MAX_NAMED = 2
#: What messages call our own kinds and namespaces; any other kind is named as it is.
_NOUNS = {"BizGroupResourceQuota": "group", "BizGroupCorrection": "correction", "Namespace": "namespace"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict with warnings for the person who asks; `figures` says what the warnings are without figures, if any.

    `later` is what the object will make or grow to, as it would be decided now.
    """

    verdict: Verdict
    warnings: Sequence[str] = ()
    figures: Figures | None = None
    later: Sequence[Judged] = ()

    @property
    def told(self) -> list[str]:
        """Return the warnings, with those of later writes that would be refused."""
        return [*self.warnings, *(each.warning for each in self.later if each.warning)]


#: Decides a review until a deadline. Raises Malformed, ApiError, Unreachable.
Admit: TypeAlias = Callable[[Request, Deadline], Awaitable[Answer | Verdict]]


async def answer(endpoint: ReviewEndpoint, admit: Admit, request: Request, deadline: Deadline) -> Answer:
    """Answer a review of an endpoint; grant what the endpoint does not decide."""
    if request.operation not in endpoint.operations or request.sub_resource not in endpoint.sub_resources:
        return Answer(Granted())
    if (request.old_object if request.operation == "DELETE" else request.object) is None:
        carried = "oldObject" if request.operation == "DELETE" else "an object"
        return Answer(Denied(Reason.MALFORMED, f"a {request.operation} review must carry {carried}"))
    try:
        for obj in (request.object, request.old_object):
            if obj is not None:
                expect_metadata(obj)
        found = await admit(_named(request), deadline)
    except Malformed as error:
        return Answer(malformed(subject_of(request), error))
    except (ApiError, Unreachable) as error:
        return Answer(unread(endpoint.reads.format(subject_of(request)), error))
    return found if isinstance(found, Answer) else Answer(found)


def _named(request: Request) -> Request:
    """Return the request with the name of its object: the deletion of all objects of a kind names none."""
    if request.name or request.old_object is None:
        return request
    return replace(request, name=request.old_object["metadata"].get("name") or "")


def malformed(subject: str, error: Malformed) -> Denied:
    """Refuse an object that cannot be counted."""
    return Denied(Reason.MALFORMED, f"{subject}: {error}")


def unread(what: str, error: Exception) -> Denied:
    """Refuse for now what cannot be decided without reading an object."""
    return Denied(Reason.TIMEOUT, f"{what} could not be read, try again: {error}")


def subject_of(request: Request, kind: str = "") -> str:
    """Return the reviewed object's kind, namespace and name as messages have them."""
    kind = kind or request.kind.kind
    name = f"{request.namespace}/{request.name}" if request.namespace else request.name
    return f"{_NOUNS.get(kind, kind)} {name}"
