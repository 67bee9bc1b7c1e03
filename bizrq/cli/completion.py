"""Completion: names of groups for every shell."""

from __future__ import annotations

#: Seconds that somebody who presses Tab waits for a cluster.
_PATIENCE = 2.0


def group_names(incomplete: str) -> list[str]:
    """The groups of the cluster that begin so; none where it cannot be asked, since nobody asked for an error."""
    from bizrq.cli.cluster import HERE, ask, client_for
    from bizrq.cli.output.failure import Failure
    from bizrq.kube.client import KubeClient
    from bizrq.store.groups import GROUPS

    async def work(client: KubeClient) -> list[str]:
        items, _ = await client.list(GROUPS, timeout=_PATIENCE)
        return [item["metadata"]["name"] for item in items]

    try:
        return [name for name in ask(client_for(HERE), work) if name.startswith(incomplete)]
    except Failure:
        return []
