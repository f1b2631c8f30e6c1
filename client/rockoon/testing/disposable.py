"""A cluster for tests: small files in a temporary directory, plain and async connections."""

import asyncio
import re
import secrets
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from rockoon.local.cluster import LocalCluster
from rockoon.local.node_maker import Settings

if TYPE_CHECKING:
    from rockoon.cluster import Cluster
    from rockoon.net.access import AccessKey
    from rockoon.net.tls import Tls
    from rockoon.sync import Cluster as SyncCluster

TOPIC_NAME_BYTES_MAX = 100

Result = TypeVar("Result")


class DisposableCluster(LocalCluster):
    """A `LocalCluster` in a temporary directory, with connections for tests.

    Args:
        nameservers: number of nameservers.
        brokers: number of brokers.
        settings, tls, access, single: as in `LocalCluster`.
    """

    def __init__(
        self,
        *,
        nameservers: int = 1,
        brokers: int = 1,
        settings: Mapping[str, Settings] | None = None,
        tls: str = "off",
        access: bool = False,
        single: bool = False,
    ) -> None:
        # Each broker allocates a whole log file: small files leave room for tests.
        broker: Settings = {"commit_log_file_bytes": 64 << 20}
        given = dict(settings or {})
        super().__init__(
            nameservers=nameservers,
            brokers=brokers,
            settings={**given, "broker": {**broker, **given.get("broker", {})}},
            tls=tls,
            access=access,
            single=single,
        )

    def connect(self, access: "AccessKey | None" = None) -> "DualConnection":
        """Return a connection for `with` or `async with`.

        Args:
            access: access key; None uses the cluster's own key, if it has one.
        """
        return DualConnection(self.nameservers, self.tls, access or self.access)

    def new_topic(self, hint: str = "topic", queues_per_broker: int = 4) -> str:
        """Create a topic with a unique name.

        Args:
            hint: start of the name; characters that a topic cannot have are replaced.
            queues_per_broker: number of queues on every broker.

        Returns:
            Its name.
        """
        stem = re.sub(r"[^a-zA-Z0-9_-]+", "-", hint).strip("-")[:TOPIC_NAME_BYTES_MAX]
        name = f"{stem or 'topic'}-{secrets.token_hex(4)}"

        async def create() -> None:
            async with self.connect() as cluster:
                await cluster.admin.create_topic(name, queues_per_broker=queues_per_broker)

        run_in_thread(create())
        return name

    def start_stopped(self) -> None:
        """Start the nodes that a test has killed or stopped, and wait until they are ready."""
        stopped = [node.name for node in self.nodes if not node.running]
        for name in stopped:
            self.start(name, wait=False)
        self.wait_ready_blocking()


class DualConnection:
    """Connection to a cluster for plain and for async tests."""

    def __init__(
        self,
        nameservers: list[str],
        tls: "Tls | None" = None,
        access: "AccessKey | None" = None,
    ) -> None:
        self._nameservers = nameservers
        self._tls = tls
        self._access = access
        self._open: Cluster | None = None
        self._open_sync: SyncCluster | None = None

    async def __aenter__(self) -> "Cluster":
        from rockoon.cluster import connect

        self._open = connect(self._nameservers, tls=self._tls, access=self._access)
        return await self._open.__aenter__()

    async def __aexit__(self, *failure: Any) -> None:
        assert self._open is not None
        await self._open.__aexit__(*failure)

    def __enter__(self) -> "SyncCluster":
        from rockoon.sync import connect

        self._open_sync = connect(self._nameservers, tls=self._tls, access=self._access)
        return self._open_sync.__enter__()

    def __exit__(self, *failure: Any) -> None:
        assert self._open_sync is not None
        self._open_sync.__exit__(*failure)


def run_in_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a separate thread and loop: the caller may be in a running loop."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()
