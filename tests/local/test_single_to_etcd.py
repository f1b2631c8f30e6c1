"""A client keeps its connection while routes move from a file to etcd and back."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import rockoon
from rockoon.local.cluster import LocalCluster
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS


def has_queues(client: rockoon.Cluster, count: int) -> bool:
    """Whether a client knows this number of queues."""
    return len(client.routes.topics["kept"].queues) == count


async def test_a_client_receives_each_change_that_is_made_after_a_move(tmp_path: Path) -> None:
    """The revisions that it has cached stay valid: etcd repeats them with the same content."""
    async with asyncio.timeout(3 * DEADLINE_SECONDS), AsyncExitStack() as opened:
        client: rockoon.Cluster | None = None
        for added, is_single in enumerate((True, False, True)):
            async with LocalCluster(tmp_path, single=is_single) as local:
                if client is None:
                    client = rockoon.connect(local.nameservers)
                    await opened.enter_async_context(client)
                    await client.admin.create_topic("kept", queues_per_broker=1)
                    await client.admin.create_topic("deleted", queues_per_broker=1)
                    await client.route("kept")
                    await client.route("deleted")
                    continue
                topics, before = client.routes.topics, client.routes.revision
                async with rockoon.connect(local.nameservers) as other:
                    if added == 2:
                        await other.admin.delete_topic("deleted")
                    await other.admin.update_topic("kept", add={"broker-a": 1})
                await eventually(partial(has_queues, client, 1 + added))
                assert ("deleted" in topics) == (added < 2)
                assert client.routes.revision > before
