"""Whether manifests would be admitted now, by the configuration that the cluster runs with.

`dry_run.py` decides; this file says with which settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.figures.simulate.dry_run import DryRun
from bizrq.figures.simulate.in_memory import Fetch
from bizrq.figures.simulate.installed import UnknownSettings, installed_settings
from bizrq.figures.simulate.manifest import in_namespace
from bizrq.figures.simulate.outcome import DryRunOutcome
from bizrq.kube.client import KubeClient
from bizrq.settings import Settings, load


async def fit(
    client: KubeClient,
    groups: Iterable[GroupObject],
    documents: Sequence[Any],
    namespace: str,
    settings: Settings | None = None,
    *,
    fetch: Fetch | None = None,
) -> list[DryRunOutcome]:
    """Return an outcome for each manifest that admission reviews. Raise NoAnswer, ApiError or Unreachable.

    `namespace` is for manifests that set none. Without `settings` those of the installation count, where the user may
    read them; else an answer that depends on them is unknown. `fetch` reads a group that is not among `groups`; without
    it there is no other.
    """
    here = [in_namespace(document, namespace) for document in documents]
    found = settings if settings is not None else await installed_settings(client)
    unknown, known = (found, load(None)) if isinstance(found, UnknownSettings) else (None, found)
    return await DryRun(client, known, groups, here, unknown=unknown, fetch=fetch).outcomes()
