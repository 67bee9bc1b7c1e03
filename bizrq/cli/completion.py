"""Complete the names of groups in every shell."""

from __future__ import annotations

#: Seconds to wait for the cluster after Tab is pressed.
_PATIENCE = 2.0


def group_names(incomplete: str) -> list[str]:
    """Return the groups whose names begin so; none if the cluster cannot be asked, since Tab shows no error."""
    from bizrq.cli.cluster import DEFAULT_FLAGS, client_for, run_on
    from bizrq.cli.output.failure import Failure
    from bizrq.kube.client import KubeClient
    from bizrq.store.groups import GROUPS

    async def work(client: KubeClient) -> list[str]:
        items, _ = await client.list(GROUPS, timeout=_PATIENCE)
        names = (item["metadata"]["name"] for item in items)
        # No API server has another name, and a terminal would obey it.
        return [name for name in names if name.isprintable()]

    try:
        return [name for name in run_on(client_for(DEFAULT_FLAGS), work) if name.startswith(incomplete)]
    except Failure:
        return []
