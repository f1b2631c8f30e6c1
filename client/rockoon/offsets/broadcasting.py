"""Broadcasting: every member of a group reads all messages and has its own progress.

A member's progress is stored under its id. The id must be the same at every start of this reader,
and different for every reader. The group's setting `broadcast_progress` selects where progress is
stored: on the members' machines, or in the offset service.
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from rockoon.errors import InvalidArgument, MemberIdTaken, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.offset_store import OffsetStore, Persisted, RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig
from rockoon_proto.v1.offset_pb2 import BROADCASTING, CLUSTERING, ConsumeMode

log = limited(logging.getLogger(__name__))

MEMBER_VARIABLE = "ROCKOON_MEMBER"
# Pod names of a Kubernetes StatefulSet, which are the same after a restart.
ORDINAL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*-\d{1,4}")
# A killed process remains a member until its lease ends.
FORMER_SELF_SECONDS_MAX = 30.0

Mode = Literal["clustering", "broadcasting"]
_MODES = {"clustering": CLUSTERING, "broadcasting": BROADCASTING}


def mode_named(name: str) -> ConsumeMode:
    """Return the mode with a name: "clustering" or "broadcasting".

    Raises:
        InvalidArgument: the name is neither.
    """
    mode = _MODES.get(name)
    if mode is None:
        raise InvalidArgument(reason=f"mode is {name!r}; there are {', '.join(_MODES)}")
    return mode


def member_id_of(
    cluster: Connection,
    mode: ConsumeMode,
    member_id: str | None,
    *,
    environment: Mapping[str, str] = os.environ,
    host_name: str | None = None,
) -> str:
    """Return the id of a member.

    For a broadcasting member it is the first of: `member_id`, the connection's client id if the
    program has set one, the environment variable ROCKOON_MEMBER, the host name if it ends in an
    ordinal as in a StatefulSet ("billing-0"). Otherwise the id is unique to this start.

    Args:
        cluster: the connection, whose client id is the basis of other ids.
        mode: mode of the member.
        member_id: id set by the program, if any.
        environment, host_name: of this process.
    """
    if member_id:
        return member_id
    if mode == CLUSTERING:
        return f"{cluster.client_id}@{secrets.token_hex(2)}"
    if cluster.client_id_is_given:
        return cluster.client_id
    if name := environment.get(MEMBER_VARIABLE):
        return name
    host_name = host_name or socket.gethostname()
    return host_name if ORDINAL_NAME.fullmatch(host_name) else cluster.client_id


def store_of(cluster: Connection, group: str, mode: ConsumeMode, member_id: str) -> OffsetStore:
    """Return the default store for a member's progress."""
    if mode == CLUSTERING:
        return RemoteOffsetStore(cluster, group, member_id)
    return BroadcastOffsetStore(cluster, group, member_id)


class BroadcastOffsetStore:
    """Progress of a broadcasting member, stored where its group's setting says; an `OffsetStore`.

    The setting is read once, when the consumer starts.

    Args:
        cluster: the connection to the offset service.
        group: the group.
        member_id: id of the member.
    """

    def __init__(self, cluster: Connection, group: str, member_id: str) -> None:
        self.config: GroupConfig | None = None
        """Configuration of the group; must be set before `load`."""
        self.in_service = False
        """Whether the offset service stores the progress."""
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._store: OffsetStore | None = None

    async def load(self) -> None:
        """Open the store that the group's setting selects.

        Raises:
            InvalidArgument: the offset service stores the progress, and this member's id would be
                another one after a restart.
            StoreLocked, StoreCorrupt, StoreNotWritable: as `LocalFileOffsetStore.load`.
        """
        assert self.config is not None, "the consumer subscribes before it loads"
        self.in_service = self.config.broadcast_progress == BROADCAST_SERVER
        is_nameless = self._member_id == self._cluster.client_id
        is_nameless = is_nameless and not self._cluster.client_id_is_given
        if self.in_service:
            if is_nameless:
                raise InvalidArgument(
                    reason=f"group {self._group!r} stores the progress of each member under the "
                    "member's id, and this member has no id that is the same at every start: "
                    f"set `member_id` or {MEMBER_VARIABLE}, or use a host name that ends in an "
                    "ordinal, as in a StatefulSet"
                )
            self._store = RemoteOffsetStore(self._cluster, self._group, self._member_id, own=True)
        else:
            from rockoon.offsets.local_offsets import LocalFileOffsetStore

            if is_nameless:
                log.warning(
                    "a broadcasting member of group %s has no fixed id: after a restart its "
                    "progress is not found and it starts by policy. Set a `member_id`, or a "
                    "`client_id` of the connection, that is the same at every start",
                    self._group,
                )
            self._store = LocalFileOffsetStore(self._cluster, self._group, self._member_id)
        await self._store.load()

    @property
    def _opened(self) -> OffsetStore:
        assert self._store is not None, "the store is loaded before its use"
        return self._store

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> Mapping[MessageQueue, Start | RockoonError]:
        return await self._opened.resolve(queues, consume_from, route_revision)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self._opened.update(queue, offset, increase_only=increase_only)

    def read_memory(self, queue: MessageQueue) -> int | None:
        return self._opened.read_memory(queue)

    async def read_store(self, queue: MessageQueue) -> int | None:
        return await self._opened.read_store(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._opened.read(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._opened.persist(queues)

    async def persist_all(self) -> Persisted:
        return await self._opened.persist_all()

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._opened.release(queues)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await self._opened.commit(queue, offset)

    def remove(self, queue: MessageQueue) -> None:
        self._opened.remove(queue)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return self._opened.clone(topic)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


def tell_group(store: OffsetStore, config: GroupConfig) -> None:
    """Pass the group's configuration to a store that depends on it."""
    if isinstance(store, BroadcastOffsetStore):
        store.config = config


def kept_by_service(store: OffsetStore) -> bool:
    """Return whether the offset service has the store's progress, so that resets reach it."""
    return isinstance(store, RemoteOffsetStore) or (
        isinstance(store, BroadcastOffsetStore) and store.in_service
    )


def join_seconds_max(error: RockoonError, mode: ConsumeMode, usual_seconds: float) -> float:
    """Return how long joining is retried after an error, in seconds; 0 for no retry.

    A broadcasting member has a fixed id: a live member with that id is most likely this reader's
    former process.
    """
    if mode == BROADCASTING and isinstance(error, MemberIdTaken):
        return FORMER_SELF_SECONDS_MAX
    return usual_seconds if error.retriable else 0.0
