"""Whether quota is enforced now, and whether the counts are current: what people should know first.

`look_at_webhooks` alone reads what that takes, and `troubles` alone judges it. What a person may not read is unknown;
then the condition `Enforced` of the groups counts, which the controller's leader sets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bizrq.figures.state import probe
from bizrq.figures.words import duration, few

if TYPE_CHECKING:
    from bizrq.api.enforcement import Stale
    from bizrq.api.group import GroupObject
    from bizrq.kube.client import KubeClient

#: Seconds to wait for each answer about the webhooks.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Admission:
    """What is known of the webhooks; None where it is not. `said` is what the API server says instead of an answer."""

    registered: bool | None = None
    answers: bool | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason why what groups say may not be what the cluster does. `reason` is stable."""

    reason: str
    message: str


NOT_ENFORCED, NO_ANSWER, STALE = "NotEnforced", "WebhooksDoNotAnswer", "CountsStale"


async def look_at_webhooks(client: KubeClient, namespace: str | None = None) -> Admission:
    """Return what can be known of the webhooks. `namespace` is for a dry run of a workload, by default the context's.

    Raise Unreachable where the API server does not answer at all.
    """
    registered, probed = await asyncio.gather(_registered(client), _probed(client, namespace or client.namespace))
    return Admission(registered, probed.asked, "" if probed.asked else probed.said)


async def _registered(client: KubeClient) -> bool | None:
    from bizrq.kube.client import ApiError
    from bizrq.store import registered

    try:
        return registered.has_entries(await registered.stored(client))
    except ApiError:
        return None


async def _probed(client: KubeClient, namespace: str) -> probe.Probed:
    """Return whether a dry run reaches a webhook: that of a group, else that of a workload."""
    from bizrq.kube.client import Unreachable

    try:
        found = await probe.of_groups(client, PATIENCE)
        return found if found.asked is not None else await probe.of_workloads(client, namespace, PATIENCE)
    except Unreachable as error:
        if not error.sent:
            raise
        return probe.Probed(False, str(error))


def troubles(admission: Admission, groups: Sequence[GroupObject], now: int, pause: str = "") -> list[Trouble]:
    """Return why these groups may not be what the cluster enforces, the worst first; `now` is in milliseconds.

    `pause` says what the marker of a pause says, "" where it is not known; groups may say it, too.
    """
    from bizrq.api.enforcement import PAUSED, is_stated, stale, stated, while_paused

    found: list[Trouble] = []
    registered = is_stated(groups) if admission.registered is None else admission.registered
    if admission.answers:
        # A webhook of ours has just refused something.
        registered = True
    if registered is False:
        said = stated(groups)
        why = "the webhooks are not registered, so nothing is refused"
        if pause:
            why = while_paused(pause)
        elif said is not None and said.reason == PAUSED:
            why = said.message
        found.append(Trouble(NOT_ENFORCED, f"quota is not enforced: {why}"))
    elif admission.said == probe.ACCEPTED:
        found.append(Trouble(NOT_ENFORCED, f"quota is not enforced: the API server does not ask, {admission.said}"))
    elif admission.answers is False:
        found.append(Trouble(NO_ANSWER, f"the webhooks do not answer: {admission.said}"))
    if late := stale(groups, now):
        found.append(Trouble(STALE, _stale_message(late, len(groups))))
    return found


def _stale_message(late: Stale, every: int) -> str:
    ago = f"recounted {duration(late.seconds)} ago"
    if len(late.groups) == 1:
        return f"the counts of {late.groups[0]} are stale: {ago}"
    return f"the counts of {len(late.groups)} of {every} groups are stale: {few(late.groups)}; the oldest was {ago}"


async def troubles_of(client: KubeClient, groups: Sequence[GroupObject], namespace: str | None = None) -> list[Trouble]:
    """Return the troubles of these groups now; `namespace` is for a dry run of a workload. Raise Unreachable."""
    return troubles(await look_at_webhooks(client, namespace), groups, int(time.time() * 1000))
