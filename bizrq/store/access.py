"""Reviews: ask the API server about a user's rights, and who the user of a client is.

This file alone decides how a right on a group is asked for. It does not know which change needs which right.
"""

from __future__ import annotations

from typing import Any

import structlog

from bizrq.api.group import API_GROUP, PLURAL
from bizrq.api.review import UserInfo
from bizrq.kube.client import KubeClient, Resource

log = structlog.get_logger(__name__)

ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
SELF_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
WHO_AM_I = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


class SubjectAccessReviewer:
    """Ask about any user, by SubjectAccessReview."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def may(self, user: UserInfo | None, verb: str, group: str, timeout: float) -> bool:
        if user is None or not (user.username or user.groups):
            return False
        about = {
            "user": user.username,
            "groups": user.groups or [],
            "uid": user.uid,
            "extra": user.extra or {},
        }
        status = await _review(self._client, ACCESS_REVIEWS, about, verb, group, timeout)
        if problem := status.get("evaluationError"):
            log.warning("rights could not all be evaluated", user=user.username, verb=verb, group=group, error=problem)
        return _is_allowed(status)


class SelfAccessReviewer:
    """Ask about the user of the client, by SelfSubjectAccessReview, which every user may create."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def may(self, user: UserInfo | None, verb: str, group: str, timeout: float) -> bool:
        """Answer for the user of the client, without regard to `user`."""
        return await self_may(self._client, verb, PLURAL, group, timeout)


async def self_may(client: KubeClient, verb: str, plural: str, name: str, timeout: float) -> bool:
    """Return True if the user of the client may do this with an object of ours, or with all of a kind for ""."""
    return _is_allowed(await _review(client, SELF_REVIEWS, {}, verb, name, timeout, plural))


async def _review(
    client: KubeClient,
    kind: Resource,
    about: dict[str, Any],
    verb: str,
    name: str,
    timeout: float,
    plural: str = PLURAL,
) -> dict[str, Any]:
    attributes = {"group": API_GROUP, "resource": plural, "name": name, "verb": verb}
    review = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "spec": {**about, "resourceAttributes": attributes},
    }
    answer = await client.create(kind, review, timeout=timeout)
    return answer.get("status") or {}


def _is_allowed(status: dict[str, Any]) -> bool:
    return status.get("allowed") is True and status.get("denied") is not True


async def whoami(client: KubeClient) -> str:
    """Return the user's name as the API server knows it. Raise ApiError or Unreachable."""
    wanted = {"apiVersion": WHO_AM_I.api_version, "kind": WHO_AM_I.kind, "metadata": {}}
    review = await client.create(WHO_AM_I, wanted)
    return review["status"]["userInfo"]["username"]
