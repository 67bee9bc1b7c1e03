"""Completion: names of groups for every shell."""

from __future__ import annotations

#: Seconds that somebody who presses Tab waits for a cluster.
_PATIENCE = 2.0


def group_names(incomplete: str) -> list[str]:
    """The groups of the cluster that begin so; none where it cannot be asked, since nobody asked for an error."""
    from bizrq.cli.cluster import DEFAULT_FLAGS, client_for, run_on
    from bizrq.cli.output.failure import Failure
    from bizrq.kube.client import KubeClient
    from bizrq.store.groups import GROUPS

    async def work(client: KubeClient) -> list[str]:
        items, _ = await client.list(GROUPS, timeout=_PATIENCE)
        return [item["metadata"]["name"] for item in items]

    try:
        return [name for name in run_on(client_for(DEFAULT_FLAGS), work) if name.startswith(incomplete)]
    except Failure:
        return []
