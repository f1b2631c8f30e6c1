"""Consumer groups of the cluster, cached for a few seconds; created on first use.

A group that reads lite topics is bound to one parent, by attributes with RocketMQ's names.
Source: SubscriptionGroupAttributes.
"""

import asyncio
from dataclasses import dataclass

from rockoon import Cluster
from rockoon.errors import GroupNotFound
from rockoon_core.group_settings import RETRY_ATTEMPTS_DEFAULT
from rockoon_gateway.clients.client_settings import GroupFacts
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType, Code
from rockoon_proto.v1.nameserver_pb2 import (
    CLASSIC,
    CONSUME_FROM_FIRST,
    EXACT,
    GroupConfig,
    StartPolicy,
)

# Clients see a changed configuration after this time.
CACHE_SECONDS = 5.0
CACHED_MAX = 100_000

BIND_TOPIC = "lite.bind.topic"
SUBSCRIPTION_MODEL = "lite.sub.model"
EXCLUSIVE = "exclusive"
CLIENT_QUOTA = "lite.sub.client.quota"
CLIENT_QUOTA_DEFAULT = 2000
# Limit of the field in which clients receive it.
CLIENT_QUOTA_MAX = (1 << 31) - 1

LITE_CLIENTS = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """Configuration of a consumer group that reads lite topics.

    Attributes:
        parent: the topic that it is bound to.
        quota: limit of one client's subscriptions.
        is_exclusive: whether a lite topic has one subscriber of the group, the last one.
    """

    parent: str
    quota: int
    is_exclusive: bool


def lite_group(config: GroupConfig) -> LiteGroup | None:
    """Parse a group's lite configuration; None for a group that reads no lite topics."""
    parent = config.attributes.get(BIND_TOPIC, "")
    if not parent:
        return None
    quota = config.attributes.get(CLIENT_QUOTA, "")
    return LiteGroup(
        parent=parent,
        quota=_number(quota),
        is_exclusive=config.attributes.get(SUBSCRIPTION_MODEL, "").lower() == EXCLUSIVE,
    )


def _number(quota: str) -> int:
    if not (quota.isascii() and quota.isdecimal()):
        return CLIENT_QUOTA_DEFAULT
    is_long = len(quota) > len(str(CLIENT_QUOTA_MAX))
    return CLIENT_QUOTA_MAX if is_long else min(int(quota), CLIENT_QUOTA_MAX)


def checked_lite_group(config: GroupConfig, parent: str) -> LiteGroup:
    """Return a group's lite configuration if it may read a parent's lite topics.

    Raises:
        Refusal: ILLEGAL_CONSUMER_GROUP, it is not bound to a parent, or not FIFO; ILLEGAL_TOPIC,
            it is bound to another parent.
    """
    found = lite_group(config)
    if found is None:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} reads no lite topics: it has no attribute {BIND_TOPIC}",
        )
    if found.parent != parent:
        raise Refusal(
            Code.ILLEGAL_TOPIC,
            f"group {config.name!r} is bound to {found.parent!r}, not {parent!r}",
        )
    if not config.fifo:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} is not FIFO, and lite topics are read in order",
        )
    return found


def check_plain_group(config: GroupConfig) -> None:
    """Raise Refusal, ILLEGAL_CONSUMER_GROUP, for a group that is bound to lite topics."""
    if (found := lite_group(config)) is not None:
        raise Refusal(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {config.name!r} reads the lite topics of {found.parent!r} only",
        )


def new_lite_group(name: str, parent: str) -> GroupConfig:
    """Return the configuration of a new group, which reads each lite topic from its beginning."""
    return GroupConfig(
        name=name,
        fifo=True,
        new_queue_rule=EXACT,
        start_policy=StartPolicy(consume_from=CONSUME_FROM_FIRST),
        attributes={BIND_TOPIC: parent},
    )


class CachedGroups:
    """Caches the configuration of consumer groups, and creates groups on first use.

    Args:
        create: whether missing groups are created.
    """

    def __init__(self, cluster: Cluster, *, create: bool) -> None:
        self._cluster = cluster
        self._create = create
        self._known: dict[str, tuple[float, GroupConfig]] = {}
        # One request per group at a time.
        self._requesting: dict[str, asyncio.Lock] = {}

    async def plain(self, name: str) -> GroupConfig:
        """Return the configuration of a group that is not bound to lite topics.

        Raises:
            Refusal: ILLEGAL_CONSUMER_GROUP, it is bound to lite topics.
            GroupNotFound: it does not exist, and is not to be created.
            RockoonError: no nameserver replied.
        """
        # New topics are read from their beginning, old ones from their end, like RocketMQ's proxy.
        config = await self._config(GroupConfig(name=name, new_queue_rule=CLASSIC))
        check_plain_group(config)
        return config

    async def lite(self, name: str, parent: str) -> LiteGroup:
        """Return the lite configuration of a group; a new group is bound to the parent.

        Raises:
            Refusal: see `checked_lite_group`.
            GroupNotFound, RockoonError: see `plain`.
        """
        return checked_lite_group(await self._config(new_lite_group(name, parent)), parent)

    async def _config(self, wanted: GroupConfig) -> GroupConfig:
        """Return a group's configuration; a missing group is created as `wanted`."""
        name = wanted.name
        known = self._cached(name)
        if known is not None:
            return known
        lock = self._requesting.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                known = self._cached(name)
                return known if known is not None else await self._request(wanted)
        finally:
            if not lock.locked():
                self._requesting.pop(name, None)

    async def facts(self, name: str, lite_parent: str = "") -> GroupFacts:
        """Return a group's settings for clients. Raises like `plain` and `lite`.

        Args:
            lite_parent: topic whose lite topics the client reads; empty if it reads none.
        """
        if lite_parent:
            await self.lite(name, lite_parent)
            config = await self._config(new_lite_group(name, lite_parent))
        else:
            config = await self.plain(name)
        lite = lite_group(config)
        return GroupFacts(
            fifo=config.fifo,
            retry_attempts_max=(
                config.retry_attempts_max
                if config.HasField("retry_attempts_max")
                else RETRY_ATTEMPTS_DEFAULT
            ),
            retry_delays_ms=tuple(config.retry_delays_ms),
            lite_topics_max=lite.quota if lite is not None else 0,
        )

    def _cached(self, name: str) -> GroupConfig | None:
        since, config = self._known.get(name, (0.0, None))
        now = asyncio.get_running_loop().time()
        return config if config is not None and now - since < CACHE_SECONDS else None

    async def _request(self, wanted: GroupConfig) -> GroupConfig:
        name, admin = wanted.name, self._cluster.admin
        try:
            config = (await admin.get_group(name)).group.config
        except GroupNotFound:
            if not self._create:
                raise
            config = (await admin.create_group(wanted, if_absent=True)).config
        while len(self._known) >= CACHED_MAX:
            del self._known[next(iter(self._known))]
        self._known.pop(name, None)
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._known[name] = (now, config)
        loop.call_later(CACHE_SECONDS, self._expire, name, now)
        return config

    def _expire(self, name: str, since: float) -> None:
        """Remove an expired configuration, if it has not been replaced."""
        if name in self._known and self._known[name][0] == since:
            del self._known[name]
