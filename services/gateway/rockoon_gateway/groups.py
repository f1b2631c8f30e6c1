"""Groups: consumer groups as the cluster has them, remembered for a moment; made if missing."""

import asyncio

from rockoon import Cluster
from rockoon.errors import GroupNotFound
from rockoon_core.group_settings import RETRY_ATTEMPTS_DEFAULT
from rockoon_gateway.clients.settings_answer import GroupFacts
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig

# A changed group is another one for clients after so long.
REMEMBER_SECONDS = 5.0
REMEMBERED_MAX = 100_000


class Groups:
    """Looks groups up.

    Args:
        cluster: the connection.
        create: whether those that are not there are created.
    """

    def __init__(self, cluster: Cluster, *, create: bool) -> None:
        self._cluster = cluster
        self._create = create
        self._known: dict[str, tuple[float, GroupConfig]] = {}
        # Keeps one group from being asked for twice at once.
        self._asking: dict[str, asyncio.Lock] = {}

    async def config(self, name: str) -> GroupConfig:
        """A group's configuration.

        Raises:
            GroupNotFound: there is none, and none is to be created.
            RockoonError: nobody can tell.
        """
        known = self._remembered(name)
        if known is not None:
            return known
        lock = self._asking.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                known = self._remembered(name)
                return known if known is not None else await self._ask(name)
        finally:
            if not lock.locked():
                self._asking.pop(name, None)

    async def facts(self, name: str) -> GroupFacts:
        """What clients are told of a group; errors as of `config`."""
        config = await self.config(name)
        return GroupFacts(
            fifo=config.fifo,
            retry_attempts_max=(
                config.retry_attempts_max
                if config.HasField("retry_attempts_max")
                else RETRY_ATTEMPTS_DEFAULT
            ),
            retry_delays_ms=tuple(config.retry_delays_ms),
        )

    def _remembered(self, name: str) -> GroupConfig | None:
        since, config = self._known.get(name, (0.0, None))
        now = asyncio.get_running_loop().time()
        return config if config is not None and now - since < REMEMBER_SECONDS else None

    async def _ask(self, name: str) -> GroupConfig:
        admin = self._cluster.admin
        try:
            config = (await admin.get_group(name)).group.config
        except GroupNotFound:
            if not self._create:
                raise
            # A young topic from its beginning, an old one from its end, as RocketMQ's proxy does.
            wanted = GroupConfig(name=name, new_queue_rule=CLASSIC)
            config = (await admin.create_group(wanted, if_absent=True)).config
        while len(self._known) >= REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known.pop(name, None)
        self._known[name] = (asyncio.get_running_loop().time(), config)
        return config
